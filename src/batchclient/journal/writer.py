"""The thread of a journal: it opens the file, looks rows up, commits groups, and closes.

Rules:
- The event loop puts tasks into a queue and never waits. What comes of a task is told by ``post``,
  which calls a function in the event loop's next turn.
- A commit that the disk refuses is tried again every two seconds, until the patience is over or
  the map is closed. Everything behind it waits: nothing is written out of turn.
- After a failure no later commit is tried. What was committed stays.
- A writer whose event loop is gone, or whose map was dropped, commits what it has, and ends.
- The thread is a daemon: a process that ends leaves what it has not committed, as a kill would.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from batchclient._shell.forks import forget_in_child
from batchclient.errors import BatchClientError, ConfigError, JournalFailed
from batchclient.journal.file import JournalFile, Pair, is_of_fsync, is_of_the_disk
from batchclient.journal.journal import Journal
from batchclient.journal.place import Lock, make_file, real_path
from batchclient.journal.records import ANSWERED, Damaged, Record, answer_in, error_in

__all__ = ["Job", "Kept", "Writer"]

RETRY_S = 2.0
"""After a fork: SQLite's connections, which the child must not even close."""
CONFIG_VERSION = 1
"""Of the hash of a job's template and parameters."""


@dataclass(frozen=True, slots=True)
class Job:
    """How a map wants its journal.

    Args:
        resume: go on with a journal that has rows.
        accept_changed: also with another template or other parameters.
        config: hash of template and parameters, as hexadecimal digits.
        model: the model's name.
    """

    resume: bool
    accept_changed: bool
    config: str
    model: str


@dataclass(slots=True)
class Kept:
    """A row as a journal has it.

    Args:
        state: one of ``records``.
        attempts: requests sent that contained the row.
        answer, error: one of them is ``None``.
        elsewhere: the row is from another job's journal.
        damaged: the record is not as it was written: there is nothing else.
    """

    state: int = 0
    attempts: int = 0
    answer: Any = None
    error: BatchClientError | None = None
    elsewhere: bool = False
    damaged: bool = False


