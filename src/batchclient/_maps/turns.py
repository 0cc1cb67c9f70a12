"""Whose calls go first, where a map says that: its rows wait here, and not in the scheduler.

Rules:
- Of each model and kind the scheduler has as many calls as may be in flight, and an eighth more to
  choose from. The others wait here, by priority, and then by turn. So the map comes to its turn
  among the client's other calls, their tenants, priorities and deadlines as any map does.
- ``Turns``: the calls of earlier rows go first.
- ``LongestFirst``: the calls whose answers are expected to be the longest go first. A job ends with
  its last answer: a long one that begins last leaves the server all but idle to its end (Graham,
  *Bounds on Multiprocessing Timing Anomalies*, 1969: longest processing time first). The guesses
  are looked up anew as answers tell more.
- No row starves: one that was read so many rows ago as four look-aheads hold goes before younger
  ones.
- Calls whose model is refused, while those of others are answered, all go to the scheduler: it says
  how many are held back, and they take no part of the look-ahead.
"""

from __future__ import annotations

import heapq
import math
import weakref
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from batchclient._core.messages import Request, RequestState
from batchclient._maps.row import Row
from batchclient._shell.runner import Runner

if TYPE_CHECKING:
    from batchclient._shell.backend import Cancellable

__all__ = ["LongestFirst", "TurnRow", "Turns"]

_MORE = 8
"""Calls that wait in the scheduler: one for so many that may be in flight."""
_LOOK_AGAIN_S = 0.1
"""Of a refusal, after which a call waits by itself, nothing is told here."""
_GUESSES_A_S = 4096
"""Guesses that are looked up anew in a second: some milliseconds."""
_LOOK_AHEADS = 4


class TurnRow(Row):
    """A row that is sent in its turn."""

    __slots__ = ("_sent_with", "_turns")

    def __init__(self, owner: weakref.ref[Any], index: int, document: Any, turns: Turns) -> None:
        super().__init__(owner, index, document)
        self._turns = turns
        self._sent_with: set[TurnRow] | None = None
        """The calls that the scheduler has, this one among them."""

    def send(self, runner: Runner, request: Request) -> None:
        """Send the call in its turn."""
        self._turns.add(self, request)

    def submit(self, runner: Runner, request: Request, sent: set[TurnRow]) -> None:
        """Send the call now, which is one of ``sent`` until it ends."""
        self._sent_with = sent
        sent.add(self)
        super().send(runner, request)

    def _forget(self) -> None:
        if self._sent_with is not None:
            self._sent_with.discard(self)

    def _finish(self) -> None:
        self._forget()
        super()._finish()
        self._turns.look_soon()


class Turns:
    """Hands calls to the scheduler, those of the earliest rows first.

    Args:
        runner: has the scheduler.
        holds_back: whether none may go now; ``look_soon`` says when that may be over.
    """

    def __init__(self, runner: Runner, holds_back: Callable[[], bool]) -> None:
        self._runner = runner
        self._holds_back = holds_back
        self._held: dict[Any, list[tuple[float, float, int, TurnRow]]] = {}
        """Calls that wait, by model and kind: a heap, by priority and turn."""
        self._sent: dict[Any, set[TurnRow]] = {}
        """Calls that the scheduler has, by model and kind."""
        self._numbers = count()
        self._looks = False
        self._timer: Cancellable | None = None

    def add(self, call: TurnRow, request: Request) -> None:
        """Let a call wait for its turn."""
        held = self._held.setdefault(request.shape.subject, [])
        heapq.heappush(held, (*self._turn(call, request), next(self._numbers), call))
        self.look_soon()

    def look_soon(self) -> None:
        """See in the next turn of the event loop who goes: all calls of one turn travel together."""
        if not self._looks and self._held and not self._runner.backend.is_gone():
            self._looks = True
            self._runner.backend.call_soon(self._look)

    def clear(self) -> list[TurnRow]:
        """Hold no call any more; return those that were held, and that somebody waits for."""
        held = [entry[3] for calls in self._held.values() for entry in calls]
        self._held.clear()
        return [call for call in held if call.request is not None]

    def _turn(self, call: TurnRow, request: Request) -> tuple[float, float]:
        """When a call goes: before those that have more."""
        return -request.shape.priority, call.index

    def _room(self, sent: set[TurnRow]) -> float:
        """How many calls may go now, beside those of their model and kind that the scheduler has."""
        limit = self._runner.core.total_limit
        # What a server has refused waits by itself, and holds up no other.
        return limit + max(1, limit // _MORE) - sum(not _is_put_off(call) for call in sent)

    def _look(self) -> None:
        self._looks = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._holds_back():
            return
        for subject in list(self._held):
            held = self._held[subject]
            sent = self._sent.setdefault(subject, set())
            room = self._room(sent)
            while held and room > 0:
                call = heapq.heappop(held)[3]
                if call.request is not None:
                    room -= 1
                    call.submit(self._runner, call.request, sent)
            if not held:
                self._held.pop(subject, None)
        if self._held:
            backend = self._runner.backend
            self._timer = backend.call_at(backend.now() + _LOOK_AGAIN_S, self._look)


class LongestFirst(Turns):
    """Hands rows to the scheduler, those first whose answers are expected to be the longest.

    Args:
        runner: has the scheduler, which knows the guesses.
        look_ahead: how many rows may be open now.
    """

    def __init__(self, runner: Runner, look_ahead: Callable[[], int]) -> None:
        super().__init__(runner, lambda: False)
        self._look_ahead = look_ahead
        self._newest = 0
        self._oldest: float = 0
        """Rows before this one go first."""
        self._renewed_until = -math.inf

    def let_go(self) -> None:
        """Hand over all calls: the client takes none any more."""
        for call in self.clear():
            assert call.request is not None, "somebody waits for it"
            call.submit(self._runner, call.request, self._sent.setdefault(None, set()))

    def _turn(self, call: TurnRow, request: Request) -> tuple[float, float]:
        if call.index < self._oldest:
            return -math.inf, call.index
        self._newest = max(self._newest, call.index)
        return -request.shape.priority, -self._runner.core.expected_tokens(request)

    def _room(self, sent: set[TurnRow]) -> float:
        return math.inf if self._runner.core.held_back else super()._room(sent)

    def _look(self) -> None:
        now, guesses = self._runner.backend.now(), 0
        if now >= self._renewed_until:
            self._oldest = self._newest - _LOOK_AHEADS * self._look_ahead()
            for held in self._held.values():
                waiting = [(number, call, call.request) for *_, number, call in held]
                held[:] = [
                    (*self._turn(call, request), number, call)
                    for number, call, request in waiting
                    if request is not None
                ]
                heapq.heapify(held)
                guesses += len(held)
            self._renewed_until = now + guesses / _GUESSES_A_S
        super()._look()


def _is_put_off(call: TurnRow) -> bool:
    return call.request is not None and call.request.state is RequestState.BACKING_OFF
