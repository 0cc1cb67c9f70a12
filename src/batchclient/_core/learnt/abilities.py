"""One server's abilities for one kind of call: lists and their length, streams, added fields.

Rules:
- A list is a batch of several prompts. Its cap is the least of three bounds: the caller's, the
  server's known bound, and the bound taught by refusals.
- A learnt cap doubles every minute. A refused thing is tried again (see ``withheld``).
- A batch has a *form*: streamed, or plain, each with fields that only the client adds. *Bare* is
  plain with the callers' fields only. If a form failed and its calls were answered bare, the next
  batch tries the form once more; a second failure withholds the form.
- Streams and the added fields of plain lists are judged apart, each by its own batches.
- Whether streams send an event per token is judged by each stream with long enough answers.
"""

from __future__ import annotations

from batchclient._core.learnt.withheld import Withheld
from batchclient._core.requests import Batch

__all__ = ["Abilities"]

_CAP_GROWS_AFTER_S = 60.0
_TELLING_TOKENS = 8
"""From so many tokens on, the usual two events, or an event per 256 tokens, are far fewer than an
event per token."""
_LENGTH_AFTER = 2
"""After so many failed lists in a row with both halves answered, the length is to blame."""


class Abilities:
    """The abilities of one endpoint and kind.

    Args:
        known_cap: prompts per request taken by servers of its sort; ``None``: any number, as far as
            is known.
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
        "plain_cut",
        "plain_form",
        "stream_doubted",
        "stream_form",
        "streaming",
        "told_cap",
    )

    def __init__(self, known_cap: int | None = None) -> None:
        self.known_cap = known_cap
        self.lists_proven = False
        """Whether a list was ever answered here: complaints then concern a single prompt."""
        self.longest_list = 1
        """The longest list answered since the server's known start: a size its queue holds."""
        self.lists = Withheld()
        self.streaming = Withheld()
        self.packing = Withheld()
        """Numbers as base64."""
        self.stream_form = Withheld()
        """Streams and their added fields, withheld for failures without a stated refusal."""
        self.plain_form = Withheld()
        """The fields added to plain lists."""
        self.event_per_token: bool | None = None
        """Whether the last telling stream sent an event per token, though fewer were asked for.
        ``None``: no stream has told yet."""
        self.plain_cut = False
        """Whether a plain batch was given up because nothing came: later ones are streamed."""
        self.stream_doubted = False
        """Whether a stream of several sequences ended early, since the last one answered."""
        self.lists_failed = 0
        """Lists in a row that failed here and named no culprit."""
        self.told_cap: int | None = None
        """The cap announced last; ``None``: unchanged so far."""
        # Each pair: of the plain form, of the streamed form.
        self._proven = [False, False]
        self._failed = [False, False]
        self._doubted = [False, False]
        """Whether calls failed in the form, then were answered bare: next comes the control."""
        self._halved = 0
        self._halved_size = 0
        self._learnt_cap: int | None = None
        self._learnt_at = 0.0

    def list_cap(self, most: int, now: float) -> int:
        """Return the longest list to send now, at most ``most``."""
        if not self.lists.allows(now):
            return 1
        if self.known_cap is not None and self.known_cap < most:
            most = self.known_cap
        return self._grown_cap(most, now)

    def _grown_cap(self, most: int, now: float) -> int:
        # A function of time alone: no look at the cap changes it.
        if self._learnt_cap is None:
            return most
        doublings = int((now - self._learnt_at) / _CAP_GROWS_AFTER_S)
        return min(self._learnt_cap << min(doublings, 32), most)

    def streams(self, now: float) -> bool:
        """Whether to ask for streamed replies."""
        return self.streaming.allows(now) and self.stream_form.allows(now)

    def form(self, *, streamed: bool) -> Withheld:
        """Return the streamed form or the plain form."""
        return self.stream_form if streamed else self.plain_form

    def sent(self, batch: Batch) -> None:
        """Note a sent batch, which may be the trial of a withheld thing."""
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
        """Note a failed batch; return whether lists, and its form, were on trial in the batch."""
        self.packing.end(batch.id)
        self.streaming.end(batch.id)
        return self.lists.end(batch.id), self.form(streamed=batch.streamed).end(batch.id)

    def form_failed(self, batch: Batch, now: float, *, tried: bool) -> bool:
        """Note a failure without a culprit; return whether the batch's form is now withheld.

        Withheld are forms on trial (``tried``), and forms whose failed calls were then answered
        bare.
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
        """Note answers; ``lone_member``: of a failed list, to see whether the server lives."""
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
        """Count the events of a stream that has ended with all its answers."""
        choices = len(batch.requests) * batch.shape.weight
        if (
            batch.streamed
            and batch.wire.events
            and batch.made_tokens >= _TELLING_TOKENS * choices
            and not batch.shape.to_caller
        ):
            self.event_per_token = batch.wire.events > batch.made_tokens / 2

    def proves_form(self, batch: Batch) -> bool:
        """Whether batches in this form were ever answered here."""
        return self._proven[batch.streamed]

    def halves_answered(self, size: int, now: float) -> None:
        """Note a failed list whose halves were both answered; 0: a prompt was to blame."""
        self._halved = self._halved + 1 if size else 0
        self._halved_size = size
        if self._halved >= _LENGTH_AFTER:
            self._halved = 0
            self.shorten_lists(size, None, now)

    def shorten_lists(self, failed: int, stated: int | None, now: float) -> None:
        """Note that a list of ``failed`` prompts was too long; the server may state its cap."""
        cap = stated if stated is not None and 0 < stated < failed else (failed + 1) // 2
        self._learnt_cap = min(cap, self._grown_cap(failed, now))
        self._learnt_at = now
