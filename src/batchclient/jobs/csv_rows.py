r"""Rows of CSV, by the standard library's reader: RFC 4180, as libraries and spreadsheets write it.

Rules:
- The first record is the header. An empty name and one that comes again are made of the column's
  place: ``column_1``, ``name_3``. A line ``sep=;`` before the header tells the delimiter. Without
  one, tabs or semicolons delimit where the header has them, and no comma, outside quotes.
- A value is the text as it stands. An empty field, quoted or not, is a missing value: ``None``.
- A line end within quotes is part of the value. A row has the number of its first line.
- A record with too many or too few fields, a NUL, a quote out of place, no end of its quotes, or
  bytes that are no UTF-8 is an unusable row. Reading goes on after its last line.
- Blank lines between records are skipped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain

from batchclient.errors import ConfigError
from batchclient.jobs.rows import BOM, LONGEST_LINE_BYTES, Row, not_utf8

__all__ = ["check_columns", "delimiter_hint", "distinct", "rows_of_csv"]

_WORDS = {
    "unexpected end of data": "has a quote without an end",
    "new-line character": "has a carriage return outside quotes",
    "'": "has more text after a closing quote; within quotes, double a quote",
}
"""The reader's words (CPython, ``Modules/_csv.c``), by their beginning, in ours."""
_ODD = {"\r": "; old Macs' line ends: tr '\\r' '\\n'", '" "': "; between columns of blanks, delimiter ' '"}
"""What to do about a header that has something odd."""
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_OBJECT = re.compile(r'\s*\{\s*"')
_TELLS_DELIMITER = re.compile(r'"?sep=(.)"?', re.IGNORECASE)


class _Lines:
    """The lines of one record after the other, as texts.

    Args:
        lines: of the file.

    Attributes:
        number: of the line read last.
        odd: why the record has what no text has; empty if it has not.
    """

    def __init__(self, lines: Iterator[bytes | None]) -> None:
        self._lines = lines
        self._bytes = 0
        self.number = 0
        self.odd = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        if line is None:
            # Nobody knows whether the long line ends within quotes.
            raise csv.Error(f"is longer than {LONGEST_LINE_BYTES >> 20} MiB")
        if not self._bytes:
            line = line.removeprefix(BOM)
        self._bytes += len(line)
        if self._bytes > LONGEST_LINE_BYTES:
            raise csv.Error(f"has more than {LONGEST_LINE_BYTES >> 20} MiB; a quote may be without an end")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            self.odd = self.odd or not_utf8(error)
            text = line.decode(errors="surrogateescape")
        if "\0" in text:
            self.odd = self.odd or "has a NUL"
        return text

    def begin(self) -> None:
        """Begin another record."""
        self._bytes, self.odd = 0, ""

    def header(self) -> str:
        """Return the first record that is not blank, as text; its lines are still to be read."""
        looked_at: list[bytes | None] = []
        quotes = size = 0
        for line in self._lines:
            if not looked_at and line is not None and not line.removeprefix(BOM).strip():
                self.number += 1
                continue
            looked_at.append(line)
            if line is not None:
                quotes, size = quotes + line.count(b'"'), size + len(line)
            if line is None or quotes % 2 == 0 or size > LONGEST_LINE_BYTES:
                break
        self._lines = chain(looked_at, self._lines)
        self.begin()
        return b"".join(filter(None, looked_at)).removeprefix(BOM).decode(errors="replace").rstrip("\r\n")


def rows_of_csv(
    name: str,
    lines: Iterator[bytes | None],
    delimiter: str | None = None,
    escape: str | None = None,
    columns: Sequence[str] = (),
) -> Iterator[Row]:
    """Yield the records under the header.

    Args:
        name: of the file, for messages.
        lines: of the file.
        delimiter: between fields; ``None``: the header tells.
        escape: a character that takes the next one's meaning.
        columns: names that the header must have.

    Raises:
        ConfigError: there is no usable header, or it lacks a column.
    """
    # The limit is the process's, 131,072 characters by default: too few for a long prompt.
    if csv.field_size_limit() < LONGEST_LINE_BYTES:
        csv.field_size_limit(LONGEST_LINE_BYTES)
    texts = _Lines(lines)
    try:
        header = texts.header()
        told = _TELLS_DELIMITER.fullmatch(header)
        if told is not None:
            next(texts)
            delimiter = delimiter or told[1]
            header = texts.header()
        reader = csv.reader(
            texts, strict=True, delimiter=delimiter or _delimiter_of(header), escapechar=escape, quotechar='"'
        )
        names = next(reader, [])
    except csv.Error as error:
        hint = next((words for sign, words in _ODD.items() if sign in header), "")
        raise ConfigError(f"{name}: the header {_in_words(error)}{hint}") from None
    _check(name, header, names, texts.odd)
    names = distinct(names)
    check_columns(name, columns, names, delimiter_hint(names))
    width, first = len(names), texts.number + 1
    while True:
        texts.begin()
        line = texts.number + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            more = f" (up to line {texts.number})" if texts.number > line else ""
            yield Row((), line, _in_words(error) + more)
            continue
        if fields is None:
            return
        if len(fields) == width and not texts.odd:
            if "" in fields:
                fields = [field or None for field in fields]  # type: ignore[misc]
            yield Row(zip(names, fields, strict=True), line)
        elif texts.odd:
            yield Row((), line, texts.odd)
        elif fields and not (len(fields) == 1 and fields[0].isspace()):
            count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
            is_short = line == first and len(fields) == width + 1 > 2
            is_short = is_short and fields[-1] != "" and not any('"' in field for field in fields)
            hint = "; R's write.table leaves out the name of the first column: add one" if is_short else ""
            yield Row((), line, f"has {count}, and the header has {width}{hint}")


def _delimiter_of(header: str) -> str:
    bare = _QUOTED.sub("", header)
    return "," if "," in bare else next((other for other in "\t;" if other in bare), ",")


def _check(name: str, header: str, names: Sequence[str], odd: str) -> None:
    """Refuse what is no header."""
    if not names:
        raise ConfigError(f"{name}: it is CSV, and has no header: a first line with the columns' names")
    if odd:
        raise ConfigError(f"{name}: the header {odd}")
    if _OBJECT.match(header):
        raise ConfigError(f"{name}: the header begins a JSON object: the file is JSONL")


def delimiter_hint(names: Sequence[str], option: str = "delimiter") -> str:
    """Return the end of a message, if a header was read by another delimiter than its own."""
    return next((f"; give {option} {other!r}" for other in ";\t|" if any(other in name for name in names)), "")


def check_columns(name: str, columns: Sequence[str], names: Sequence[str], hint: str = "") -> None:
    """Refuse columns that a table lacks; the hint ends the message.

    Raises:
        ConfigError: a column is not among the names.
    """
    missing = [column for column in columns if column not in names]
    if missing:
        known = ", ".join(names)[:200]
        raise ConfigError(f"columns: {name} has no {missing[0]!r:.60}; it has {known}{hint}", field="columns")


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names of columns: an empty or repeated one gets the column's place, from 1."""
    given = set(names)
    made: list[str] = []
    for place, name in enumerate(names, 1):
        if not name.strip() or name in made:
            name = f"{name.strip() or 'column'}_{place}"  # noqa: PLW2901
            while name in given:
                name += "_"  # noqa: PLW2901
        made.append(name)
    return made


def _in_words(error: csv.Error) -> str:
    reason = str(error)
    return next((words for start, words in _WORDS.items() if reason.startswith(start)), reason)
