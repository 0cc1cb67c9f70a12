"""Where the rows of a job go: a file that is replaced whole, or a pipe.

Rules:
- Rows go into ``OUT.TOKEN.part``, a new file with a name of its own, from the first one on. It
  takes the place of ``OUT`` by a rename, once all rows are written and synced. So ``OUT`` is whole,
  or it is as it was, whatever ends the command.
- ``OUT.part`` is a link to that file, for ``tail -F``. A file of others in this place stays, and
  the job does without the link.
- What the command has not made is never removed, emptied, followed or replaced. An ``OUT`` that has
  appeared or changed since the job began stays, and so do the rows beside it.
- A pipe or a device takes the rows as they come.
- The file that takes the rows is locked while it is open: of two jobs on one ``OUT`` the second is
  refused. It is as long as what was written, and where it was made, or it is not put in its place.
- A second file beside ``OUT``, such as ``OUT.errors``, goes the same way: it is synced with ``OUT``
  and renamed before it.
- Writing is done in a thread and waited for: no slow disk and no slow reader holds up an answer,
  and no further row is taken meanwhile. The thread is a daemon: a pipe may take nothing for ever.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import stat
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from batchclient.errors import ConfigError
from batchclient.jobs.bytes import checksum_of
from batchclient.jobs.forms import BESIDE, Work
from batchclient.jobs.source import in_thread
from batchclient.journal.lease import System
from batchclient.journal.place import sync_folder

__all__ = ["Output", "reason_of"]

_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
"""How file systems say that a file cannot be synced."""
_GZIP = 31
"""Zlib's number for the largest window and gzip's head."""
_TOGETHER_BYTES = 256 * 1024
_PIECE_BYTES = 16 * 1024
"""Bytes of one write into a pipe, so that it is seen whether the reader takes any."""


class Output:
    """The place that rows go to. The constructor checks; nothing is changed before ``open``.

    Args:
        path: of the file, a device or a pipe; ``-`` is stdout.
        source: the status of the input, which must be another file; ``None``: no file.
        stall_s: a reader that takes nothing for so long is left by whoever is in a hurry, seconds.
        beside: what the second file has behind the name of a regular one; empty: there is none.
        packed: whether the rows are packed by gzip, in the thread that writes them.

    Attributes:
        name: for messages.
        device: the path, also of standard output.
        is_file: whether rows go into a regular file with a name.
        path: of that file.
        before: the status of the file that is there; ``None``: none is.
        part: the file that takes the rows, once it is open.
        written: rows that the output has taken.
        checksum: of their bytes.
        in_a_hurry: whether a reader that takes nothing is left; asked again and again.
        is_given_up: whether rows were left unwritten, for a reader that takes none.
        is_in_place: whether the file is whole, and in its place.
        beside: the second file.

    Raises:
        ConfigError: the output cannot be.
    """

    def __init__(
        self,
        path: str,
        *,
        source: os.stat_result | None = None,
        stall_s: float = 0.5,
        beside: str = "",
        packed: bool = False,
    ) -> None:
        if not path:
            raise ConfigError("--output is empty; give a path, or - for stdout")
        self.name: str = "stdout" if path == "-" else path
        self.device: str = "/dev/stdout" if path == "-" else path
        self.path: Path = Path(path)
        self.part: Path | None = None
        self.written: int = 0
        self.checksum: int = 0
        self.in_a_hurry: Callable[[], bool] = lambda: False
        self.is_given_up: bool = False
        self.is_in_place: bool = False
        self._stall_s = stall_s
        self._lines: list[bytes | Work] = []
        self._bytes = 0
        self._rows = 0
        self._writing: asyncio.Future[None] | None = None
        self._busy = asyncio.Lock()
        self._moved = 0
        self._packer = zlib.compressobj(wbits=_GZIP) if packed else None
        self._file = -1
        try:
            self.before: os.stat_result | None = os.fstat(sys.stdout.fileno()) if path == "-" else self._status()
        except OSError as error:
            raise ConfigError(f"{self.name}: {reason_of(error)}") from None
        self.is_file: bool = path != "-" and (self.before is None or stat.S_ISREG(self.before.st_mode))
        before = self.before
        if before is not None and stat.S_ISREG(before.st_mode) and source and os.path.samestat(before, source):
            raise ConfigError(f"{self.name}: output and input are the same file; rows would be lost")
        self.beside: Output | None = Output(path + beside, source=source) if beside and self.is_file else None

    def __repr__(self) -> str:
        return f"<Output {self.name}>"

    @property
    def link(self) -> Path:
        """The place of the link to the file that takes the rows."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def where(self) -> str:
        """Where the rows are, for a report at the end."""
        if self.part is None or self.is_in_place:
            return self.name
        shown = self.link if self._is_linked() else self.part
        return f"{shown}{'' if self.before is None else f' ({self.name} is as it was)'}"

    def look(self) -> None:
        """Look again which file is there."""
        if self.is_file:
            self.before = self._status()
        if self.beside is not None:
            self.beside.look()

    def _status(self) -> os.stat_result | None:
        """Return the status of what is there; ``None``: nothing."""
        if not self.path.parent.is_dir():
            raise ConfigError(f"{self.name}: there is no directory {self.path.parent}")
        try:
            status = self.path.stat()
        except FileNotFoundError:
            status = None
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if self.path.is_symlink() and (status is None or stat.S_ISREG(status.st_mode)):
            raise ConfigError(f"{self.name}: a link to {self.path.readlink()}; name the file itself")
        return status

    # The way of the rows ---------------------------------------------------------------------------------------------

    async def open(self, token: str = "") -> None:
        """Open the output. A pipe that nobody reads may block, which holds up the caller alone.

        Args:
            token: in the name of the new file; no other command has the same.

        Raises:
            ConfigError: the output cannot be opened.
        """
        if self.is_file:
            self.part = self.part_of(token)
        try:
            self._file = self._open() if self.is_file else await in_thread(self._open)
        except OSError as error:
            raise ConfigError(f"{self.part or self.name}: {reason_of(error)}") from None
        if self.beside is not None:
            await self.beside.open(token)

    def remove(self, part: str) -> None:
        """Remove a file that took the rows of an earlier run, by its name, and the link to it.

        A file of any other name stays.

        Raises:
            OSError: it cannot be removed.
        """
        seconds = "|".join(map(re.escape, BESIDE.values()))
        if not re.fullmatch(rf"{re.escape(self.path.name)}({seconds})?\.[0-9a-f]{{16}}\.part", part):
            return
        link = self.path.with_name(f"{part.rsplit('.', 2)[0]}.part")
        if points_to(link, part):
            link.unlink()
        self.path.with_name(part).unlink(missing_ok=True)

    def part_of(self, token: str) -> Path:
        """Return the place of the file that takes the rows of a command with this token."""
        return self.path.with_name(f"{self.path.name}.{token}.part")

    def check_free(self) -> None:
        """Refuse an output that another job writes.

        Raises:
            ConfigError: it is so.
        """
        with suppress(OSError):
            file = os.open(self.link.with_name(self.link.readlink().name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                is_free = System().lock(file) is not False
            finally:
                os.close(file)
            if not is_free:
                raise ConfigError(f"{self.name}: another job writes it, and has its rows in {self.link}")

    def _open(self) -> int:
        if self.device == "/dev/stdout":
            return os.dup(sys.stdout.fileno())
        if self.part is None:
            file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
            if stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                raise FileExistsError(errno.EEXIST, "the file has appeared meanwhile; it is left alone")
            return file
        self.check_free()
        file = os.open(self.part, _NEW, 0o666)
        System().lock(file)
        with suppress(OSError):
            if self.before is not None:
                os.fchmod(file, stat.S_IMODE(self.before.st_mode))
        with suppress(OSError):  # a file of others, or a file system without links
            self.link.symlink_to(self.part.name)
        return file

    async def put(self, line: bytes | Work, beside: bytes = b"", *, rows: int = 1) -> None:
        """Take the bytes of a row; wait while many are to be written.

        Args:
            line: for the file. It may be empty: the writer of a table has taken the row. What makes
                bytes is called in the thread that writes.
            beside: for the second file.
            rows: that these bytes end.

        Raises:
            OSError: rows cannot be written.
        """
        self._lines.append(line)
        self._bytes += len(line) if isinstance(line, bytes) else _TOGETHER_BYTES
        self._rows += rows
        if beside and self.beside is not None:
            await self.beside.put(beside)
        if self._bytes >= _TOGETHER_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write the rows taken.

        Raises:
            OSError: rows cannot be written.
        """
        async with self._busy:
            while not self.is_given_up and (self._writing is not None or self._lines):
                if self._writing is None:
                    lines, rows, self._lines, self._bytes, self._rows = self._lines, self._rows, [], 0, 0
                    self._writing = in_thread(partial(self._write, lines, rows))
                moved = self._moved
                # Whoever waits may be cancelled: the thread still writes, and is waited for next.
                done, _ = await asyncio.wait({self._writing}, timeout=self._stall_s)
                if done:
                    writing, self._writing = self._writing, None
                    writing.result()
                elif moved == self._moved and self.in_a_hurry() and not self.is_file:
                    self.is_given_up = True
                    return
        if self.beside is not None:
            await self.beside.flush()

    def _write(self, lines: list[bytes | Work], rows: int) -> None:
        joined = b"".join([line if isinstance(line, bytes) else line() for line in lines])
        data = memoryview(joined if self._packer is None else self._packer.compress(joined))
        while data:
            try:
                count = os.write(self._file, data if self.is_file else data[:_PIECE_BYTES])
            except BlockingIOError:
                # Somebody else has set the pipe not to block.
                select.select([], [self._file], [])
                continue
            self._moved += count
            self.checksum = zlib.crc32(data[:count], self.checksum)
            data = data[count:]
        self.written += rows

    # The end ---------------------------------------------------------------------------------------------------------

    async def end(self, data: bytes | Work) -> None:
        """Write the end of the file, and all rows before it.

        Raises:
            OSError: rows cannot be written.
        """
        await self.put(data, rows=0)
        await self.flush()
        packer, self._packer = self._packer, None
        if packer is not None:
            await self.put(packer.flush(), rows=0)
            await self.flush()

    async def finish(self, note: Callable[[os.stat_result | None], None], head: bytes = b"") -> None:
        """Put a file whose rows are all written in its place.

        Args:
            head: takes the place of the first bytes.
            note: told the status of the synced file before it is renamed (``None``: it is no file).
                It may refuse.

        Raises:
            OSError: the rows may not be on the disk, or another file is in the place. ``OUT`` is as
                it was.
        """
        await in_thread(lambda: self._finish(note, head))

    def _finish(self, note: Callable[[os.stat_result | None], None], head: bytes) -> None:
        if self.part is None:
            note(None)
            return
        files = [self] if self.beside is None else [self.beside, self]
        for each in files:
            each._settle(head if each is self else b"")
        note(self.status)
        for each in files:
            each._check()
        for each in files:
            each._replace()
        sync_folder(self.path.parent)

    def checksum_before(self) -> int | None:
        """Return the checksum of the file that is there, which is read; ``None``: it cannot be."""
        with suppress(OSError):
            return checksum_of(self.path)
        return None

    @property
    def status(self) -> os.stat_result:
        """The status of the file that takes the rows, while it is open."""
        return os.fstat(self._file)

    def _settle(self, head: bytes) -> None:
        assert self.part is not None
        if not self._is_there() or self.status.st_size != self._moved:
            raise OSError(errno.ESTALE, f"{self.part} was moved, replaced or changed while the job ran")
        if head:
            file = os.open(self.part, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.pwrite(file, head, 0)
            finally:
                os.close(file)
            self.checksum = checksum_of(self.part)
        _sync(self._file)

    def _check(self) -> None:
        with suppress(ConfigError):  # a link
            if is_same(self._status(), self.before):
                return
        changed = f"{self.name}: the file has changed while the job ran; the rows are in {self.part}"
        raise OSError(errno.EEXIST, changed)

    def _replace(self) -> None:
        assert self.part is not None
        self._unlink()
        self.part.replace(self.path)
        self.is_in_place = True

    def _is_there(self) -> bool:
        """Whether the file that takes the rows is still where it was made."""
        assert self.part is not None
        try:
            return os.path.samestat(os.fstat(self._file), self.part.lstat())
        except FileNotFoundError:
            return False

    def close(self, *, keeps_rows: bool = True) -> None:
        """Close the output. Safe to call twice.

        Args:
            keeps_rows: whether a file that is not in its place stays, if it has a row.
        """
        if self.beside is not None:
            self.beside.close(keeps_rows=keeps_rows)
        if self._file < 0:
            return
        if self.part is not None and not self.is_in_place and not (keeps_rows and os.fstat(self._file).st_size):
            self._unlink()
            if self._is_there():
                self.part.unlink()
            self.part, self.written = None, 0
        if not self.is_given_up:
            os.close(self._file)
        self._file = -1

    def _is_linked(self) -> bool:
        return self.part is not None and points_to(self.link, self.part.name)

    def _unlink(self) -> None:
        if self._is_linked():
            self.link.unlink()


def points_to(link: Path, name: str) -> bool:
    """Whether a link leads to a file of this name beside it."""
    try:
        return link.readlink() == Path(name)
    except OSError:
        return False


def is_same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    """Whether a file is the same one, and nobody has written it since."""
    if one is None or other is None:
        return one is other
    return os.path.samestat(one, other) and (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


def reason_of(error: OSError) -> str:
    """Return why a file cannot be used, in the system's words."""
    return error.strerror or type(error).__name__


def _sync(file: int) -> None:
    """Wait until a file is on the disk itself, where the file system can tell."""
    try:
        System().sync(file)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
