"""The rows of an input, one after the other: of a list of files, which one function opens.

Rules:
- Regular files are read as rows are asked for. A pipe, a terminal or a URL, where a read may take
  for ever, is read in a thread, and so holds up no answer.
- Each shard reads a part of each file, and another part from file to file: small files are shared
  out evenly. Of a URL with as many files as shards, each shard reads whole files.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import sys
import threading
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import chain, islice
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

from batchclient._client.parts import shard_from
from batchclient.errors import ConfigError
from batchclient.jobs.bytes import checksum_of
from batchclient.jobs.file import File, Reading
from batchclient.jobs.inputs import input_of, said, shown
from batchclient.jobs.rows import Row

__all__ = ["Source", "in_thread"]

T = TypeVar("T")

_ROWS_TO_FIRST = 100
"""Unusable rows to read at the start, at most. Further ones are read as rows are asked for."""
_ROWS_AHEAD, _LOADED_AHEAD = 256, 8
"""Rows read in a thread that wait to be taken, at most; and where something is loaded for them.

The first number is also that of the rows that tell the types of columns.
"""


class Source:
    """The rows of one input.

    Args:
        given: a path, a folder, a pattern, a URL, ``-`` for stdin, or a file that is open for
            reading bytes.
        form: of the rows; ``None``: the files tell.
        shard: the part to read; ``None``: all.
        most: rows to read, at most, faulty rows included; ``None`` for all.
        reading: as for ``Reading``.

    Attributes:
        name: for messages.
        form: of the rows; ``None`` until it is known.
        stamp: changes with the input, where that can be read again; ``None``: it cannot.
        status: of a regular file that is the input; ``None``: it is none.
        is_regular: whether reading never waits.
        schema: Arrow's, of a table of Parquet or Arrow; ``None`` until it is known.
        names: of a table's columns, read or not; empty until they are known, and of other forms.
        count: of all rows; ``None`` until they were read.
        reserved: fields that no row may have, because the output adds them.

    Raises:
        OSError: there is no such file.
        ConfigError: an argument is wrong, no file has such a name, or the files have several forms.
    """

    def __init__(
        self,
        given: str | os.PathLike[str] | BinaryIO,
        form: str | None = None,
        *,
        shard: str | Sequence[int] | None = None,
        most: int | None = None,
        **reading: Any,
    ) -> None:
        self._reading = Reading(form, **reading)
        part, parts = self._shard = (0, 1) if shard is None else shard_from(shard)
        found = input_of(given, form)
        if found.system is not None and len(found.files) >= parts:
            found, self._shard = found._replace(files=found.files[part::parts]), (0, 1)
        self._input = found
        self.name: str = found.name
        self.form: str | None = form
        self.schema: Any = None
        self.names: Sequence[str] = ()
        self.count: int | None = None
        self.reserved: Collection[str] = ()
        self.status: os.stat_result | None = None
        self.stamp: list[Any] | None = None
        self.is_regular: bool = found.system is None
        self._sizes: list[int] = []
        """Of regular files that are here."""
        if not (found.system or found.is_given):
            self._look()
        self._most = most
        self._ahead = _ROWS_AHEAD
        self._seen: list[Row] = []
        self._made = self._place = 0
        self._file: File | None = None
        self._opened: Any = None
        self._rows: Iterator[Row] = self._counted(islice(self._read(), most))

    def _look(self) -> None:
        """Look at files that are here: whether they are there, and what tells that they change."""
        told, is_one = [], self._input.folder is None
        for path in self._input.files:
            with nullcontext() if is_one else said(self._input.name_of(path)):
                status = os.fstat(sys.stdin.fileno()) if path == "-" else os.stat(path)  # noqa: PTH116
                self.is_regular = stat.S_ISREG(status.st_mode)
                if not (self.is_regular or is_one):
                    raise OSError(errno.EINVAL, "it is no regular file")
            told.append((path, status.st_size, status.st_mtime_ns))
        if self.is_regular:
            self._sizes = [size for _, size, _ in told]
            facts = told[0][1:] if is_one else (hashlib.sha256(repr(told).encode()).hexdigest(),)
            self.stamp = [os.path.realpath(self.name if self._input.files != ["-"] else "-"), *facts]
            self.status = status if is_one else None

    def __repr__(self) -> str:
        return f"<Source {self.name}: {self._made} rows>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that is open, unless it is the caller's."""
        if self._opened is not None and not self._input.is_given:
            self._opened.close()

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

        What is wrong with the input behind them is raised when the rows are read.
        """
        if not self.is_regular:
            return self._seen
        seen, rest = list[Row](), self._rows
        try:
            for row in islice(rest, _ROWS_AHEAD):
                seen.append(row)
        except (OSError, ConfigError) as error:
            rest = _raising(error)
        self._seen, self._rows = seen, chain(seen, rest)
        return seen

    def rows(self) -> Iterable[Row] | AsyncIterator[Row]:
        """Return all rows; iterating reads the input. An ``OSError`` of the input is passed on."""
        return self.read() if self.is_regular else self._read_in_thread()

    def load(self, loaded: Callable[[Row], Row]) -> None:
        """Load what a row names, in the thread that reads the row: reading may wait from now on."""
        self._rows, self.is_regular, self._ahead = map(loaded, self._checked(self._rows)), False, _LOADED_AHEAD

    def read(self) -> Iterator[Row]:
        """Yield all rows; waits for the input."""
        yield from self._checked(self._rows)

    def _checked(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            name = next((name for name in self.reserved if name in row), None)
            if name is None or row.fault is not None:
                yield row
            else:
                yield row.with_fault(f"has a field {name!r}, which the output would overwrite; give --answer-field")

    def expected(self) -> int | None:
        """Return about how many rows there are, where that is told without reading them.

        It is told after ``first``.
        """
        if not self._sizes:
            return None
        total = 0
        for place, path in enumerate(self._input.files):
            with said(path), self._input.opened(path) as opened:
                file = self._file_of(place, opened)
                next(file.rows(), None)
                known = file.count(self._most)
            if known is None:
                return None
            total += known
        return total if self._most is None else min(total, self._most)

    def estimated(self) -> int | None:
        """Return about how many rows there are, by the share of the bytes that the rows so far have."""
        if not self._sizes or self._file is None:
            return None
        done = sum(self._sizes[: self._place]) + self._sizes[self._place] * self._file.share
        if not done:
            return None
        told = max(self._made, round(self._made * sum(self._sizes) / done))
        return told if self._most is None else min(told, self._most)

    def checksum(self) -> int | None:
        """Return a checksum of the files, which are read anew.

        ``None``: they cannot be read again, or have changed since they were found.
        """
        if self.stamp is None or "-" in self._input.files:
            return None
        stamp, checksum = self.stamp, 0
        try:
            for path in self._input.files:
                checksum = checksum_of(path, zlib.crc32(os.fsencode(self._input.name_of(path)), checksum))
            self._look()
        except OSError:
            return None
        now, self.stamp = self.stamp, stamp
        return checksum if now == stamp else None

    def reads(self, path: str) -> bool:
        """Return whether a new file of this name would be a part of the input."""
        return self._input.reads(path, self._reading.form)

    def _file_of(self, place: int, opened: Any) -> File:
        path, (part, parts) = self._input.files[place], self._shard
        shard = None if parts == 1 else ((part + place) % parts, parts)
        name = self.name if self._input.folder is None else shown(path)
        return File(opened, name, self._reading, shard, path if self._sizes else None)

    def _read(self) -> Iterator[Row]:
        found = self._input
        kinds = OSError if found.system is None else Exception
        is_alone = found.folder is None and found.system is None
        for place, path in enumerate(found.files):
            name = found.name_of(path)
            with nullcontext() if is_alone else said(name if place else "", kinds), found.opened(path) as self._opened:
                self._place, self._file = place, self._file_of(place, self._opened)
                file, seen = self._file, list[Row]()
                rows = file.rows()
                for row in rows:
                    seen.append(row)
                    if file.form is not None:
                        break
                if self.form not in (None, file.form) and file.form is not None:
                    raise ConfigError(f"it is {file.form}, and the files before are {self.form}")
                self.form = file.form or self.form
                self.names, self.schema = self.names or file.names, self.schema or file.schema
                for row in chain(seen, rows):
                    row.file = name
                    yield row

    def _counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self._made += 1
            yield row
        self.count = self._made

    async def _read_in_thread(self) -> AsyncIterator[Row]:
        """Yield the rows that a thread reads, as they come."""
        ready: deque[Row] = deque()
        room, news = threading.Semaphore(self._ahead), asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> None:
            for row in self.read():
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
                yield ready.popleft()
                room.release()
            if is_over:
                await reading
                return
            await news.wait()


def _raising(error: Exception) -> Iterator[Row]:
    yield from ()
    raise error


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
