"""What one endpoint's server can: lists and their length, streams, added fields, models, shapes.

Rules:
- A list is a batch of several prompts. Its cap is the least of three bounds: the caller's, the
  server's known bound, and the bound taught by refusals, which doubles every minute.
- A batch has a *form*: streamed, or plain, each with fields that only the client adds. *Bare* is
  plain with the callers' fields only. Streams and the added fields of plain lists are judged apart,
  each by its own batches.
- A 403 for a list may be a firewall's word on one prompt, or mean the list. If six in a row are
  refused, a single call sent since is taken, and no list is under way, they mean the list.
- What is refused is tried again after a while (see ``breaker``). So is a form that failed, if its
  calls were answered bare. Models and keys: see ``models``.
- A shape is refused by a dialect without a form for it, or with 405 or 501. Its calls go to another
  endpoint in use which has not refused the shape, and are not tried here again for 30 s. Without
  such an endpoint only the refused call fails: another endpoint may be there for the next call.
- Lists wait for the server's word on which server it is. They wait five turns of 0.05 s. An event
  loop that stands still takes one turn, however long it does, because the answer that came
  meanwhile is read in the next.
- A *stranger* is a server that does not say which it is. Its lists are proved (see ``proof``); the
  verdict holds for an hour, until a restart, or until the server says to be another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from batchclient._core.kinds import Kind
from batchclient._core.learnt.proof import Proof
from batchclient._core.requests import Batch, Shape
from batchclient._core.servers.breaker import Breaker
from batchclient._core.servers.late_lists import LateLists
from batchclient._core.servers.models import Models
from batchclient._core.settings import SchedulerSettings

__all__ = ["Abilities", "KindAbilities"]

_CAP_GROWS_AFTER_S = 60.0
_TELLING_TOKENS = 8
"""From so many tokens on, the usual two events, or an event per 256 tokens, are far fewer than an
event per token."""
_LENGTH_AFTER = 2
"""After so many failed lists in a row with both halves answered, the length is to blame."""
_LISTS_REFUSED = 6
"""So many lists refused with 403 in a row, while single calls are taken, were refused as lists."""
_GENERATED = (Kind.COMPLETION, Kind.CHAT)
_VERDICT_HOLDS_S = 3600.0
_HELD_TURNS = 5
_TURN_S = 0.05
_SHAPE_PAUSE_S = 30.0
_MOST_SHAPES = 1024


class KindAbilities:
    """What the server can with calls of one kind.

    Args:
        known_cap: prompts per request taken by servers of its sort; ``None``: any number, as far as
            is known.
        event_per_token: whether a stream sends an event per token, though fewer are asked for;
            ``None``: not known. Later each stream with long enough answers tells.
    """

    def __init__(self, known_cap: int | None, *, event_per_token: bool | None) -> None:
        self.known_cap = known_cap
        self.lists = Breaker()
        self.streaming = Breaker()
        self.packing = Breaker()
        """Numbers as base64."""
        self.stream_form = Breaker()
        """Streams and their added fields, left out for failures without a stated refusal."""
        self.plain_form = Breaker()
        """The fields added to plain lists."""
        self.stream_doubted = False
        """Whether a stream of several sequences ended early, since the last one answered."""
        self.lists_failed = 0
        """Lists in a row that failed here and named no culprit."""
        self.told_cap: int | None = None
        """The cap announced last; ``None``: unchanged so far."""
        self._learnt_cap: int | None = None
        self._learnt_at = 0.0
        self._halved = 0
        self._halved_size = 0
        self._lists_refused = 0
        """Lists in a row that were refused with 403."""
        self._refused_from = 0.0
        """When the first of them was sent."""
        self.restart(event_per_token=event_per_token)

    def restart(self, *, event_per_token: bool | None = None) -> None:
        """Forget what another start of the server may change."""
        self.longest_list = 1
        """The longest list answered since: a size its queue holds."""
        self.event_per_token = event_per_token
        self.plain_cut = False
        """Whether a plain batch was given up because nothing came: later ones are streamed."""
        self._serves_at_once: bool | None = None
        self._judged_at = 0.0

    # Lists -----------------------------------------------------------------------------------------------------------

    def list_cap(self, most: int, now: float) -> int:
        """Return the longest list to send now, at most ``most``."""
        if not self.lists.allows(now) or self.serves_lists(now) is False:
            return 1
        if self.known_cap is not None and self.known_cap < most:
            most = self.known_cap
        return most if self._learnt_cap is None else self._grown_cap(most, now)

    def _grown_cap(self, most: int, now: float) -> int:
        # A function of time alone: no look at the cap changes it.
        if self._learnt_cap is None:
            return most
        doublings = int((now - self._learnt_at) / _CAP_GROWS_AFTER_S)
        return min(self._learnt_cap << min(doublings, 32), most)

    def shorten_lists(self, failed: int, stated: int | None, now: float) -> None:
        """Note that a list of ``failed`` prompts was too long; the server may state its cap."""
        cap = stated if stated is not None and 0 < stated < failed else (failed + 1) // 2
        self._learnt_cap = min(cap, self._grown_cap(failed, now))
        self._learnt_at = now

    def halves_answered(self, size: int, now: float) -> None:
        """Note a failed list whose halves were both answered; 0: a prompt was to blame."""
        self._halved = self._halved + 1 if size else 0
        self._halved_size = size
        if self._halved >= _LENGTH_AFTER:
            self._halved = 0
            self.shorten_lists(size, None, now)

    def list_refused(self, batch: Batch, served_from: float, under_way: Iterable[Batch], now: float) -> None:
        """Note a list that was refused with 403: for one of its prompts, or as a list.

        Args:
            served_from: when the latest call was sent that the server took on.
            under_way: the batches.
        """
        self._refused_from = min(self._refused_from, batch.sent_at) if self._lists_refused else batch.sent_at
        self._lists_refused += 1
        if self.lists.is_closed:
            self._judge_refused_lists(served_from, under_way, now)
        else:
            self.lists.refuse(now)

    def _judge_refused_lists(self, served_from: float, under_way: Iterable[Batch], now: float) -> None:
        enough = self._lists_refused >= _LISTS_REFUSED and served_from >= self._refused_from
        if enough and all(len(batch.requests) == 1 for batch in under_way):
            self._lists_refused = 0
            self.lists.refuse(now)

    def judge_lists(self, now: float, *, at_once: bool | None) -> None:
        """Note whether a list's prompts were found to be served at once."""
        self._serves_at_once, self._judged_at = at_once, now

    def serves_lists(self, now: float) -> bool | None:
        """Whether a list's prompts were found to be served at once; ``None``: not within the hour."""
        return self._serves_at_once if now < self._judged_at + _VERDICT_HOLDS_S else None

    # Forms -----------------------------------------------------------------------------------------------------------

    def streams(self, now: float) -> bool:
        """Whether to ask for streamed replies."""
        return self.streaming.allows(now) and self.stream_form.allows(now)

    def form(self, *, streamed: bool) -> Breaker:
        """Return the streamed form or the plain form."""
        return self.stream_form if streamed else self.plain_form

    def _used_by(self, batch: Batch) -> list[Breaker]:
        """Return what a batch uses that a server may refuse."""
        listed = len(batch.requests) > 1
        used = [self.lists] if listed else []
        if batch.streamed:
            used.append(self.streaming)
        if batch.packed:
            used.append(self.packing)
        if not batch.bare and (batch.streamed or listed):
            used.append(self.form(streamed=batch.streamed))
        return used

    def sent(self, batch: Batch) -> None:
        """Note a sent batch, which may be the trial of something refused."""
        for breaker in self._used_by(batch):
            breaker.begin(batch.id)

    def failed(self, batch: Batch) -> tuple[bool, bool]:
        """Note a failed batch; return whether lists, and its form, were on trial in the batch."""
        self.packing.end(batch.id)
        self.streaming.end(batch.id)
        return self.lists.end(batch.id), self.form(streamed=batch.streamed).end(batch.id)

    def form_failed(self, batch: Batch, now: float, *, tried: bool) -> bool:
        """Note a failure without a culprit; return whether the batch's form is now left out.

        Only a form on trial (``tried``) is.
        """
        form = self.form(streamed=batch.streamed)
        if batch.bare:
            return False
        if tried:
            form.refuse(now)
        else:
            form.suspect()
        return tried

    def answered(self, batch: Batch, under_way: Iterable[Batch], now: float, *, lone_member: bool) -> None:
        """Note answers, beside the batches ``under_way``.

        Args:
            lone_member: of a failed list, to see whether the server lives.
        """
        size = len(batch.requests)
        for breaker in self._used_by(batch):
            breaker.take()
        if self._lists_refused and size == 1:
            self._judge_refused_lists(batch.sent_at, under_way, now)
        if size > 1:
            self.lists_failed = self._lists_refused = 0
            if size >= self._halved_size:
                self._halved = 0
            self.longest_list = max(self.longest_list, size)
        if batch.streamed and size * batch.shape.weight > 1:
            self.stream_doubted = False
        if batch.bare and not lone_member:
            self.stream_form.confirm()
            self.plain_form.confirm()

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


