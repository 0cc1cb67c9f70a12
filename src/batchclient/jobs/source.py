"""A file that is read as rows: its bytes, its form, and the rows one after the other.

Rules:
- Nothing is read whole. A regular file is read as rows are asked for. A pipe or a terminal, where a
  read may take for ever, is read in a thread, and so holds up no answer.
- The first bytes tell gzip, bzip2, xz, zstd, Parquet, Arrow and UTF-16, whatever the file's name.
  Without a form and
  an ending the first line tells JSONL from text.
- The shards of a file are disjoint, and together they are the file. Plain JSONL and text are cut
  into ranges of bytes at line ends, Parquet and files of Arrow into ranges of rows. Others are cut
  by a hash of the row's number: in CSV a byte tells not whether it stands within quotes.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import os
import re
import stat
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

from batchclient._client.parts import shard_from
from batchclient._maps.arrow import INDEX
from batchclient.errors import ConfigError
from batchclient.jobs.bytes import CHUNK_BYTES, Bytes, Chunks, Packed, codec_from, packed_by, recoded
from batchclient.jobs.columnar import count_of_parquet, rows_of_arrow, rows_of_parquet
from batchclient.jobs.csv_rows import check_columns, distinct, rows_of_csv
from batchclient.jobs.rows import BOM, FORMATS, Format, Row, lines_of, rows_of_lines

__all__ = ["ENDINGS", "File", "Source", "columns_from", "ending_of", "form_from", "in_thread"]

T = TypeVar("T")

ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text", ".csv": "csv", ".tsv": "csv", ".tab": "csv",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
_TABLES: dict[bytes, Format] = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""Of UTF-32 first: its mark begins as the one of UTF-16 does."""
_ZIP = b"PK\x03\x04"
_PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
_ROWS_TO_FIRST = 100
"""Unusable rows to read at the start, at most. Further ones are read as rows are asked for."""
_ROWS_AHEAD, _LOADED_AHEAD = 256, 8
"""Rows read in a thread that wait to be taken, at most; and where something is loaded for them.

The first number is also that of the rows that tell the types of columns.
"""
_GOLDEN = 0x9E3779B97F4A7C15
"""2 to the 64th, divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""


class Source:
    """The rows of one input.

    Args:
        name: for messages.
        form: the form of a row; ``None`` until it is known.
        most: rows to read, at most, faulty rows included; ``None`` for all.

    Attributes:
        name, form: the arguments.
        stamp: changes with the input, where that can be read again; ``None``: it cannot.
        status: of a regular file; ``None``: it is none.
        is_regular: whether reading never waits.
        taken: rows handed out.
        schema: Arrow's, of a table of Parquet or Arrow; ``None`` until it is known.
        names: of a table's columns, read or not; empty until they are known, and of other forms.
    """

    status: os.stat_result | None = None
    stamp: list[Any] | None = None

    def __init__(self, name: str, form: str | None, most: int | None) -> None:
        self.name: str = name
        self.form: Format | None = None if form is None else form_from(form)
        self.is_regular: bool = True
        self.taken: int = 0
        self.names: Sequence[str] = ()
        self._most = most
        self.schema: Any = None
        self._ahead = _ROWS_AHEAD
        self._seen: list[Row] = []
        self._file: Any = None  # whatever is open
        self._made = 0
        self._rows: Iterator[Row] = self._counted(islice(self._read(), most))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.taken} rows>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()

    def first(self) -> Row | None:
        """Read up to the first row with fields and return the row, which stays in ``rows``.

        The call may wait for the input.

        Raises:
            OSError: the input cannot be read.
            ConfigError: the input has another form, or no usable header.
        """
        seen: list[Row] = []
        self._seen = seen
        for row in islice(self._rows, _ROWS_TO_FIRST):
            seen.append(row)
            if row or row.fault is None:
                break
        self._rows = chain(seen, self._rows)
        return seen[-1] if seen and (seen[-1] or seen[-1].fault is None) else None

    def ahead(self) -> list[Row]:
        """Return the first rows, which stay in ``rows``; of a pipe those that ``first`` has read.

        Raises:
            OSError: the input cannot be read.
        """
        if not self.is_regular:
            return self._seen
        self._seen = list(islice(self._rows, _ROWS_AHEAD))
        self._rows = chain(self._seen, self._rows)
        return self._seen

    def rows(self) -> Iterable[Row] | AsyncIterator[Row]:
        """Return all rows; iterating reads the input. An ``OSError`` of the input is passed on."""
        return self.read() if self.is_regular else self._read_in_thread()

    def load(self, loaded: Callable[[Row], Row]) -> None:
        """Load what a row names, in the thread that reads the row: reading may wait from now on."""
        self._rows, self.is_regular, self._ahead = map(loaded, self._rows), False, _LOADED_AHEAD

    def read(self) -> Iterator[Row]:
        """Yield all rows; waits for the input."""
        for row in self._rows:
            self.taken += 1
            yield row

    def expected(self) -> int | None:
        """Return about how many rows there are, where that is told without reading them.

        It is told after ``first``.
        """
        raise NotImplementedError

    def estimated(self) -> int | None:
        """Return about how many rows there are, by the share of the bytes that the rows so far have."""
        share = self.share
        told = None if not share else max(self._made, round(self._made / share))
        return told if told is None or self._most is None else min(told, self._most)

    @property
    def share(self) -> float | None:
        """The share of the input's bytes that was read; ``None``: it is not known."""
        return None

    def _counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self._made += 1
            yield row

    def reads(self, path: str) -> bool:
        """Return whether a new file of this name would be a part of the input."""
        return False

    def _read(self) -> Iterator[Row]:
        raise NotImplementedError

    async def _read_in_thread(self) -> AsyncIterator[Row]:
        """Yield the rows that a thread reads, as they come."""
        ready: deque[Row] = deque()
        room, news = threading.Semaphore(self._ahead), asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> None:
            for row in self._rows:
                room.acquire()
                ready.append(row)
                if not news.is_set():
                    loop.call_soon_threadsafe(news.set)

        reading = in_thread(read)
        reading.add_done_callback(lambda _: news.set())
        while True:
            news.clear()
            is_over = reading.done()
            while ready:
                self.taken += 1
                yield ready.popleft()
                room.release()
            if is_over:
                await reading
                return
            await news.wait()


