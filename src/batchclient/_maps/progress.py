"""A map's ``progress``: the user's function, told four times a second how far the map is.

Rules:
- The function is called in the event loop. Its errors end nothing: the first one is logged.
- Counted is what is ready to be taken: with a journal, what is committed.
- The map is known weakly. The last snapshot is the map's end, and comes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from batchclient._shell.log import log
from batchclient.types import MapProgress

if TYPE_CHECKING:
    from batchclient._shell.backend import Cancellable
    from batchclient._shell.runner import Runner

__all__ = ["Ticker"]

_EVERY_S = 0.25


class _Owner(Protocol):
    @property
    def counts(self) -> tuple[int, int]:
        """Documents read, and damaged rows of the journal."""
        ...

    @property
    def invalid(self) -> int:
        """Answers that did not fit."""
        ...


class _Row(Protocol):
    answer: Any
    error: Exception | None
    reused: bool


class Ticker:
    """Counts the rows of a map, and tells.

    Args:
        function: the user's, guarded: nothing but an ``Exception`` comes out.

    Attributes:
        owner: a weak reference to the map.
    """

    owner: Callable[[], _Owner | None]

    def __init__(self, function: Callable[[MapProgress], object]) -> None:
        self._function = function
        self._has_failed = False
        self._answered = 0
        self._failed = 0
        self._reused = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._runner: Runner | None = None
        self._began_at = 0.0
        self._timer: Cancellable | None = None

    def start(self, runner: Runner) -> None:
        """Begin to tell."""
        self._runner = runner
        self._began_at = runner.backend.now()
        self._set_timer(runner)

    def count(self, row: _Row) -> None:
        """Count a row that can be taken."""
        if row.reused:
            self._reused += 1
        elif row.error is not None:
            self._failed += 1
        else:
            self._answered += 1
            usage = row.answer.usage
            if usage is not None:
                self._prompt_tokens += usage.prompt_tokens
                self._completion_tokens += usage.completion_tokens
            else:
                self._completion_tokens += row.answer.counted_tokens or 0

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
        owner, runner = self.owner(), self._runner
        if owner is None or runner is None:
            return
        read, damaged = owner.counts
        now = MapProgress(
            read=read,
            answered=self._answered,
            failed=self._failed,
            reused=self._reused,
            damaged=damaged,
            in_flight=runner.core.statistics().in_flight,
            limit=runner.core.total_limit,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            seconds=runner.backend.now() - self._began_at,
            invalid=owner.invalid,
        )
        try:
            self._function(now)
        except Exception:  # the user's code
            if not self._has_failed:
                self._has_failed = True
                log("progress_failed", "progress failed; this is said once", exc_info=True)
