"""Models that share a card: a server that holds one model, and loads another when it is asked for.

For example llama-swap with two models, and a file whose rows take turns: of 600 rows in the order
of arrival more than 300 make the server load the other model. Model by model it is a handful.

Rules:
- Calls for the loaded model go first. Others wait until none of these waits, but for ``wait_s`` at
  most; then it is their turn, and the loaded model's calls wait likewise.
- A call of a higher priority than those, or whose time would be over within ``wait_s``, does not
  wait for them.
- Nothing is sent for another model while calls of the loaded one are in flight: some routers end
  what runs, and the others make it wait.
- Who knows says so (``one_model_at_a_time``). Else the pauses of the server are looked at: how long
  nothing was answered, with a call in flight. Where two pauses in a row before another model's
  answer were longer than a second, and than three times nine in ten of the others, calls go model
  by model, on trial.
- From then on each change is measured, without anything that runs beside: its first answer against
  the quickest that the model gives once it is loaded. Two changes that cost less than a second end
  it, or four of which that cannot be told. It is not tried again for ten minutes, and twice as long
  after each trial in vain.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from batchclient._core.messages import Batch, Notice, Request, Shape

__all__ = ["Card"]

_COSTS_S = 1.0
"""A change that takes so much longer costs something."""
_LONGER = 3
_CHANGES, _UNKNOWN = 2, 0.5
_LEAST_PAUSES, _MOST_PAUSES = 4, 32
_TRIAL_WAIT_S = 5.0
_NOT_AGAIN_S = 600.0


class Card:
    """Which model a server holds, as far as its calls show.

    Args:
        loaded: the model of the first calls; ``None``: none was sent.
        is_told: whether it holds one at a time; ``None``: to be found out.
        wait_s: how long calls for other models wait, at most.
        now: the time.
    """

    def __init__(self, loaded: str | None, *, is_told: bool | None, wait_s: float, now: float) -> None:
        self.loaded = loaded
        self.is_on: bool = is_told is True
        """Whether calls go model by model."""
        self._is_told = is_told is not None
        self._wait_s = wait_s
        self._loaded_at = now
        self._next: str | None = None
        self._changes = 0.0
        """Successive changes that speak for another way than the present one."""
        self._proved = self._is_told
        self._answered: str | None = None
        self._answered_at = -math.inf
        self._run_since = now
        """When the model of the latest answers had its first one."""
        self._pauses: deque[float] = deque(maxlen=_MOST_PAUSES)
        self._quickest: dict[str, float] = {}
        self._on_at = -math.inf
        """Since when calls go model by model."""
        self._again_at, self._not_again_s = -math.inf, _NOT_AGAIN_S

    def look(self, queued: Iterable[tuple[Shape, Request]], now: float) -> None:
        """Find the model whose turn it is, among calls that could be sent: the oldest of each shape."""
        waiting: dict[str, tuple[int, float, int]] = {}
        for shape, oldest in queued:
            priority, due, seq = waiting.get(shape.model, (shape.priority, math.inf, oldest.seq))
            due = min(due, self._due(oldest))
            waiting[shape.model] = max(priority, shape.priority), due, min(seq, oldest.seq)
        if self._next in waiting:
            return
        its_calls = waiting.get(self.loaded or "")
        highest = -math.inf if its_calls is None else its_calls[0]
        turns = [
            (-each[0], each[2], model)
            for model, each in waiting.items()
            if model != self.loaded and (each[0] > highest or each[1] <= now)
        ]
        self._next = min(turns)[2] if turns and self.loaded is not None else None

    def wait(self, shape: Shape, oldest: Request, under_way: Iterable[Batch]) -> tuple[str, float] | None:
        """Why calls are not sent to the server now, for their model, and when to look again.

        Args:
            shape: the calls'.
            oldest: of them.
            under_way: what was sent to the server, and has not ended.
        """
        model = shape.model
        if self.loaded is None or model == self.loaded == (self._next or model):
            return None
        if model == self._next:
            is_busy = any(batch.shape.model == self.loaded for batch in under_way)
            return ("for the end of the calls of the model that is loaded", math.inf) if is_busy else None
        if self._next is not None:
            return "for its model's turn", math.inf
        return "for the calls of the model that is loaded", self._due(oldest)

    def _due(self, oldest: Request) -> float:
        """When a call's turn comes though calls of the loaded model wait."""
        wait_s = self._wait_s if self._proved else min(_TRIAL_WAIT_S, self._wait_s)
        due = max(oldest.queued_at, self._loaded_at) + wait_s
        return due if oldest.deadline is None else min(due, oldest.deadline - wait_s)

    def sent(self, batch: Batch, now: float) -> None:
        """Calls of a model are sent."""
        model = batch.shape.model
        if model != self.loaded:
            # Until its first answer it is being loaded, and nobody's turn comes.
            self.loaded, self._loaded_at, self._next = model, math.inf, None

    def told(self, server: str) -> tuple[str, Notice, str]:
        """The latest change of ``is_on``: its reason, and what to log."""
        if self.is_on:
            reason = "a change of the model takes more than a second"
            return reason, "models_in_turn", f"{server} holds one model at a time, and gets calls model by model"
        reason = "a change of the model takes less than a second"
        return reason, "models_at_once", f"{server} holds several models, and gets their calls as they come"

    def answered(self, batch: Batch, now: float) -> bool:
        """Calls are answered; return whether they now go model by model, or no longer."""
        model, seconds = batch.shape.model, now - batch.sent_at
        if model == self.loaded and self._loaded_at > now:
            self._loaded_at = now
        if self._is_told:
            return False
        pause_s = now - max(batch.sent_at, self._answered_at)
        is_change = self._answered not in (None, model)
        was_on = self.is_on
        if self._answered != model:
            self._run_since = now
        elif batch.sent_at >= self._run_since:
            self._quickest[model] = min(seconds, self._quickest.get(model, math.inf))
        if is_change and self.is_on and batch.sent_at >= self._on_at:
            self._judge_change(seconds - self._quickest.get(model, math.inf), now)
        elif is_change and not self.is_on:
            self._judge_pause(pause_s, now)
        elif self._answered == model:
            self._pauses.append(pause_s)
        self._answered, self._answered_at = model, now
        return self.is_on is not was_on

    def _judge_pause(self, pause_s: float, now: float) -> None:
        if len(self._pauses) < _LEAST_PAUSES or now < self._again_at:
            return
        usual_s = sorted(self._pauses)[-1 - len(self._pauses) // 10]
        is_long = pause_s > max(_COSTS_S, _LONGER * usual_s)
        self._changes = self._changes + 1 if is_long else 0
        if self._changes >= _CHANGES:
            self.is_on, self._on_at, self._changes, self._quickest = True, now, 0, {}

    def _judge_change(self, cost_s: float, now: float) -> None:
        if cost_s >= _COSTS_S:
            self._changes = 0
        else:
            # It may be that no call of the model was sent yet once it was loaded.
            self._changes += _UNKNOWN if cost_s == -math.inf else 1
        self._proved = self._proved or cost_s >= _COSTS_S
        if self._changes >= _CHANGES:
            self.is_on, self._proved, self._changes = False, False, 0
            self._again_at, self._not_again_s = now + self._not_again_s, 2 * self._not_again_s
            self._pauses.clear()
