"""An engine dead behind a living HTTP server, noticed by its silence.

Rules:
- Only the server's own report is believed (``ServerLoad``). An engine is dead if for a minute
  sequences ran, the count of generated tokens stood still, and no answer came. The silence of one
  request proves nothing: a plain request of ten minutes, or a call far back in a server's queue, is
  silent and well.
- A prompt is read before its first token is made, and no count moves meanwhile. So the minute grows
  by a hundredth of a second per token in flight, the pace of a slow CPU.
- Reports more than 10 s apart show nothing. Without reports, ``read_timeout_s`` bounds each
  request's silence.
"""

from __future__ import annotations

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.limits import ServerLoad
from batchclient.errors import ReadTimedOut

__all__ = ["STILL", "DeadEngine"]

STILL = Failure(
    FailureKind.MAYBE_PROCESSED, ReadTimedOut, "the server lives but generates nothing: its engine stands still"
)
"""The failure of the requests of a server whose engine is dead behind a living HTTP server."""

_STILL_AFTER_S = 60.0
_PER_TOKEN_S = 0.01
_LONGEST_GAP_S = 10.0


class DeadEngine:
    """Watches one endpoint's reports."""

    __slots__ = ("_generated", "_reported_at", "_since")

    def __init__(self) -> None:
        self._generated: float | None = None
        self._reported_at = float("-inf")
        self._since = 0.0

    def __repr__(self) -> str:
        return f"<DeadEngine: {self._generated} tokens since {self._since:.3f} s>"

    def observe(self, load: ServerLoad, answered_at: float, tokens_in_flight: int, now: float) -> bool:
        """Take in a report; return whether the engine must be dead.

        Args:
            answered_at: when the server last answered anything.
            tokens_in_flight: prompt and expected output of the calls in flight there.
        """
        generated = load.generation_tokens
        moves = generated != self._generated or not load.running or now - self._reported_at > _LONGEST_GAP_S
        self._generated, self._reported_at = generated, now
        if generated is None or moves:
            self._since = now
            return False
        still_s = now - max(self._since, answered_at)
        return still_s >= _STILL_AFTER_S + _PER_TOKEN_S * tokens_in_flight
