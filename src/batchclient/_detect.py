"""Finding out which servers the endpoints are: a few plain GETs beside the calls, never before one, never instead of one.

Rules:
- At most three GETs for one finding (see ``dialects/_fingerprints.py``), one at a time, on a connection of its own, with its own short time
  limit. What was found holds until the endpoint comes back from an outage: it may be another server then.
- The first question comes when a batch is sent and the first one was sent a quarter of a second ago. It comes after a tenth of a second
  if calls are queued then and nothing has been answered: an engine's limit is higher once it is known to be one.
- Between calls no timer is alive here; a question that is under way ends by itself within two seconds, or with the client.
- Whatever goes wrong is no call's business: what was known, or taken for granted, then stays. Silence, a broken connection and a 503
  use up one of the three GETs, and are asked again after 5 and 60 s, if there are calls then.

Why so late: a test with a mocked transport expects its own requests and no other. It is over within a quarter of a second, and a mock has
answered something within a tenth. (``_feedback`` waits longer: it loses less by it.) Until it is known a server is spoken to as vLLM, and what
it refuses is learnt from its refusals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from batchclient._backend import Backend, Cancellable
from batchclient._feedback import StartTask
from batchclient.dialects._fingerprints import Fingerprint, ServerFacts
from batchclient.errors import BatchClientError, ResponseTooLarge
from batchclient.transport import Timeouts, Transport, WireRequest
from batchclient.transport._deadline import deadline

__all__ = ["BODY_TRICKLES", "Detection", "Page", "read_page"]

BODY_TRICKLES = "the headers came, and the body did not end"

_log = logging.getLogger("batchclient")

_FIRST_AFTER_S = 0.25
_EARLY_AFTER_S = 0.1
_PAUSES_S = (5.0, 60.0)
_TIMEOUT_S = 2.0
_TIMEOUTS = Timeouts(connect_s=1.0, read_s=_TIMEOUT_S, write_s=1.0)

Page = tuple[int, Mapping[str, str], bytes]
"""Status, headers, body."""
_NO_SERVER: Page = (0, {}, b"")
"""Stands for what a mock says to a request that it does not expect."""


class _Endpoint:
    """What is known of one endpoint."""

    __slots__ = ("ask_at", "asking", "early_at", "fingerprint", "pauses", "transport")

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.fingerprint = Fingerprint()
        self.ask_at: float | None = None
        """``None``: not before the first batch."""
        self.early_at: float | None = None
        """When to see whether it is to be asked before that; ``None``: that was seen, or there is no batch."""
        self.asking: Callable[[], object] | None = None
        self.pauses = list(_PAUSES_S)

    @property
    def wants(self) -> bool:
        """Whether there is something to ask, and nobody asks it."""
        return self.asking is None and self.fingerprint.open

    @property
    def look_at(self) -> float | None:
        """When something may be due."""
        return self.ask_at if self.early_at is None else self.early_at

    def begin(self, now: float) -> None:
        """The first batch is sent."""
        self.ask_at, self.early_at = now + _FIRST_AFTER_S, now + _EARLY_AFTER_S

    def is_due(self, awaits_first_answer: Callable[[], bool], now: float) -> bool:
        """Whether to ask now."""
        if self.early_at is not None and self.early_at <= now:
            self.early_at = None
            if awaits_first_answer():
                return True
        return self.ask_at is not None and self.ask_at <= now


class Detection:
    """The questions of one runner.

    Args:
        backend: the loop's clock and timer.
        transports: one per endpoint, to its base URL; closed by ``aclose``.
        start_task: starts a task that ends with the runner.
        is_busy: whether any call is under way.
        awaits_first_answer: whether calls are queued, and nothing has ever been answered.
        report: told of each endpoint what was found out.
    """

    def __init__(
        self,
        backend: Backend,
        transports: Sequence[Transport],
        start_task: StartTask,
        is_busy: Callable[[], bool],
        awaits_first_answer: Callable[[], bool],
        report: Callable[[int, ServerFacts], None],
    ) -> None:
        self._backend = backend
        self._endpoints = {number: _Endpoint(transport) for number, transport in enumerate(transports)}
        self._start_task = start_task
        self._is_busy = is_busy
        self._awaits_first_answer = awaits_first_answer
        self._report = report
        self._timer: Cancellable | None = None
        self._ended = False
        self.wanted = True
        """Whether ``wake`` could do anything: it is called for each batch."""

    @property
    def awake(self) -> bool:
        """Whether a timer is set."""
        return self._timer is not None

    def wake(self) -> None:
        """A batch is sent: ask what is due, now or in a while."""
        if self._timer is not None or self._ended:
            return
        now = self._backend.now()
        for endpoint in self._endpoints.values():
            if endpoint.ask_at is None:
                endpoint.begin(now)
        self._look()

    def sleep(self) -> None:
        """Nothing is in flight: drop the timer."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def ask_again(self, number: int) -> None:
        """An endpoint has come back: it may be another server."""
        endpoint = self._endpoints.get(number)
        if endpoint is None or self._ended:
            return
        asking, endpoint.asking = endpoint.asking, None
        if asking is not None:
            asking()
        endpoint.fingerprint, endpoint.pauses = Fingerprint(), list(_PAUSES_S)
        endpoint.ask_at, endpoint.early_at = self._backend.now(), None
        self.wanted = True
        self.sleep()
        self.wake()

    def adopt(self, number: int, fingerprint: Fingerprint) -> None:
        """Some pages of an endpoint were read for another reason: go on from there."""
        endpoint = self._endpoints.get(number)
        if endpoint is None or not endpoint.fingerprint.untouched:
            return
        endpoint.fingerprint = fingerprint
        self._conclude(number, fingerprint)

    def add(self, number: int, transport: Transport) -> None:
        """Another endpoint is there; it is asked when its turn comes."""
        self._endpoints[number] = _Endpoint(transport)
        self.wanted = True
        # Its turn is worked out anew with the next batch.
        self.sleep()

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
        self._ended = True
        self.sleep()
        for endpoint in self._endpoints.values():
            await endpoint.transport.aclose()

    def _look(self) -> None:
        self._timer = None
        if self._ended or self._backend.is_gone():
            return
        # A timer may fire a little early.
        now = self._backend.now() + 0.001
        for number, endpoint in list(self._endpoints.items()):
            if endpoint.wants and endpoint.is_due(self._awaits_first_answer, now):
                endpoint.asking = _starting
                cancel = self._start_task(partial(self._ask, number, endpoint), _starting)
                # An eager task may be over already.
                if endpoint.asking is _starting:
                    endpoint.asking = cancel
        due = [each.look_at for each in self._endpoints.values() if each.wants and each.look_at is not None]
        if due and self._timer is None:
            self._timer = self._backend.call_at(min(due), self._look)
        self.wanted = any(each.fingerprint.open for each in self._endpoints.values())

    async def _ask(self, number: int, endpoint: _Endpoint) -> None:
        fingerprint = endpoint.fingerprint
        try:
            while (request := fingerprint.next()) is not None:
                page = await self._fetch(endpoint, request)
                if page is _NO_SERVER:
                    fingerprint.give_up()
                elif page is None or not fingerprint.take(*page):
                    pause_s = endpoint.pauses.pop(0) if endpoint.pauses else _PAUSES_S[-1]
                    endpoint.ask_at = self._backend.now() + pause_s
                    break
        finally:
            if endpoint.fingerprint is fingerprint:
                endpoint.asking = None
        # It may have come back from an outage, or have gone, meanwhile.
        if self._endpoints.get(number) is endpoint and endpoint.fingerprint is fingerprint:
            self._conclude(number, fingerprint)
            if fingerprint.open and self._is_busy():
                self.sleep()
                self._look()

    def _conclude(self, number: int, fingerprint: Fingerprint) -> None:
        facts = fingerprint.facts()
        if facts.server is not None or (facts.dialect is not None and not fingerprint.open):
            # What a page that is still missing would add can be added later.
            self._report(number, facts)
        elif not fingerprint.open:
            _log.debug("endpoint %d does not say which server it is; it is spoken to as before", number)

    async def _fetch(self, endpoint: _Endpoint, request: WireRequest) -> Page | None:
        """A page; ``None``: nothing came, and may come another time."""
        try:
            async with deadline(_TIMEOUT_S):
                return await read_page(endpoint.transport, request, _TIMEOUTS)
        except ResponseTooLarge:
            return 200, {}, b""
        except (BatchClientError, TimeoutError):
            return None
        except Exception as error:  # whatever a mocked transport raises: no call may suffer for it
            _log.debug("asking for %s failed: %s", request.path, type(error).__name__)
            return _NO_SERVER


async def read_page(
    transport: Transport,
    request: WireRequest,
    timeouts: Timeouts,
    headers_s: float | None = None,
    body_s: float | None = None,
) -> Page:
    """Ask for a page and read all of it.

    Args:
        transport, request, timeouts: as ``Transport.send``'s.
        headers_s, body_s: how long each part may take.

    Raises:
        TimeoutError: it took longer; with ``BODY_TRICKLES``, if the headers had come.
        BatchClientError: as ``Transport.send``.
    """
    page = bytearray()
    async with deadline(headers_s):
        response = await transport.send(request, timeouts)
    try:
        async with deadline(body_s), aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                page += chunk
    except TimeoutError:
        raise TimeoutError(BODY_TRICKLES) from None
    finally:
        await response.aclose()
    return response.status, response.headers, bytes(page)


def _starting() -> None:
    """Stands for a task that is being started, and for nothing to be done when it is ended."""
