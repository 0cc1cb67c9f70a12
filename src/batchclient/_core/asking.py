"""When servers are asked which they are: beside the calls, never instead of a call.

``Ask`` is the command; the shell reads the pages. ``ServerKnown`` brings what they say, ``Asked``
the end of the question. (How busy a server is holds no call: see ``_shell/watcher``.)

Rules:
- Servers are asked only while calls are under way; with none under way no timer runs. An open
  question outlives the last call. A failed one fails no call, and earlier knowledge stays.
- Where the calls surely go to the network (``asks_first``) the question leaves with the first call.
  The first list waits for the end of the question, 0.25 s at most: there are servers that a list
  kills. A call that goes alone waits for nothing. The same holds when an endpoint comes back.
  Until then at most 64 such calls are in flight: the server may take few at once.
- Elsewhere the first question comes 0.25 s after the first batch; if no call is under way then,
  with the next batch. A test with a mocked library expects no requests but its own, and ends within
  that time. (For a longer one: ``server_metrics=False``, since a catch-all route would be called.)
- An answer holds until the endpoint comes back from an outage, perhaps as another server. After
  silence the question is repeated after 5 s, then every 60 s.
- A server that is awaited (see ``arrivals``) is asked with the first call in any case, and again
  after 1 s ten times, then at growing pauses up to 5 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from batchclient._core.messages import Ask, Asked, Command
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState

__all__ = ["Asking"]

_AFTER_S = 0.25
_PAUSES_S = (5.0, 60.0)
_AWAITED_PAUSES_S = (*[1.0] * 10, 2.0, 3.0, 4.0, 5.0)
_EARLY_S = 0.001
"""A timer may fire this much too soon, seconds."""


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
    """The questions of one scheduler.

    Args:
        endpoints: by id; the first are there.
        command: takes a command.
        asks_first: whether a server may be asked before its first list; ``None``: never at all.
    """

    def __init__(
        self,
        endpoints: Mapping[int, Endpoint],
        command: Callable[[Command], None],
        asks_first: Callable[[], bool] | None,
    ) -> None:
        self._endpoints = endpoints
        self._command = command
        self._asks_first = asks_first
        self.questions: dict[int, _Question] = {}
        """By endpoint; a known one has none."""
        self.look_at: float | None = None
        """When a question may be due; ``None``: not before a call is made, or a batch is sent."""
        self.unasked = False
        """Whether an endpoint is there for which ``ask_first`` was not called yet."""
        for number in endpoints:
            self.add(number)

    def add(self, number: int) -> None:
        """An endpoint was added."""
        if self._asks_first is not None:
            self.questions[number] = _Question()
            self.unasked, self.look_at = True, None

    def remove(self, number: int) -> None:
        """An endpoint has gone."""
        self.questions.pop(number, None)

    def ask_first(self, now: float) -> None:
        """Calls are queued: ask before their first lists are sent, if that may be; the lists wait."""
        self.unasked = False
        new = [number for number, question in self.questions.items() if question.ask_at is None]
        if self._awaits or (new and self._asks_first is not None and self._asks_first()):
            self.look_at = now
            for number in new:
                self.questions[number].ask_at = now
                self._endpoints[number].abilities.hold_lists(now)

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
        for number, question in self.questions.items():
            if question.ask_at is None or question.is_open:
                continue
            if question.ask_at <= now + _EARLY_S:
                self._command(Ask(number, question.anew))
                question.is_open = True
            else:
                waiting.append(question.ask_at)
        self.look_at = min(waiting, default=None)

    def asked(self, event: Asked, now: float, *, busy: bool) -> None:
        """A question has ended, or needs no asking; ``busy``: calls are under way."""
        question = self.questions.get(event.endpoint)
        if question is None:
            return
        self._endpoints[event.endpoint].abilities.release_lists()
        question.is_open, question.anew = False, self._is_awaited(event.endpoint)
        if question.anew or not event.answered:
            pauses = _AWAITED_PAUSES_S if question.anew else _PAUSES_S
            question.ask_at = now + pauses[min(question.silences, len(pauses) - 1)]
            question.silences += 1
        else:
            del self.questions[event.endpoint]
        self.look_at = None
        if busy:
            self.look(now)

    def ask_again(self, number: int, now: float) -> None:
        """An endpoint has come back, perhaps as another server."""
        if self._asks_first is not None and number in self._endpoints:
            self.questions[number] = _Question(now, anew=True)
            if self._asks_first():
                self._endpoints[number].abilities.hold_lists(now)
            self.look_at = None
            self.sent(now)

    def sleep(self) -> None:
        """No call is under way."""
        self.look_at = None
        # No batch for an awaited server will wake its question.
        self.unasked = self.unasked or self._awaits

    def close(self) -> None:
        """The client closes: ask nothing more."""
        self._asks_first, self.questions, self.look_at = None, {}, None

    @property
    def _awaits(self) -> bool:
        return any(self._is_awaited(number) for number in self.questions)

    def _is_awaited(self, number: int) -> bool:
        return self._endpoints[number].health.state is HealthState.AWAITED
