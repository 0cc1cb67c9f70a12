"""Parts of a file: cut for ``batchclient enqueue --parts``, done by ``batchclient work``.

Rules:
- A part is a range of bytes that begins and ends at line ends. Its name follows from the range.
- A part is written beside its place under a name of its own, synced, and linked into its place. A
  file that is there is never replaced: of two workers the first seals the part.
- Where the first rows fail for the worker's fault, such as a refused key, nothing is sealed; nor is
  anything where row after row fails by errors that may pass. The part is then done again.
- A worker reads and writes below one folder alone: whoever may write to the stream chooses paths.
- The input is plain JSONL or text: in CSV and gzip no byte tells where a row begins.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from batchclient.cli._prompts import Prompts
from batchclient.cli._refusal import CALLS, NOT_FIELDS, Refusal, named
from batchclient.cli._rows import added_by, blame, to_line
from batchclient.client import BatchClient
from batchclient.errors import (
    AuthenticationFailed,
    BatchClientError,
    CertificateRefused,
    ClientClosed,
    ConnectFailed,
    NotFound,
)
from batchclient.jobs.output import reason_of, sync, sync_folder
from batchclient.jobs.rows import Format
from batchclient.jobs.source import Source, open_source

__all__ = ["PartRunner", "part_messages"]

_PART = "{part}"
_CHUNK_BYTES = 1024 * 1024
_WRITE_BYTES = 256 * 1024
_CHANGED = "the file is another than the one that was enqueued"
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""How file systems say that they have no hard links."""
_OF_THE_WORKER = (AuthenticationFailed, CertificateRefused, NotFound, ConnectFailed)
_MOST_ALIKE = 20
"""So many rows, failed one after the other by errors that may pass, are no part to be sealed."""


def part_messages(
    source: str, form: Format | None, rows: int, output: str, row_call: Mapping[str, Any], *, resume: bool
) -> Iterator[Mapping[str, Any]]:
    """Check an input, and return the messages of its parts.

    Args:
        source: the input's path.
        form: its form, if given.
        rows: lines of a part; the last part may have fewer.
        output: the path of a part's file, with ``{part}`` in its name.
        row_call: how each row is asked: ``prompt``, ``system``, ``row_call``, ``params``.
        resume: whether parts whose file is there are left out; else they are refused.

    Raises:
        Refusal: the input cannot be cut, or a path is wrong.
    """
    if _PART not in Path(output).name:
        raise Refusal(f"--output: put {_PART} into the file's name, as in out/{_PART}.jsonl")
    if source == "-":
        raise Refusal("--parts: IN is read by the workers; give a file that they see under the same path")
    try:
        with open_source(source, form) as opened:
            opened.first()
            found = opened.form
            start = os.pread(opened.file.fileno(), 2, 0)
            size = os.fstat(opened.file.fileno()).st_size
            is_regular = opened.is_regular
    except OSError as error:
        raise Refusal(f"{named(source, 'IN')}: {reason_of(error)}") from None
    if not is_regular or start == b"\x1f\x8b" or found == "csv":
        kind = "CSV" if found == "csv" else "gzip" if is_regular else "a pipe"
        raise Refusal(f"--parts: {source} is {kind}, which is not cut at a byte; give plain JSONL or text")
    path, place = str(Path(source).resolve()), str(Path(output).resolve())
    common = {**row_call, "input": path, "size": size, "format": found or "text"}
    return _messages(path, size, rows, place, common, resume=resume)


def _messages(
    path: str, size: int, rows: int, output: str, common: Mapping[str, Any], *, resume: bool
) -> Iterator[Mapping[str, Any]]:
    for start, end in _ranges(path, size, rows):
        part = f"{start:015d}-{end:015d}"
        place = Path(output.replace(_PART, part))
        if place.exists():
            if resume:
                continue
            raise Refusal(f"{place}: the file exists; --resume leaves out the parts that are there")
        yield {
            "id": f"{Path(path).name}:{part}",
            "call": "part",
            **common,
            "start": start,
            "end": end,
            "output": str(place),
        }