class Abilities:
    """The abilities of one endpoint; ``settings`` are the scheduler's."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.max_size = settings.max_size
        self.server: str | None = None
        """The server's name and version, for display; ``None``: not found out."""
        self.models = Models()
        """What it refuses for key or model."""
        self.proof: Proof | None = None
        """The list under way that proves, or disproves, that lists are served at once."""
        self.shapes: dict[bytes, Breaker] = {}
        """Refused shapes, by ``answer_key``; empty as a rule."""
        self.late_lists = LateLists()
        self._by_kind: dict[Kind, KindAbilities] = {}
        self._known_caps = settings.known_caps
        self._event_per_token: bool | None = None
        self._trusts_lists: Callable[[], bool] = settings.trusts_lists
        self._held_turns = 0
        self._turn_ends = 0.0

    def of(self, kind: Kind) -> KindAbilities:
        """Return the abilities for calls of a kind."""
        abilities = self._by_kind.get(kind)
        if abilities is None:
            abilities = KindAbilities(self._known_caps.get(kind), event_per_token=self._event_per_token)
            self._by_kind[kind] = abilities
        return abilities

    def list_cap(self, now: float, kind: Kind = Kind.COMPLETION, most: int | None = None) -> int:
        """Return the longest list to send now; ``most``, if given, stands for ``max_size``."""
        return self.of(kind).list_cap(self.max_size if most is None else most, now)

    def list_caps(self, now: float) -> dict[Kind, int]:
        """Return the longest lists to send now, for completions and the kinds seen so far."""
        return {kind: self.list_cap(now, kind) for kind in (Kind.COMPLETION, *self._by_kind)}

    # Which server it is ----------------------------------------------------------------------------------------------

    def know(self, caps: Mapping[Kind, int], server: str | None, *, event_per_token: bool | None, now: float) -> None:
        """Take in which server was found, its longest lists of prompts by kind, and how it streams."""
        self._known_caps = caps
        self._event_per_token = event_per_token
        for kind, abilities in self._by_kind.items():
            abilities.known_cap = caps.get(kind)
            if event_per_token is not None:
                abilities.event_per_token = event_per_token
            if server != self.server:
                abilities.judge_lists(now, at_once=None)
        self.server = server

    def restart(self) -> None:
        """Forget what another start of the server may change."""
        self._event_per_token = None
        self.late_lists.shapes.clear()
        for abilities in self._by_kind.values():
            abilities.restart()

    def hold_lists(self, now: float) -> None:
        """Let lists wait for the server's word on which server it is."""
        self._held_turns, self._turn_ends = _HELD_TURNS, now + _TURN_S

    def release_lists(self) -> None:
        """It has said so, or says nothing."""
        self._held_turns = 0

    def lists_held_until(self, now: float) -> float | None:
        """Return when to look again whether lists still wait; ``None``: they do not."""
        if self._held_turns and now >= self._turn_ends:
            self._held_turns -= 1
            self._turn_ends = now + _TURN_S
        return self._turn_ends if self._held_turns else None

    def is_stranger(self, kind: Kind, now: float) -> bool:
        """Whether lists of a kind are to be proved here before they are used.

        While lists wait for the server's word, none goes in any case.
        """
        if self.server is not None or kind not in _GENERATED:
            return False
        if self._held_turns and self.lists_held_until(now) is not None:
            return False
        return self.of(kind).serves_lists(now) is None and not self._trusts_lists()

    def is_unknown(self, kind: Kind) -> bool:
        """Whether a real server has not said, so far, which it is."""
        return self.server is None and kind in _GENERATED and not self._trusts_lists()

    # Shapes ----------------------------------------------------------------------------------------------------------

    def lack(self, shape: Shape, now: float) -> None:
        """Note the refusal of a shape."""
        shapes = self.shapes
        breaker = shapes.pop(shape.answer_key, None) or Breaker(_SHAPE_PAUSE_S, _SHAPE_PAUSE_S)
        if len(shapes) >= _MOST_SHAPES:
            # The oldest goes: if all went, two endpoints could send a call back and forth.
            del shapes[next(iter(shapes))]
        shapes[shape.answer_key] = breaker
        breaker.refuse(now)

    def lacks(self, shape: Shape, now: float) -> float | None:
        """Until when the endpoint is not asked for this shape; ``None``: it may be."""
        breaker = self.shapes.get(shape.answer_key) if self.shapes else None
        return None if breaker is None or breaker.allows(now) else breaker.until
