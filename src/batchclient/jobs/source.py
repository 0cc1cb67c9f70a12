"""A file that is read as rows: its bytes, its form, and the rows one after the other.

Rules:
- Nothing is read whole. A regular file is read as rows are asked for. A pipe or a terminal, where a
  read may take for ever, is read in a thread, and so holds up no answer.
- Gzip is known by its first bytes, whatever the file's name.
- The first usable row can be read before anything is sent: a wrong template or a wrong column is
  refused.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import io
import os
import stat
import sys
import threading
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar, cast

from batchclient.errors import ConfigError
from batchclient.jobs.csv_rows import CsvRows
from batchclient.jobs.other_files import (
    advice_for,
    advice_for_array,
    advice_for_content,
    advice_for_url,
    begins_array,
)
from batchclient.jobs.rows import FaultyRow, Format, Keep, LineRows, LineSplitter, Origin, Row, lines_in
from batchclient.jobs.shards import Shard, make_keep, range_of

__all__ = ["FORMATS_SAID", "Source", "in_thread", "open_source"]

T = TypeVar("T")

FORMATS_SAID = "format='jsonl', 'text' or 'csv'"
"""How a message names the argument for the form; the command line has another name."""
_CHUNK_BYTES = 256 * 1024
_PEEK_BYTES = 64 * 1024
_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text", ".csv": "csv"}
_GZIP = b"\x1f\x8b"
_ROWS_TO_FIRST = 100
"""Unusable rows to read at the start, at most. Further ones are read as rows are asked for."""


class _Bytes:
    """The bytes of a file, unpacked.

    Args:
        name: for messages.
        file: unbuffered, or one that has ``read`` alone.
        most: bytes to read, at most; ``None``: all.
    """

    def __init__(self, name: str, file: BinaryIO, most: int | None = None) -> None:
        self._name = name
        self._file = file
        # Of a buffered pipe ``read`` would wait until all the bytes are there.
        self._take = getattr(file, "read1", file.read)
        self._left = most
        self._unpacked: gzip.GzipFile | None = None
        self._begun = False

    def __repr__(self) -> str:
        return f"<_Bytes of {self._name}>"

    def read(self) -> bytes:
        """Return the next bytes; none at the end.

        Raises:
            OSError: the file cannot be read, or its gzip data is damaged.
            ConfigError: the file is no text of rows.
        """
        if not self._begun:
            self._begun = True
            start = self._read()
            if start == _GZIP[:1]:
                start += self._read()
            if not start.startswith(_GZIP):
                advice = advice_for_content(self._name, start)
                if advice is not None:
                    raise ConfigError(f"{self._name}: {advice}")
                return start
            packed = cast("BinaryIO", _Joined(start, self._read))
            self._unpacked = gzip.GzipFile(fileobj=packed, mode="rb")
        if self._unpacked is None:
            return self._read()
        try:
            return self._unpacked.read1(_CHUNK_BYTES)
        except EOFError:
            raise OSError(errno.EIO, "the gzip data ends early") from None
        except (gzip.BadGzipFile, zlib.error):
            raise OSError(errno.EIO, "the gzip data is damaged") from None

    def _read(self) -> bytes:
        if self._left is None:
            chunk = self._take(_CHUNK_BYTES) or b""
        else:
            chunk = self._take(min(_CHUNK_BYTES, self._left)) or b"" if self._left else b""
            self._left -= len(chunk)
        if not isinstance(chunk, bytes):
            raise ConfigError(f"{self._name}: a file of rows is read as bytes: open it with mode 'rb'", field="source")
        return chunk


class _Joined(io.RawIOBase):
    """First bytes, and a function that reads the others."""

    def __init__(self, start: bytes, more: Callable[[], bytes]) -> None:
        self._start = start
        self._more = more

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk, self._start = self._start or self._more(), b""
        if size >= 0:
            chunk, self._start = chunk[:size], chunk[size:]
        return chunk


class Source:
    """The rows of one input.

    Args:
        name: for messages.
        file: read from its position on.
        form: the form of a row; ``None``: the first line with more than blanks decides.
        columns: the fields of a row; ``None``: all.
        keep: which rows are wanted; ``None``: all.
        reserved: fields that no row may have, because the output adds them.
        most: rows to read, at most, faulty rows included; ``None`` for all.
        part: the range of bytes to read, of the regular file of this name; ``None``: all.
        is_regular: whether reading the file never waits.
        closes: whether the source closes the file.
    """

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        form: Format | None,
        *,
        columns: Sequence[str] | None = None,
        keep: Keep | None = None,
        reserved: Sequence[str] = (),
        most: int | None = None,
        part: tuple[int, int] | None = None,
        is_regular: bool = True,
        closes: bool = True,
    ) -> None:
        self.name = name
        self._closes = closes
        self.file = file
        self.form = form
        self.is_regular = is_regular
        self.taken: int = 0
        self._columns = columns
        self._keep = keep
        self._reserved = frozenset(reserved)
        self._most = most
        start, end = part or (0, None)
        if start:
            file.seek(start)
        self._part = part
        self._origin = Origin(name, start)
        self._bytes = _Bytes(name, file, None if end is None else end - start)
        self._splitter = LineSplitter(at_start=start == 0)
        self._parser: LineRows | CsvRows | None = None
        self._skipped = 0
        """Blank lines before the line that decides the form."""
        self._parsed: Iterator[Row] = iter(())
        self._rows: deque[Row] = deque()
        self._ended = False

    def __repr__(self) -> str:
        return f"<Source {self.name}: {self.taken} rows>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._closes:
            self.file.close()

    def first(self) -> Row | None:
        """Read up to the first row with fields and return the row, which stays in ``rows``.

        The call may wait for the input.

        Raises:
            OSError: the input cannot be read.
            ConfigError: the input is one JSON array, or has no usable CSV header.
        """
        for row in self.read():
            self._rows.append(row)
            if row or row.fault is None:
                return row
            if len(self._rows) >= _ROWS_TO_FIRST:
                break
        return None

    def rows(self) -> Iterable[Row] | AsyncIterator[Row]:
        """Return all rows; iterating reads the input. An ``OSError`` of the input is passed on."""
        return self.read() if self.is_regular else self._read_in_thread()

    def count(self) -> int:
        """Count the rows, for a regular file also the unread ones. No row can be read afterwards."""
        if self.is_regular:
            for _ in self.read():
                pass
        return self.taken

    def expected(self) -> int | None:
        """Return about how many rows there are, where counting lines tells."""
        if not self.is_regular or self.form == "csv" or self._keep is not None or self.name == "stdin":
            return self._most
        with open(self.name, "rb") as file:  # noqa: PTH123
            if file.read(2) == _GZIP:
                return self._most
            size = os.fstat(file.fileno()).st_size
        return lines_in(self.name, *(self._part or (0, size)), self._most)

    def read(self) -> Iterator[Row]:
        """Yield all rows; waits for the input."""
        while True:
            yield from self._take()
            if self._ended:
                return
            self._feed(self._bytes.read())

    async def _read_in_thread(self) -> AsyncIterator[Row]:
        while True:
            for row in self._take():
                yield row
            if self._ended:
                return
            self._feed(await in_thread(self._bytes.read))

    def _take(self) -> Iterator[Row]:
        """Yield and forget the rows read so far."""
        # Set aside at once: ``first`` puts rows back while it reads.
        rows, self._rows = self._rows, deque()
        yield from rows
        reserved = self._reserved
        for row in self._parsed:
            self.taken += 1
            if self.taken == self._most:
                # Before the row is handed out: whoever takes it may not come back.
                self._parsed = iter(())
                self._ended = True
            if not reserved.isdisjoint(row):
                name = next(name for name in row if name in reserved)
                reason = (
                    f"has a field {name!r}, which the output would overwrite; rename it, or keep others by --columns"
                )
                yield FaultyRow(reason, row._number, self._origin, row)
            else:
                yield row
            if self._ended and self.taken == self._most:
                return

    def _feed(self, chunk: bytes) -> None:
        if chunk:
            lines = self._splitter.feed(chunk)
        else:
            self._ended = True
            lines = self._splitter.end()
        if self._parser is None:
            self._begin(lines)
        if self._parser is not None:
            self._parsed = self._rows_of(self._parser, lines, at_end=self._ended)

    @staticmethod
    def _rows_of(parser: LineRows | CsvRows, lines: Sequence[bytes | None], *, at_end: bool) -> Iterator[Row]:
        yield from parser.feed(lines)
        if at_end:
            yield from parser.end()

    def _begin(self, lines: Sequence[bytes | None]) -> None:
        """Find out the form by the first lines, and make the parser of that form."""
        if self.form == "csv":
            self._parser = CsvRows(self.name, self._columns, self._keep, self._origin)
            return
        filled = next((line for line in lines if line is None or not (line == b"" or line.isspace())), b"")
        if filled == b"" and not self._ended:
            self._skipped += len(lines)
            return
        if filled and self._origin.start == 0:
            self.settle(filled)
        self.form = self.form or "text"
        self._parser = LineRows(self.form, self._columns, self._keep, self._origin, self._skipped)

    def settle(self, line: bytes) -> None:
        """Find out the form, where none was given, by the first line with more than blanks.

        Raises:
            ConfigError: the line begins a JSON array.
        """
        if self.form not in ("text", "csv") and begins_array(line):
            raise ConfigError(f"{self.name}: {advice_for_array(self.name)}")
        if self.form is None:
            self.form = "jsonl" if line.lstrip().startswith(b"{") else "text"
            check_columns(self.form, self._columns)


def check_columns(form: Format | None, columns: Sequence[str] | None) -> None:
    """Refuse columns that lines of text lack.

    Raises:
        ConfigError: a line of text has one field, ``text``.
    """
    if form == "text" and columns is not None and set(columns) - {"text"}:
        other = next(name for name in columns if name != "text")
        raise ConfigError(f"columns: a line of text has the field 'text' alone, not {other!r:.60}", field="columns")


def open_source(
    source: str | os.PathLike[str] | BinaryIO,
    form: Format | None = None,
    *,
    columns: Sequence[str] | None = None,
    shard: Shard | None = None,
    sample: Fraction | None = None,
    reserved: Sequence[str] = (),
    most: int | None = None,
) -> Source:
    """Open an input; ``-`` is stdin.

    Args:
        source: a path, or a file that is open for reading bytes.
        shard: the part to read.
        sample: the share of the rows to read.
        form, columns, reserved, most: as for ``Source``.

    Raises:
        OSError: there is no such file, or the file cannot be read.
        ConfigError: the file's ending tells no form, or a form that is not read.
    """
    check_columns(form, columns)
    options: dict[str, Any] = {"columns": columns, "reserved": reserved, "most": most}
    if not isinstance(source, (str, os.PathLike)):
        name = str(getattr(source, "name", type(source).__name__))
        return Source(name, source, form, keep=make_keep(shard, sample), closes=False, **options)
    path = os.fspath(source)
    if path == "-":
        # Read below Python's buffer: a thread waiting in the buffer keeps the interpreter alive.
        file: BinaryIO = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
        return Source("stdin", file, form, keep=make_keep(shard, sample), is_regular=_is_regular(file), **options)
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115, PTH123  # the source closes the file
    except OSError:
        advice = advice_for_url(path)
        if advice is None:
            raise
        raise ConfigError(f"{path}: {advice}") from None
    try:
        return _of_file(path, file, form, shard, sample, options)
    except BaseException:
        file.close()
        raise


def _of_file(
    path: str,
    file: BinaryIO,
    form: Format | None,
    shard: Shard | None,
    sample: Fraction | None,
    options: dict[str, Any],
) -> Source:
    is_regular = _is_regular(file)
    form = form or _form_of(path, is_regular=is_regular)
    check_columns(form, options["columns"])
    if shard is None or form == "csv" or not is_regular:
        return Source(path, file, form, keep=make_keep(shard, sample), is_regular=is_regular, **options)
    start = file.read(_PEEK_BYTES)
    file.seek(0)
    if start.startswith(_GZIP):
        return Source(path, file, form, keep=make_keep(shard, sample), **options)
    part = range_of(file, os.fstat(file.fileno()).st_size, shard)
    file.seek(0)
    made = Source(path, file, form, keep=make_keep(None, sample), part=part, **options)
    # The first line decides the form for all parts.
    advice = advice_for_content(path, start)
    if advice is not None:
        raise ConfigError(f"{path}: {advice}")
    filled = next((line for line in LineSplitter().feed(start + b"\n") if line and not line.isspace()), b"")
    if filled:
        made.settle(filled)
    return made


def _form_of(path: str, *, is_regular: bool) -> Format | None:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    ending = suffixes[-1] if suffixes else ""
    form = _FORMATS.get(ending)
    if form is None and ending and is_regular:
        unknown = f"the ending {ending!r} tells no form of rows; if each line is a row, give {FORMATS_SAID}"
        raise ConfigError(f"{path}: {advice_for(path, _FORMATS) or unknown}")
    return form


def _is_regular(file: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


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
