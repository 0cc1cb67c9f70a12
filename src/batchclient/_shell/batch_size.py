"""A guarded user's table of batch sizes: after a fault, logged once, the client's rule holds."""

from __future__ import annotations

from collections.abc import Callable

from batchclient._shell.log import log

__all__ = ["BatchSize"]


class BatchSize:
    """Asks a user's callable for a number of prompts, by the queue depth."""

    __slots__ = ("_choose", "_said")

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self._said = False

    def __call__(self, queue_depth: int) -> int | None:
        """Return the answer; ``None`` without a whole number."""
        try:
            answer = self._choose(queue_depth)
        except Exception:  # it is the user's code
            self._say("size_for failed; the client's own rule holds where it does. This is said once", with_trace=True)
            return None
        if isinstance(answer, int) and not isinstance(answer, bool):
            return answer
        kind = type(answer).__name__
        self._say(f"size_for answers a {kind}, not a whole number; the client's own rule holds. This is said once")
        return None

    def _say(self, message: str, *, with_trace: bool = False) -> None:
        if not self._said:
            self._said = True
            log("size_for_failed", message, exc_info=with_trace)
