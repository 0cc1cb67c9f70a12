"""What one server can do with one kind of call: take lists, and of which length; stream them; take the fields that only we add.

Rules:
- The cap is the least of three: what the caller allows, what is known of the server, what its refusals taught.
- A learnt cap doubles every minute. What the server refused is tried again by one batch after a while (see ``withheld``).
- Where our fields and streams have failed and the same calls were answered without both, calls go *bare*: plain, and with their callers' fields only.
"""

from __future__ import annotations

from batchclient._core.list_trial import ListTrial
from batchclient._core.requests import Batch
from batchclient._core.withheld import Withheld

__all__ = ["Abilities"]

_CAP_GROWS_AFTER_S = 60.0
_LENGTH_AFTER = 2
"""So many lists in a row whose halves were both answered failed for their length."""


class Abilities:
    """Of one endpoint and kind.

    Args:
        known_cap: prompts per request that servers of its sort take; ``None``: any number, as far as is known.
    """

    __slots__ = (
        "_halved",
        "_learnt_at",
        "_learnt_cap",
        "_plain_lists_proven",
        "_streams_proven",
        "full_failed",
        "full_form",
        "known_cap",
        "lists",
        "lists_failed",
        "lists_proven",
        "longest_list",
        "packing",
        "streaming",
        "told_cap",
        "trial",
    )

    def __init__(self, known_cap: int | None = None) -> None:
        self.known_cap = known_cap
        self.lists_proven = False
        """Whether a list was ever answered here; a complaint about a list is then about one of its prompts."""
        self.longest_list = 1
        """The longest list that any answer came to since it was started, as far as is known: its queue holds that many."""
        self.lists = Withheld()
        self.streaming = Withheld()
        self.packing = Withheld()
        """Numbers as base64."""
        self.full_form = Withheld()
        """Streams and the fields that only we add, together: a server that fails does not say over which of them."""
        self.lists_failed = 0
        """Lists in a row that failed here and named no culprit."""
        self.full_failed = False
        """Whether a batch with our fields has failed here and named no culprit."""
        self.told_cap: int | None = None
        """The cap that was told last; ``None``: it was never another than at first."""
        self.trial = ListTrial()
        """Whether it serves a list's prompts at once."""
        self._plain_lists_proven = False
        self._streams_proven = False
        self._halved = 0
        self._learnt_cap: int | None = None
        self._learnt_at = 0.0

    def list_cap(self, most: int, now: float) -> int:
        """The longest list to send now, at most ``most``."""
        if not self.lists.allows(now):
            return 1
        if self.known_cap is not None and self.known_cap < most:
            most = self.known_cap
        return self._grown_cap(most, now)

    def _grown_cap(self, most: int, now: float) -> int:
        # A function of time alone: whoever looks at it, and how often, changes nothing.
        if self._learnt_cap is None:
            return most
        doublings = int((now - self._learnt_at) / _CAP_GROWS_AFTER_S)
        return min(self._learnt_cap << min(doublings, 32), most)

    def streams(self, now: float) -> bool:
        """Whether to ask for streamed replies."""
        return self.streaming.allows(now) and self.full_form.allows(now)

    def sent(self, batch: Batch) -> None:
        """A batch is sent: it may be the one that tries what was refused."""
        if len(batch.requests) > 1:
            self.lists.begin(batch.id)
        if batch.streamed:
            self.streaming.begin(batch.id)
        if batch.packed:
            self.packing.begin(batch.id)
        if not batch.bare and (batch.streamed or len(batch.requests) > 1):
            self.full_form.begin(batch.id)

    def failed(self, batch: Batch) -> tuple[bool, bool]:
        """A batch has failed; return whether it tried lists, and our fields, that had been refused before."""
        self.streaming.end(batch.id)
        self.packing.end(batch.id)
        return self.lists.end(batch.id), self.full_form.end(batch.id)

    def answered(self, batch: Batch, now: float, *, lone_member: bool = False) -> None:
        """Some calls of a batch were answered; ``lone_member``: of a list that had failed, to see whether its server lives."""
        size = len(batch.requests)
        if size > 1:
            self.lists.forget()
            self.lists_failed = 0
            if size > self.longest_list:
                self.longest_list = size
                self.lists_proven = True
        if batch.packed:
            self.packing.forget()
        if batch.streamed:
            self.streaming.forget()
            self.full_form.forget()
            self._streams_proven, self.full_failed = True, False
        elif batch.bare:
            if self.full_failed and not lone_member and (size > 1 or not self._streams_proven):
                self.full_form.refuse(now)
        elif size > 1:
            self.full_form.forget()
            self._plain_lists_proven, self.full_failed = True, False

    def proves_form(self, batch: Batch) -> bool:
        """Whether batches with our fields as in this one were ever answered here."""
        return self._streams_proven if batch.streamed else self._plain_lists_proven

    def halves_answered(self, size: int, now: float) -> None:
        """A list failed and both its halves were answered; or (0) one of its prompts was to blame."""
        self._halved = self._halved + 1 if size else 0
        if self._halved >= _LENGTH_AFTER:
            self._halved = 0
            self.shorten_lists(size, None, now)

    def shorten_lists(self, failed: int, stated: int | None, now: float) -> None:
        """A list of ``failed`` prompts was too long; the server may have stated its cap."""
        cap = stated if stated is not None and 0 < stated < failed else (failed + 1) // 2
        self._learnt_cap = min(cap, self._grown_cap(failed, now))
        self._learnt_at = now
