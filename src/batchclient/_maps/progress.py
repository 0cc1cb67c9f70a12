"""A map's rows, counted once, and its ``progress``: the user's function, told how far the map is.

Rules:
- Counted is what is ready to be taken: with a journal, what is on the disk.
- The function is called in the event loop, four times a second. Its errors end nothing: the first
  one is logged.
- The map is known weakly. The last snapshot is the map's end, and comes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchclient.health import Health, no_answers
from batchclient.types import MapProgress

if TYPE_CHECKING:
    from batchclient._maps.row import Row
    from batchclient._shell.backend import Cancellable
    from batchclient._shell.runner import Runner

__all__ = ["Counts", "Ticker"]

_EVERY_S = 0.25


@dataclass(slots=True)
class Counts:
    """The rows of one map.

    Args:
        read, answered, failed, reused, damaged, invalid, prompt_tokens, completion_tokens: as
            ``MapProgress`` has them.
        reused_failed: of the reused rows, those that had failed.
        reused_prompt_tokens, reused_completion_tokens: of the reused answers.
        health: answers by health, the reused ones and those that did not fit included.
    """

    read: int = 0
    answered: int = 0
    failed: int = 0
    reused: int = 0
    reused_failed: int = 0
    damaged: int = 0
    invalid: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused_prompt_tokens: int = 0
    reused_completion_tokens: int = 0
    health: dict[Health, int] = field(default_factory=no_answers)

    def add(self, row: Row, *, reused: bool) -> None:
        """Count a row that can be taken.

        Args:
            row: it has the answer or the error.
            reused: whether they are another row's, or a journal's.
        """
        self.add_answer(row, reused=reused)
        self.end_row(row, reused=reused)

    def end_row(self, row: Row, *, reused: bool) -> None:
        """Count a row, and not what answered it."""
        if reused:
            self.reused += 1
            self.reused_failed += row.error is not None
        elif row.error is not None:
            self.failed += 1
        else:
            self.answered += 1

    def add_answer(self, row: Row, *, reused: bool) -> None:
        """Count the tokens and the health of an answer, and not the row."""
        answer = row.answer
        health = getattr(answer if row.error is None else row.error, "health", None)
        if health is not None:
            self.health[health] += 1
        if row.error is not None:
            return
        usage = answer.usage
        if usage is not None:
            prompt, completion = usage.prompt_tokens, usage.completion_tokens
        else:
            prompt, completion = 0, getattr(answer, "counted_tokens", None) or 0
        if reused:
            self.reused_prompt_tokens += prompt
            self.reused_completion_tokens += completion
        else:
            self.prompt_tokens += prompt
            self.completion_tokens += completion


class Ticker:
    """Tells how far a map is.

    Args:
        function: the user's, guarded: nothing comes out.

    Attributes:
        owner: a weak reference to the map.
    """

    owner: Callable[[], Any]

    def __init__(self, function: Callable[[MapProgress], object]) -> None:
        self._function = function
        self._runner: Runner | None = None
        self._timer: Cancellable | None = None

    def start(self, runner: Runner) -> None:
        """Begin to tell."""
        self._runner = runner
        self._set_timer(runner)

    def stop(self) -> None:
        """Tell the end."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._tell()

    def _set_timer(self, runner: Runner) -> None:
        self._timer = runner.backend.call_at(runner.backend.now() + _EVERY_S, self._tick)

    def _tick(self) -> None:
        runner = self._runner
        if self._timer is None or runner is None:
            return
        if runner.ended or self.owner() is None:
            self._timer = None
            return
        self._tell()
        self._set_timer(runner)

    def _tell(self) -> None:
        owner = self.owner()
        if owner is not None and self._runner is not None:
            self._function(owner.progress())
