"""A journal as one process holds it: its job, where each key's record is, groups of new lines.

A line says whose answers follow (as a rule the first one does), or is a record, or a note. Lines
are appended, and never changed.

Rules:
- The records and notes behind the line of a job are that job's. A job with the settings of an
  earlier one is the same job, unless its line says that it begins anew.
- Of several records of a key the last whole one counts. A line that is torn or damaged is none: its
  row runs again.
- The keys are in a table of SQLite's in a temporary file: memory does not grow with the rows. It is
  made at the opening, and nothing depends on it. Beside it is what maps put aside of rows that wait
  for an earlier one.
- After a failed write nothing more is written. What there is of it is cut off, and after a failed
  ``fsync`` all that was not synced: Linux may drop the pages and report success the next time
  (Rebello et al., ATC 2020).
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from batchclient._common.forks import forget_in_child
from batchclient._common.log import log
from batchclient.errors import ConfigError
from batchclient.journal.lease import Lease, LeaseFile, System, Times, leaving
from batchclient.journal.lines import fields_in, is_whole, line_of
from batchclient.journal.place import (
    OF_THE_PLACE,
    JournalInUse,
    JournalLost,
    is_at,
    open_regular,
    take,
    write_all,
)
from batchclient.journal.rows import Record, record_in
from batchclient.journal.settings import Journal

__all__ = ["Aside", "HeldJournal", "JournalInUse", "JournalLost"]

VERSION = 1
_ALONE = "alone"
"""The note of a job whose output is whole, so that nobody goes on with those before it."""
_NEW = "new"
"""The note of a job that was begun anew: its output is ``in place``, or the job is ``done``."""
_BEGINS = b'{"batchclient":"journal",'
_RECORD = b'{"key":"'
_KEY = slice(len(_RECORD), len(_RECORD) + 32)
_N = _KEY.stop + len(b'","n":')
_READ_AT_ONCE = 1 << 20
_KEYS_AT_ONCE = 65_536
_LONGEST_LINE = 1 << 28
_LINES_TO_KNOW = 1000
"""One of so many lines is to be a journal's: else the file is something else."""
_MOST_NAMED = 100
_ASIDE = "CREATE TABLE aside(id INTEGER PRIMARY KEY, rest BLOB, key BLOB, n INTEGER, place INTEGER, size INTEGER)"
_MOST_ROWS = 1 << 40
"""Of a map: a row's id is the map's number and its own."""
_LAST = "SELECT place, size FROM record WHERE key = ? AND job = ? ORDER BY place DESC LIMIT 1"


Aside = tuple[int, bytes, bytes | None, int, int | None, int]
"""A row that is put aside: its number and what is left of it; then key and occurrence, or the place
and the size of its record, or none of these where the row has an error.
"""


@dataclass(slots=True)
class _Job:
    """A job of the journal: settings, whether it was begun anew, keys at the opening, notes."""

    told: dict[str, Any] | None = None
    is_new: bool = False
    rows: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


