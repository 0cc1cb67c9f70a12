"""A journal as one process holds it: the lock, the first line, where each key's record is, groups.

A line is JSON and ends with a checksum of all before it. The first one says what wrote the file and
the settings that decide an answer. The others are records, appended and never changed, and notes.

Rules:
- Of several records of a key the last whole one counts. A line that is torn or damaged is none: its
  row runs again.
- The keys are in a table of SQLite's in a temporary file: memory does not grow with the rows. It is
  made at the opening, and nothing depends on it.
- Nobody appends to a file, or cuts it, that he did not create or lock. A file that is no journal is
  left as it is, and a link is not followed.
- After a failed ``fsync`` nothing more is written: Linux may drop the pages and report success the
  next time (Rebello et al., USENIX ATC 2020).
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from batchclient._shell.forks import forget_in_child
from batchclient._shell.log import log
from batchclient.errors import ConfigError
from batchclient.journal.lease import JournalInUse, JournalLost, Lease, LeaseFile, System, Times, Watch
from batchclient.journal.settings import Journal

__all__ = ["HeldJournal", "fields_in", "line_of", "sealed"]

VERSION = 1
_FIRST = b'{"batchclient":"journal",'
_RECORD = b'{"key":"'
_KEY = slice(len(_RECORD), len(_RECORD) + 32)
_SEAL = len(b',"crc":"01234567"}\n')
_KEYS_AT_ONCE = 65_536
_READ_AT_ONCE = 1 << 20
_COPIED_AT_ONCE = 1 << 20
_LONGEST_LINE = 1 << 28
_LINES_TO_KNOW = 1000
"""Without a first line, one of so many is to be a record: else the file is something else."""
_MOST_NAMED = 100
_OF_THE_PLACE = {
    errno.ELOOP: "is a link; give the file itself",
    errno.EISDIR: "is a folder",
    errno.ENXIO: "is no regular file",
    errno.ENOENT: "cannot be made: its folder does not exist",
    errno.ENOTDIR: "cannot be made: its folder is a file",
    errno.EACCES: "may not be read and written",
    errno.EPERM: "may not be read and written",
    errno.EROFS: "is on a file system that is read-only",
    errno.ENAMETOOLONG: "has too long a name",
}
_LEAVING_S = 0.02
_held: weakref.WeakSet[HeldJournal] = weakref.WeakSet()


def sealed(body: bytes) -> bytes:
    """Return an object's JSON as a line of a journal."""
    return b'%b,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body[:-1]))


def line_of(fields: Mapping[str, Any]) -> bytes:
    """Write fields as a line of a journal."""
    return sealed(json.dumps(fields, separators=(",", ":"), default=dict).encode())


def is_whole(line: bytes) -> bool:
    """Whether a line is as it was written."""
    if line[-_SEAL:-11] != b',"crc":"' or line[-3:] != b'"}\n':
        return False
    try:
        return int(line[-11:-3], 16) == zlib.crc32(line[:-_SEAL])
    except ValueError:
        return False


def fields_in(line: bytes) -> dict[str, Any] | None:
    """Return a line's fields; ``None``: it is torn, damaged, or no line of a journal."""
    if not is_whole(line):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


