"""When calls are made: callers who wait for their answers, or arrivals that wait for nobody.

Rules:
- A closed load has a number of callers, each with one call at a time: its rate follows the
  server's speed. It says nothing about an arrival rate.
- An open load has arrivals at random; their times are drawn before, so a slow server or generator
  changes none of them.
- The same seed gives the same arrivals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from batchclient.errors import ConfigError

__all__ = ["Closed", "Load", "Poisson"]


@dataclass(frozen=True, slots=True)
class Closed:
    """Callers who make their next call when the last one is answered.

    Args:
        callers: at once, 1 or more.

    Raises:
        ConfigError: the number is wrong.
    """

    callers: int

    def __post_init__(self) -> None:
        if type(self.callers) is not int or self.callers < 1:
            raise ConfigError("callers: a whole number, 1 or more", field="callers")


@dataclass(frozen=True, slots=True)
class Poisson:
    """Arrivals at random, at a mean rate.

    Args:
        rate: calls per second on the mean, above 0.
        burstiness: the shape of the gamma distribution of the gaps. 1 is a Poisson process; below 1
            the arrivals come in bursts, far above 1 at even gaps. The variance of the gaps is
            ``1 / (burstiness * rate ** 2)``.

    Raises:
        ConfigError: a value is wrong.
    """

    rate: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rate", "burstiness"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ConfigError(f"{name}: a number above 0", field=name)

    def times(self, seconds: float, seed: int) -> Iterator[float]:
        """Yield the arrivals of some seconds, ascending, from 0."""
        draw = random.Random(f"{seed}/arrivals")  # noqa: S311
        at = 0.0
        while True:
            at += draw.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))
            if at >= seconds:
                return
            yield at


Load = Closed | Poisson
