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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from batchclient import ConfigError

__all__ = ["Closed", "Load", "Poisson", "check_numbers"]


def check_numbers(*, whole: bool = False, **arguments: Iterable[object]) -> None:
    """Refuse what is no finite number above 0, with a ``ConfigError`` that names the argument."""
    for name, values in arguments.items():
        for value in values:
            if type(value) not in ((int,) if whole else (int, float)) or not 0 < value < math.inf:  # type: ignore[operator]
                raise ConfigError(f"{name}: a {'whole ' if whole else ''}number above 0", field=name)


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
        check_numbers(whole=True, callers=[self.callers])


@dataclass(frozen=True, slots=True)
class Poisson:
    """Arrivals at random, at a mean rate.

    Args:
        rate: calls per second on the mean, above 0.

    Raises:
        ConfigError: the rate is wrong.
    """

    rate: float

    def __post_init__(self) -> None:
        check_numbers(rate=[self.rate])

    def times(self, seconds: float, seed: int) -> Iterator[float]:
        """Yield the arrivals of some seconds, ascending, from 0."""
        draw = random.Random(f"{seed}/arrivals")  # noqa: S311
        at = draw.expovariate(self.rate)
        while at < seconds:
            yield at
            at += draw.expovariate(self.rate)


Load = Closed | Poisson
