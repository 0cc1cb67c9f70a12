"""The ends of spans, in a thread: a span processor may block, and no call may wait for it.

Rules:
- The event loop hands over a list of ends at a time, and goes on.
- A span that cannot be ended is given up; its error is told once, by the class.
- A processor that blocks lets ends wait, up to a number. Further spans are neither begun nor ended.
- The thread begins with the first end, and ends with its owner. It never keeps a process alive.
"""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["End", "Ending"]

_MOST_WAITING = 20_000

End = tuple["Span", int]
"""A span and the time of its end, nanoseconds."""


class Ending:
    """Ends the spans of one client and event loop.

    Args:
        say: told, from any thread, what has failed, and of which class the error is.
        most_waiting: the most ends that wait.
    """

    def __init__(self, say: Callable[[str, str], None], most_waiting: int = _MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._work = _Work(say)
        self._handed_over = 0
        self.may_start: bool = True
        """Whether a thread may be started. In a destructor, as at the interpreter's end, none may."""
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """The ends handed over that have not been carried out."""
        return self._handed_over - self._work.done

    @property
    def is_full(self) -> bool:
        """Whether too many ends wait."""
        return self.waiting >= self._most_waiting

    def end(self, ends: list[End]) -> None:
        """End spans soon."""
        if self.is_full:
            self._work.say("a span processor is too slow, and spans are dropped", "")
            return
        self._handed_over += len(ends)
        self._work.queue.put(ends)
        if self._thread is None:
            self._start()

    def then(self, function: Callable[[], object]) -> None:
        """Call a function in the thread, after all ends handed over so far."""
        self._work.queue.put(function)
        if self._thread is None:
            self._start()

    def stop(self) -> None:
        """End the thread once it has carried out what was handed over."""
        if self._thread is not None:
            self._thread = None
            self._work.queue.put(None)

    def _start(self) -> None:
        if not self.may_start:
            self._in_place()
            return
        # The thread knows the work alone: it must not keep the client alive.
        thread = threading.Thread(target=self._work.run, name="batchclient spans", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread can be had.
            self._in_place()
            return
        self._thread = thread

    def _in_place(self) -> None:
        self._work.queue.put(None)
        self._work.run()


class _Work:
    """The thread's share."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self.say = say
        self.queue: SimpleQueue[list[End] | Callable[[], object] | None] = SimpleQueue()
        self.done = 0

    def run(self) -> None:
        while True:
            work = self.queue.get()
            if work is None:
                return
            if isinstance(work, list):
                for end in work:
                    self._end(*end)
                    self.done += 1
                continue
            try:
                work()
            except RuntimeError:
                # The event loop that waited is over.
                continue

    def _end(self, span: Span, at: int) -> None:
        try:
            span.end(at)
        except (Exception, CancelledError) as error:  # tracers and processors are the user's code
            self.say("a span could not be ended", type(error).__name__)
