"""One endpoint's permits and what was learnt about it.

Rules:
- Permits are a counter, taken in the very step that emits ``SendBatch`` and returned when a choice finishes or its
  connection closes. ``in_flight`` is what the server still works on, whether or not a caller still waits.
- ``freed_at`` is when the oldest permit that is free now came free; a full endpoint has none.
- What a server refused is tried again after a while: a learnt cap doubles every minute, a refusal is forgotten.
"""

from __future__ import annotations

from batchclient._core.limits import Limit, Sample

__all__ = ["Endpoint"]

_FORGET_AFTER_S = 300.0
_CAP_GROWS_AFTER_S = 60.0


class Endpoint:
    """Permits, health and abilities of one server.

    Args:
        index: its place in the client's list of base URLs.
        limit: the algorithm that says how many sequences may be in flight.
        max_list: prompts per request, at most.
    """

    __slots__ = (
        "_learnt_at",
        "_learnt_cap",
        "_lists_again_at",
        "_max_list",
        "_streams_again_at",
        "abandoned",
        "blocked_until",
        "freed_at",
        "in_flight",
        "index",
        "limit",
        "lists_proven",
        "lists_refused",
        "streams_refused",
    )

    def __init__(self, index: int, limit: Limit, max_list: int) -> None:
        self.index = index
        self.limit = limit
        self._max_list = max_list
        self.in_flight = 0
        self.abandoned = 0
        self.freed_at: float | None = None
        self.blocked_until: float | None = None
        self.lists_proven = False
        """Whether a list was ever answered here; a complaint about a list is then about one of its prompts."""
        self.lists_refused = False
        self.streams_refused = False
        self._lists_again_at = 0.0
        self._streams_again_at = 0.0
        self._learnt_cap: int | None = None
        self._learnt_at = 0.0

    def __repr__(self) -> str:
        return f"<Endpoint {self.index}: {self.in_flight} of {self.limit.limit} in flight>"

    @property
    def free(self) -> int:
        """Permits free now."""
        return self.limit.limit - self.in_flight

    def take(self, sequences: int, now: float) -> None:
        """Take permits for a batch that is sent in this step."""
        self.in_flight += sequences
        if self.in_flight >= self.limit.limit:
            self.freed_at = None
        elif self.freed_at is None:
            self.freed_at = now

    def give_back(self, sequences: int, now: float) -> None:
        """Return permits."""
        self.in_flight -= sequences
        assert self.in_flight >= 0, "more permits returned than taken"
        if self.freed_at is None and self.in_flight < self.limit.limit:
            self.freed_at = now

    def list_cap(self, now: float) -> int:
        """The longest list to send now."""
        if self.lists_refused:
            if now < self._lists_again_at:
                return 1
            self.lists_refused = False
        return self._grown_cap(now)

    def _grown_cap(self, now: float) -> int:
        # A function of time alone: whoever looks at it, and how often, changes nothing.
        if self._learnt_cap is None:
            return self._max_list
        doublings = int((now - self._learnt_at) / _CAP_GROWS_AFTER_S)
        return min(self._learnt_cap << min(doublings, 32), self._max_list)

    def refuse_lists(self, now: float) -> None:
        """The server takes no lists; ask again later."""
        self.lists_refused = True
        self._lists_again_at = now + _FORGET_AFTER_S

    def refuse_streams(self, now: float) -> None:
        """The server does not stream lists; ask again later."""
        self.streams_refused = True
        self._streams_again_at = now + _FORGET_AFTER_S

    def streams(self, now: float) -> bool:
        """Whether to ask for streamed replies."""
        if self.streams_refused and now >= self._streams_again_at:
            self.streams_refused = False
        return not self.streams_refused

    def shorten_lists(self, failed: int, stated: int | None, now: float) -> None:
        """A list of ``failed`` prompts was too long; the server may have stated its cap."""
        cap = stated if stated is not None and 0 < stated < failed else max(1, failed // 2)
        self._learnt_cap = min(cap, self._grown_cap(now))
        self._learnt_at = now

    def observe(self, sample: Sample) -> None:
        """Feed the limit algorithm; a raised limit frees permits."""
        change = self.limit.on_sample(sample)
        if change is not None and self.freed_at is None and self.in_flight < change.limit:
            self.freed_at = sample.now
