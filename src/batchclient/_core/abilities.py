"""What one server can do with one kind of call: take lists, and of which length; stream them.

Rules:
- The cap is the least of three: what the caller allows, what is known of the server, what its refusals taught.
- What a server refused is tried again after a while: a learnt cap doubles every minute, a refusal is forgotten after five.
"""

from __future__ import annotations

from batchclient._core.list_trial import ListTrial

__all__ = ["Abilities"]

_FORGET_AFTER_S = 300.0
_CAP_GROWS_AFTER_S = 60.0


class Abilities:
    """Of one endpoint and kind.

    Args:
        known_cap: prompts per request that servers of its sort take; ``None``: any number, as far as is known.
    """

    __slots__ = (
        "_learnt_at",
        "_learnt_cap",
        "_lists_again_at",
        "_packs_again_at",
        "_streams_again_at",
        "known_cap",
        "lists_proven",
        "lists_refused",
        "longest_list",
        "packing_refused",
        "streams_refused",
        "told_cap",
        "trial",
    )

    def __init__(self, known_cap: int | None = None) -> None:
        self.known_cap = known_cap
        self.lists_proven = False
        """Whether a list was ever answered here; a complaint about a list is then about one of its prompts."""
        self.longest_list = 1
        """The longest list that any answer came to since it was started, as far as is known: its queue holds that many."""
        self.lists_refused = False
        self.streams_refused = False
        self.told_cap: int | None = None
        """The cap that was told last; ``None``: it was never another than at first."""
        self.trial = ListTrial()
        """Whether it serves a list's prompts at once."""
        self.packing_refused = False
        self._packs_again_at = 0.0
        self._lists_again_at = 0.0
        self._streams_again_at = 0.0
        self._learnt_cap: int | None = None
        self._learnt_at = 0.0

    def list_cap(self, most: int, now: float) -> int:
        """The longest list to send now, at most ``most``."""
        if self.lists_refused:
            if now < self._lists_again_at:
                return 1
            self.lists_refused = False
        if self.known_cap is not None and self.known_cap < most:
            most = self.known_cap
        return self._grown_cap(most, now)

    def _grown_cap(self, most: int, now: float) -> int:
        # A function of time alone: whoever looks at it, and how often, changes nothing.
        if self._learnt_cap is None:
            return most
        doublings = int((now - self._learnt_at) / _CAP_GROWS_AFTER_S)
        return min(self._learnt_cap << min(doublings, 32), most)

    def prove_list(self, size: int) -> None:
        """A list of that many prompts was answered."""
        if size > self.longest_list:
            self.longest_list = size
            self.lists_proven = True

    def refuse_lists(self, now: float) -> None:
        """The server takes no lists; ask again later."""
        self.lists_refused = True
        self._lists_again_at = now + _FORGET_AFTER_S

    def refuse_streams(self, now: float) -> None:
        """The server does not stream these; ask again later."""
        self.streams_refused = True
        self._streams_again_at = now + _FORGET_AFTER_S

    def streams(self, now: float) -> bool:
        """Whether to ask for streamed replies."""
        if self.streams_refused and now >= self._streams_again_at:
            self.streams_refused = False
        return not self.streams_refused

    def refuse_packing(self, now: float) -> None:
        """The server does not write numbers as base64; ask again later."""
        self.packing_refused = True
        self._packs_again_at = now + _FORGET_AFTER_S

    def packs(self, now: float) -> bool:
        """Whether to ask for numbers as base64."""
        if self.packing_refused and now >= self._packs_again_at:
            self.packing_refused = False
        return not self.packing_refused

    def shorten_lists(self, failed: int, stated: int | None, now: float) -> None:
        """A list of ``failed`` prompts was too long; the server may have stated its cap."""
        cap = stated if stated is not None and 0 < stated < failed else max(1, failed // 2)
        self._learnt_cap = min(cap, self._grown_cap(failed, now))
        self._learnt_at = now
