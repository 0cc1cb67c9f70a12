"""Conversations: prefix families just served by a server, whose next calls are worth a wait.

Where many conversations share a prefix cache which holds only some of them, serving them in turn
computes every prefix again each time. A server is fast if it stays with the prefixes in its cache
until their conversations end. But a conversation's next turn comes a moment after the last answer,
when the freed permit has long gone to another call.

Rules:
- A family is *warm* for ``longest_run_s`` from its first grant: its calls then go before others. A
  longer prefix inherits the time of the shorter prefix from which it grew, so an endless
  conversation cannot keep others from their turns.
- After an answer a permit is kept for the family's next call, if calls of families came back more
  often than not, and soon: after less than an eighth of the time of serving them. This is
  anticipatory scheduling, as for disks (S. Iyer, P. Druschel, SOSP 2001).
- The permit is kept from calls of other families, for three times the usual gap at most. Calls with
  short prompts may take it.

The caller decides how a permit is kept (see ``granting``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from batchclient._core.messages import Request
from batchclient._core.prefixes.families import length_of

__all__ = ["Conversations"]

_REMEMBERED = 16_384
_LEARN = 0.1
_LIKELY = 0.5
_SOON_RATIO = 0.125
_GAPS_WAITED = 3.0
_LONGEST_WAIT_S = 0.1


class _Served:
    """A family's past."""

    __slots__ = ("answered_at", "answered_on", "awaited_until", "endpoint", "warm_until")

    def __init__(self, warm_until: float) -> None:
        self.warm_until = warm_until
        self.answered_at: float | None = None
        """When the family was last answered, if no call has come back since."""
        self.answered_on = -1
        """The endpoint which answered last."""
        self.awaited_until: float | None = None
        self.endpoint = -1


class Conversations:
    """Which families are warm, for ``longest_run_s`` (seconds), and which are awaited."""

    def __init__(self, longest_run_s: float) -> None:
        self.longest_run_s = longest_run_s
        self._served: OrderedDict[int, _Served] = OrderedDict()
        self._awaited: OrderedDict[int, _Served] = OrderedDict()
        self._returns = 0.0
        """The share of answers after which a family comes back: an exponential mean."""
        self._gap_s = 0.0
        """Seconds from answer to return: likewise."""
        self._service_s = 0.0

    def __repr__(self) -> str:
        return (
            f"<Conversations: {len(self._served)} families, {len(self._awaited)} awaited, {self._returns:.2f} return>"
        )

    def is_warm(self, family: int, now: float) -> bool:
        """Whether calls of a family go before others."""
        served = self._served.get(family)
        return served is not None and now < served.warm_until

    def came(self, request: Request, now: float) -> None:
        """A call with a family was queued."""
        served = self._served.get(request.family)
        if served is None or served.answered_at is None:
            return
        gap_s = now - served.answered_at
        served.answered_at = None
        if served.awaited_until is not None:
            self._await_no_more(request.family, served)
        if gap_s > _LONGEST_WAIT_S:
            # No permit would have been kept so long.
            self._returns -= _LEARN * self._returns
            return
        self._returns += _LEARN * (1 - self._returns)
        self._gap_s += _LEARN * (gap_s - self._gap_s) if self._gap_s else gap_s

    def granted(self, requests: Iterable[Request], endpoint: int, now: float) -> None:
        """Calls with long prompts are sent to an endpoint."""
        served = self._served
        for request in requests:
            if not request.stem:
                continue
            own = served.get(request.stem)
            parent = served.get(request.family)
            request.shared = 0
            if parent is not None and parent.answered_on == endpoint:
                request.shared = length_of(request.family)
            if own is None:
                own = served[request.stem] = _Served(parent.warm_until if parent is not None else now)
            else:
                served.move_to_end(request.stem)
            if own.warm_until <= now:
                own.warm_until = now + self.longest_run_s
        while len(served) > _REMEMBERED:
            family, _ = served.popitem(last=False)
            self._awaited.pop(family, None)

    def answered(self, requests: Collection[Request], endpoint: int, sent_at: float, now: float) -> None:
        """Some calls of a batch with long prompts were answered."""
        wait_s = min(_GAPS_WAITED * self._gap_s, _LONGEST_WAIT_S)
        worth = self._returns > _LIKELY and self._gap_s <= _SOON_RATIO * self._service_s
        for request in requests:
            served = self._served.get(request.stem)
            if served is None:
                continue
            if served.answered_at is not None:
                # The last answer brought no further call.
                self._returns -= _LEARN * self._returns
            self._service_s += _LEARN * (now - sent_at - self._service_s) if self._service_s else now - sent_at
            served.answered_at = now
            served.answered_on = endpoint
            if worth and now < served.warm_until:
                served.awaited_until = now + wait_s
                served.endpoint = endpoint
                self._awaited[request.stem] = served

    def awaited(self, endpoint: int, now: float) -> tuple[int, float]:
        """For how many calls an endpoint's permits are kept, and until when the first is."""
        count, until = 0, float("inf")
        for family, served in list(self._awaited.items()):
            assert served.awaited_until is not None
            if served.awaited_until <= now:
                self._await_no_more(family, served)
                self._returns -= _LEARN * self._returns
                served.answered_at = None
            elif served.endpoint == endpoint:
                count += 1
                until = min(until, served.awaited_until)
        return count, until

    def _await_no_more(self, family: int, served: _Served) -> None:
        self._awaited.pop(family, None)
        served.awaited_until = None
