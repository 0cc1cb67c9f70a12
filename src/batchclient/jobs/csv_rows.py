r"""Rows of CSV, by the standard library's reader: RFC 4180, with commas and double quotes.

Rules:
- The first record is the header. A file without one, a name that comes twice and an empty name are
  refused.
- A value is the text as it stands. An empty field, quoted or not, is a missing value: ``None``.
- A line end within quotes is part of the value. A row has the number of its first line.
- A record with too many or too few fields, a NUL, a quote out of place, no end of its quotes, or
  bytes that are no UTF-8 is a ``FaultyRow``. Reading goes on after its last line.
- Blank lines between records are skipped.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Any

from batchclient.errors import ConfigError
from batchclient.jobs.other_files import advice_for_separator
from batchclient.jobs.rows import LONGEST_LINE_BYTES, FaultyRow, Keep, Origin, Row, too_long

__all__ = ["CsvRows"]

_ENDS_EARLY = "unexpected end of data"
"""The reader's words (CPython, ``Modules/_csv.c``) for quotes without an end."""
_WORDS = {
    _ENDS_EARLY: "has a quote without an end",
    "new-line character": "has a carriage return outside quotes",
    "field larger": f"has a field of more than {LONGEST_LINE_BYTES >> 20} MiB; a quote may be without an end",
    "','": "has more text after a closing quote; within quotes, double a quote",
}
"""The reader's words, by their beginning, in ours."""
_READ_AGAIN_BYTES = 1024 * 1024
"""A record that is cut off by the end of a chunk is read again with the next chunk.

A record longer than this is read again only once its length has doubled.
"""


