"""When servers are asked which they are: beside the calls, never instead of a call.

``Ask`` is the command; the shell reads the pages. ``ServerKnown`` brings what they say, ``Asked``
the end of the question. (How busy a server is holds no call: see ``_shell/watcher``.)

    AWAITED ──its question is answered──▶ HEALTHY
    AWAITED ──no server answered within ``wait_for_server_s``──▶ HEALTHY, as without a wait

Rules:
- Servers are asked only while calls are under way; with none under way no timer runs. An open
  question outlives the last call. A failed one fails no call, and earlier knowledge stays.
- Where the calls surely go to the network (``asks_first``) the question leaves with the first call.
  The first list waits for the end of the question, 0.25 s at most: there are servers that a list
  kills. Among several servers a single call waits likewise: one may lack what another has. To one
  server a call that goes alone waits for nothing, and until its word at most 64 such calls are in
  flight: it may take few at once. The same holds when an endpoint comes back.
- Elsewhere the first question comes 0.25 s after the first batch; if no call is under way then,
  with the next batch. A test with a mocked library expects no requests but its own, and ends within
  that time. (For a longer one: ``probe=False``, since a catch-all route would be called.)
- An answer holds until the endpoint comes back from an outage, perhaps as another server. After
  silence the question is repeated after 5 s, then every 60 s.
- With ``wait_for_server_s`` every server is awaited at first, one that joins later, too. It gets no
  call, not even as a probe, and so no call uses up an attempt there. It is asked with the first
  call in any case, and again after 1 s ten times, then at growing pauses up to 5 s.
- The wait for a first server begins with the first call, unless the client pauses, or with the
  question for the model. It ends when nobody waits any more: a later call has the whole time.
  When its time is over, all waiting calls fail; later calls are tried as without a wait.
- Once one server has answered, the others are asked while calls are under way, without an end.
- A wait counts as an outage in errors and statistics; it is told at its first failure, then once a
  minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batchclient._core.messages import Ask, Asked, Command, Failure, Notice
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState
from batchclient._core.spent import ServerOutage, seconds
from batchclient.errors import NoServerAnswered

__all__ = ["Asking"]

_AFTER_S = 0.25
_PAUSES_S = (5.0, 60.0)
_AWAITED_PAUSES_S = (*[1.0] * 10, 2.0, 3.0, 4.0, 5.0)
_EARLY_S = 0.001
"""A timer may fire this much too soon, seconds."""
_TOLD_EVERY_S = 60.0


@dataclass(slots=True)
class _Question:
    """Which server an endpoint is, while that is not known."""

    ask_at: float | None = None
    """``None``: not before the first call, or batch."""
    is_open: bool = False
    anew: bool = False
    """Whether the next question ignores earlier findings."""
    silences: int = 0


class Asking:
    """The questions of one scheduler, and its wait for servers that have not answered yet.

    Args:
        serving: the endpoints that may be granted on; the first are there.
        command: takes a command.
        tell: announces an endpoint's state, with its reason, and a warning with what it is of.
        asks_first: whether a server may be asked before its first list; ``None``: never at all.
        wait_s: how long calls wait for a first server, seconds; 0: no server is awaited.
    """

    def __init__(
        self,
        serving: Sequence[Endpoint],
        command: Callable[[Command], None],
        tell: Callable[[Endpoint, str, Notice, str], None],
        asks_first: Callable[[], bool] | None,
        wait_s: float,
    ) -> None:
        self._serving = serving
        self._command = command
        self._tell = tell
        self._asks_first = asks_first
        self._wait_s = wait_s
        self.questions: dict[Endpoint, _Question] = {}
        """A known endpoint has none."""
        self._tell_at: dict[Endpoint, float] = {}
        """When a wait is told next."""
        self.look_at: float | None = None
        """When a question may be due; ``None``: not before a call is made, or a batch is sent."""
        self.unasked = False
        """Whether an endpoint is there for which ``ask_first`` was not called yet."""
        self.wait_ends_at: float | None = None
        """When the wait for a first server ends; ``None``: no call waits for one."""
        for endpoint in serving:
            self.add(endpoint)

    def add(self, endpoint: Endpoint) -> None:
        """An endpoint is there."""
        if self._wait_s:
            endpoint.health.wait()
        if self._asks_first is not None:
            self.questions[endpoint] = _Question()
            self.unasked, self.look_at = True, None

    def remove(self, endpoint: Endpoint) -> None:
        """An endpoint has gone."""
        self.questions.pop(endpoint, None)
        self._tell_at.pop(endpoint, None)

    # Questions -------------------------------------------------------------------------------------------------------

    def ask_first(self, now: float) -> None:
        """Calls are queued: ask before their first lists are sent, if that may be; the lists wait."""
        self.unasked = False
        new = [endpoint for endpoint, question in self.questions.items() if question.ask_at is None]
        if self._awaits or (new and self._asks_first is not None and self._asks_first()):
            self.look_at = now
            for endpoint in new:
                self.questions[endpoint].ask_at = now
                endpoint.abilities.hold_lists(now)

    def sent(self, now: float) -> None:
        """A batch is sent."""
        if self.questions and self.look_at is None:
            for question in self.questions.values():
                if question.ask_at is None:
                    question.ask_at = now + _AFTER_S
            self.look(now)

    def look(self, now: float) -> None:
        """Ask the questions due now."""
        waiting = []
        for endpoint, question in self.questions.items():
            if question.ask_at is None or question.is_open:
                continue
            if question.ask_at <= now + _EARLY_S:
                self._command(Ask(endpoint.id, question.anew))
                question.is_open = True
            else:
                waiting.append(question.ask_at)
        self.look_at = min(waiting, default=None)

    def asked(self, endpoint: Endpoint, event: Asked, now: float, *, busy: bool) -> bool:
        """A question has ended, or needs no asking; return whether its server was awaited.

        ``busy``: calls are under way.
        """
        was_awaited = _is_awaited(endpoint)
        if was_awaited and event.failure is not None:
            self._wait_on(endpoint, event.failure, now)
        elif was_awaited:
            self._end_wait(endpoint, "it has answered", now)
            endpoint.health.answered_once = True
        question = self.questions.get(endpoint)
        if question is None:
            return was_awaited
        endpoint.abilities.release_lists()
        question.is_open, question.anew = False, _is_awaited(endpoint)
        if question.anew or not event.answered:
            pauses = _AWAITED_PAUSES_S if question.anew else _PAUSES_S
            question.ask_at = now + pauses[min(question.silences, len(pauses) - 1)]
            question.silences += 1
        else:
            del self.questions[endpoint]
        self.look_at = None
        if busy:
            self.look(now)
        return was_awaited

    def ask_again(self, endpoint: Endpoint, now: float) -> None:
        """An endpoint has come back, perhaps as another server."""
        if self._asks_first is not None:
            self.questions[endpoint] = _Question(now, anew=True)
            if self._asks_first():
                endpoint.abilities.hold_lists(now)
            self.look_at = None
            self.sent(now)

    def sleep(self) -> None:
        """No call is under way."""
        self.look_at = None
        # No batch for an awaited server will wake its question.
        self.unasked = self.unasked or self._awaits

    def close(self) -> None:
        """The client closes: ask nothing more."""
        self._asks_first, self.look_at, self.wait_ends_at = None, None, None
        self.questions.clear()

    @property
    def _awaits(self) -> bool:
        return any(map(_is_awaited, self.questions))

    # The wait for a first server -------------------------------------------------------------------------------------

    def look_at_wait(self, now: float, *, busy: bool) -> NoServerAnswered | None:
        """Begin the wait for a first server if somebody waits, else end it; return its error in the end."""
        awaited = [endpoint for endpoint in self._serving if _is_awaited(endpoint)]
        if len(awaited) < len(self._serving) or not busy:
            self.wait_ends_at = None
        elif self.wait_ends_at is None:
            self.wait_ends_at = now + self._wait_s
        elif now >= self.wait_ends_at:
            told = ", ".join(f"{endpoint.shown_name} ({endpoint.health.reason})" for endpoint in awaited)
            for endpoint in awaited:
                endpoint.outage = None
                self._end_wait(endpoint, "it is waited for no longer", now)
            self.wait_ends_at = None
            return NoServerAnswered(f"no server answered in {seconds(self._wait_s)}: {told}")
        return None

    def _wait_on(self, endpoint: Endpoint, failure: Failure, now: float) -> None:
        outage = endpoint.outage
        if outage is None:
            endpoint.outage = outage = ServerOutage(endpoint.shown_name, "", now, failure, awaited=True)
        outage.seen = endpoint.health.reason = failure.seen or failure.message
        outage.failure = failure
        if now >= self._tell_at.get(endpoint, now):
            self._tell_at[endpoint] = now + _TOLD_EVERY_S
            is_bound = self.wait_ends_at is not None and self.wait_ends_at < math.inf
            bound = f"; calls wait {seconds(self._wait_s)} at most" if is_bound else ""
            self._tell(endpoint, outage.seen, "server_awaited", f"{outage.sentence(now)}{bound}")

    def _end_wait(self, endpoint: Endpoint, reason: str, now: float) -> None:
        endpoint.health.end_wait(reason)
        self._tell(endpoint, reason, "server_arrived", endpoint.end_outage(now))


def _is_awaited(endpoint: Endpoint) -> bool:
    return endpoint.health.state is HealthState.AWAITED
