"""How a limit comes down a plateau of short answers: by halves, as long as nothing is lost.

Why. Where answers of a few tokens come in one piece, a plateau (a prefix cache that thrashes) and slow growth look alike within a swing: what is measured of
the elasticity is 0 to 0.15 on the one and 0.1 to 0.3 on the other. A limit that follows it takes a minute to come down from a plateau, or stays. Half the load
tells them apart within seconds: on a plateau it brings as much.

Rules:
- It begins when the elasticity first says that more load brings little more. The load as it is is looked at without a swing, then half of it, then half of that,
  as long as what is answered per second stays within 12 % (of the logarithm) of the most that was seen: noise alone makes less of a plateau.
- The limit goes back to the smallest of these loads that brought within 5 % of the most. What lies 1.4 times above that one is looked at too, and kept instead if
  it brings more than any: a peak may lie between two halves, and where the very first step lost, throughput grows with load.
- What counts is answers per second, from when no more than the load to be looked at is in flight, until as many have ended as it is, and for 1.1 s at least.
  (The time that answers took would tell of the load before.)
- It is done once, and again when the server has changed or when the limit has grown to four times what it came to; never from below 16, where a swing is a
  call or two and tells as much.
- What was counted before callers stopped using the limit, or before a pause, is void: the look begins anew. A load that does not come about within 8 mean latencies
  is given up, and any at once after a refusal or late answers, or where something else holds the limit lower.

Source: a line search by halves. The constants were chosen in the laboratory (``prefix``, ``one-token``, ``one-token-unsteady``, ``api``): a look of 1.5 s or more
is no more certain there, and a loss of 8 % is one that noise makes on a plateau.
"""

from __future__ import annotations

import math

__all__ = ["Descent"]

_FLAT = 0.25
"""What is measured on a plateau is 0.13 to 0.25 at first, while answers from the start of the load count."""
_LEAST_POINTS = 6
"""Of fewer the elasticity says little."""
_RATIO = 0.5
_LOSS = 0.12
_WORTH = 0.05
"""In logarithms."""
_LOOK_S = 1.1
_NEAR = 0.15
"""A load counts as filled from this far below, and as come down to from this far above; in logarithms."""
_PATIENCE_PACES = 8.0
_AGAIN = 4.0
_LEAST = 16.0
"""Where it may begin."""


class Descent:
    """Where the search stands.

    Once under way it is told of answers (``take_in``) and says what the limit's base shall be.
    """

    __slots__ = (
        "_answers", "_asked_at", "_began_at", "_between", "_brought", "_kept", "_load", "_since",
    )  # fmt: skip

    def __init__(self) -> None:
        self._began_at = 0.0
        """The load that it last began at, or came to; 0: it may begin at any."""
        self._kept = 0.0
        self._brought: dict[float, float] = {}
        """The logarithm of answers per second, by load."""
        self._load: float | None = None
        """The one that is looked at; ``None``: none is."""
        self._between = False
        """Whether that is the one in between."""
        self._asked_at: float | None = None
        self._since: float | None = None
        """When it was first in flight."""
        self._answers = 0
        """Since then."""

    def __repr__(self) -> str:
        return f"<Descent at {self._load}>"

    @property
    def under_way(self) -> bool:
        """Whether it looks at a load now."""
        return self._load is not None

    def forget(self) -> None:
        """The server may be another one: begin anew, when it is time to."""
        self._began_at = 0.0
        self._look_at(None)

    def give_up(self) -> None:
        """What it would look at cannot be had."""
        self._look_at(None)

    def interrupt(self) -> None:
        """The load is not in flight, or nothing was sent for a while: what was counted of it is void."""
        self._look_at(self._load, between=self._between)

    @property
    def kept(self) -> float | None:
        """The load to go back to; ``None``: none is looked at."""
        return None if self._load is None else self._kept

    def begin(self, base: float, elasticity: float, points: int) -> None:
        """Begin at this load, if more of it brings little more (as so many points say) and it was not done yet."""
        if (
            self._load is None
            and points >= _LEAST_POINTS
            and elasticity < _FLAT
            and base > max(_LEAST, _AGAIN * self._began_at)
        ):
            self._began_at = self._kept = base
            self._brought.clear()
            self._look_at(base)

    def take_in(
        self, answers: int, in_flight: int, empty: int, pace_s: float, bounds: tuple[float, float], now: float
    ) -> float:
        """Take in answers; return what the limit's base shall be.

        Args:
            answers: those since the last time.
            in_flight: sequences, at most, when one of them ended.
            empty: of the load, what calls of several sequences may leave unused.
            pace_s: a mean latency.
            bounds: no load below the first or above the second.
            now: the time.
        """
        load = self._load
        assert load is not None, "not under way"
        if self._asked_at is None:
            self._asked_at = now
        if self._since is None:
            # Half a sequence is what rounding a small limit makes.
            if abs(math.log(max(1, in_flight) / load)) < _NEAR + (0.5 + empty) / load:
                self._since = now
            elif now - self._asked_at > _PATIENCE_PACES * pace_s:
                self._look_at(None)
                return self._kept
            return load
        self._answers += answers
        took_s = now - self._since
        if took_s < _LOOK_S or self._answers < load:
            return load
        return self._next(load, math.log(self._answers / took_s), bounds)

    def _next(self, load: float, brought: float, bounds: tuple[float, float]) -> float:
        """What the base shall be after a load that brought so much."""
        most = max(self._brought.values(), default=brought)
        if self._between:
            if brought > most:
                self._kept = load
            return self._done()
        self._brought[load] = brought
        self._kept = min(each for each, much in self._brought.items() if much >= max(most, brought) - _WORTH)
        lower, upper = _RATIO * load, self._kept / math.sqrt(_RATIO)
        if brought >= most - _LOSS and lower >= max(1.0, bounds[0]):
            self._look_at(lower)
            return lower
        if brought < most - _LOSS and upper <= bounds[1]:
            self._look_at(upper, between=True)
            return upper
        return self._done()

    def _done(self) -> float:
        self._began_at = self._kept
        self._look_at(None)
        return self._kept

    def _look_at(self, load: float | None, *, between: bool = False) -> None:
        self._load = load
        self._between = between
        self._asked_at = self._since = None
        self._answers = 0