class CsvRows:
    """Makes rows of the lines of a CSV file.

    Args:
        name: of the file, for messages.
        columns: the fields of a row; ``None``: all.
        keep: which rows are wanted; ``None``: all.
        origin: where reading began.
    """

    def __init__(
        self, name: str, columns: Sequence[str] | None = None, keep: Keep | None = None, origin: Origin | None = None
    ) -> None:
        self._name = name
        self._columns = columns
        self._keep = keep
        self._origin = origin or Origin()
        self._names: list[str] | None = None
        self._width = 0
        self._pick: Callable[[Sequence[Any]], Sequence[Any]] | None = None
        self._lines = 0
        """Lines of complete records."""
        self._pending: list[bytes] = []
        """Lines of a record whose end has not come yet."""
        self._pending_bytes = 0
        self._read_at_bytes = 0
        self._rows = 0
        # The limit is the process's, 131,072 characters by default: too few for a long prompt.
        if csv.field_size_limit() < LONGEST_LINE_BYTES:
            csv.field_size_limit(LONGEST_LINE_BYTES)

    def __repr__(self) -> str:
        return f"<CsvRows, {self._lines} lines>"

    def feed(self, lines: Sequence[bytes | None]) -> Iterator[Row]:
        """Yield the rows whose records end with these lines.

        Raises:
            ConfigError: the header cannot be used, or lacks a column.
        """
        whole: list[bytes] = []
        for line in lines:
            if line is not None:
                whole.append(line)
                continue
            yield from self._read(whole)
            # Nobody knows whether the long line ends within quotes.
            yield from self._drop([*self._pending, b""], too_long())
            whole = []
        yield from self._read(whole)

    def end(self) -> Iterator[Row]:
        """Yield the row whose record has no end, if there is one.

        Raises:
            ConfigError: there is no header.
        """
        yield from self._read([], at_end=True)
        if self._names is None:
            raise ConfigError(f"{self._name}: it is CSV, and has no header: a first line with the columns' names")

    def _read(self, lines: list[bytes], *, at_end: bool = False) -> Iterator[Row]:
        block = self._pending + lines
        self._pending_bytes += sum(map(len, lines)) + len(lines)
        if not block or (self._pending_bytes < self._read_at_bytes and not at_end):
            self._pending = block
            return
        odd = False
        try:
            text = b"\n".join(block).decode()
        except UnicodeDecodeError:
            text, odd = b"\n".join(block).decode(errors="surrogateescape"), True
        odd = odd or "\0" in text
        reader = csv.reader(StringIO(text + "\n", newline="\n"), strict=True)
        names, width, pick, keep, origin, first = (
            self._names,
            self._width,
            self._pick,
            self._keep,
            self._origin,
            self._lines + 1,
        )
        done = 0
        while True:
            reason = ""
            try:
                for fields in reader:
                    start, done = done, reader.line_num
                    if names is None:
                        if fields:
                            self._read_header(fields, odd=odd)
                            names, width, pick = self._names, self._width, self._pick
                        continue
                    if keep is not None or odd or len(fields) != width:
                        if not fields or (width > 1 and len(fields) == 1 and fields[0].isspace()):
                            continue
                        if not self._is_kept(block, start, done):
                            continue
                        fault = self._fault_of(fields, odd=odd)
                        if fault:
                            yield FaultyRow(fault, first + start, origin)
                            continue
                    if "" in fields:
                        fields = [field or None for field in fields]  # type: ignore[misc]  # noqa: PLW2901
                    row = Row(zip(names, fields if pick is None else pick(fields)))  # noqa: B905  # counted above
                    row._number = first + start
                    row._origin = origin
                    yield row
                break
            except csv.Error as error:
                reason = str(error)
            if reason == _ENDS_EARLY and not at_end:
                break
            yield from self._drop(block[done : reader.line_num], _in_words(reason), first + done)
            done = reader.line_num
        self._lines += done
        self._pending = block = block[done:]
        self._pending_bytes = size = sum(map(len, block)) + len(block)
        self._read_at_bytes = 2 * size if size > _READ_AGAIN_BYTES else 0
        if size > LONGEST_LINE_BYTES:
            yield from self._drop(block, _in_words("field larger"))

    def _drop(self, block: list[bytes], reason: str, number: int | None = None) -> Iterator[Row]:
        """Make one unusable row of lines; without a number, of the pending lines."""
        if self._names is None:
            raise ConfigError(f"{self._name}: the header {reason}")
        line = self._lines + 1 if number is None else number
        if number is None:
            self._lines += len(block)
            self._pending, self._pending_bytes, self._read_at_bytes = [], 0, 0
        if self._is_kept(block, 0, len(block)):
            more = f" (up to line {self._origin.lines_before + line + len(block) - 1})" if len(block) > 1 else ""
            yield FaultyRow(reason + more, line, self._origin)

    def _is_kept(self, block: list[bytes], start: int, end: int) -> bool:
        if self._keep is None:
            return True
        number, self._rows = self._rows, self._rows + 1
        return self._keep(number, b"\n".join(block[start:end]).removesuffix(b"\r"))

    def _fault_of(self, fields: list[str], *, odd: bool) -> str:
        """Return why a record is no row; empty if it is one."""
        if odd:
            if any("\0" in field for field in fields):
                return "has a NUL"
            if not _is_text(fields):
                return "is not UTF-8"
        if len(fields) != self._width:
            count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
            return f"has {count}, and the header has {self._width}"
        return ""

    def _read_header(self, names: list[str], *, odd: bool) -> None:
        where = f"{self._name}: the header"
        if odd and (any("\0" in name for name in names) or not _is_text(names)):
            raise ConfigError(f"{where} is not UTF-8 without NUL")
        if names[0].startswith('{"'):
            raise ConfigError(f"{where} begins a JSON object: the file is JSONL")
        if len(names) == 1:
            for separator, called in ((";", "semicolons"), ("\t", "tabs")):
                if separator in names[0]:
                    raise ConfigError(
                        f"{where} has {called} and no comma; {advice_for_separator(self._name, separator)}"
                    )
        counts = Counter(names)
        if not all(name.strip() for name in names):
            place = next(place for place, name in enumerate(names, 1) if not name.strip())
            raise ConfigError(f"{where} has an empty name (column {place})")
        twice = next((name for name in names if counts[name] > 1), None)
        if twice is not None:
            raise ConfigError(f"{where} has the name {twice!r:.60} twice")
        self._width = len(names)
        self._names = names
        if self._columns is not None:
            missing = [name for name in self._columns if name not in counts]
            if missing:
                raise ConfigError(
                    f"columns: {where} has no {missing[0]!r:.60}; it has {', '.join(names)[:200]}", field="columns"
                )
            places = [names.index(name) for name in self._columns]
            self._names = list(self._columns)
            self._pick = lambda fields: [fields[place] for place in places]


def _is_text(fields: list[str]) -> bool:
    try:
        "".join(fields).encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_words(reason: str) -> str:
    return next((words for start, words in _WORDS.items() if reason.startswith(start)), f"is no CSV: {reason}")
