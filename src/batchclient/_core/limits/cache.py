"""The server's prefix cache: no more conversations at once than it holds the prefixes of.

A server keeps the KV of prompts it has seen until it needs the room. With more conversations under way than fit, each turn computes its whole
prompt again, and throughput falls to a fraction though no queue grows and no preemption is counted. To the limit's algorithm that looks
like a plateau: far beyond the knee, a little less load brings nothing.

What is compared is what was *expected* to be in the cache, the prefixes of calls whose family this server had answered before (see
``warmth``), and what the server says was *found* there, over the same time. The expectation counts at least half of what is shared, so
that a healthy cache finds as much, and up to twice as much; how much is learnt.

Rules:
- A window is a mean latency, 1.5 s and 8 answers at least: what was looked up is counted when a call begins, what was expected when it ends.
  One in which little was expected (a fifth of the prompt tokens), or in which the server looked up twice as many tokens as ours were (somebody
  else's), says nothing. Nor, for two of these times after a cut, does one in which more was in flight than the cap allows: what was sent before a
  cut is no sign that it was too small, nor one of nine.
- The best ratio is learnt where what is expected does not rise: while more and more is shared, what is found runs ahead of what was expected of
  the calls that end meanwhile. More than everything is never expected.
- Found less than 0.8 of the best ratio so far (1 at least): the cap falls to 0.9 of the window's peak in flight, to 0.65 where it is less than
  half and the window before was not good: one step beyond a cliff takes one step back.
- Otherwise it grows by 6 %, if it is used; for half a minute after a cut not back to where the cache was too small.
- A cache in which nothing is found however low the cap (nine cuts in a row: 0.02 of where it began) is not what this is about: it is not
  looked at again for five minutes.
- Reports grow stale after 5 s, as all do.

It only lowers the limit. The constants were chosen in the laboratory (``prefix``, ``agents``) and on a real vLLM (``benchmarks/limits_vllm.py``).
"""

from __future__ import annotations

import math

from batchclient._core.limits.base import Outcome, Sample
from batchclient._core.limits.load import STALE_AFTER_S, ServerLoad

__all__ = ["CacheCap"]

_WINDOW_S = 1.5
_LATENCY_SHARE = 0.1
_LEAST_ANSWERS = 8
_LEAST_EXPECTED_RATIO = 0.2
_OTHERS_RATIO = 2.0
_GOOD_RATIO = 0.8
_BAD_RATIO = 0.5
_CUT_RATIO = 0.9
_BAD_CUT_RATIO = 0.65
_GROWTH_RATIO = 1.06
_USED_RATIO = 0.8
_STEADY_RATIO = 1.1
_ENDING_LATENCIES = 2.0
"""So long after a cut more may be in flight than the cap allows. Later it is somebody else's doing (a pin)."""
_FORGETTING = 0.99
"""Of the best ratio, per window: prompts change."""
_CAREFUL_S = 30.0
_FUTILE_CUTS = 9
_GIVEN_UP_S = 300.0


