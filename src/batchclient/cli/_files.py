"""Files: a command reads rows from one. Another takes its rows (``jobs.output``).

Rules:
- Nothing is read whole. A regular file is read as rows are asked for. A pipe or a terminal, where a
  read may take for ever, is read in a thread, and so holds up no answer.
- The first usable row is read before anything is sent: a wrong template or a wrong column is
  refused.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from batchclient.cli._other_files import ARRAY_ADVICE, advice_for, begins_array
from batchclient.cli._refusal import Refusal
from batchclient.cli._rows import ADDED, Format, LineSplitter, Row, make_row

__all__ = ["Source", "count_lines", "open_source"]

_CHUNK_BYTES = 256 * 1024
_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text"}
_LINES_TO_FIRST_ROW = 100
"""Unusable lines to read at the start, at most. Further ones are read as rows are asked for."""


class Source:
    """The rows of one input.

    Args:
        name: for messages.
        file: unbuffered.
        form: the form of a line; ``None``: the first line with more than blanks decides.
        added: the fields of the output beside those of a row.
        most: rows to read, at most, faulty rows included; ``None`` for all.
    """

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        form: Format | None,
        added: Sequence[str] = ADDED,
        most: int | None = None,
    ) -> None:
        self.name = name
        self.file = file
        self.form = form
        self._added = added
        self._most = most
        self.taken = 0
        self.is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        self._splitter = LineSplitter()
        self._lines: deque[tuple[int, bytes | None]] = deque()
        self._rows: deque[Row] = deque()
        self._ended = False

    def __repr__(self) -> str:
        return f"<Source {self.name}: {self._splitter!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.file.close()

    def first(self) -> Row | None:
        """Read up to the first row with fields and return the row, which stays in ``rows``.

        The call may wait for the input.

        Raises:
            Refusal: the input cannot be read, or is one JSON array.
        """
        try:
            for row in self._read_rows():
                self._rows.append(row)
                if row or row.fault is None:
                    return row
                if len(self._rows) >= _LINES_TO_FIRST_ROW:
                    break
        except OSError as error:
            raise Refusal(f"{self.name}: {_reason(error)}") from None
        return None

    def rows(self) -> Iterable[Row] | AsyncIterator[Row]:
        """Return all rows; iterating reads the input. An ``OSError`` of the input is passed on."""
        return self._read_rows() if self.is_regular else self._read_rows_in_thread()

    def count(self) -> int:
        """Count the rows, for a regular file also the unread ones. No row can be read afterwards."""
        if self.is_regular:
            for _ in self._read_rows():
                pass
        return self.taken

    def _read_rows(self) -> Iterator[Row]:
        while True:
            yield from self._take()
            if self._ended:
                return
            self._feed(self._read())

    async def _read_rows_in_thread(self) -> AsyncIterator[Row]:
        while True:
            for row in self._take():
                yield row
            if self._ended:
                return
            self._feed(await _in_thread(self._read))

    def _take(self) -> Iterator[Row]:
        """Yield and forget the rows of the lines read so far."""
        # Set aside at once: ``first`` puts rows back while it reads.
        rows, self._rows = self._rows, deque()
        yield from rows
        while self._lines:
            number, line = self._lines.popleft()
            if not self.taken and self.form != "text" and line is not None and begins_array(line):
                raise Refusal(f"{self.name}: {ARRAY_ADVICE}")
            if self.form is None and line and not line.isspace():
                self.form = "jsonl" if line.lstrip().startswith(b"{") else "text"
            row = make_row(number, line, self.form or "text", self._added)
            if row is not None:
                self.taken += 1
                if self.taken == self._most:
                    # Before the row is handed out: whoever takes it may not come back.
                    self._lines.clear()
                    self._ended = True
                yield row

    def _feed(self, chunk: bytes) -> None:
        if chunk:
            self._lines.extend(self._splitter.feed(chunk))
        else:
            self._ended = True
            self._lines.extend(self._splitter.end())

    def _read(self) -> bytes:
        return self.file.read(_CHUNK_BYTES) or b""


def _in_thread(work: Callable[[], bytes]) -> asyncio.Future[bytes]:
    # Not the event loop's own threads: the loop waits for them at its end, and a read may take
    # for ever.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes] = loop.create_future()

    def tell(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        setter: Callable[[Any], None]
        value: Any
        try:
            setter, value = future.set_result, work()
        except Exception as error:  # raised where the future is awaited
            setter, value = future.set_exception, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, setter, value)

    threading.Thread(target=run, daemon=True, name="batchclient-reader").start()
    return future


def open_source(path: str, form: Format | None, added: Sequence[str] = ADDED, most: int | None = None) -> Source:
    """Open an input; ``-`` is stdin.

    Args:
        path, form, added, most: as for ``Source``.

    Raises:
        Refusal: there is no such file, the file cannot be read, or its ending tells no form.
    """
    if not path:
        raise Refusal("IN is empty; give a path, or - for stdin")
    if path == "-":
        # Read below Python's buffer: a thread waiting in the buffer keeps the interpreter alive.
        return Source("stdin", open(sys.stdin.fileno(), "rb", buffering=0, closefd=False), form, added, most)
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115, PTH123  # the source closes the file
    except OSError as error:
        # A directory cannot be opened either; its message says so.
        raise Refusal(f"{path}: {_reason(error)}") from None
    ending = Path(path).suffix.lower()
    if form is None and ending:
        form = _FORMATS.get(ending)
        if form is None and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            unknown = (
                f"the ending {ending!r} tells no form of lines; if each line is a row, give --format jsonl or text"
            )
            raise Refusal(f"{path}: {advice_for(path, _FORMATS) or unknown}")
    return Source(path, file, form, added, most)


def count_lines(path: str, most: int | None = None) -> int:
    """Count the lines of a file, blank ones too. A gigabyte takes less than a second.

    Args:
        path: of the file.
        most: the number to stop at.
    """
    lines, last = 0, b"\n"
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while (most is None or lines < most) and (chunk := file.read(4 * _CHUNK_BYTES)):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    lines += last != b"\n"
    return lines if most is None else min(lines, most)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
