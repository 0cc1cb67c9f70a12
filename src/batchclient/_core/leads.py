"""Going ahead: of calls whose prefix no server has been sent yet, one goes first, and the others find it in the server's cache.

A server that keeps a prefix from when it has been computed computes it once for each call that comes before that. SGLang does, by its source,
unless it runs with ``--schedule-policy lpm`` and a short queue. vLLM keeps a prefix from the step for which it is planned: there this brings
nothing (``docs/how-to/priorities.md`` has what was measured).

Rules:
- Only with ``warm_prefixes``, and only among calls that wait at the same time (see ``families``). The first that is taken of a family goes
  ahead; the others of it are *held* until its answer, its failure, or ``LONGEST_LEAD_S`` after it was taken.
- A family is led once, whatever becomes of the call that leads, and on however many servers it is served later. So a call is held once
  (and once more if it turns out to share a longer prefix with others, six times at most): nothing starves. Where the call that leads is
  taken out for its deadline before it is sent, or its caller has gone, the others wait out their bound.
- Calls of other families go on. Where there are none, permits stay free that long: that is the price, and less than that of computing a
  prefix as often as there are permits. Whoever sends few calls at a time does not set this.
- Who is held is queued, to its caller, to its deadline and to statistics; it goes first when it is let go, while the prefix is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from batchclient._core.messages import Request

__all__ = ["LONGEST_LEAD_S", "Leads"]

LONGEST_LEAD_S = 1.0
"""An answer may take minutes, its prefix does not: 16 KiB, the longest that is told apart, are 4,000 tokens, and any GPU computes 4,000 in a
second. The core hears of answers, not of first tokens."""
_REMEMBERED = 16_384


class Leads:
    """Which families are led just now, and which have been."""

    __slots__ = ("_ahead", "_led", "_over")

    def __init__(self) -> None:
        self._ahead: dict[int, float] = {}
        """Until when its other calls are held, by family, soonest first: all are held equally long."""
        self._led: OrderedDict[int, None] = OrderedDict()
        self._over: list[int] = []
        """Families whose leading calls have ended since ``due`` was asked."""

    def __repr__(self) -> str:
        return f"<Leads: {len(self._ahead)} ahead, {len(self._led)} led>"

    @property
    def until(self) -> float | None:
        """When the next family is let go at the latest."""
        return next(iter(self._ahead.values()), None)

    def holds(self, request: Request, now: float) -> bool:
        """Whether a call that is taken from the queue must be held; if it is the first of its family, it leads from now on."""
        family = request.family
        until = self._ahead.get(family)
        if until is not None:
            return now < until
        if family and family not in self._led:
            self._ahead[family] = now + LONGEST_LEAD_S
            self._led[family] = None
            if len(self._led) > _REMEMBERED:
                self._led.popitem(last=False)
        return False

    def ended(self, requests: Iterable[Request]) -> None:
        """Some calls with long prompts were answered, or failed."""
        for request in requests:
            if self._ahead.pop(request.family, None) is not None:
                self._over.append(request.family)

    def due(self, now: float) -> list[int]:
        """The families that are let go now."""
        over, self._over = self._over, []
        while (until := self.until) is not None and until <= now:
            family = next(iter(self._ahead))
            del self._ahead[family]
            over.append(family)
        return over