def _ranges(path: str, size: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of so many lines each; together they are the file."""
    start = at = lines = 0
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while at < size and (chunk := file.read(min(_CHUNK_BYTES, size - at))):
            place = -1
            while (place := chunk.find(b"\n", place + 1)) >= 0:
                lines += 1
                if lines == rows:
                    yield start, at + place + 1
                    start, lines = at + place + 1, 0
            at += len(chunk)
    if start < at:
        yield start, at


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    start: int
    end: int
    size: int
    form: Format
    output: Path
    prompt: str
    system: str | None
    call: str
    params: Mapping[str, Any]


class PartRunner:
    """Does parts with a client.

    Args:
        under: the folder that inputs and outputs lie in.
    """

    def __init__(self, under: Path) -> None:
        self._under = under.resolve()

    def __repr__(self) -> str:
        return f"<PartRunner below {self._under}>"

    async def __call__(self, client: BatchClient, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do a part; return what a manifest needs: the file, its rows, bytes and hash.

        Raises:
            ValueError: the message is no part, or its input has changed.
            OSError: a file cannot be read or written.
            BatchClientError: the servers refuse row after row.
        """
        part = self._read(body)
        if part.output.exists():
            return await asyncio.to_thread(_of_sealed, part.output)
        if not part.path.is_file() and part.path.exists():
            raise ValueError(f"{part.path} is no file")  # a pipe would wait for its writer
        with open(part.path, "rb", buffering=0) as file:  # noqa: ASYNC230, PTH123  # opens at once
            if os.fstat(file.fileno()).st_size != part.size:
                raise ValueError(f"{part.path}: {_CHANGED}")
            part.output.parent.mkdir(parents=True, exist_ok=True)
            beside = part.output.with_name(f".{part.output.name}.{secrets.token_hex(4)}.part")
            try:
                with open(beside, "xb", buffering=0) as written:  # noqa: ASYNC230, PTH123
                    told = await _write_rows(client, part, file, written)
                    await asyncio.to_thread(sync, written.fileno())
                if not await asyncio.to_thread(_seal, beside, part.output):
                    return await asyncio.to_thread(_of_sealed, part.output)
            finally:
                beside.unlink(missing_ok=True)
        return {"output": str(part.output), **told}

    def _read(self, body: Mapping[str, Any]) -> _Part:
        try:
            part = _Part(
                path=Path(body["input"]).resolve(),
                start=body["start"],
                end=body["end"],
                size=body["size"],
                form=body["format"],
                output=Path(body["output"]).resolve(),
                prompt=body["prompt"],
                system=body.get("system"),
                call=body["row_call"],
                params=dict(body.get("params") or {}),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the part lacks {error}, or has it in a wrong form") from None
        numbers = (part.start, part.end, part.size)
        if any(type(number) is not int for number in numbers) or not 0 <= part.start < part.end <= part.size:
            raise ValueError("the part's start, end and size are no range of bytes")
        if part.form not in ("jsonl", "text") or part.call not in CALLS:
            raise ValueError("the part's format is jsonl or text, and its row_call a call of map")
        if wrong := NOT_FIELDS.keys() & part.params.keys():
            raise ValueError(f"{min(wrong)} is no field of a row's call")
        for path in (part.path, part.output):
            if not path.is_relative_to(self._under):
                raise ValueError(f"{path} is not below {self._under}, the folder of --parts-under")
        return part


async def _write_rows(client: BatchClient, part: _Part, file: IO[bytes], written: IO[bytes]) -> dict[str, Any]:
    """Ask the rows of a part, and write them in their order."""
    try:
        prompts = Prompts(part.prompt, part.call, part.system)
    except Refusal as refusal:
        raise ValueError(str(refusal)) from None
    source = Source(
        str(part.path),
        file,  # type: ignore[arg-type]
        part.form,
        reserved=added_by(part.call, part.params),
        part=(part.start, part.end),
        closes=False,
    )
    results = client.stream_map(source.rows(), blame(prompts.function()), call=part.call, ordered=True, **part.params)  # type: ignore[call-overload]
    rows = failed = alike = size = 0
    digest, lines = hashlib.sha256(), bytearray()

    async def flush() -> None:
        data = bytes(lines)
        lines.clear()
        digest.update(data)
        await asyncio.to_thread(_write_all, written, data)

    try:
        async for result in results:
            rows += 1
            if result.error is None:
                alike = 0
            else:
                failed += 1
                alike = alike + 1 if _may_pass(result.error) else 0
                if isinstance(result.error, ClientClosed) or alike >= _MOST_ALIKE:
                    raise result.error
                if rows == failed and isinstance(result.error, _OF_THE_WORKER):
                    raise result.error
            line = to_line(result)
            size += len(line)
            lines += line
            if len(lines) >= _WRITE_BYTES:
                await flush()
        await flush()
    finally:
        await results.aclose()
    if file.tell() != part.end:
        raise ValueError(f"{part.path}: {_CHANGED}")
    return {"rows": rows, "failed": failed, "bytes": size, "sha256": digest.hexdigest()}


def _may_pass(error: Exception) -> bool:
    """Whether the same row may succeed later, perhaps at another worker."""
    return isinstance(error, _OF_THE_WORKER) or (isinstance(error, BatchClientError) and error.retryable)


def _write_all(file: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _seal(beside: Path, place: Path) -> bool:
    """Put a file that is whole into its place; return whether the place was free."""
    try:
        os.link(beside, place)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if place.exists():
            return False
        beside.rename(place)
    sync_folder(place.parent)
    return True


def _of_sealed(place: Path) -> dict[str, Any]:
    """Describe a part that was sealed before, by this or another worker."""
    digest, rows, size = hashlib.sha256(), 0, 0
    with place.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            rows += chunk.count(b"\n")
            size += len(chunk)
    return {"output": str(place), "rows": rows, "bytes": size, "sha256": digest.hexdigest(), "was_sealed": True}