class Writer:
    """The only connection that writes to a journal.

    Args:
        journal: where, and how.
        post: calls a function in the event loop; raises ``RuntimeError`` once that is gone.
        on_failed: told once that nothing more can be written, and why.
        retry_s: the pause before a refused commit is tried again, seconds.

    Attributes:
        has_rows: once opened, whether rows may be found by lookups.
    """

    def __init__(
        self,
        journal: Journal,
        post: Callable[[Callable[[], None]], None],
        on_failed: Callable[[BatchClientError], None],
        retry_s: float = RETRY_S,
    ) -> None:
        self._journal = journal
        self._on_failed = on_failed
        self._post = post
        self.has_rows: bool = False
        self._retry_s = retry_s
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._file: JournalFile
        self._others: list[JournalFile] = []
        self._lock: Lock | None = None
        self._has_failed = False
        self._facts: dict[str, str | int] = {}
        self._on_closed: Callable[[], None] | None = None
        forget_in_child(self)
        threading.Thread(target=self._run, name="batchclient-journal", daemon=True).start()

    # Called in the event loop ----------------------------------------------------------------------------------------

    def open(self, job: Job, on_opened: Callable[[BatchClientError | None], None]) -> None:
        """Open the file; told is why it cannot be opened, if so."""
        self._tasks.put(partial(self._open, job, on_opened))

    def look_up(self, pairs: Sequence[Pair], on_found: Callable[[dict[Pair, Kept]], None]) -> None:
        """Look rows up."""
        self._tasks.put(partial(self._look_up, pairs, on_found))

    def commit(
        self, records: Sequence[Record], on_committed: Callable[[float], None], on_trouble: Callable[[str], None]
    ) -> None:
        """Commit a group: told are the commit's seconds, and before each refusal that is waited out."""
        self._tasks.put(partial(self._write, lambda: self._commit(records), on_committed, on_trouble))

    def note(
        self, name: str, value: str, on_written: Callable[[float], None], on_trouble: Callable[[str], None]
    ) -> None:
        """Write a fact about the job, in turn with the commits, and tell as ``commit`` does."""
        self._tasks.put(partial(self._write, lambda: self._file.set_meta([(name, value)]), on_written, on_trouble))

    def close(self, on_closed: Callable[[], None] | None = None) -> None:
        """Commit what was given, close the file, end the thread. From any thread, and from finalizers."""
        if on_closed is not None:
            self._on_closed = on_closed
        self._closing.set()
        self._tasks.put(None)

    # The thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                try:
                    task()
                except Exception as error:  # a fault here must not keep the map waiting for ever
                    self._fail(self._failed(error, 0.0))
        finally:
            if self._lock is not None:
                for file in (self._file, *self._others):
                    file.close()
                self._lock.release()
            if self._on_closed is not None:
                self._tell(self._on_closed)

    def _tell(self, function: Callable[[], None]) -> None:
        try:
            self._post(function)
        except RuntimeError:
            # The event loop is over, and nobody waits. Tasks given before are still done.
            self._closing.set()
            self._tasks.put(None)

    def _open(self, job: Job, on_opened: Callable[[BatchClientError | None], None]) -> None:
        refusal: BatchClientError | None = None
        try:
            self._take_file(job)
        except BatchClientError as error:
            refusal = error
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            refusal = JournalFailed(f"the journal {self._journal.path} cannot be opened: {reason}")
            refusal.__cause__ = error
        self._tell(partial(on_opened, refusal))

    def _take_file(self, job: Job) -> None:
        path = real_path(self._journal.path)
        lock = Lock(path, self._closing.is_set)
        try:
            make_file(path)
            file = JournalFile(path, self._journal.sync)
            try:
                has_rows = self._begin(file, job, path)
                for other in self._journal.reuse:
                    self._others.append(_open_other(real_path(other)))
            except BaseException:
                for each in (file, *self._others):
                    each.close()
                raise
        except BaseException:
            lock.release()
            raise
        self._file, self._lock = file, lock
        self.has_rows = has_rows or bool(self._others)

    def _begin(self, file: JournalFile, job: Job, path: Path) -> bool:
        has_rows = file.has_rows()
        if has_rows and not job.resume:
            begun = file.meta("begun")
            message = (
                f"journal: {path} has {file.count():,} rows of a job begun {begun};"
                " resume=True goes on with it, another path begins anew"
            )
            raise ConfigError(message, field="journal")
        if has_rows and not job.accept_changed and file.meta("config") != job.config:
            then = file.meta("model")
            changed = "the template or the parameters" if then == job.model else f"the model ({then}, now {job.model})"
            message = (
                f"{changed} differ{'s' * (then != job.model)} from the journal's ({path}): up to {file.count():,} rows"
                " would run again; accept_changed=True runs them, and another output leaves these as they are"
            )
            raise ConfigError(message, field="accept_changed")
        facts: dict[str, str | int] = {"config": job.config, "config_version": CONFIG_VERSION, "model": job.model}
        if not has_rows:
            facts["begun"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if any(file.meta(name) != value for name, value in facts.items()):
            if has_rows:
                # Not before the first row: until then the journal is the one of before.
                self._facts = facts
            else:
                file.set_meta(facts.items())
        return has_rows

    def _forget_parent(self) -> object:
        return self, self.__dict__.get("_file"), *self._others

    def _look_up(self, pairs: Sequence[Pair], on_found: Callable[[dict[Pair, Kept]], None]) -> None:
        kept: dict[Pair, Kept] = {}
        for file in (self._file, *self._others):
            is_other = file is not self._file
            missing = [pair for pair in pairs if pair not in kept] if is_other else pairs
            for pair, found in file.look_up(missing).items() if missing else ():
                kept_row = _kept(found)
                kept_row.elsewhere = is_other
                if not is_other or kept_row.state == ANSWERED:
                    kept[pair] = kept_row
        self._tell(partial(on_found, kept))

    def _commit(self, records: Sequence[Record]) -> None:
        if self._facts:
            self._file.set_meta(self._facts.items())
            self._facts = {}
        self._file.commit(records)

    def _write(
        self, write: Callable[[], None], on_written: Callable[[float], None], on_trouble: Callable[[str], None]
    ) -> None:
        began = time.monotonic()
        since: float | None = None
        while not self._has_failed:
            try:
                write()
            except sqlite3.Error as error:
                since = time.monotonic() if since is None else since
                waited_s = time.monotonic() - since
                patient = waited_s < self._journal.disk_patience_s and not self._closing.is_set()
                if is_of_the_disk(error) and not is_of_fsync(error) and patient:
                    self._tell(partial(on_trouble, str(error)))
                    self._closing.wait(self._retry_s)
                    continue
                self._fail(self._failed(error, waited_s))
            else:
                self._tell(partial(on_written, time.monotonic() - began))
                return

    def _fail(self, error: JournalFailed) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._tell(partial(self._on_failed, error))

    def _failed(self, error: Exception, waited_s: float) -> JournalFailed:
        path = self._journal.path
        if not isinstance(error, sqlite3.Error):
            why = f"the journal {path} failed ({type(error).__name__})"
        elif is_of_fsync(error):
            why = f"the disk failed to keep what was written to the journal {path} ({error})"
        elif is_of_the_disk(error):
            why = f"the journal {path} could not be written for {waited_s:.0f} s ({error})"
        else:
            why = f"the journal {path} is damaged ({error})"
        failed = JournalFailed(f"{why}; the rows handed out before are in it, and resume=True goes on from there")
        failed.__cause__ = error
        return failed


def _open_other(path: Path) -> JournalFile:
    file = JournalFile(path, read_only=True)
    if file.is_empty:
        file.close()
        raise ConfigError(f"journal: {path} is no journal: it has no tables", field="journal")
    return file


def _kept(found: tuple[int, int, str | None, bytes | None] | None) -> Kept:
    if found is None:
        return Kept(damaged=True)
    state, attempts, error, body = found
    try:
        if body is not None:
            return Kept(state, attempts, answer_in(body))
        return Kept(state, attempts, error=error_in(error or "", attempts))
    except Damaged:
        return Kept(damaged=True)
