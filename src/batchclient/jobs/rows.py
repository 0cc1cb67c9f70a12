r"""Rows, and what makes rows of lines: the forms JSONL and text. ``csv_rows`` has the third.

Rules:
- A line ends at ``\n`` and nowhere else: U+2028 and the like may stand inside a JSON string. A
  ``\r`` before the ``\n`` and a byte-order mark before the first line are dropped. Blank lines are
  skipped. Lines are numbered from 1, blank ones too.
- An unusable line is a ``FaultyRow``. Reading goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Never

__all__ = [
    "FORMATS",
    "LONGEST_LINE_BYTES",
    "BadRow",
    "FaultyRow",
    "Format",
    "Keep",
    "LineRows",
    "LineSplitter",
    "Origin",
    "Row",
    "lines_in",
    "too_long",
]

Format = Literal["jsonl", "text", "csv"]
FORMATS: tuple[Format, ...] = ("jsonl", "text", "csv")

_BOM = b"\xef\xbb\xbf"
LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""A line is held in memory whole; a file without line ends is not.

The longest prompts have a hundredth of this length.
"""
_CHUNK_BYTES = 1024 * 1024

Keep = Callable[[int, bytes], bool]
"""Whether a row is wanted, by its number from 0 (blank lines have none) and its bytes."""


class BadRow(ValueError):
    """An unusable row of a file."""


class Origin:
    """The place where reading began.

    Args:
        path: of the file.
        start: the offset of the first byte read.
    """

    __slots__ = ("_lines_before", "path", "start")

    def __init__(self, path: str = "", start: int = 0) -> None:
        self.path = path
        self.start = start
        self._lines_before = None if start else 0

    def __repr__(self) -> str:
        return f"<Origin {self.path!r} from {self.start}>"

    @property
    def lines_before(self) -> int:
        """The lines before the first byte read. They are counted once a row's line is asked for."""
        if self._lines_before is None:
            try:
                self._lines_before = lines_in(self.path, 0, self.start)
            except OSError:  # the file is gone: lines count from the beginning of the part
                self._lines_before = 0
        return self._lines_before


def lines_in(path: str, start: int, end: int, most: int | None = None) -> int:
    """Count the lines of a part of a file, blank ones too. A gigabyte takes less than a second.

    Args:
        path: of the file.
        start, end: offsets.
        most: the number to stop at.
    """
    lines, last, left = 0, b"\n", end - start
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        file.seek(start)
        while left > 0 and (most is None or lines < most) and (chunk := file.read(min(_CHUNK_BYTES, left))):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
            left -= len(chunk)
    lines += last != b"\n"
    return lines if most is None else min(lines, most)


_WHOLE = Origin()


class Row(dict[str, Any]):
    """One row of a file: its fields, and the line that the fields came from.

    Attributes:
        line: the number of the row's first line in the file, from 1.
        fault: why the row cannot be used, or ``None``. Asking an unusable row for a field raises
            ``BadRow`` with this text; ``row.get`` does not.
    """

    __slots__ = ("_number", "_origin")
    _number: int
    _origin: Origin

    @property
    def line(self) -> int:
        """The number of the row's first line."""
        return self._origin.lines_before + self._number

    @property
    def fault(self) -> str | None:
        """Why the row cannot be used."""
        return None

    def __copy__(self) -> Row:
        return make_row(self, self._number, self._origin)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_row, (dict(self), self.line)