class HeldJournal:
    """An open journal. Every method blocks; they may be called from several threads.

    Attributes:
        lease: this process's; ``None``: the journal is only read.
        journal: the caller's settings.
        path: of the file.
        job: what decides the answers, from the first line; ``None``: ``begin`` is to write it.
        rows: keys that had a record at the opening.
        damaged: numbers of lines that are none, the first hundred.
        damaged_count: of all of them.
        notes: the last value of each note.
        has_lost_end: whether a torn end was cut off.
    """

    def __init__(self, journal: Journal, file: int, lease: LeaseFile | None) -> None:
        self.journal: Journal = journal
        self.path: Path = journal.path
        self.job: dict[str, Any] | None = None
        self.rows: int = 0
        self.damaged: list[int] = []
        self.damaged_count: int = 0
        self.notes: dict[str, Any] = {}
        self.has_lost_end: bool = False
        self.is_leaving: bool = False
        """Whether the file is about to be closed: another map of this process waits for it."""
        self._file = file
        self.lease: LeaseFile | None = lease
        self._end = 0
        self._rest = 0
        """Where the records begin."""
        self._fault: OSError | None = None
        self._lock = threading.RLock()
        self._keys = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        _held.add(self)
        forget_in_child(self)

    def __repr__(self) -> str:
        return f"<HeldJournal {os.fspath(self.path)!r}: {self.rows:,} rows>"

    @property
    def token(self) -> str:
        """Of this holding of the journal: hexadecimal digits, and never the same twice."""
        return "" if self.lease is None else self.lease.lease.token

    @property
    def holder(self) -> str:
        """Who holds the journal, for people; empty: nobody."""
        line = LeaseFile(_lease_of(self.path), System(), Times()).read()
        lease = None if line is None else Lease.read(line)
        return "" if lease is None else lease.name

    @classmethod
    def open(
        cls,
        journal: Journal | str | os.PathLike[str],
        *,
        system: System | None = None,
        times: Times | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> HeldJournal:
        """Take the lock and the lease, and read where each key's record is.

        Args:
            journal: the caller's settings, or a path.
            system, times: other ones are for tests.
            wait: sleeps for some seconds; true: the journal is not wanted any more.

        Raises:
            JournalInUse: another process, or another map of this one, writes it.
            ConfigError: the path is no file's, cannot be used, or is no journal of this version.
            OSError: the disk failed.
        """
        journal = journal if isinstance(journal, Journal) else Journal(journal)
        path = journal.path
        lease = LeaseFile(_lease_of(path), system or System(), times or Times())
        try:
            held = cls(journal, _take(journal, lease, wait), lease)
        except OSError as error:
            if error.errno in _OF_THE_PLACE:
                message = f"journal: {error.filename or path} {_OF_THE_PLACE[error.errno]}"
                raise ConfigError(message, field="journal") from error
            raise
        try:
            lease.renew_always()
            held._read()
        except BaseException:
            held.close()
            raise
        return held

    @classmethod
    def look_into(cls, path: str | os.PathLike[str]) -> HeldJournal:
        """Read a journal that another process may write: nothing is locked, and nothing written.

        Raises:
            ConfigError: it is no journal of this version.
            OSError: it cannot be read.
        """
        journal = Journal(path)
        held = cls(journal, os.open(journal.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), None)
        try:
            if not stat.S_ISREG(os.fstat(held._file).st_mode):
                raise ConfigError(f"journal: {path} is no regular file", field="journal")
            held._read()
        except BaseException:
            held.close()
            raise
        return held

    # The job ---------------------------------------------------------------------------------------------------------

    def differences(self, job: Mapping[str, Any]) -> list[str]:
        """Name the settings that differ from the journal's.

        Args:
            job: values by name. Only these are compared; a mapping is compared name by name, and
                there a name that either lacks is compared with ``None``.
        """
        found: list[str] = []
        for name, value in job.items():
            then = (self.job or {}).get(name)
            if isinstance(value, Mapping):
                then = then if isinstance(then, dict) else {}
                found += [each for each in {**then, **value} if not _are_equal(then.get(each), value.get(each))]
            elif not _are_equal(then, value):
                shown = name == "model" and isinstance(then, str)
                found.append(f"{name} ({then}, now {value})" if shown else name)
        return found

    def begin(self, job: Mapping[str, Any]) -> None:
        """Write the first line, or compare the job with the journal's.

        A journal without a record takes another job.

        Args:
            job: what decides the answers: values by name.

        Raises:
            ConfigError: it is another job's; ``field`` is the first setting that differs.
            JournalLost, OSError: as for ``append``.
        """
        differences = self.differences(job) if self.job is not None else []
        if differences and self.rows:
            message = (
                f"the journal {self.path} is of another job: {', '.join(differences)}; its {self.rows:,} rows"
                " stay as they are, and another journal begins anew"
            )
            raise ConfigError(message, field=differences[0].split(" ")[0])
        if self.job is not None and not differences:
            return
        first = line_of({"batchclient": "journal", "version": VERSION, "job": job})
        with self._lock:
            if self._end:
                self._go_on_in_copy(first)
            else:
                self._write(first)
            self.job = {**job}

    def note(self, name: str, value: Any) -> None:
        """Write a fact down, as JSON: it is on the disk afterwards, and in ``notes``.

        Raises:
            JournalLost, OSError: as for ``append``.
        """
        assert self.job is not None, "the first line comes first"
        self.append([line_of({"note": name, "value": value})])
        self.notes[name] = value

    # Rows ------------------------------------------------------------------------------------------------------------

    def find(self, key: bytes, n: int) -> bytes | None:
        """Return the line of a row's last record at the opening; ``None``: there is none."""
        with self._lock:
            place = self._keys.execute(
                "SELECT place, size FROM record WHERE key = ? ORDER BY place DESC LIMIT 1", (_key_of(key, n),)
            ).fetchone()
            return None if place is None else os.pread(self._file, place[1], place[0])

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of the last record of each row, in the file's order."""
        last = "SELECT max(place) AS place, size FROM record GROUP BY key ORDER BY place"
        for place, size in self._keys.execute(last):
            fields = fields_in(os.pread(self._file, size, place))
            if fields is not None:
                yield fields

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines, all or none, and wait until they are on the disk.

        Raises:
            JournalLost: another process has the journal now: nothing was written, or what was
                written is lost with the file.
            OSError: the disk is full or failed: none was written.
        """
        with self._lock:
            self._write(b"".join(lines))

    def still_held(self) -> bool:
        """Whether this process may write: the path is the open file, and the lease was renewed."""
        lease = self.lease
        if lease is None or not lease.is_held():
            return False
        if not _is_at(self._file, self.path):
            lease.lost = "its file was removed, or another is in its place"
        return not lease.lost

    def _check(self) -> None:
        if not self.still_held():
            assert self.lease is not None, "a journal that is only read is not written"
            raise JournalLost(f"the journal {self.path} is not this process's any more: {self.lease.lost}")

    def _write(self, data: bytes) -> None:
        if self._fault is not None:
            raise self._fault
        self._check()
        try:
            _write_all(self._file, data)
        except OSError as error:
            try:
                os.ftruncate(self._file, self._end)
            except OSError:
                self._fault = error
            raise
        try:
            os.fsync(self._file)
        except OSError as error:
            self._fault = error
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        # A write that hung may have gone into a file that is nobody's any more.
        self._check()
        self._end += len(data)

    def close(self) -> None:
        """Give the journal back. Safe to call twice."""
        _held.discard(self)
        file, self._file = self._file, -1
        if file >= 0:
            if self.lease is not None:
                self.lease.give_back()
            os.close(file)
        with self._lock:
            self._keys.close()

    def _forget_parent(self) -> object:
        # The lock goes with the last copy of the descriptor, and the lease is the parent's.
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        if self.lease is not None:
            self.lease.leave()
        return self._keys

    # Opening ---------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take in the first line, the notes, and where each key's record is; cut a torn end."""
        self._keys.execute("DROP TABLE IF EXISTS record")
        self._keys.execute("CREATE TABLE record(place INTEGER PRIMARY KEY, size INTEGER, key BLOB)")
        self._end = self.damaged_count = number = 0
        self.damaged.clear()
        size = os.fstat(self._file).st_size
        places: list[tuple[int, int, bytes]] = []
        is_ours = not size
        with open(self._file, "rb", buffering=_READ_AT_ONCE, closefd=False) as file:
            file.seek(0)
            while line := file.readline(_LONGEST_LINE):
                number += 1
                kind = self._take_in(line, number, places)
                is_ours = is_ours or kind
                if not is_ours and number >= _LINES_TO_KNOW:
                    break
                if not line.endswith(b"\n") and self._end + len(line) >= size:
                    # A first line that was torn was ours, too.
                    is_ours = is_ours or line.startswith(_FIRST) or _FIRST.startswith(line)
                    break
                self._end += len(line)
                if number == 1 and not places:
                    self._rest = self._end
                if len(places) >= _KEYS_AT_ONCE:
                    self._enter(places)
        if not is_ours:
            raise ConfigError(f"journal: {self.path} is no journal, and left as it is", field="journal")
        if self._end < size and self.lease is not None:
            self.has_lost_end = True
            os.ftruncate(self._file, self._end)
        self._enter(places)
        self._keys.execute("CREATE INDEX record_of_key ON record(key, place)")
        (self.rows,) = self._keys.execute("SELECT count(DISTINCT key) FROM record").fetchone()
        if self.damaged:
            message = "%d lines of the journal %s are damaged, the first is line %d: their rows run again"
            facts: dict[str, Any] = {"path": str(self.path), "lines": self.damaged_count, "first": self.damaged[0]}
            log("journal_damaged", message, self.damaged_count, self.path, self.damaged[0], **facts)

    def _take_in(self, line: bytes, number: int, places: list[tuple[int, int, bytes]]) -> bool:
        """Take in a line; return whether it is one of a journal."""
        if line.startswith(_RECORD) and is_whole(line):
            with suppress(ValueError):
                places.append((self._end, len(line), _key_of(bytes.fromhex(line[_KEY].decode()), _number_in(line))))
                return True
        fields = fields_in(line)
        if fields is not None and number == 1 and fields.get("batchclient") == "journal":
            self._take_in_first(fields)
            return True
        if fields is not None and isinstance(fields.get("note"), str):
            self.notes[fields["note"]] = fields.get("value")
            return True
        if line.endswith(b"\n"):
            self.damaged_count += 1
            if len(self.damaged) < _MOST_NAMED:
                self.damaged.append(number)
        return False

    def _take_in_first(self, fields: Mapping[str, Any]) -> None:
        version, job = fields.get("version"), fields.get("job")
        if version != VERSION:
            message = f"journal: {self.path} is of version {version!r:.20}, and this batchclient reads {VERSION}"
            raise ConfigError(message, field="journal")
        self.job = job if isinstance(job, dict) else None

    def _enter(self, places: list[tuple[int, int, bytes]]) -> None:
        self._keys.execute("BEGIN")
        self._keys.executemany("INSERT INTO record VALUES (?, ?, ?)", places)
        self._keys.execute("COMMIT")
        places.clear()

    def _go_on_in_copy(self, first: bytes) -> None:
        """Exchange the first line, of a job without a record, or of one whose first line is damaged."""
        self._check()
        assert self.lease is not None
        name = _copy_of(self.path, self.lease.lease.token)
        copy = _copy(self._file, name, first, self._rest)
        self.lease.system.lock(copy)
        name.rename(self.path)
        _sync_folder(self.path)
        os.close(self._file)
        self._file = copy
        self._read()


def _key_of(key: bytes, n: int) -> bytes:
    return key if n == 0 else key + n.to_bytes(8, "big")


def _number_in(line: bytes) -> int:
    """The occurrence, which follows the key: ``","n":7,``."""
    begin = _KEY.stop + len(b'","n":')
    return int(line[begin : line.index(b",", begin)])


def _are_equal(one: object, other: object) -> bool:
    # As they are read: a tuple is a list, and 1 is not True.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


# The file ------------------------------------------------------------------------------------------------------------


def _take(journal: Journal, lease: LeaseFile, wait: Callable[[float], object]) -> int:
    """Open the file and take its lease, after a wait where another may hold it."""
    path, system = journal.path, lease.system
    watch = Watch(system, lease.times)
    is_told = False
    while True:
        file = _open(journal)
        try:
            is_locked = system.lock(file)
            line = lease.read()
            holder = None if line is None else Lease.read(line)
            step = watch.look(line, system.now(), is_locked=is_locked)
            is_leaving = holder is not None and _is_leaving(holder.token)
            if step == "in use" and not is_leaving:
                name = "another process" if holder is None else holder.name
                raise JournalInUse(f"journal: {path} is in use by {name}", field="journal")
            # The file may have been exchanged since it was opened.
            is_to_take = step in ("take", "take over") and _is_at(file, path)
            if is_to_take and lease.take(is_there=line is not None):
                if holder is not None:
                    _copy_of(path, holder.token).unlink(missing_ok=True)
                return file if step == "take" else _take_over(file, path, lease, line or b"", wait)
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        if step == "wait" and holder is not None and not is_told:
            is_told = True
            message = "the journal %s was left by %s: it is taken over once its lease stands still for %.0f s"
            facts = {"path": str(path), "holder": holder.name}
            log("journal_waited_for", message, path, holder.name, lease.times.still_s, **facts)
        if wait(_LEAVING_S if is_leaving else lease.times.look_s):
            raise JournalInUse(f"journal: {path} was not waited for", field="journal")


def _take_over(file: int, path: Path, lease: LeaseFile, line: bytes, wait: Callable[[float], object]) -> int:
    """Go on in a copy of the file, if nobody else has taken the lease after a while."""
    lease.renew_always()
    name, copy = _copy_of(path, lease.lease.token), -1
    try:
        if not wait(lease.times.settle_s) and lease.is_ours():
            copy = _copy(file, name, b"", 0)
        if copy < 0 or not (lease.is_held() and lease.is_ours()):
            raise JournalInUse(f"journal: {path} is taken over by another process", field="journal")
        lease.system.lock(copy)
        name.rename(path)
        _sync_folder(path)
    except BaseException:
        if copy >= 0:
            os.close(copy)
            name.unlink(missing_ok=True)
        lease.put_back(line)
        raise
    os.close(file)
    return copy


def _open(journal: Journal) -> int:
    path = journal.path
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        file = os.open(path, flags)
    else:
        _sync_folder(path)
        return file
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ConfigError(f"journal: {path} is no regular file", field="journal")
    if not journal.resume:
        os.close(file)
        raise ConfigError(f"journal: {path} is there, and resume=False refuses it", field="resume")
    return file


def _copy(file: int, name: Path, first: bytes, begin: int) -> int:
    """Copy a file's whole lines from a place on, behind a first one, into a new file."""
    copy = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = end = 0
        part = first or os.pread(file, _COPIED_AT_ONCE, begin)
        begin += 0 if first else len(part)
        while part:
            _write_all(copy, part)
            newline = part.rfind(b"\n") + 1
            end = size + newline if newline else end
            size += len(part)
            part = os.pread(file, _COPIED_AT_ONCE, begin)
            begin += len(part)
        os.ftruncate(copy, end)
        os.fsync(copy)
    except BaseException:
        os.close(copy)
        name.unlink(missing_ok=True)
        raise
    return copy


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _lease_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lease")


def _copy_of(path: Path, token: str) -> Path:
    """Where the holder of a lease makes its copy. Nobody else makes a file there."""
    return path.with_name(f"{path.name}.{token}")


def _is_at(file: int, path: Path) -> bool:
    # Opened, since a network mount may answer an old ``stat`` from its memory.
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.path.samestat(os.fstat(file), os.fstat(there))
    finally:
        os.close(there)


def _is_leaving(token: str) -> bool:
    """Whether a map of this process holds the lease, and is about to give it back."""
    return any(held.is_leaving and held.token == token for held in list(_held))


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
