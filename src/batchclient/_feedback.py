"""Asking servers how busy they are: ``GET /metrics`` beside the calls, never before one, never instead of one.

Rules:
- It asks only while more than one sequence is in flight on an endpoint whose limit listens: no limit is below one. The first question
  comes when calls have been under way for a second. Between calls nothing is alive here, neither task nor timer.
- One question at a time per endpoint, on a connection of its own, with its own short time limit.
- Whatever goes wrong is no call's business. An answer that is none (404, 401, a redirect, a page without what is looked for) ends the
  questions for a minute and is said once; silence, a broken connection or a 5xx doubles the pause, up to a minute.
- A page that takes long is asked for less often: half of the time no question is open.

Why a second: a test with a mocked transport expects its own requests and no other, and is over sooner. (respx raises in here for a route
it does not know, which changes nothing and is not counted among its calls; a catch-all route would be called, and pytest-httpx fails
the test.) ``server_metrics=False`` is for those that take longer. Nothing is lost: no bound has an opinion before 3 s of reports.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import anyio

from batchclient._backend import Backend, Cancellable
from batchclient._core.limits import ServerLoad
from batchclient.dialects._metrics import parse_metrics
from batchclient.errors import BatchClientError, ResponseTooLarge
from batchclient.transport import Timeouts, Transport, WireRequest

__all__ = ["Feedback", "PollTimes"]

_log = logging.getLogger("batchclient")

LARGEST_PAGE_BYTES = 2 * 1024 * 1024
"""A real vLLM's page has 50 kB per engine."""
_LONGEST_PAUSE_S = 60.0
_REQUEST = WireRequest("GET", "/metrics")

StartTask = Callable[[Callable[[], Awaitable[None]], Callable[[], None]], Callable[[], object]]
"""As ``Runner.start_reader``."""


@dataclass(frozen=True, slots=True)
class PollTimes:
    """When a page is asked for, and how long its answer is waited for.

    Attributes:
        first_after_s: from when calls are under way to the first question, seconds.
        interval_s: from one question to the next at least, seconds. A page costs vLLM 8 to 10 ms of
            its API process's time (measured, 0.32): 2 % at two a second.
        pause_ratio: the same, as a multiple of the time the last answer took. A busy server is late
            to answer; the page itself is little work. A real vLLM short of CPU took 0.01 to 1 s for
            the same page. With pauses of ten times that, reports of an overloaded server were stale.
        timeout_s: of one question, seconds.
    """

    first_after_s: float = 1.0
    interval_s: float = 0.5
    pause_ratio: float = 2.0
    timeout_s: float = 2.0


class _Endpoint:
    """What is known of one endpoint's page."""

    __slots__ = ("ask_at", "asked_at", "asking", "failures", "transport")

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.ask_at = 0.0
        self.asked_at = 0.0
        self.asking: Callable[[], object] | None = None
        self.failures = 0


