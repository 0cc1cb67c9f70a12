"""One file of rows: its bytes, its form, and the rows of its shard.

Rules:
- Nothing is read whole.
- The first bytes tell gzip, bzip2, xz, zstd, Parquet, Arrow and UTF-16, whatever the file's name.
  Without a form and an ending the first line tells JSONL from text.
- The shards of a file are disjoint, and together they are the file. Plain JSONL and text are cut
  into ranges of bytes at line ends, Parquet and files of Arrow into ranges of rows. Others are cut
  by a hash of the row's number: in CSV a byte tells not whether it stands within quotes.
"""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from batchclient._client.parts import Shard
from batchclient._maps.arrow import INDEX
from batchclient.errors import ConfigError
from batchclient.jobs.bytes import CHUNK_BYTES, Bytes, Chunks, Packed, codec_from, packed_by, recoded
from batchclient.jobs.columnar import count_of_parquet, rows_of_arrow, rows_of_parquet
from batchclient.jobs.csv_rows import check_columns, distinct, rows_of_csv
from batchclient.jobs.inputs import ENDINGS, ending_of
from batchclient.jobs.rows import BOM, FORMATS, Format, Row, lines_of, rows_of_lines

__all__ = ["File", "Reading", "columns_from"]

_TABLES: dict[bytes, Format] = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""Of UTF-32 first: its mark begins as the one of UTF-16 does."""
_ZIP = b"PK\x03\x04"
_GOLDEN = 0x9E3779B97F4A7C15
"""2 to the 64th, divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""


@dataclass
class Reading:
    """How the files of an input are read.

    Args:
        form: of the rows; ``None``: each file tells its own.
        columns, delimiter, escape, encoding: as for ``read_rows``.
        wanted: the fields, or paths to them, beside which nothing is used: of Parquet and Arrow
            nothing else is read. ``None``: all is used.
        used: of these, the fields without which a row of a table is unusable. ``None``: all.

    Raises:
        ConfigError: an argument is wrong.
    """

    form: str | None = None
    columns: Sequence[str] | None = None
    wanted: Collection[str] | None = None
    used: Collection[str] | None = None
    delimiter: str | None = None
    escape: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.form is not None and self.form not in FORMATS:
            raise ConfigError(f"format: one of {', '.join(FORMATS)}, not {self.form!r:.40}", field="format")
        self.columns = None if self.columns is None else columns_from(self.columns)
        self.wanted, self.used = _roots(self.wanted), _roots(self.used)
        self.delimiter, self.escape = _character("delimiter", self.delimiter), _character("escape", self.escape)
        self.encoding = None if self.encoding is None else codec_from(self.encoding)


