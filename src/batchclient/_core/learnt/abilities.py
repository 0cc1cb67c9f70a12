"""What one server can do with one kind of call: take lists, and of which length; stream them; take the fields that only we add.

Rules:
- The cap is the least of three: what the caller allows, what is known of the server, what its refusals taught.
- A learnt cap doubles every minute. What the server refused is tried again by one batch after a while (see ``withheld``).
- Batches go in a *form*: streamed, or plain with the fields that only we add. Where a form has failed and the same calls were answered *bare*
  (plain, with their callers' fields only), the next batch tries the form once more. Only if that fails, too, is the form withheld.
- Streams and the fields of plain lists are judged apart: each by what became of its own.
- Whether streams send an event per token is seen in each of them whose answers are long enough to tell.
"""

from __future__ import annotations

from batchclient._core.learnt.list_trial import ListTrial
from batchclient._core.learnt.withheld import Withheld
from batchclient._core.requests import Batch

__all__ = ["Abilities"]

_CAP_GROWS_AFTER_S = 60.0
_TELLING_TOKENS = 8
"""Tokens of an answer from which the usual two events, or one for every 256 tokens, are far fewer than one per token."""
_LENGTH_AFTER = 2
"""So many lists in a row whose halves were both answered failed for their length."""


class Abilities:
    """Of one endpoint and kind.

    Args:
        known_cap: prompts per request that servers of its sort take; ``None``: any number, as far as is known.
    """

    __slots__ = (
        "_doubted",
        "_failed",
        "_halved",
        "_halved_size",
        "_learnt_at",
        "_learnt_cap",
        "_proven",
        "event_per_token",
        "known_cap",
        "lists",
        "lists_failed",
        "lists_proven",
        "longest_list",
        "packing",
        "plain_form",
        "stream_doubted",
        "stream_form",
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
        self.stream_form = Withheld()
        """Streams, and the fields that only we add to them, where such calls failed and no refusal was said."""
        self.plain_form = Withheld()
        """The fields that only we add to plain lists."""
        self.event_per_token = False
        """Whether the last stream that could tell sent an event per token, though fewer were asked for."""
        self.stream_doubted = False
        """Whether a stream of several has ended without all of them, since one was answered."""
        self.lists_failed = 0
        """Lists in a row that failed here and named no culprit."""
        self.told_cap: int | None = None
        """The cap that was told last; ``None``: it was never another than at first."""
        self.trial = ListTrial()
        """Whether it serves a list's prompts at once."""
        # Of the plain form and the streamed one.
        self._proven = [False, False]
        self._failed = [False, False]
        self._doubted = [False, False]
        """Whether calls that had failed so were answered bare: the next batch in that form is the control."""
        self._halved = 0
        self._halved_size = 0
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
        return self.streaming.allows(now) and self.stream_form.allows(now)

    def form(self, *, streamed: bool) -> Withheld:
        """Streams with what we add to them, or what we add to plain lists."""
        return self.stream_form if streamed else self.plain_form

    def sent(self, batch: Batch) -> None:
        """A batch is sent: it may be the one that tries what was refused."""
        listed = len(batch.requests) > 1
        if listed:
            self.lists.begin(batch.id)
        if batch.packed:
            self.packing.begin(batch.id)
        if batch.streamed:
            self.streaming.begin(batch.id)
        if not batch.bare and (batch.streamed or listed):
            self.form(streamed=batch.streamed).begin(batch.id)

    def failed(self, batch: Batch) -> tuple[bool, bool]:
        """A batch has failed; return whether it tried lists, and its form, that had been refused before."""
        self.packing.end(batch.id)
        self.streaming.end(batch.id)
        return self.lists.end(batch.id), self.form(streamed=batch.streamed).end(batch.id)

    def form_failed(self, batch: Batch, now: float, *, tried: bool) -> bool:
        """A batch has failed and names no culprit; return whether its form is given up: it failed before, and bare calls are answered.

        Args:
            batch: it.
            now: the time.
            tried: its form had been refused before.
        """
        if batch.bare:
            return False
        streamed = batch.streamed
        if not (tried or self._doubted[streamed]):
            self._failed[streamed] = not self._proven[streamed]
            return False
        self._doubted[streamed] = False
        self.form(streamed=streamed).refuse(now)
        return True

    def answered(self, batch: Batch, *, lone_member: bool = False) -> None:
        """Some calls of a batch were answered; ``lone_member``: of a list that had failed, to see whether its server lives."""
        size, streamed = len(batch.requests), batch.streamed
        if size > 1:
            self.lists.forget()
            self.lists_failed = 0
            if size >= self._halved_size:
                self._halved = 0
            if size > self.longest_list:
                self.longest_list = size
                self.lists_proven = True
        if streamed:
            self.streaming.forget()
            if size * batch.shape.weight > 1:
                self.stream_doubted = False
        if batch.packed:
            self.packing.forget()
        if batch.bare:
            if not lone_member:
                for each in (False, True):
                    self._doubted[each] = self._doubted[each] or self._failed[each]
                    self._failed[each] = False
        elif streamed or size > 1:
            self.form(streamed=streamed).forget()
            self._proven[streamed] = True
            self._failed[streamed] = self._doubted[streamed] = False

    def ended(self, batch: Batch) -> None:
        """A batch has ended with all its answers: see how many events its stream sent."""
        choices = len(batch.requests) * batch.shape.weight
        if (
            batch.streamed
            and batch.wire.events
            and batch.made_tokens >= _TELLING_TOKENS * choices
            and not batch.shape.to_caller
        ):
            self.event_per_token = batch.wire.events > batch.made_tokens / 2

    def proves_form(self, batch: Batch) -> bool:
        """Whether batches in the form of this one were ever answered here."""
        return self._proven[batch.streamed]

    def halves_answered(self, size: int, now: float) -> None:
        """A list failed and both its halves were answered; or (0) one of its prompts was to blame."""
        self._halved = self._halved + 1 if size else 0
        self._halved_size = size
        if self._halved >= _LENGTH_AFTER:
            self._halved = 0
            self.shorten_lists(size, None, now)

    def shorten_lists(self, failed: int, stated: int | None, now: float) -> None:
        """A list of ``failed`` prompts was too long; the server may have stated its cap."""
        cap = stated if stated is not None and 0 < stated < failed else (failed + 1) // 2
        self._learnt_cap = min(cap, self._grown_cap(failed, now))
        self._learnt_at = now
