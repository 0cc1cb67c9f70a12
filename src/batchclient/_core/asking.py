"""When servers are asked for their pages: beside the calls, never instead of a call.

Two sorts of question exist (``Page``): how busy a server is, and which server it is. ``Ask`` and
``DropAsk`` are the commands; the shell fetches and reads the page. ``LoadReported`` or
``ServerKnown`` brings the page's content. ``Asked`` brings the outcome, from which this module
decides when the next question is due.

Rules of both sorts:
- Questions are asked only while calls are under way. With no call under way no timer runs.
- Each endpoint has at most one open question of a sort.
- A failed question fails no call. Earlier knowledge of the server stays.

Rules of the load:
- An endpoint is asked while at least two sequences are in flight there: a limit of 1 cannot be
  lowered. An ailing endpoint is asked beside a single sequence, too: its engine may stand still.
- The first question comes when calls have been under way for 1 s. An open question is dropped when
  the last call ends.
- After no page (404, 401, a redirect, nothing known on the page) no question follows for 60 s. Each
  silence or 5xx doubles the time from question to question: 2 s, 4 s, up to 60 s.
- A slow page is asked for less often: half of the time no question is open.

Rules of the server:
- Where the calls surely go to the network (``asks_first``) the question leaves with the first call.
  The first list waits for the end of the question, 0.25 s at most: there are servers that a list
  kills. A call that goes alone waits for nothing. The same holds when an endpoint comes back.
  Until then at most 64 such calls are in flight: the server may take few at once.
- Elsewhere the first question comes 0.25 s after the first batch; if no call is under way then,
  with the next batch.
- An answer holds until the endpoint comes back from an outage, perhaps as another server.
- After silence the question is repeated after 5 s, then every 60 s, while calls are under way. An
  open question outlives the last call.
- A server that is awaited (see ``arrivals``) is asked with the first call in any case, and again
  after 1 s ten times, then at growing pauses up to 5 s.

Why so late elsewhere: a test with a mocked library expects no requests but its own. Such a test
ends within 0.25 s, so no question is asked. (In a longer test respx raises for an unknown route,
which changes nothing. A catch-all route would be called, and pytest-httpx fails the test:
``server_metrics=False`` is for such tests.) A late question about load loses little: the page
changes no limit before a second has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from batchclient._core.messages import Ask, Asked, AskOutcome, Command, DropAsk, Page
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState

__all__ = ["Asking", "LoadTimes"]

_LONGEST_PAUSE_S = 60.0
_SERVER_AFTER_S = 0.25
_SERVER_PAUSES_S = (5.0, 60.0)
_AWAITED_PAUSES_S = (*[1.0] * 10, 2.0, 3.0, 4.0, 5.0)
_EARLY_S = 0.001
"""A timer may fire this much too soon, seconds."""


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """When servers are asked for their load; times in seconds.

    Args:
        first_after_s: from the start of calls to the first question.
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


