"""The thread of a map's journal: it opens the file, looks rows up, writes groups, and closes.

Rules:
- The event loop puts tasks into a queue and never waits. What comes of a task is told by ``post``,
  which calls a function in the event loop's next turn.
- After a failure nothing more is written. What was written stays.
- A thread whose event loop is gone, or whose map was dropped, writes what it has, and ends.
- The thread is a daemon: a process that ends leaves what it has not written, as a kill would.
- A journal that was open when the map got it stays open: who opened it closes it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from batchclient.errors import BatchClientError, JournalFailed
from batchclient.journal.held import HeldJournal
from batchclient.journal.rows import Record, record_in
from batchclient.journal.settings import Journal

__all__ = ["JournalThread"]


class JournalThread:
    """The thread that works with one map's journal.

    Args:
        journal: where it is; or the open journal.
        post: calls a function in the event loop; raises ``RuntimeError`` once that is gone.
        on_failed: told once that nothing more can be written, and why.
    """

    def __init__(
        self,
        journal: Journal | HeldJournal,
        post: Callable[[Callable[[], None]], None],
        on_failed: Callable[[BatchClientError], None],
    ) -> None:
        self._given = journal
        self._path = journal.path
        self._on_failed = on_failed
        self._post = post
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._held: HeldJournal | None = None
        self._has_failed = False
        self._on_closed: Callable[[], None] | None = None
        threading.Thread(target=self._run, name="batchclient-journal", daemon=True).start()

    # Called in the event loop ----------------------------------------------------------------------------------------

    def open(self, job: Mapping[str, Any], on_opened: Callable[[BatchClientError | HeldJournal], None]) -> None:
        """Open the file for a job; told is the journal, or why it cannot be opened."""
        self._tasks.put(partial(self._open, job, on_opened))

    def find(self, rows: Sequence[tuple[bytes, int]], on_found: Callable[[list[Record | None]], None]) -> None:
        """Look rows up, by key and occurrence."""
        self._tasks.put(partial(self._find, rows, on_found))

    def append(self, lines: Sequence[bytes], on_written: Callable[[float], None]) -> None:
        """Write a group: told are the seconds that it took."""
        self._tasks.put(partial(self._append, lines, on_written))

    def close(self, on_closed: Callable[[], None] | None = None) -> None:
        """Write what was given, close the file, end the thread. From any thread, and from finalizers."""
        if on_closed is not None:
            self._on_closed = on_closed
        self._leave()

    # The thread ------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._closing.set()
        if self._held is not None and self._held is not self._given:
            self._held.is_leaving = True
        self._tasks.put(None)

    def _run(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                try:
                    task()
                except Exception as error:  # a fault here must not keep the map waiting for ever
                    self._fail(error)
        finally:
            try:
                if self._held is not None and self._held is not self._given:
                    self._held.close()
            finally:
                if self._on_closed is not None:
                    self._tell(self._on_closed)

    def _tell(self, function: Callable[[], None]) -> None:
        try:
            self._post(function)
        except RuntimeError:
            # The event loop is over, and nobody waits. Tasks given before are still done.
            self._leave()

    def _open(self, job: Mapping[str, Any], on_opened: Callable[[BatchClientError | HeldJournal], None]) -> None:
        try:
            given = self._given
            held = given if isinstance(given, HeldJournal) else HeldJournal.open(given, wait=self._closing.wait)
            self._held = held
            held.is_leaving = self._closing.is_set()
            held.begin(job)
        except Exception as error:
            self._tell(partial(on_opened, self._failed(error)))
        else:
            self._tell(partial(on_opened, held))

    def _find(self, rows: Sequence[tuple[bytes, int]], on_found: Callable[[list[Record | None]], None]) -> None:
        held, records = self._held, []
        assert held is not None
        for key, n in rows:
            line = held.find(key, n)
            record = None if line is None else record_in(line)
            held.damaged_count += line is not None and record is None
            records.append(record)
        self._tell(partial(on_found, records))

    def _append(self, lines: Sequence[bytes], on_written: Callable[[float], None]) -> None:
        if self._has_failed or self._held is None:
            return
        began = time.monotonic()
        self._held.append(lines)
        self._tell(partial(on_written, time.monotonic() - began))

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._tell(partial(self._on_failed, self._failed(error)))

    def _failed(self, error: Exception) -> BatchClientError:
        if isinstance(error, BatchClientError):
            return error
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
        failed = JournalFailed(
            f"the journal {self._path} failed: {reason}; what was handed out is in it, and the same map goes on there"
        )
        failed.__cause__ = error
        return failed