class File(Source):
    """The rows of one file.

    Args:
        given: a path, ``-`` for stdin, or a file that is open for reading bytes.
        form, columns, shard, delimiter, escape, encoding: as for ``read_rows``.
        wanted: the fields, or paths to them, beside which nothing is used: of Parquet and Arrow
            nothing else is read. ``None``: all is used.
        used: of these, the fields without which a row of a table is unusable. ``None``: all.
        reserved: fields that no row may have, because the output adds them.
        most: rows to read, at most, faulty rows included; ``None`` for all.
        name: of an open file, where it has none of its own.

    Raises:
        OSError: there is no such file, or the file cannot be read.
        ConfigError: an argument is wrong.
    """

    name: str
    form: Format | None
    is_regular: bool
    names: Sequence[str]
    status: os.stat_result | None
    stamp: list[Any] | None

    def __init__(
        self,
        given: str | os.PathLike[str] | BinaryIO,
        form: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        wanted: Collection[str] | None = None,
        used: Collection[str] | None = None,
        shard: str | Sequence[int] | None = None,
        delimiter: str | None = None,
        escape: str | None = None,
        encoding: str | None = None,
        reserved: Collection[str] = (),
        most: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__("", form, most)
        self._columns = None if columns is None else columns_from(columns)
        self._shard = None if shard is None else shard_from(shard)
        self._of_csv = {"delimiter": delimiter, "escape": escape}
        self._delimiter = _character("delimiter", delimiter)
        self._escape = _character("escape", escape)
        self._encoding = None if encoding is None else codec_from(encoding)
        self._part: tuple[int, int] | None = None
        """The range of bytes whose lines are rows, where that is known."""
        self._path: str | None = None
        if isinstance(given, (str, os.PathLike)):
            self._open(os.fspath(given))
        else:
            self.name = name or str(getattr(given, "name", type(given).__name__))
            # Of a buffered pipe ``read`` would wait until all the bytes are there.
            self._file = Chunks(getattr(given, "read1", given.read))
            self._given = given
        self._reader: Bytes | None = None
        self._packed: Packed | None = None
        self._taken_bytes = 0
        self._wanted, self._used = wanted, None if used is None else _roots(used)
        self._reserved = frozenset(reserved)

    def _open(self, path: str) -> None:
        if path == "-":
            self.name = "stdin"
            # Read below Python's own buffer: a thread that waits in it keeps the interpreter alive.
            self._file = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
        else:
            self.name = self._path = path
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115, PTH123  # ``__exit__`` closes it
        self._given = self._file
        status = os.fstat(self._file.fileno())
        self.is_regular = stat.S_ISREG(status.st_mode)
        if self.is_regular:
            self.status = status
            self.stamp = [os.path.realpath(path), status.st_size, status.st_mtime_ns]

    def expected(self) -> int | None:
        known = None
        if self._path is None:
            pass  # a file that is being read is not read beside that
        elif self.form == "parquet":
            known = count_of_parquet(self._path, self._shard)
        elif self._part is not None:
            known = _lines_in(self._path, *self._part, self._most)
        return known if known is None or self._most is None else min(known, self._most)

    @property
    def share(self) -> float | None:
        status, packed = self.status, self._packed
        if status is None or not self._taken_bytes:
            return None
        all_bytes = status.st_size if packed is None else packed.made * status.st_size / max(packed.read, 1)
        return min(1.0, self._taken_bytes / all_bytes)

    def _lines(self, file: Bytes) -> Iterator[bytes | None]:
        for line in lines_of(file):
            self._taken_bytes += 0 if line is None else len(line)
            yield line

    # Bytes to rows -------------------------------------------------------------------------------------------------

    def _read(self) -> Iterator[Row]:
        rows = self._begun()
        if self._columns is not None:
            rows = (_with_columns(row, self._columns) for row in rows)
        yield from (_without(row, self._reserved) for row in rows) if self._reserved else rows

    def _begun(self) -> Iterator[Row]:
        # Kept: the file would be closed with it, and is closed by ``__exit__``.
        raw = self._file if self.is_regular else Chunks(self._file.read)
        self._reader = file = io.BufferedReader(raw, CHUNK_BYTES)
        start = file.peek(8)
        by = packed_by(start)
        if by is not None:
            self._packed = Packed(file, by)
            file = self._packed.file
            start = file.peek(8)
        self._settle_form(start)
        if self.form == "parquet" or (self.form == "arrow" and start.startswith(b"ARROW1")):
            if by or not _is_seekable(self._given):
                raise ConfigError(f"{self.name}: Parquet and Arrow's file form need a plain file, not packed, no pipe")
            if self.form == "parquet":
                return rows_of_parquet(self._table(), self._choose, self._shard, self._used)
            return rows_of_arrow(self._table(), self._choose, self._shard, self._used, is_stream=False)
        if self.form == "arrow":
            return self._hashed(rows_of_arrow(file, self._choose, None, self._used, is_stream=True))
        encoding = self._encoding or next((codec for mark, codec in _MARKS.items() if start.startswith(mark)), "utf-8")
        if self._encoding is None and encoding == "utf-8" and b"\0" in start[:4]:
            raise ConfigError(
                f"encoding: {self.name} begins with no UTF-8; it may be utf-16-le or utf-16-be",
                field="encoding",
            )
        if encoding != "utf-8":
            file = recoded(file, encoding)
        if self.form == "csv":
            return self._hashed(
                rows_of_csv(self.name, self._lines(file), self._delimiter, self._escape, self._columns or ())
            )
        if self._path is None or self.status is None or by or encoding != "utf-8":
            return self._hashed(rows_of_lines(self._lines(file), self._settle))
        return self._of_range(file, self.status.st_size)

    def _settle_form(self, start: bytes) -> None:
        """Find out the form, where none was given, by the first bytes or the ending."""
        ending = ending_of(self.name)
        if ending in (".tsv", ".tab"):
            self._delimiter = self._delimiter or "\t"
        if self.form is None:
            if start.startswith(_ZIP):
                why = "it is a zip archive or a spreadsheet: unpack it, or save it as CSV"
                raise ConfigError(f"{self.name}: {why}")
            told = next((form for magic, form in _TABLES.items() if start.startswith(magic)), None)
            self.form = told or ENDINGS.get(ending)
        self._check_columns()

    def _settle(self, line: bytes) -> Format:
        """Find out the form, where it is not known, by the first line that is not blank.

        Raises:
            ConfigError: the lines are no rows, or nothing tells their form.
        """
        begins = b"".join(line.split(maxsplit=2)[:2])
        if self.form != "text" and (begins == b"[" or begins.startswith(b"[{")):
            raise ConfigError(f"{self.name}: it is a JSON array, and rows are lines: jq -c '.[]' makes JSONL of it")
        if self.form is None:
            if begins == b"{":
                raise ConfigError(f"{self.name}: its JSON goes over several lines: jq -c . makes JSONL of it")
            ending = ending_of(self.name)
            if begins.startswith(b"{"):
                self.form = "jsonl"
            elif ending and self._path is not None and self.is_regular:
                raise ConfigError(
                    f"format: {self.name}: the ending {ending!r} tells no form; one of {', '.join(FORMATS)}",
                    field="format",
                )
            else:
                self.form = "text"
            self._check_columns()
        return self.form

    def _check_columns(self) -> None:
        given = next((name for name, value in self._of_csv.items() if value is not None), None)
        if given is not None and self.form not in (None, "csv"):
            raise ConfigError(f"{given}: {self.name} is {self.form}, and only CSV has one", field=given)
        other = next((name for name in self._columns or () if name != "text"), None)
        if self.form == "text" and other is not None:
            raise ConfigError(f"columns: a line of text has the field 'text' alone, not {other!r:.60}", field="columns")

    def _of_range(self, file: Bytes, size: int) -> Iterator[Row]:
        """Yield the rows of a plain file of lines, or of the shard's range of bytes."""
        if self._shard is None:
            self._part = (0, size)
            return rows_of_lines(lines_of(file), self._settle)
        # The first line decides the form for all shards.
        form = self._settle(next((line for line in lines_of(file) if line and line.removeprefix(BOM).strip()), b""))
        part, parts = self._shard
        start, end = (_line_from(file, size, size * each // parts) for each in (part, part + 1))
        self._part = (start, end)
        file.seek(start)
        before = cache(partial(_lines_before, self.name, start))
        return rows_of_lines(lines_of(file, end - start), lambda _: form, before)

    def _hashed(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Leave the rows of the shard, by a hash of their numbers."""
        if self._shard is None:
            return rows
        part, parts = self._shard
        return (row for number, row in enumerate(rows) if (number * _GOLDEN >> 32 & 0xFFFFFFFF) % parts == part)

    def _choose(self, schema: Any) -> list[str]:
        self.schema = schema
        self.names = names = distinct(schema.names)
        if self._columns is not None:
            check_columns(self.name, self._columns, names)
            return self._columns
        if self._wanted is None:
            return [each for each in names if not each.startswith(INDEX)]
        wanted = _roots(self._wanted)
        return [each for each in names if each in wanted]

    def _table(self) -> Any:
        return self._given if self._path is None else self._path


def _roots(paths: Collection[str]) -> set[str]:
    """Return the names of the fields that paths may lead through."""
    return {part for path in paths for part in (path, re.split(r"[.\[]", path)[0])}


def _with_columns(row: Row, columns: Sequence[str]) -> Row:
    if row.fault is not None:
        return row
    missing = next((name for name in columns if name not in row), None)
    if missing is not None:
        return row.with_fault(f"has no field {missing!r}")
    return row.keeping(columns)


def _without(row: Row, reserved: frozenset[str]) -> Row:
    if reserved.isdisjoint(row):
        return row
    name = next(name for name in row if name in reserved)
    return row.with_fault(
        f"has a field {name!r}, which the output would overwrite; rename it, or keep others by --columns"
    )


def ending_of(name: str) -> str:
    """Return the ending that tells the form of a file, in small letters."""
    path = Path(name.lower())
    return (path.with_suffix("") if path.suffix in _PACKED_ENDINGS else path).suffix


def _is_seekable(file: Any) -> bool:
    return bool(getattr(file, "seekable", bool)())


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


def form_from(text: str) -> Format:
    """Read the name of a form.

    Raises:
        ConfigError: there is no such form.
    """
    for form in FORMATS:
        if text == form:
            return form
    raise ConfigError(f"format: one of {', '.join(FORMATS)}, not {text!r:.40}", field="format")


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


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do what may take for ever in a thread of its own; return what becomes of it.

    The event loop waits for its own threads at its end. It does not wait for this one.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

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
        with suppress(RuntimeError):  # the loop has gone, and with it whoever wanted to know
            loop.call_soon_threadsafe(tell, setter, value)

    threading.Thread(target=run, daemon=True, name="batchclient-files").start()
    return future
