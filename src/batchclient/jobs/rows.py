r"""Rows, and what makes rows of lines: the forms JSONL and text.

Rules:
- A line ends at ``\n`` and nowhere else: U+2028 and the like may stand inside a JSON string. A
  ``\r`` before the ``\n`` and a byte-order mark at a line's start are dropped. Blank lines are
  skipped. Lines are numbered from 1, blank ones too.
- An unusable line is a row with a ``fault``. Reading goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, Literal

from batchclient._maps.arrow import pyarrow_for

__all__ = ["BOM", "FORMATS", "LONGEST_LINE_BYTES", "BadRow", "Format", "Row", "lines_of", "not_utf8", "rows_of_lines"]

Format = Literal["jsonl", "text", "csv", "parquet", "arrow"]
FORMATS: tuple[Format, ...] = ("jsonl", "text", "csv", "parquet", "arrow")

BOM = b"\xef\xbb\xbf"
LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""A line is held in memory whole; a file without line ends is not.

The longest prompts have a hundredth of this length.
"""


class BadRow(ValueError):
    """An unusable row of a file."""


def _none_before() -> int:
    return 0


class Row(dict[str, Any]):
    """One row of a file: its fields, and the line that the fields came from.

    Args:
        fields: of the row; of an unusable row, as far as they are known.
        number: of the line, counted from where reading began.
        reason: why the row cannot be used; it goes on from ``line 7``.
        before: tells the lines before the place where reading began.
        file: the name of the row's file, where the input has several; else empty.

    Attributes:
        file: the argument.
        cells: a record batch that has values of the row as its table does, and the row's place
            there; ``None``: the fields have all.
        line: the number of the row's first line in the file, from 1; of a table the row's own.
        where: the line, for messages: ``line 7``, or ``b.jsonl line 7``.
        fault: why the row cannot be used, or ``None``. Asking an unusable row for a field raises
            ``BadRow`` with this text; ``row.get`` does not.
    """

    __slots__ = ("_before", "_number", "_reason", "cells", "file", "media")

    def __init__(
        self,
        fields: Iterable[Any],
        number: int,
        reason: str | None = None,
        before: Callable[[], int] = _none_before,
        file: str = "",
    ) -> None:
        dict.__init__(self, fields)
        self.file: str = file
        self.cells: tuple[Any, int] | None = None
        self.media: Any = None  # what ``Media`` has read for the row, until its call takes it
        self._number = number
        self._reason = reason
        self._before = before

    @property
    def line(self) -> int:
        """The number of the row's first line."""
        return self._before() + self._number

    @property
    def where(self) -> str:
        """The row's place in its input, for messages."""
        return f"{self.file} line {self.line}".lstrip()

    @property
    def fault(self) -> str | None:
        """Why the row cannot be used."""
        return None if self._reason is None else f"{self.where} {self._reason}"

    def with_fault(self, reason: str) -> Row:
        """Return the row as an unusable one."""
        return Row(self, self._number, reason, self._before, self.file)

    def keeping(self, names: Iterable[str]) -> Row:
        """Return the row with these of its fields alone."""
        return Row([(name, self[name]) for name in names], self._number, self._reason, self._before, self.file)

    def __missing__(self, name: str) -> Any:
        if self._reason is not None:
            raise BadRow(self.fault)
        raise KeyError(name)

    def __copy__(self) -> Row:
        return Row(self, self._number, self._reason, self._before, self.file)

    def __reduce__(self) -> tuple[Any, ...]:
        made = Row, (dict(self), self.line, self._reason, _none_before, self.file)
        if self.cells is None:
            return made
        batch, place = self.cells
        # A slice's own pickle has the whole batch.
        alone = batch.schema.serialize().to_pybytes(), batch.slice(place, 1).serialize().to_pybytes()
        return *made, alone

    def __setstate__(self, cells: tuple[bytes, bytes]) -> None:
        arrow = pyarrow_for("a row of a table")
        schema, batch = map(arrow.py_buffer, cells)
        self.cells = arrow.ipc.read_record_batch(batch, arrow.ipc.read_schema(schema)), 0


def lines_of(file: BinaryIO, most_bytes: int | None = None) -> Iterator[bytes | None]:
    """Yield a file's lines as they stand; ``None`` for one that is too long.

    Args:
        file: read from its position on.
        most_bytes: no line is begun behind so many bytes; ``None``: all are read.
    """
    longest = LONGEST_LINE_BYTES + 1
    left = math.inf if most_bytes is None else most_bytes
    if left <= 0:
        return
    for line in iter(partial(file.readline, longest), b""):
        left -= len(line)
        if len(line) == longest and not line.endswith(b"\n"):
            while (more := file.readline(longest)) and not more.endswith(b"\n"):
                left -= len(more)
            left -= len(more)
            yield None
        else:
            yield line
        if left <= 0:
            return


def rows_of_lines(
    lines: Iterable[bytes | None], form: Callable[[bytes], str], before: Callable[[], int] = _none_before
) -> Iterator[Row]:
    """Make rows of lines.

    Args:
        lines: ``None`` stands for a line that is too long.
        form: tells the form of all rows, by the first line that is not blank.
        before: tells the lines before the first one.
    """
    parse: Callable[[bytes], dict[str, Any]] | None = None
    for number, each in enumerate(lines, 1):
        if each is None:
            yield Row((), number, f"is longer than {LONGEST_LINE_BYTES >> 20} MiB", before)
            continue
        line = each.removeprefix(BOM)
        if line.isspace() or not line:
            continue
        if parse is None:
            parse = parse_object if form(line) == "jsonl" else _parse_text
        try:
            row = Row(parse(line), number, None, before)
        except _Unusable as fault:
            row = Row((), number, str(fault), before)
        yield row


class _Unusable(Exception):
    """Why a line is no row; the words go on from ``line 7 ``."""


def not_utf8(error: UnicodeDecodeError) -> str:
    """Say why bytes are no text."""
    guess = "it may be cp1252 (Windows) or latin-1: give the encoding"
    return f"is not UTF-8, or not in the given encoding (byte {error.start + 1} of it); {guess}"


def _decode(line: bytes) -> str:
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise _Unusable(not_utf8(error)) from None


def _parse_text(line: bytes) -> dict[str, Any]:
    return {"text": _decode(line)}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a 64-bit float")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_scan: Callable[[str, int], tuple[Any, int]] = vars(_DECODER)["scan_once"]


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the fields of a line of JSON."""
    try:
        text = line.decode()
        fields, end = _scan(text, 0)
        # ``decode`` looks for blanks with regular expressions, which takes a third of the time.
        if type(fields) is dict and text[end:] in ("\n", "", "\r\n"):
            return fields
    except (ValueError, StopIteration, RecursionError):
        pass  # said below
    text = _decode(line)
    try:
        fields = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _Unusable(f"is not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise _Unusable("is no JSON object")
    return fields
