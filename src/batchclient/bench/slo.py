"""Objectives of latency: ``p95<400ms``, read once and asked of every call.

Rules:
- An objective is a share of calls within a bound: ``p95<400ms`` is "0.95 of all calls take 400 ms
  at most". A call that failed, was refused or has not come back misses every objective.
- Times run from a call's scheduled arrival, except the time per output token, which is the
  server's.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from batchclient import ConfigError

__all__ = ["Measure", "Slo", "share_of", "shown_s"]

Measure = Literal["latency", "ttft", "tpot"]
"""What is bounded: the whole call; the time to the first token; the time per output token."""

_GRAMMAR = "[latency|ttft|tpot] pNN<NUMBER(ms|s), such as 'p95<400ms', 'ttft p99<1s' or 'tpot p95<50ms'"
_FORM = re.compile(
    r"(?:(?P<measure>latency|ttft|tpot)\s+)?p(?P<percentile>\d+(?:\.\d+)?)\s*<=?\s*(?P<bound>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)"
)


@dataclass(frozen=True, slots=True)
class Slo:
    """An objective: a percentile of the calls stays within a bound.

    For example::

        Slo("p95<400ms")

    Args:
        text: ``[latency|ttft|tpot] pNN<NUMBER(ms|s)``; the latency where no measure is named.

    Attributes:
        measure: what is bounded.
        share: of the calls, between 0 and 1.
        bound_s: seconds.

    Raises:
        ConfigError: the text has another form, the percentile is not between 0 and 100, or the
            bound is 0.
    """

    text: str
    measure: Measure = field(init=False)
    share: float = field(init=False)
    bound_s: float = field(init=False)

    def __post_init__(self) -> None:
        form = _FORM.fullmatch(self.text.strip()) if isinstance(self.text, str) else None
        if form is None:
            raise ConfigError(f"slo: {self.text!r} is no objective; its form is {_GRAMMAR}", field="slo")
        share = share_of(form["percentile"])
        if not 0 < share < 1:
            raise ConfigError(f"slo: {self.text!r}: a percentile is above 0 and below 100", field="slo")
        bound_s = float(form["bound"]) / (1000 if form["unit"] == "ms" else 1)
        if not bound_s > 0:
            raise ConfigError(f"slo: {self.text!r}: a bound is above 0", field="slo")
        object.__setattr__(self, "measure", form["measure"] or "latency")
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "bound_s", bound_s)

    def __str__(self) -> str:
        measure = "" if self.measure == "latency" else f"{self.measure} "
        return f"{measure}p{self.share * 100:g} < {shown_s(self.bound_s)}"


def share_of(percentile: str) -> float:
    """Return a percentile as a share: 99.9 is 0.999, so that 999 of 1,000 calls are enough.

    Raises:
        ValueError: the text is no number.
    """
    return round(float(percentile) / 100, 12)


def shown_s(seconds: float) -> str:
    """Return a duration as people say it: ``388 ms``, ``1.2 s``; ``?`` where a bound is not known."""
    if not math.isfinite(seconds):
        return "?"
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
