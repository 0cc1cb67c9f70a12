"""How a limit opens before any answer has ended: by the prompts that have begun to be answered.

Why. The knee is found from the time that answers took. Until the first have ended nothing is known, and the limit then grows 1.4 times per
answer's time. Where all answers are equally long, as those are that reach ``max_tokens``, a first burst of 256 calls would take two and a half
times as long as without a limit (``benchmarks.lab --once``).

Rules:
- Servers begin prompts in order. Once all prompts of a batch have their first token and none of them has ended, whatever was in flight when the
  batch was sent, less what has ended since in whatever way, was running at once (of its own last call's choices, one). The limit may be 1.4 times that, as it may be of a load whose answers
  have ended (``knee``). No time is measured for it, so none can be misread; a server that queues ends it by itself, for what waits has no first
  token. Where answers come in one piece there is no first token, and no opening. A server that prefers some prompts (priorities, SGLang's
  longest prefix first, a router before several replicas) may open it further than what runs; it comes down from there as from any load.
- Its base ends at 256, vLLM's default number of running sequences on small GPUs (the limit swings about it): from there on, only what answers took says whether more is worth anything.
- It ends when the limit first comes down, by refusals and late answers too, and does not begin again before the server is started anew. Nor does it go on
  where the first tokens took more than a hundredth of the time that callers give: what is in flight gets slower with each that joins it, and theirs would be too
  late.
- The load it came to was never shown to be worth it. So the limit runs less far ahead after it, and when it comes down for the first time, it
  does so at once to the least load that brought 0.95 of the most throughput seen, as BBR drains the queue that its startup has made (Cardwell et
  al. 2016).
"""

from __future__ import annotations

from collections.abc import Sequence

from batchclient._core.limits.evidence import Point, waiting

__all__ = ["Opening"]

_AHEAD = 1.4
_MOST = 256.0
_HURRY = 0.01
"""With a twentieth, calls with a second each came too late in one laboratory run of four."""
_ENOUGH_THROUGHPUT = 0.95


class Opening:
    """What first tokens have raised a limit to, until it comes down."""

    __slots__ = ("over", "used")

    def __init__(self) -> None:
        self.over = False
        """Whether a refusal or late answers have ended it."""
        self.used = False
        """Whether the limit was raised, and has not come down since."""

    def raised(self, base: float, running: int, hurry: float) -> float:
        """What a limit's base may be now.

        Args:
            base: what it is.
            running: sequences known to have run at once.
            hurry: the share of the time that their callers give which the first tokens took; 0: they give any time.
        """
        to = min(_MOST, _AHEAD * running)
        if hurry > _HURRY or to <= base:
            return base
        self.used = True
        return to

    def drained(self, base: float, points: Sequence[Point]) -> float:
        """What the base comes down to, the first time."""
        self.used = False
        wait = waiting(points)
        loads = [point.felt(wait.share) for point in points]
        throughputs = [load / point.cost_s(wait.tokens) for point, load in zip(points, loads, strict=True)]
        enough = _ENOUGH_THROUGHPUT * max(throughputs)
        least = min(load for load, throughput in zip(loads, throughputs, strict=True) if throughput >= enough)
        return min(base, least)