class Asking:
    """The questions of one scheduler.

    Args:
        pages: the sorts of question which the shell can ask.
        endpoints: by id; the first are there.
        asks_for_load: whether the load of an endpoint, given by id, could change anything now.
        asks_first: whether a server may be asked which it is before its first list.
    """

    __slots__ = ("_load", "_server", "unasked")

    def __init__(
        self,
        pages: Iterable[Page],
        endpoints: Mapping[int, Endpoint],
        asks_for_load: Callable[[int], bool],
        command: Callable[[Command], None],
        load_times: LoadTimes,
        asks_first: Callable[[], bool],
    ) -> None:
        asked = frozenset(pages)
        self.unasked = False
        """Whether an endpoint has come for which ``ask_first`` was not called yet."""
        self._load = _LoadQuestions(asks_for_load, command, load_times) if Page.LOAD in asked else None
        self._server = _ServerQuestions(endpoints, command, asks_first) if Page.SERVER in asked else None
        for number in endpoints:
            self.add(number)

    def next(self) -> float | None:
        """When a question may be due; ``None``: not before a batch is sent."""
        load = None if self._load is None else self._load.look_at
        server = None if self._server is None else self._server.look_at
        if load is None or server is None:
            return load if server is None else server
        return min(load, server)

    def ask_first(self, now: float) -> None:
        """Calls are queued: servers may be asked before their first list is sent."""
        self.unasked = False
        if self._server is not None:
            self._server.ask_first(now)

    def sent(self, now: float) -> None:
        """Batches are sent."""
        if self._load is not None and self._load.look_at is None:
            self._load.wake(now)
        if self._server is not None and self._server.wanted and self._server.look_at is None:
            self._server.wake(now)

    def look(self, now: float) -> None:
        """Ask the questions due now."""
        for questions in (self._load, self._server):
            if questions is not None and questions.look_at is not None and questions.look_at <= now + _EARLY_S:
                questions.look(now)

    def sleep(self) -> None:
        """No call is under way."""
        if self._load is not None and self._load.look_at is not None:
            self._load.sleep()
        if self._server is not None:
            self._server.look_at = None
            # No batch for an awaited server will wake its question.
            self.unasked = self.unasked or (self._server.wanted and self._server.awaits)

    def close(self) -> None:
        """The client closes: drop open questions, and ask nothing more."""
        if self._load is not None:
            self._load.sleep()
        if self._server is not None:
            self._server.drop_all()
        self._load = self._server = None

    def asked(self, event: Asked, now: float, *, busy: bool) -> None:
        """A question has ended; ``busy``: calls are under way."""
        if event.page is Page.LOAD and self._load is not None:
            self._load.asked(event, now)
        elif event.page is Page.SERVER and self._server is not None:
            self._server.asked(event, now, busy=busy)

    def load_took_s(self, endpoint: int, now: float) -> float:
        """Return for how long the question about an endpoint's load has been open."""
        asked = None if self._load is None else self._load.endpoints.get(endpoint)
        return now - asked.asked_at if asked is not None and asked.asking else 0.0

    def ask_again(self, endpoint: int, now: float) -> None:
        """An endpoint has come back, perhaps as another server."""
        if self._server is not None:
            self._server.ask_again(endpoint, now)

    def add(self, endpoint: int) -> None:
        """An endpoint was added; its questions come when due."""
        if self._load is not None:
            self._load.endpoints[endpoint] = _Load()
        if self._server is not None:
            self._server.add(endpoint)
            self.unasked = True

    def remove(self, endpoint: int) -> None:
        """An endpoint has gone: drop its questions."""
        if self._load is not None:
            self._load.drop(endpoint, self._load.endpoints.pop(endpoint))
        if self._server is not None:
            self._server.drop(endpoint, self._server.endpoints.pop(endpoint))


@dataclass(slots=True)
class _Load:
    """The questions about one endpoint's load."""

    ask_at: float = 0.0
    asked_at: float = 0.0
    asking: bool = False
    silences: int = 0


class _LoadQuestions:
    """How busy the servers are."""

    __slots__ = ("_asks_for_load", "_command", "_times", "endpoints", "look_at")

    def __init__(
        self, asks_for_load: Callable[[int], bool], command: Callable[[Command], None], times: LoadTimes
    ) -> None:
        self._times = times
        self._asks_for_load = asks_for_load
        self._command = command
        self.endpoints: dict[int, _Load] = {}
        self.look_at: float | None = None

    def wake(self, now: float) -> None:
        """Calls are under way: ask after ``first_after_s``, if calls still are then."""
        self.look_at = now + self._times.first_after_s
        for endpoint in self.endpoints.values():
            endpoint.ask_at = max(endpoint.ask_at, self.look_at)

    def sleep(self) -> None:
        """No call is under way."""
        self.look_at = None
        for number, endpoint in self.endpoints.items():
            self.drop(number, endpoint)

    def look(self, now: float) -> None:
        wanted = False
        for number, endpoint in self.endpoints.items():
            if not self._asks_for_load(number):
                continue
            wanted = True
            if not endpoint.asking and endpoint.ask_at <= now + _EARLY_S:
                endpoint.asking, endpoint.asked_at = True, now
                self._command(Ask(number, Page.LOAD))
        # An open question keeps the timer set, so that the question is dropped with the last call.
        wanted = wanted or any(endpoint.asking for endpoint in self.endpoints.values())
        # All endpoints share a timer: some are asked a little after their turn.
        self.look_at = now + self._times.every_s if wanted else None

    def asked(self, event: Asked, now: float) -> None:
        endpoint = self.endpoints.get(event.endpoint)
        if endpoint is None or not endpoint.asking:
            return
        endpoint.asking = False
        if event.outcome is AskOutcome.ANSWERED:
            endpoint.silences = 0
            pause_s = max(self._times.every_s, self._times.pause_ratio * (now - endpoint.asked_at))
        elif event.outcome is AskOutcome.NOTHING:
            pause_s = _LONGEST_PAUSE_S
        else:
            endpoint.silences += 1
            pause_s = 2.0 ** min(endpoint.silences, 10)
        endpoint.ask_at = endpoint.asked_at + min(pause_s, _LONGEST_PAUSE_S)

    def drop(self, number: int, endpoint: _Load) -> None:
        """Drop an endpoint's open question."""
        if endpoint.asking:
            endpoint.asking = False
            self._command(DropAsk(number, Page.LOAD))


