r"""Rows: lines of bytes to documents, results to lines of bytes. No files here, and no client.

Rules:
- A line ends at ``\n`` and nowhere else: U+2028 and the like may stand inside a JSON string. A
  ``\r`` before the ``\n`` and a byte-order mark before the first line are dropped. Blank lines are
  skipped. Lines are numbered from 1, blank ones too.
- An unusable line is a row with a fault. The job goes on; the row of the output is
  ``{"line": N, "error": {…}}``.
- A row of the output has the fields of the input and the fields added by the call (``ADDED_BY``).
  An input with an added field is at fault: two values have one name.
- A vector's numbers have the nine digits needed to read a 32-bit float back unchanged.
- The output is JSON by the standard: no NaN, no infinity.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from batchclient.types import Classification, Completion, Embedding, MapResult, Usage

__all__ = [
    "ADDED",
    "ADDED_BY",
    "BadRow",
    "Format",
    "LineSplitter",
    "Row",
    "blame",
    "make_row",
    "message_of",
    "to_line",
]

Format = Literal["jsonl", "text"]

ADDED = ("completion", "finish_reason", "usage", "error")
"""The fields added, beside ``id``, where each row is completed."""
ADDED_BY: Mapping[str, tuple[str, ...]] = {
    "complete": ADDED,
    "chat": (*ADDED, "message"),
    "embed": ("embedding", "usage", "error"),
    "classify": ("label", "probabilities", "usage", "error"),
}
"""The added fields by call."""
_PLAIN_MESSAGE = frozenset({"role", "content"})
"""A chat's message with these fields alone says no more than ``completion``."""
_BOM = b"\xef\xbb\xbf"
_LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""A line is held in memory whole; a file without line ends is not.

The longest prompts have a hundredth of this length.
"""


class BadRow(ValueError):
    """An unusable line of the input."""


class Row(dict[str, Any]):
    """One document: its fields, and the line they came from.

    Attributes:
        line: the number of the line, from 1.
        fault: why the line cannot be used, or ``None``.
    """

    __slots__ = ("fault", "line")

    def __init__(self, fields: Mapping[str, Any], line: int, fault: str | None = None) -> None:
        super().__init__(fields)
        self.line = line
        self.fault = fault


class LineSplitter:
    """Cuts chunks of bytes into numbered lines.

    Args:
        longest_bytes: bytes of a line, at most; a longer one becomes ``None``.
    """

    def __init__(self, longest_bytes: int = _LONGEST_LINE_BYTES) -> None:
        self._longest_bytes = longest_bytes
        self._rest = b""
        self._number = 0
        self._skipping = False

    def __repr__(self) -> str:
        return f"<LineSplitter: {self._number} lines>"

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the lines completed by a chunk; ``None`` stands for a line over the length."""
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            yield self._line(self._rest + line)
            self._rest = b""
        self._rest += rest
        if len(self._rest) > self._longest_bytes:
            self._rest, self._skipping = b"", True

    def end(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the last line of an input without a final line end."""
        if self._rest or self._skipping:
            yield self._line(self._rest)

    def _line(self, line: bytes) -> tuple[int, bytes | None]:
        self._number += 1
        if self._skipping:
            self._skipping = False
            return self._number, None
        if self._number == 1:
            line = line.removeprefix(_BOM)
        return self._number, line.removesuffix(b"\r")


def make_row(number: int, line: bytes | None, form: Format, added: Sequence[str] = ADDED) -> Row | None:
    """Make a row of a line; ``None`` for a blank line.

    Args:
        number: of the line, from 1.
        line: its bytes; ``None`` for a line over the length.
        form: the form of the line.
        added: the fields added by the output, which no input may have.
    """
    if line is None:
        return Row({}, number, f"line {number} is longer than {_LONGEST_LINE_BYTES >> 20} MiB")
    if not line or line.isspace():
        return None
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Row({}, number, f"line {number} is not UTF-8 (byte {error.start + 1} of it)")
    if form == "text":
        return Row({"text": text}, number)
    try:
        fields = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        return Row({}, number, f"line {number} is not JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError) as error:
        return Row({}, number, f"line {number} is not JSON: {error}")
    if not isinstance(fields, dict):
        return Row({}, number, f"line {number} is no JSON object")
    taken = [name for name in added if name in fields]
    if taken:
        return Row(
            fields, number, f"line {number} has a field {taken[0]!r}, which the output would overwrite; rename it"
        )
    return Row(fields, number)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a 64-bit float")
    return number


def blame(render: Callable[[Any], Any]) -> Callable[[Row], Any]:
    """Wrap a prompt function: faulty rows fail with their own message."""

    def prompt_of(row: Row) -> Any:
        if row.fault is not None:
            raise BadRow(row.fault)
        return render(row)

    return prompt_of


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode


def to_line(result: MapResult, *, packed: bool = False) -> bytes:
    """Write a result as one line of JSON.

    Args:
        result: of a row.
        packed: write a vector as base64 of 32-bit floats, the lowest byte first.
    """
    fields = _fields(result, packed=packed)
    try:
        return _encode(fields).encode() + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate in a field outside the prompt: escaped, the field leaves as it came.
        return _encode_ascii(fields).encode() + b"\n"


def _fields(result: MapResult, *, packed: bool) -> dict[str, Any]:
    row: Row = result.document
    if row.fault is not None:
        return {"line": row.line, "error": {"type": BadRow.__name__, "message": row.fault}}
    fields = dict(row)
    if fields.get("id") in (None, ""):
        fields["id"] = result.id
    if result.error is not None:
        fields["error"] = {"type": type(result.error).__name__, "message": message_of(result)}
        return fields
    return fields | _of_answer(result.answer, packed=packed)


def _of_answer(answer: Any, *, packed: bool) -> dict[str, Any]:
    """Return the fields added for an answer."""
    usage = _of_usage(answer.usage, generates=isinstance(answer, Completion))
    if isinstance(answer, Embedding):
        vector = _pack(answer.vector) if packed else [float(f"{number:.9g}") for number in answer.vector]
        return {"embedding": vector, "usage": usage}
    if isinstance(answer, Classification):
        return {"label": answer.label, "probabilities": list(answer.probabilities), "usage": usage}
    assert isinstance(answer, Completion), "a map has no other answers"
    added: dict[str, Any] = {"completion": answer.text, "finish_reason": answer.finish_reason}
    message = answer.choices[0].message
    if message is not None and not message.keys() <= _PLAIN_MESSAGE:
        added["message"] = dict(message)
    added["usage"] = usage
    return added


def _of_usage(usage: Usage | None, *, generates: bool) -> dict[str, Any] | None:
    """Return a row's usage; an estimate is marked as one."""
    if usage is None:
        return None
    names = ("prompt_tokens", "completion_tokens") if generates else ("prompt_tokens",)
    marks = [f"{name}_estimated" for name in names]
    return {name: getattr(usage, name) for name in names} | {mark: True for mark in marks if getattr(usage, mark)}


def _pack(vector: array[float]) -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return b64encode(vector.tobytes()).decode()


def message_of(result: MapResult) -> str:
    """Return why a row failed. The library counts documents; a reader of the file counts lines."""
    return str(result.error).replace(f"document {result.index}: ", f"line {result.document.line}: ", 1)