class File:
    """A file, while its rows are read.

    Args:
        opened: for reading bytes.
        name: for messages.
        reading: how it is read.
        shard: the part to read; ``None``: all.
        path: where a regular file can be opened again; ``None``: it is none.

    Attributes:
        form: of the rows; ``None`` until it is known.
        schema: Arrow's, of a table of Parquet or Arrow; ``None`` until it is known.
        names: of a table's columns, read or not; empty until they are known, and of other forms.
    """

    def __init__(self, opened: Any, name: str, reading: Reading, shard: Shard | None, path: str | None) -> None:
        self.form: str | None = reading.form
        self.schema: Any = None
        self.names: Sequence[str] = ()
        self._opened = opened
        self._name = name
        self._reading = reading
        self._shard = shard
        self._path = path
        self._size = 0 if path is None else os.fstat(opened.fileno()).st_size
        self._bytes: Bytes | None = None
        self._packed: Packed | None = None
        self._taken_bytes = 0
        self._range: tuple[int, int] | None = None
        """The range of bytes whose lines are rows, where that is known."""

    def __repr__(self) -> str:
        return f"<File {self._name}>"

    def count(self, most: int | None) -> int | None:
        """Return about how many rows there are, where that is told without reading them.

        It is told after the first row; no more than ``most`` are counted.
        """
        if self._path is not None and self.form == "parquet":
            return count_of_parquet(self._path, self._shard)
        return None if self._path is None or self._range is None else _lines_in(self._path, *self._range, most)

    @property
    def share(self) -> float:
        """The share of the file's bytes that was read, as far as it is known."""
        size, packed = self._size, self._packed
        if not (size and self._taken_bytes):
            return 0.0
        return min(1.0, self._taken_bytes / (size if packed is None else packed.made * size / max(packed.read, 1)))

    def rows(self) -> Iterator[Row]:
        """Return the rows; iterating reads the file.

        Raises:
            OSError: it cannot be read.
            ConfigError: it has another form, or no usable header.
        """
        rows, columns = self._rows(), self._reading.columns
        return rows if columns is None else (_with_columns(row, columns) for row in rows)

    def _rows(self) -> Iterator[Row]:
        opened, reading = self._opened, self._reading
        # Of a buffered pipe ``read`` would wait until all the bytes are there.
        raw = opened if self._path is not None else Chunks(getattr(opened, "read1", opened.read))
        # Kept: the file would be closed with it.
        self._bytes = file = io.BufferedReader(raw, CHUNK_BYTES)
        start = file.peek(8)
        by = packed_by(start)
        if by is not None:
            self._packed = Packed(file, by)
            file = self._packed.file
            start = file.peek(8)
        self._settle_form(start)
        if self.form == "parquet" or (self.form == "arrow" and start.startswith(b"ARROW1")):
            if by or not getattr(opened, "seekable", bool)():
                raise ConfigError(f"{self._name}: Parquet and Arrow's file form need a plain file, not packed, no pipe")
            table = opened if self._path is None else self._path
            if self.form == "parquet":
                return rows_of_parquet(table, self._choose, self._shard, reading.used)
            return rows_of_arrow(table, self._choose, self._shard, reading.used, is_stream=False)
        if self.form == "arrow":
            return self._hashed(rows_of_arrow(file, self._choose, None, reading.used, is_stream=True))
        told = next((codec for mark, codec in _MARKS.items() if start.startswith(mark)), "utf-8")
        encoding = reading.encoding or told
        if reading.encoding is None and encoding == "utf-8" and b"\0" in start[:4]:
            why = "begins with no UTF-8; it may be utf-16-le or utf-16-be"
            raise ConfigError(f"encoding: {self._name} {why}", field="encoding")
        if encoding != "utf-8":
            file = recoded(file, encoding)
        if self.form == "csv":
            delimiter = reading.delimiter or ("\t" if ending_of(self._name) in (".tsv", ".tab") else None)
            lines, columns = self._lines(file), reading.columns or ()
            return self._hashed(rows_of_csv(self._name, lines, delimiter, reading.escape, columns))
        if self._path is None or by or encoding != "utf-8":
            return self._hashed(rows_of_lines(self._lines(file), self._settle))
        return self._of_range(file, self._size)

    def _lines(self, file: Bytes) -> Iterator[bytes | None]:
        for line in lines_of(file):
            self._taken_bytes += 0 if line is None else len(line)
            yield line

    def _settle_form(self, start: bytes) -> None:
        """Find out the form, where none was given, by the first bytes or the ending."""
        if self.form is None:
            if start.startswith(_ZIP):
                why = "it is a zip archive or a spreadsheet: unpack it, or save it as CSV"
                raise ConfigError(f"{self._name}: {why}")
            told = next((form for magic, form in _TABLES.items() if start.startswith(magic)), None)
            self.form = told or ENDINGS.get(ending_of(self._name))
        self._check_form()

    def _settle(self, line: bytes) -> str:
        """Find out the form, where it is not known, by the first line that is not blank.

        Raises:
            ConfigError: the lines are no rows, or nothing tells their form.
        """
        begins = b"".join(line.split(maxsplit=2)[:2])
        if self.form != "text" and (begins == b"[" or begins.startswith(b"[{")):
            raise ConfigError(f"{self._name}: it is a JSON array, and rows are lines: jq -c '.[]' makes JSONL of it")
        if self.form is None:
            if begins == b"{":
                raise ConfigError(f"{self._name}: its JSON goes over several lines: jq -c . makes JSONL of it")
            ending = ending_of(self._name)
            if ending and self._path is not None and not begins.startswith(b"{"):
                why = f"the ending {ending!r} tells no form; one of {', '.join(FORMATS)}"
                raise ConfigError(f"format: {self._name}: {why}", field="format")
            self.form = "jsonl" if begins.startswith(b"{") else "text"
            self._check_form()
        return self.form

    def _check_form(self) -> None:
        """Refuse what was said of another form than the file has."""
        for name in ("delimiter", "escape"):
            if getattr(self._reading, name) is not None and self.form not in (None, "csv"):
                raise ConfigError(f"{name}: {self._name} is {self.form}, and only CSV has one", field=name)
        other = next((name for name in self._reading.columns or () if name != "text"), None)
        if self.form == "text" and other is not None:
            raise ConfigError(f"columns: a line of text has the field 'text' alone, not {other!r:.60}", field="columns")

    def _of_range(self, file: Bytes, size: int) -> Iterator[Row]:
        """Yield the rows of a plain file of lines, or of the shard's range of bytes."""
        if self._shard is None:
            self._range = (0, size)
            return rows_of_lines(lines_of(file), self._settle)
        # The first line decides the form for all shards.
        form = self._settle(next((line for line in lines_of(file) if line and line.removeprefix(BOM).strip()), b""))
        part, parts = self._shard
        start, end = (_line_from(file, size, size * each // parts) for each in (part, part + 1))
        self._range = (start, end)
        file.seek(start)
        before = cache(partial(_lines_before, self._name, start))
        return rows_of_lines(lines_of(file, end - start), lambda _: form, before)

    def _hashed(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Leave the rows of the shard, by a hash of their numbers."""
        if self._shard is None:
            return rows
        part, parts = self._shard
        return (row for number, row in enumerate(rows) if (number * _GOLDEN >> 32 & 0xFFFFFFFF) % parts == part)

    def _choose(self, schema: Any) -> list[str]:
        """Return the columns of a table that are read."""
        self.schema = schema
        self.names = names = distinct(schema.names)
        columns, wanted = self._reading.columns, self._reading.wanted
        if columns is not None:
            check_columns(self._name, columns, names)
            return list(columns)
        return [each for each in names if (not each.startswith(INDEX) if wanted is None else each in wanted)]


def _roots(paths: Collection[str] | None) -> set[str] | None:
    """Return the names of the fields that paths may lead through."""
    return None if paths is None else {part for path in paths for part in (path, re.split(r"[.\[]", path)[0])}


def _with_columns(row: Row, columns: Sequence[str]) -> Row:
    if row.fault is not None:
        return row
    missing = next((name for name in columns if name not in row), None)
    if missing is not None:
        return row.with_fault(f"has no field {missing!r}")
    return row.keeping(columns)


def _line_from(file: Bytes, size: int, offset: int) -> int:
    """Return where the first line begins that does not begin before an offset."""
    if offset <= 0:
        return 0
    file.seek(offset - 1)
    while (read := file.readline(CHUNK_BYTES)) and not read.endswith(b"\n"):
        pass
    return min(file.tell(), size)


def _lines_before(path: str, start: int) -> int:
    try:
        return _lines_in(path, 0, start)
    except OSError:  # the file is gone: lines count from the beginning of the part
        return 0


def _lines_in(path: str, start: int, end: int, most: int | None = None) -> int:
    """Count the lines of a part of a file, blank ones too. A gigabyte takes less than a second."""
    lines, last, left = 0, b"\n", end - start
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        file.seek(start)
        while left > 0 and (most is None or lines < most) and (chunk := file.read(min(4 * CHUNK_BYTES, left))):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
            left -= len(chunk)
    return lines + (last != b"\n")


def columns_from(columns: Sequence[str]) -> list[str]:
    """Check the names of columns.

    Raises:
        ConfigError: there is none, or one is empty or comes twice.
    """
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(f"columns: a list of names, not {columns!r:.40}", field="columns")
    names = list(columns)
    if not names or not all(names):
        raise ConfigError("columns: an empty name", field="columns")
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise ConfigError(f"columns: {twice!r:.60} comes twice", field="columns")
    return names


def _character(field: str, text: str | None) -> str | None:
    """Read a character that has a meaning in CSV; a backslash and ``t`` is a tab."""
    made = "\t" if text == "\\t" else text
    if made is not None and (len(made) != 1 or made in '"\r\n\0'):
        raise ConfigError(f"{field}: one character, such as ; or \\t, not {text!r:.40}", field=field)
    return made