@dataclass(slots=True)
class _Server:
    """The questions about which server an endpoint is."""

    open: bool = True
    """Whether anything is left to ask."""
    anew: bool = False
    """Whether the next question ignores earlier findings."""
    asking: bool = False
    ask_at: float | None = None
    """``None``: not before the first batch."""
    silences: int = 0

    @property
    def wants(self) -> bool:
        """Whether something is left to ask and no question is open."""
        return self.open and not self.asking


class _ServerQuestions:
    """Which servers the endpoints are."""

    __slots__ = ("_asks_first", "_command", "_served", "endpoints", "look_at", "wanted")

    def __init__(
        self,
        served: Mapping[int, Endpoint],
        command: Callable[[Command], None],
        asks_first: Callable[[], bool],
    ) -> None:
        self._served = served
        self._command = command
        self._asks_first = asks_first
        self.endpoints: dict[int, _Server] = {}
        self.look_at: float | None = None
        self.wanted = True
        """Whether anything is left to ask anywhere."""

    def add(self, number: int) -> None:
        self.endpoints[number] = _Server()
        # The next batch sets the time of its question.
        self.wanted, self.look_at = True, None

    @property
    def awaits(self) -> bool:
        """Whether a server is awaited."""
        return any(self._is_awaited(number) for number in self.endpoints)

    def _is_awaited(self, number: int) -> bool:
        return self._served[number].health.state is HealthState.AWAITED

    def ask_first(self, now: float) -> None:
        """Ask the endpoints that were not asked yet, if that may be; their lists wait."""
        new = [number for number, endpoint in self.endpoints.items() if endpoint.open and endpoint.ask_at is None]
        if self.awaits or (new and self._asks_first()):
            self.look_at = now
            for number in new:
                self.endpoints[number].ask_at = now
                self._served[number].hold_lists(now)

    def wake(self, now: float) -> None:
        """A batch is sent: ask the questions due now, and set times for the others."""
        for endpoint in self.endpoints.values():
            if endpoint.ask_at is None:
                endpoint.ask_at = now + _SERVER_AFTER_S
        self.look(now)

    def look(self, now: float) -> None:
        due = now + _EARLY_S
        for number, endpoint in self.endpoints.items():
            if endpoint.wants and endpoint.ask_at is not None and endpoint.ask_at <= due:
                endpoint.asking = True
                self._command(Ask(number, Page.SERVER, endpoint.anew))
                endpoint.anew = False
        waiting = [each.ask_at for each in self.endpoints.values() if each.wants and each.ask_at is not None]
        self.look_at = min(waiting, default=None)
        self.wanted = any(each.open for each in self.endpoints.values())

    def asked(self, event: Asked, now: float, *, busy: bool) -> None:
        endpoint = self.endpoints.get(event.endpoint)
        if endpoint is None:
            return
        endpoint.asking = False
        self._served[event.endpoint].release_lists()
        endpoint.anew = self._is_awaited(event.endpoint)
        if endpoint.anew or event.outcome is AskOutcome.SILENCE:
            pauses = _AWAITED_PAUSES_S if endpoint.anew else _SERVER_PAUSES_S
            endpoint.ask_at = now + pauses[min(endpoint.silences, len(pauses) - 1)]
            endpoint.silences += 1
        else:
            endpoint.open = False
        self.look_at = None
        if busy:
            self.look(now)

    def ask_again(self, number: int, now: float) -> None:
        endpoint = self.endpoints.get(number)
        if endpoint is not None:
            self.drop(number, endpoint)
            self.endpoints[number] = _Server(anew=True, ask_at=now)
            if self._asks_first():
                self._served[number].hold_lists(now)
            self.wanted = True
            self.wake(now)

    def drop_all(self) -> None:
        """Drop every open question."""
        for number, endpoint in self.endpoints.items():
            self.drop(number, endpoint)

    def drop(self, number: int, endpoint: _Server) -> None:
        """Drop an endpoint's open question."""
        if endpoint.asking:
            endpoint.asking = False
            self._command(DropAsk(number, Page.SERVER))