class Feedback:
    """The questions of one runner.

    Args:
        backend: the loop's clock and timer.
        transports: one per endpoint, to the server's root; closed by ``aclose``.
        start_task: starts a task that ends with the runner.
        is_wanted: whether an endpoint's load could change anything now.
        report: told of each answer.
        model: the model whose figures are wanted, where a page shows several.
        times: when to ask.
    """

    def __init__(
        self,
        backend: Backend,
        transports: Sequence[Transport],
        start_task: StartTask,
        is_wanted: Callable[[int], bool],
        report: Callable[[int, ServerLoad], None],
        model: str | None,
        times: PollTimes,
    ) -> None:
        self._backend = backend
        self._times = times
        self._timeouts = Timeouts(connect_s=1.0, read_s=times.timeout_s, write_s=1.0)
        self._endpoints = {number: _Endpoint(transport) for number, transport in enumerate(transports)}
        self._start_task = start_task
        self._is_wanted = is_wanted
        self._report = report
        self._model = model
        self._timer: Cancellable | None = None
        self._said: set[tuple[int, str]] = set()

    @property
    def awake(self) -> bool:
        """Whether a question is due or under way."""
        return self._timer is not None

    def wake(self) -> None:
        """Something is in flight: ask in a while, if it still is. Does nothing if awake."""
        if self._timer is None:
            now = self._backend.now()
            first_at = now + self._times.first_after_s
            for endpoint in self._endpoints.values():
                endpoint.ask_at = max(endpoint.ask_at, first_at)
            self._set_timer(first_at)

    def sleep(self) -> None:
        """Nothing is in flight: drop the timer and what is under way."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        for endpoint in self._endpoints.values():
            asking, endpoint.asking = endpoint.asking, None
            if asking is not None:
                asking()

    def add(self, number: int, transport: Transport) -> None:
        """Another endpoint is there; it is asked when its turn comes."""
        self._endpoints[number] = _Endpoint(transport)

    async def remove(self, number: int) -> None:
        """An endpoint has gone: ask it no more, close its connection."""
        endpoint = self._endpoints.pop(number, None)
        if endpoint is None:
            return
        asking, endpoint.asking = endpoint.asking, None
        if asking is not None:
            asking()
        await endpoint.transport.aclose()

    async def aclose(self) -> None:
        """Close the connections. Whoever closes has ended the tasks."""
        self.sleep()
        for endpoint in self._endpoints.values():
            await endpoint.transport.aclose()

    def _set_timer(self, at: float) -> None:
        self._timer = self._backend.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._backend.is_gone():
            return
        now = self._backend.now()
        wanted = False
        for index, endpoint in list(self._endpoints.items()):
            if not self._is_wanted(index):
                continue
            wanted = True
            # A timer may fire a little early.
            if endpoint.asking is None and endpoint.ask_at <= now + 0.001:
                endpoint.asked_at = now
                endpoint.asking = _starting
                cancel = self._start_task(partial(self._ask, index, endpoint), _starting)
                # An eager task may be over already.
                if endpoint.asking is _starting:
                    endpoint.asking = cancel
        # A question that is under way keeps it awake, so that ``sleep`` ends it.
        if wanted or any(endpoint.asking for endpoint in self._endpoints.values()):
            # One timer for all: an endpoint whose turn comes a little later is asked a little late.
            self._set_timer(now + self._times.interval_s)

    async def _ask(self, index: int, endpoint: _Endpoint) -> None:
        times = self._times
        pause_s = times.interval_s
        try:
            load, trouble = await self._fetch(endpoint)
            if load is not None:
                endpoint.failures = 0
                pause_s = max(times.interval_s, times.pause_ratio * (self._backend.now() - endpoint.asked_at))
            elif trouble is not None:
                pause_s = _LONGEST_PAUSE_S
                self._say_once(index, trouble)
            else:
                endpoint.failures += 1
                pause_s = min(2.0 ** min(endpoint.failures, 10), _LONGEST_PAUSE_S)
        finally:
            endpoint.asking = None
            endpoint.ask_at = endpoint.asked_at + min(pause_s, _LONGEST_PAUSE_S)
        if load is not None:
            self._report(index, load)

    async def _fetch(self, endpoint: _Endpoint) -> tuple[ServerLoad | None, str | None]:
        """The load; or why there will be none for a while; or neither, if it may come next time."""
        page = bytearray()
        try:
            with anyio.fail_after(self._times.timeout_s):
                response = await endpoint.transport.send(_REQUEST, self._timeouts)
                try:
                    if response.status >= 500:
                        return None, None
                    if not 200 <= response.status < 300:
                        return None, f"it answers {response.status}"
                    async with aclosing(response.chunks()) as chunks:
                        async for chunk in chunks:
                            page += chunk
                finally:
                    await response.aclose()
        except ResponseTooLarge:
            return None, f"it is over {LARGEST_PAGE_BYTES} bytes"
        except (BatchClientError, TimeoutError):
            return None, None
        except Exception as error:  # whatever a mocked transport raises: no call may suffer for it
            _log.debug("asking for the metrics page failed: %s", type(error).__name__)
            return None, None
        load = parse_metrics(bytes(page), self._model)
        return load, None if load is not None else "nothing on it is known here"

    def _say_once(self, index: int, trouble: str) -> None:
        if (index, trouble) not in self._said:
            self._said.add((index, trouble))
            _log.info("no metrics page at endpoint %d (%s): its load is not watched", index, trouble)


def _starting() -> None:
    """Stands for a task that is being started, and for nothing to be done when it is ended."""