class CacheCap:
    """Lowers the limit while the server's prefix cache holds less than was put there. A ``Cap``."""

    __slots__ = (
        "_answers", "_began", "_best", "_cap", "_ceiling", "_ceiling_until", "_cuts", "_ending_until", "_expected", "_expected_before", "_heard_at", "_heaviest", "_hits", "_last", "_latency_s", "_let_go_until", "_peak", "_prompt",
        "_queries", "_reason", "_was_good",
    )  # fmt: skip

    def __init__(self) -> None:
        self._forget()

    def __repr__(self) -> str:
        return f"<CacheCap {self._cap}>"

    def _forget(self) -> None:
        self._let_go_until = self._ending_until = -math.inf
        self._best = 1.0
        self._expected_before = 0.0
        self._cap: float | None = None
        self._reason = ""
        self._cuts = 0
        self._was_good = False
        self._ceiling = self._ceiling_until = -math.inf
        self._latency_s = 0.0
        self._heard_at = -math.inf
        self._last: tuple[float, float] | None = None
        self._restart(-math.inf)

    def _restart(self, now: float) -> None:
        self._began = now
        self._answers = self._peak = self._heaviest = 0
        self._prompt = self._expected = self._hits = self._queries = 0.0

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation."""
        if self._last is None or sample.outcome is not Outcome.SUCCESS:
            return
        self._answers += sample.sequences
        seconds = sample.now - sample.sent_at
        self._latency_s += _LATENCY_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
        self._prompt += sample.prompt_tokens
        self._expected += sample.shared_tokens
        self._peak = max(self._peak, sample.in_flight)
        # A call of more sequences than the cap runs alone.
        self._heaviest = max(self._heaviest, sample.weight)

    def on_load(self, load: ServerLoad, in_flight: int, now: float) -> None:
        """Take in a report."""
        stale, self._heard_at = now - self._heard_at > STALE_AFTER_S, now
        if load.prefix_hit_tokens is None or load.prefix_query_tokens is None:
            self._last = None
            return
        last, self._last = self._last, (load.prefix_hit_tokens, load.prefix_query_tokens)
        if last is None or stale or self._last[0] < last[0] or self._last[1] < last[1]:
            # The first one, or the server was started anew: there is no difference to take.
            self._restart(now)
            return
        if self._cap is not None and self._peak > max(self._cap, self._heaviest) and now < self._ending_until:
            self._restart(now)
            return
        self._hits += self._last[0] - last[0]
        self._queries += self._last[1] - last[1]
        if now - self._began < max(_WINDOW_S, self._latency_s) or self._answers < _LEAST_ANSWERS:
            return
        if now >= self._let_go_until:
            self._judge(now)
        self._restart(now)

    def on_restart(self, now: float) -> None:
        """The server was started anew."""
        self._forget()

    def cap(self, now: float) -> tuple[int, str] | None:
        """The most sequences in flight, and why; ``None``: no opinion."""
        if self._cap is None or now - self._heard_at > STALE_AFTER_S:
            return None
        return max(1, int(self._cap)), self._reason

    def _judge(self, now: float) -> None:
        expected = self._expected / self._prompt if self._prompt else 0.0
        rising, self._expected_before = expected > _STEADY_RATIO * self._expected_before, expected
        if expected < _LEAST_EXPECTED_RATIO or not self._queries:
            self._grow(now, "little is shared")
            return
        if self._queries > _OTHERS_RATIO * self._prompt:
            return
        found = self._hits / self._queries
        self._best = max(1.0, self._best * _FORGETTING, 0.0 if rising else found / expected)
        put_there = min(1.0, self._best * expected)
        share = found / put_there
        just_grown, self._was_good = self._was_good, share >= _GOOD_RATIO
        if self._was_good:
            self._cuts = 0
            self._grow(now, "the prefix cache held what was put there")
            return
        self._cuts += 1
        self._ending_until = now + _ENDING_LATENCIES * max(_WINDOW_S, self._latency_s)
        if self._cuts > _FUTILE_CUTS:
            self._let_go_until = now + _GIVEN_UP_S
            self._cap = None
            self._cuts = 0
            return
        far = share < _BAD_RATIO and not just_grown
        wanted = (_BAD_CUT_RATIO if far else _CUT_RATIO) * self._peak
        self._cap = max(1.0, wanted if self._cap is None else min(self._cap, wanted))
        self._ceiling = max(1.0, _CUT_RATIO * self._peak)
        self._ceiling_until = now + _CAREFUL_S
        self._reason = f"the prefix cache held {found:.0%} of what prompts asked for, {put_there:.0%} was put there"

    def _grow(self, now: float, reason: str) -> None:
        if self._cap is None or self._peak < _USED_RATIO * int(self._cap):
            return
        # A small one too: what is in force is the whole number below it.
        grown = self._cap * _GROWTH_RATIO
        if now < self._ceiling_until:
            grown = min(grown, max(self._cap, self._ceiling))
        if grown > self._cap:
            self._cap = grown
            self._reason = reason