class HeldJournal:
    """An open journal. Every method blocks; they may be called from several threads.

    Attributes:
        lease: this process's; ``None``: the journal is only read.
        journal: the caller's settings.
        path: of the file.
        job: what decides the answers, by name; ``None``: ``begin`` is to write it.
        rows: keys that had a record of this job at the opening.
        damaged: numbers of lines that are none, the first hundred.
        damaged_count: of all of them.
        notes: the last value of each note of this job.
    """

    def __init__(self, journal: Journal, file: int, lease: LeaseFile | None) -> None:
        self.lease: LeaseFile | None = lease
        self.journal: Journal = journal
        self.path: Path = journal.path
        self.damaged: list[int] = []
        self.damaged_count: int = 0
        self._jobs: list[_Job] = []
        self._of = -1
        """The number of the job that is gone on with."""
        self._at_end = 0
        """That of the job whose line is the last one."""
        self._file = file
        self._end = self._synced = 0
        self._is_begun = False
        self._fault: OSError | None = None
        self._lock = threading.RLock()
        self._table = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        # One cursor for everything: one that ends late, in another thread (a profiler held it),
        # would reset a statement that is under way (python/cpython#118172).
        self._keys = self._table.cursor()
        forget_in_child(self)
        try:
            self._keys.execute(_ASIDE)
            self._read()
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise OSError(errno.EIO, f"SQLite's temporary file: {error}") from error
            raise

    def __repr__(self) -> str:
        return f"<HeldJournal {os.fspath(self.path)!r}: {self.rows:,} rows>"

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
        lease = LeaseFile(journal.path, system or System(), times or Times())
        try:
            return cls(journal, take(journal, lease, wait), lease)
        except OSError as error:
            if error.errno not in OF_THE_PLACE:
                raise
            reason = "it is a link; give the file itself" if error.errno == errno.ELOOP else error.strerror
            raise ConfigError(f"journal: {error.filename or journal.path}: {reason}", field="journal") from error
        except BaseException:  # a signal between taking and holding
            lease.give_back()
            raise

    @classmethod
    def look_into(cls, path: str | os.PathLike[str]) -> HeldJournal:
        """Read a journal that another process may write: nothing is locked, and nothing written.

        Raises:
            ConfigError: it is no journal of this version.
            OSError: it cannot be read.
        """
        journal = Journal(path)
        return cls(journal, open_regular(journal.path), None)

    @property
    def token(self) -> str:
        """Of this holding of the journal: hexadecimal digits, and never the same twice."""
        return "" if self.lease is None else self.lease.lease.token

    @property
    def holder(self) -> str:
        """Who holds the journal, for people; empty: nobody, as far as this machine can see."""
        system, file = System(), LeaseFile(self.path, System(), Times())
        with suppress(OSError, ConfigError):
            lease = Lease.read(file.read() or b"")
            if lease is None:
                return ""
            if lease.host != system.host:
                # The clock that is compared is the file system's, and only for people.
                return lease.name if time.time() - file.path.stat().st_mtime < file.times.still_s else ""
            if lease.boot != system.boot:
                return ""
            with suppress(PermissionError):
                os.kill(lease.pid, 0)
            return lease.name
        return ""

    # The job ---------------------------------------------------------------------------------------------------------

    @property
    def _job(self) -> _Job:
        return self._jobs[self._of]

    @property
    def job(self) -> dict[str, Any] | None:
        return self._job.told

    @property
    def notes(self) -> dict[str, Any]:
        return self._job.notes

    @property
    def rows(self) -> int:
        return self._job.rows

    @property
    def is_new(self) -> bool:
        """Whether this job was begun anew, and is not done."""
        return self._job.is_new and self.notes.get(_NEW) != "done"

    @property
    def is_in_place(self) -> bool:
        """Whether the output of this job, which was begun anew, has been put in its place."""
        return _NEW in self.notes

    @property
    def all_notes(self) -> list[dict[str, Any]]:
        """The notes of each job of the journal."""
        return [each.notes for each in self._jobs]

    def choose(self, job: Mapping[str, Any], *, is_new: bool = True) -> list[str]:
        """Go on with the latest job of these settings; where there is none, name what differs.

        Args:
            job: as for ``differences``; what differs does so from the last job.
            is_new: false: rather with an older one than with one that was begun anew, and has put
                no output in its place.
        """
        alike: list[int] = []
        for number in reversed(range(len(self._jobs))):
            self._of = number
            if self.job is not None and not self.differences(job):
                alike.append(number)
        if alike:
            whole = [n for n in alike if is_new or not self._jobs[n].is_new or _NEW in self._jobs[n].notes]
            self._of = (whole or alike)[0]
            return []
        known = [n for n, each in enumerate(self._jobs) if each.rows and each.told is not None]
        self._of = known[-1] if known else self._at_end
        return self.differences(job) if self.job is not None else []

    def complete(self, is_there: Callable[[Mapping[str, Any]], bool]) -> None:
        """Make up for what a job that was begun anew was killed before: its output is in its place.

        Args:
            is_there: tells from a job's notes whether it is so.

        Raises:
            JournalLost, OSError: as for ``append``.
        """
        for number, each in enumerate(self._jobs):
            if each.is_new and each.told is not None and _NEW not in each.notes and is_there(each.notes):
                self._of = number
                self.settle()

    def settle(self, *, is_alone: bool = True, is_done: bool = False) -> None:
        """Write down that the output of a job that was begun anew is in its place.

        Args:
            is_alone: nobody goes on with the jobs before it.
            is_done: to begin anew is to begin yet another job.

        Raises:
            JournalLost, OSError: as for ``append``.
        """
        if self.job is None or not self.is_new or (self.is_in_place and not is_done):
            return
        self._turn_to(self.job)
        if is_alone:
            self._forget_older()
        self.note(_NEW, "done" if is_done else "in place")

    def begin_anew(self) -> None:
        """Let ``begin`` write another job, also of the same settings: what is there is an older one's."""
        self._jobs.append(_Job(is_new=True))
        self._of = len(self._jobs) - 1

    def _forget_older(self) -> None:
        """Write down that nobody goes on with the jobs before this one."""
        if any(each.told is not None for each in self._jobs[: self._of]):
            self.append([line_of({"note": _ALONE, "value": True})])
            self._jobs[: self._of] = [_Job() for _ in self._jobs[: self._of]]

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
                is_shown = name == "model" and isinstance(then, str)
                found.append(f"{name} ({then}, now {value})" if is_shown else name)
        return found

    def begin(self, job: Mapping[str, Any]) -> HeldJournal:
        """Write down whose answers these are, or compare it with what is written.

        A journal without a record takes another job.

        Args:
            job: what decides the answers: values by name.

        Returns:
            The journal itself.

        Raises:
            ConfigError: it is another job's; ``field`` is the first setting that differs.
            JournalLost, OSError: as for ``append``.
        """
        differences = [] if self.job is None else self.differences(job)
        if differences and not self._is_begun:
            differences = self.choose(job)
        if differences and (self.rows or self._is_begun):
            message = (
                f"the journal {self.path} is of another job: {', '.join(differences)}; its {self.rows:,} rows"
                " stay as they are, and another journal begins anew"
            )
            raise ConfigError(message, field=differences[0].partition(" (")[0])
        self._turn_to({**job} if differences else self.job or {**job})
        self._is_begun = True
        return self

    def _turn_to(self, told: dict[str, Any]) -> None:
        """Write the line of this job, if it is not the last one."""
        if self._of == self._at_end and self.job == told:
            return
        line = {"batchclient": "journal", "version": VERSION, "job": told}
        if self.job is None and self.is_new:
            line["new"] = True
        elif self._of != self._at_end:
            # Several jobs may have these settings.
            line["at"] = self._of
        self.append([line_of(line)])
        self._job.told, self._at_end = told, self._of

    def note(self, name: str, value: Any) -> None:
        """Write a fact down, as JSON: it is on the disk afterwards, and in ``notes``.

        Raises:
            JournalLost, OSError: as for ``append``.
        """
        assert self.job is not None, "the first line comes first"
        self.append([line_of({"note": name, "value": value})])
        self.notes[name] = value

    # Rows ------------------------------------------------------------------------------------------------------------

    def find(self, rows: Sequence[tuple[bytes, int]]) -> list[Record | None]:
        """Return each row's last record, at the opening, or with ``dedupe`` by now.

        A row is known by its key and its occurrence.
        """
        found: list[Record | None] = []
        with self._lock:
            for key, n in rows:
                place = self._keys.execute(_LAST, (_key_of(key, n), self._of)).fetchone()
                found.append(None if place is None else record_in(os.pread(self._file, place[1], place[0])))
                self.damaged_count += place is not None and found[-1] is None
        return found

    def read_again(self) -> None:
        """Let ``find`` know the rows that were appended since the opening.

        Raises:
            OSError: the disk failed.
        """
        with self._lock:
            self._keys.execute("DROP TABLE record")
            self._end = self.damaged_count = 0
            self.damaged.clear()
            self._read()

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of the last record of each row, in the file's order."""
        last = "SELECT max(place) AS place, size FROM record WHERE job = ? GROUP BY key ORDER BY place"
        for place, size in self._table.execute(last, (self._of,)):
            if fields := fields_in(os.pread(self._file, size, place)):
                yield fields

    def append(self, lines: Sequence[bytes]) -> int:
        """Write lines, all or none, and wait until they are on the disk; return the first one's place.

        Raises:
            JournalLost, OSError: as for ``put``.
        """
        with self._lock:
            place = self.put(lines)
            self.sync()
        return place

    def put(self, lines: Sequence[bytes]) -> int:
        """Write lines, all or none; return the first one's place. A kill does not lose them.

        Raises:
            JournalLost: another process has the journal now: nothing was written, or what was
                written is lost with the file.
            OSError: the disk is full or failed: none was written, and none will be.
        """
        data = b"".join(lines)
        with self._lock:
            self._try(lambda _: write_all(self._file, data), self._end)
            if self.journal.dedupe:
                ends = accumulate(map(len, lines), initial=self._end)
                places = zip(ends, lines, strict=False)
                self._enter([(end, len(line), key, self._of) for end, line in places if (key := _key_in(line))])
            self._end += len(data)
            return self._end - len(data)

    def sync(self) -> None:
        """Wait until all that was put is on the disk; what was not is cut off.

        Raises:
            JournalLost, OSError: as for ``put``.
        """
        with self._lock:
            self._try(lambda lease: lease.system.sync(self._file), self._synced)
            # A write that hung may have gone into a file that is nobody's any more.
            self._checked_lease()
            self._synced = self._end

    def _try(self, work: Callable[[LeaseFile], object], end: int) -> None:
        """Do something with the file; if that fails, cut the file at a place, and do no more."""
        if self._fault is not None:
            raise self._fault
        lease = self._checked_lease()
        try:
            work(lease)
        except OSError as error:
            self._fault = error
            with suppress(OSError):
                os.ftruncate(self._file, end)
            raise

    def put_aside(self, of: int, rows: Sequence[Aside]) -> None:
        """Keep what is left of a map's rows while they wait for others."""
        lines = [(of * _MOST_ROWS + number, *left) for number, *left in rows]
        with self._lock:
            self._keys.execute("BEGIN")
            self._keys.executemany("INSERT INTO aside VALUES (?, ?, ?, ?, ?, ?)", lines)
            self._keys.execute("COMMIT")

    def take_back(self, of: int, numbers: Sequence[int]) -> list[tuple[bytes, Record | None]]:
        """Return what is left of a map's rows, with their records, and keep it no longer."""
        ids = [of * _MOST_ROWS + number for number in numbers]
        which = f"FROM aside WHERE id IN ({', '.join('?' * len(ids))})"
        with self._lock:
            found = self._keys.execute(f"SELECT id, rest, key, n, place, size {which}", ids).fetchall()
            self._keys.execute(f"DELETE {which}", ids)
            rows = {each: (rest, self._record_of(*where)) for each, rest, *where in found}
        return [rows[each] for each in ids]

    def _record_of(self, key: bytes | None, n: int, place: int | None, size: int) -> Record | None:
        if place is not None:
            return record_in(os.pread(self._file, size, place))
        return None if key is None else self.find([(key, n)])[0]

    def still_held(self) -> bool:
        """Whether this process may write: the path is the open file, and the lease was renewed."""
        lease = self.lease
        if lease is None or not lease.is_held():
            return False
        if not is_at(self._file, self.path):
            lease.lost = "its file was removed, or another is in its place"
        return not lease.lost

    def _checked_lease(self) -> LeaseFile:
        assert self.lease is not None, "a journal that is only read is not written"
        if not self.still_held():
            raise JournalLost(f"the journal {self.path} is not this process's any more: {self.lease.lost}")
        return self.lease

    def close(self) -> None:
        """Give the journal back. Safe to call twice."""
        with self._lock:
            file, self._file = self._file, -1
            if file >= 0:
                if self.lease is not None:
                    self.lease.give_back()
                os.close(file)
                leaving.discard(self.token)
                self._table.close()

    def _forget_parent(self) -> object:
        # The lock goes with the last copy of the descriptor, and the lease is the parent's.
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        return self._keys, self._table

    # Opening ---------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take in the jobs, the notes, and where each key's record is; cut a torn end."""
        self._keys.execute("CREATE TABLE record(place INTEGER PRIMARY KEY, size INTEGER, key BLOB, job INTEGER)")
        self._jobs, self._at_end = [_Job()], 0
        places: list[tuple[int, int, bytes, int]] = []
        number, size = 0, os.fstat(self._file).st_size
        is_ours = size == 0
        with open(self._file, "rb", buffering=_READ_AT_ONCE, closefd=False) as file:
            file.seek(0)
            while (line := file.readline(_LONGEST_LINE)) and (is_ours or number < _LINES_TO_KNOW):
                number += 1
                if not line.endswith(b"\n") and self._end + len(line) >= size:
                    # Its writer was killed; perhaps at the very first line.
                    is_ours = is_ours or line.startswith(_BEGINS)
                    break
                key = _key_in(line)
                if key:
                    places.append((self._end, len(line), key, self._at_end))
                    self._jobs[self._at_end].rows += 1
                if key or self._take_in(fields_in(line)):
                    is_ours = True
                else:
                    self.damaged_count += 1
                    if len(self.damaged) < _MOST_NAMED:
                        self.damaged.append(number)
                self._end += len(line)
                if len(places) >= _KEYS_AT_ONCE:
                    self._enter(places)
        if not is_ours:
            raise ConfigError(f"journal: {self.path} is no journal, and left as it is", field="journal")
        if self._end < size and self.lease is not None:
            os.ftruncate(self._file, self._end)
        self._synced = self._end
        self._enter(places)
        self._keys.execute("CREATE INDEX record_of_key ON record(key, job, place)")
        for number, rows in self._keys.execute("SELECT job, count(DISTINCT key) FROM record GROUP BY job").fetchall():
            self._jobs[number].rows = rows
        self._of = self._at_end if self._of < 0 else self._of
        if self.damaged:
            count, first, message = self.damaged_count, self.damaged[0], "%d lines of the journal %s are damaged, the"
            message += " first is line %d: a row without another record runs again"
            log("journal_damaged", message, count, self.path, first, path=str(self.path), lines=count, first=first)

    def _take_in(self, fields: Mapping[str, Any]) -> bool:
        """Take in a job or a note; return whether it is one."""
        if fields.get("batchclient") == "journal":
            if fields.get("version") != VERSION:
                version = f"is of version {fields.get('version')!r:.20}, and this batchclient reads {VERSION}"
                raise ConfigError(f"journal: {self.path} {version}", field="journal")
            job = fields.get("job")
            self._take_in_job(job if isinstance(job, dict) else None, fields)
            return True
        name = fields.get("note")
        if name == _ALONE:
            self._jobs[: self._at_end] = [_Job() for _ in self._jobs[: self._at_end]]
        elif isinstance(name, str):
            self._jobs[self._at_end].notes[name] = fields.get("value")
        return isinstance(name, str)

    def _take_in_job(self, told: dict[str, Any] | None, fields: Mapping[str, Any]) -> None:
        is_new, at = fields.get("new") is True, fields.get("at")
        alike = [n for n, each in enumerate(self._jobs) if _are_equal(each.told, told)]
        last = self._jobs[self._at_end]
        if alike and not is_new:
            self._at_end = at if at in alike else alike[-1]
        elif is_new or (last.rows and last.told is not None):
            self._jobs.append(_Job(told, is_new))
            self._at_end = len(self._jobs) - 1
        # Without a record, or with a damaged line, it takes this one.
        self._jobs[self._at_end].told = told

    def _enter(self, places: list[tuple[int, int, bytes, int]]) -> None:
        self._keys.execute("BEGIN")
        self._keys.executemany("INSERT INTO record VALUES (?, ?, ?, ?)", places)
        self._keys.execute("COMMIT")
        places.clear()


def _key_of(key: bytes, n: int) -> bytes:
    return key if n == 0 else key + n.to_bytes(8, "big")


def _key_in(line: bytes) -> bytes:
    """Return the key of a record, which is read without its JSON; empty: the line is none."""
    with suppress(ValueError, OverflowError):
        if line.startswith(_RECORD) and is_whole(line):
            return _key_of(bytes.fromhex(line[_KEY].decode()), int(line[_N : line.index(b",", _N)]))
    return b""


def _are_equal(one: object, other: object) -> bool:
    # As they are read: a tuple is a list, and 1 is not True.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
