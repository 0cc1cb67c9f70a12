"""The thread of a map's journal: it opens the file, does what it is given in turn, and closes.

Rules:
- The event loop puts tasks into a queue and never waits. What comes of a task is told by ``post``,
  which calls a function in the event loop's next turn.
- After a failure nothing more is done. What was written stays.
- A thread whose event loop is gone, or whose map was dropped, does what it has, and ends.
- The thread is a daemon: a process that ends leaves what it has not written, as a kill would.
- A journal that was open when the map got it stays open: who opened it closes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from batchclient.errors import BatchClientError, JournalFailed
from batchclient.journal.held import HeldJournal
from batchclient.journal.lease import leaving
from batchclient.journal.settings import Journal

__all__ = ["JournalThread"]

_T = TypeVar("_T")


class JournalThread:
    """The thread that works with one map's journal.

    Args:
        journal: where it is; or the open journal.
        post: calls a function in the event loop; raises ``RuntimeError`` once that is gone.
        on_failed: told once that nothing more is done, and why.
    """

    def __init__(
        self,
        journal: Journal | HeldJournal,
        post: Callable[[Callable[[], None]], None],
        on_failed: Callable[[BatchClientError], None],
    ) -> None:
        self._given = journal
        self._held = journal if isinstance(journal, HeldJournal) else None
        self._post = post
        self._on_failed = on_failed
        self._on_closed: Callable[[], None] = lambda: None
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="batchclient-journal", daemon=True).start()

    def do(self, work: Callable[[HeldJournal], _T], on_done: Callable[[_T], None]) -> None:
        """Do something with the journal, after all that was given before, and tell what comes of it."""
        self._tasks.put(lambda: self._tell(partial(on_done, work(self._open()))))

    def do_alone(self, work: Callable[[HeldJournal], object]) -> None:
        """Do something of which nobody waits to hear, unless it fails."""
        self._tasks.put(lambda: work(self._open()))

    def leave(self) -> None:
        """Let whoever else wants the journal wait for it: it is about to be closed."""
        self._closing.set()
        if self._held is not None and self._held is not self._given:
            leaving.add(self._held.token)

    def close(self, on_closed: Callable[[], None]) -> None:
        """Do what was given, close the file, end the thread. From any thread, and from finalizers."""
        self._on_closed = on_closed
        self.leave()
        self._tasks.put(None)

    def _open(self) -> HeldJournal:
        if self._held is None:
            assert isinstance(self._given, Journal)
            self._held = HeldJournal.open(self._given, wait=self._closing.wait)
            if self._closing.is_set():
                self.leave()
        return self._held

    def _run(self) -> None:
        has_failed = False
        while (task := self._tasks.get()) is not None:
            try:
                if not has_failed:
                    task()
            except Exception as error:  # a fault here must not keep the map waiting for ever
                has_failed = True
                self._tell(partial(self._on_failed, self._failed(error)))
        try:
            if self._held is not None and self._held is not self._given:
                self._held.close()
        finally:
            self._tell(self._on_closed)

    def _tell(self, function: Callable[[], Any]) -> None:
        try:
            self._post(function)
        except RuntimeError:
            # The event loop is over, and nobody waits. Tasks given before are still done.
            self._tasks.put(None)

    def _failed(self, error: Exception) -> BatchClientError:
        if isinstance(error, BatchClientError):
            return error
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
        message = f"the journal {self._given.path} failed: {reason}; what was handed out is in it, and the same map"
        failed = JournalFailed(f"{message} goes on there")
        failed.__cause__ = error
        return failed