class FaultyRow(Row):
    """An unusable row.

    Args:
        reason: goes on from ``line 7 ``.
        number: of the line, counted from where reading began.
        origin: where reading began.
        fields: as far as they are known.
    """

    __slots__ = ("reason",)

    def __init__(
        self, reason: str, number: int, origin: Origin = _WHOLE, fields: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(fields or {})
        self.reason = reason
        self._number = number
        self._origin = origin

    @property
    def fault(self) -> str:
        """Why the row cannot be used."""
        return f"line {self.line} {self.reason}"

    def __getitem__(self, name: str) -> Never:
        raise BadRow(self.fault)

    def __contains__(self, name: object) -> bool:
        raise BadRow(self.fault)

    def __copy__(self) -> FaultyRow:
        return FaultyRow(self.reason, self._number, self._origin, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return FaultyRow, (self.reason, self.line)


def make_row(fields: Mapping[str, Any], number: int, origin: Origin = _WHOLE) -> Row:
    """Make a row of its fields."""
    row = Row(fields)
    row._number = number
    row._origin = origin
    return row


class LineSplitter:
    """Cuts chunks of bytes into lines.

    Args:
        longest_bytes: bytes of a line, at most; a longer line becomes ``None``.
        at_start: whether a byte-order mark may come first.
    """

    def __init__(self, longest_bytes: int = LONGEST_LINE_BYTES, *, at_start: bool = True) -> None:
        self._longest_bytes = longest_bytes
        self._rest = b""
        self._at_start = at_start
        self._skipping = False

    def __repr__(self) -> str:
        return f"<LineSplitter, {len(self._rest)} bytes wait>"

    def feed(self, chunk: bytes) -> list[bytes | None]:
        r"""Return the lines completed by a chunk, without their ``\n``."""
        lines: list[bytes | None] = [*chunk.split(b"\n")]
        rest = lines.pop() or b""
        if lines:
            lines[0] = self._line(lines[0])
            self._rest = rest
        else:
            self._rest += rest
        if len(self._rest) > self._longest_bytes:
            self._rest, self._skipping = b"", True
        return lines

    def end(self) -> list[bytes | None]:
        """Return the last line of an input without a final line end."""
        return [self._line(b"")] if self._rest or self._skipping else []

    def _line(self, end: bytes | None) -> bytes | None:
        line, self._rest = self._rest + (end or b""), b""
        at_start, self._at_start = self._at_start, False
        if self._skipping or len(line) > self._longest_bytes:
            self._skipping = False
            return None
        return line.removeprefix(_BOM) if at_start else line


def too_long() -> str:
    """Say why a line is no row."""
    return f"is longer than {LONGEST_LINE_BYTES >> 20} MiB"


class LineRows:
    """Makes rows of lines.

    Args:
        form: ``"jsonl"`` or ``"text"``.
        columns: the fields of a row; ``None``: all that there are.
        keep: which rows are wanted; ``None``: all.
        origin: where reading began.
        skipped: blank lines that were read before.
    """

    def __init__(
        self,
        form: Format,
        columns: Sequence[str] | None = None,
        keep: Keep | None = None,
        origin: Origin = _WHOLE,
        skipped: int = 0,
    ) -> None:
        self._columns = columns if form == "jsonl" else None
        self._parse = parse_object if form == "jsonl" else _parse_text
        self._keep = keep
        self._origin = origin
        self._lines = skipped
        self._rows = 0

    def __repr__(self) -> str:
        return f"<LineRows, {self._lines} lines>"

    def feed(self, lines: Sequence[bytes | None]) -> Iterator[Row]:
        """Yield the rows of the next lines."""
        first, self._lines = self._lines + 1, self._lines + len(lines)
        wanted = lines if self._keep is None else self._wanted(lines)
        origin, columns, parse = self._origin, self._columns, self._parse
        for number, line in enumerate(wanted, first):
            if not line:
                if line is None:
                    yield FaultyRow(too_long(), number, origin)
                continue
            try:
                fields = parse(line)
            except _Unusable as fault:
                yield FaultyRow(str(fault), number, origin)
                continue
            if fields is None:
                continue
            if columns is not None:
                missing = [name for name in columns if name not in fields]
                if missing:
                    yield FaultyRow(f"has no field {missing[0]!r}", number, origin)
                    continue
                fields = {name: fields[name] for name in columns}
            row = Row(fields)
            row._number = number
            row._origin = origin
            yield row

    def end(self) -> Iterator[Row]:
        """Yield the rows that waited for the end of the input: none."""
        yield from ()

    def _wanted(self, lines: Sequence[bytes | None]) -> Iterator[bytes | None]:
        """Yield the lines, with an empty line in place of an unwanted line."""
        assert self._keep is not None
        for line in lines:
            if line is not None and (not line or line.isspace()):
                yield b""
                continue
            number, self._rows = self._rows, self._rows + 1
            yield line if self._keep(number, b"" if line is None else line.removesuffix(b"\r")) else b""


class _Unusable(Exception):
    """Why a line is no row; the words go on from ``line 7 ``."""


def _decode(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise _Unusable(f"is not UTF-8 (byte {error.start + 1} of it)") from None


def _parse_text(line: bytes) -> dict[str, Any] | None:
    return None if line.isspace() else {"text": _decode(line).removesuffix("\r")}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a 64-bit float")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_scan: Callable[[str, int], tuple[Any, int]] = vars(_DECODER)["scan_once"]


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line of JSON; ``None`` for a blank line."""
    try:
        text = line.decode()
        fields, end = _scan(text, 0)
        # ``decode`` looks for blanks with regular expressions, which takes a third of the time.
        if type(fields) is dict and (end == len(text) or text[end:] == "\r"):
            return fields
    except (ValueError, StopIteration, RecursionError):
        pass  # said below
    if line.isspace():
        return None
    text = _decode(line).removesuffix("\r")
    try:
        fields = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _Unusable(f"is not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise _Unusable("is no JSON object")
    return fields
