"""Watches how busy the servers are, while it matters: for the limits, and to tell a dead engine.

Rules:
- A server's metrics page is asked for while at least two sequences are in flight there: a limit of
  1 cannot be lowered. An ailing server's is beside a single sequence, too: its engine may stand
  still. (``heeds_load`` of the core.)
- The first look comes 1 s after a batch was sent: a test with a mocked library expects no requests
  but its own, and is over by then. With the last call every watch ends, and an open question is
  dropped: between calls nothing is alive.
- A slow page is asked for less often: half of the time no question is open.
- After no page (404, 401, a redirect, nothing known on the page) no question follows for 60 s. Each
  silence or 5xx doubles the time from question to question: 2 s, 4 s, up to 60 s.
- A failed question fails no call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import anyio

from batchclient._core.limits import ServerLoad
from batchclient._core.messages import LoadReported
from batchclient._shell.backend import Backend
from batchclient._shell.pages import StartTask

__all__ = ["LoadTimes", "LoadWatch"]

_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """When servers are asked for their load; times in seconds.

    Args:
        first_after_s: from a batch to the first look.
        every_s: from question to question, at least. A page costs vLLM 8 to 10 ms of its API
            process's time (measured, 0.32): 2 % at two a second.
        pause_ratio: the least time from question to question, in multiples of the last answer's
            time. A slow page means a long wait at a busy server, not much work: a real vLLM short
            of CPU took 0.01 to 1 s for the same page. With a ratio of 10 reports were stale just
            where the server was overloaded.
    """

    first_after_s: float = 1.0
    every_s: float = 0.5
    pause_ratio: float = 2.0


class LoadWatch:
    """The watches of a runner: one for each server with calls under way.

    Args:
        backend: the loop's clock and timers.
        start_task: starts a task that ends with the runner.
        fetch: returns an endpoint's load; or ``None``, and whether there is no page at all.
        is_heeded: whether an endpoint's load could change anything now.
        tell: tells the core.
    """

    def __init__(
        self,
        backend: Backend,
        start_task: StartTask,
        fetch: Callable[[int], Awaitable[tuple[ServerLoad | None, bool]]],
        is_heeded: Callable[[int], bool],
        tell: Callable[[LoadReported], None],
        times: LoadTimes,
    ) -> None:
        self._backend = backend
        self._start_task = start_task
        self._fetch = fetch
        self._is_heeded = is_heeded
        self._tell = tell
        self._times = times
        self.watched: dict[int, _Watch] = {}
        """By endpoint."""
        self._silences: dict[int, int] = {}
        self._ask_at: dict[int, float] = {}
        """The earliest time of the next question, by endpoint."""

    def begin(self, endpoint: int) -> None:
        """A batch is sent, and its server is not watched: look in a second."""
        at = max(self._backend.now() + self._times.first_after_s, self._ask_at.get(endpoint, 0.0))
        watch = self.watched[endpoint] = _Watch()
        watch.end = self._backend.call_at(at, partial(self._start, endpoint, watch)).cancel

    def stop(self) -> None:
        """No call is under way."""
        watched, self.watched = self.watched, {}
        for watch in watched.values():
            watch.end()

    def forget(self, endpoint: int) -> None:
        """An endpoint has gone."""
        watch = self.watched.pop(endpoint, None)
        if watch is not None:
            watch.end()
        self._silences.pop(endpoint, None)
        self._ask_at.pop(endpoint, None)

    def _start(self, endpoint: int, watch: _Watch) -> None:
        watch.end = self._start_task(partial(self._run, endpoint, watch), _nothing)

    async def _run(self, endpoint: int, watch: _Watch) -> None:
        now = self._backend.now
        try:
            while self._is_heeded(endpoint):
                asked_at = now()
                load, is_absent = await self._fetch(endpoint)
                took_s = now() - asked_at
                if load is not None:
                    self._tell(LoadReported(endpoint, load, took_s))
                pause_s = self._pause_s(endpoint, load, took_s, is_absent=is_absent)
                self._ask_at[endpoint] = asked_at + pause_s
                await anyio.sleep(max(0.0, asked_at + pause_s - now()))
        finally:
            # The next batch begins another.
            if self.watched.get(endpoint) is watch:
                del self.watched[endpoint]

    def _pause_s(self, endpoint: int, load: ServerLoad | None, took_s: float, *, is_absent: bool) -> float:
        """Return the time from this question to the next."""
        if load is not None:
            self._silences.pop(endpoint, None)
            pause_s = max(self._times.every_s, self._times.pause_ratio * took_s)
        elif is_absent:
            pause_s = _LONGEST_PAUSE_S
        else:
            silences = self._silences[endpoint] = self._silences.get(endpoint, 0) + 1
            pause_s = 2.0 ** min(silences, 10)
        return min(pause_s, _LONGEST_PAUSE_S)


def _nothing() -> None:
    """Do nothing."""


class _Watch:
    """The watch of one server, from a batch until its load matters no more."""

    __slots__ = ("end",)

    end: Callable[[], object]
