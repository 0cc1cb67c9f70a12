"""One endpoint's permits and the knowledge gained of its server.

Rules:
- Permits are a counter. A permit is taken in the very step that emits ``SendBatch``, and returned
  when a choice finishes or its connection closes. ``in_flight`` counts all sequences which the
  server still works on, whether or not a caller still waits.
- ``paces`` know what the server refuses, and its own wish for a rest (``Retry-After``); ``health``
  judges the failures.
- ``abilities`` tell what the server can.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from batchclient._core.failures import Failure, Sign
from batchclient._core.kinds import Kind
from batchclient._core.learnt.times import RecentTimes
from batchclient._core.messages import FREE, NO_RATES, Batch, Failed, Offer, RatesPerMinute, Request, Shape
from batchclient._core.requests import LoadAtSend
from batchclient._core.servers.abilities import Abilities
from batchclient._core.servers.budget import RetryBudget
from batchclient._core.servers.card import Card
from batchclient._core.servers.health import Health
from batchclient._core.servers.hold import SLOW_START, Hold
from batchclient._core.servers.life import Life
from batchclient._core.servers.models import Subject
from batchclient._core.servers.pace import ANSWERED_S, HELD_RATIO, Pace
from batchclient._core.servers.rates import Rates
from batchclient._core.servers.speed import Speed
from batchclient._core.settings import SchedulerSettings
from batchclient._core.spent import ServerOutage, seconds
from batchclient._core.statistics import EndpointStatistics

if TYPE_CHECKING:
    from batchclient._core.limits.control import Limit

__all__ = ["Endpoint"]

_MOST_PACES = 1024
_REMOVED = Hold(math.inf, "its removal", math.inf)
_UNFIT = Hold(math.inf, "a page that shows no load to a guest", math.inf)


class Endpoint:
    """Permits, health and abilities of one server.

    Args:
        number: its id, given once by a scheduler; at first the place in the list of base URLs.
        limit: the algorithm for the number of sequences in flight.
        settings: the scheduler's.
        name: its base URL as shown, without secrets.
        rates: bounds of what it is sent in a minute.
        offer: what it serves, at which price.
    """

    def __init__(
        self,
        number: int,
        limit: Limit,
        settings: SchedulerSettings,
        name: str = "",
        rates: RatesPerMinute = NO_RATES,
        offer: Offer = FREE,
    ) -> None:
        self.id = number
        self.name = name
        self.shown_name = name or f"endpoint {number}"
        """The base URL as it may be shown, or a stand-in."""
        self.offer = offer
        self.card: Card | None = (
            Card(None, is_told=True, wait_s=offer.model_wait_s, now=0.0) if offer.holds_one else None
        )
        """Which of several models it holds; ``None``: it may hold all, or was sent calls of one."""
        self._model: str | None = None
        """Of the first calls it was sent."""
        self.service = RecentTimes()
        """How long calls take, where servers have prices."""
        self.slots: int | None = None
        """The sequences taken at once, by the server's own word."""
        self.leaving = False
        """Whether the endpoint was removed, and its calls in flight are still awaited."""
        self.is_lone = True
        """Whether no other endpoint serves."""
        self.limit = limit
        self.told_limit = limit.limit
        """The limit that was announced last."""
        self.abilities = Abilities(settings)
        self.in_flight = 0
        self.speed = Speed()
        self._area = 0.0
        self._area_at = 0.0
        self.abandoned = 0
        self.held_since: float | None = None
        """Since when free permits are held back, to be granted together; ``None``: no hold."""
        self.pause: Hold | None = None
        """Asked for by a gateway with nothing left of its rate limit."""
        self.rates: Rates | None = None if rates == NO_RATES else Rates(*rates)
        """Bounds per minute; ``None``: permits are the only bound."""
        self.budget = RetryBudget()
        self.health = Health()
        self.outage: ServerOutage | None = None
        """The outage that has begun and not ended."""
        self.past_outage: ServerOutage | None = None
        """The latest that is over."""
        self.life = Life()
        self.shows_load = False
        """Whether its page has shown what runs and what waits."""
        self.hides_load = ""
        """Why it shows no load, though asked; empty: it did once, or was not asked yet."""
        self.paces: dict[Subject, Pace] = {}
        self.tell_hold_at = float("-inf")
        """From when on it may be told that refusals hold calls back."""
        self.open: dict[int, Batch] = {}
        """The batches under way, by their ids: the oldest first."""

    def __repr__(self) -> str:
        return f"<Endpoint {self.id}: {self.in_flight} of {self.limit.limit} in flight>"

    @property
    def free(self) -> int:
        """Permits free now."""
        free, allowed = self.limit.limit - self.in_flight, self.health.allowed
        return free if allowed is None else min(free, allowed - self.in_flight)

    def serves(self, shape: Shape) -> bool:
        """Whether its model is one that calls of a shape may be answered by."""
        model = self.offer.model
        return model is None or shape.any_model or model == shape.model

    def refuses(self, shape: Shape) -> bool:
        """Whether it refuses such calls' model, or key, and answers others meanwhile."""
        model = self.abilities.models.refused.get(shape.subject)
        # Answers to older calls may come after the first refusal.
        return model is not None and any(pace.answered_from > model.sent_at for pace in self.paces.values())

    def shares(self, other: Endpoint) -> bool:
        """Whether another endpoint serves calls of the same model."""
        return None in (self.offer.model, other.offer.model) or self.offer.model == other.offer.model

    def take(self, batch: Batch, now: float) -> None:
        """Take the permits of a batch sent in this step."""
        sequences = len(batch.requests) * batch.shape.weight
        self._area += self.in_flight * (now - self._area_at)
        self._area_at = now
        self.in_flight += sequences
        self.open[batch.id] = batch
        if self.card is not None:
            self.card.sent(batch, now)
        elif batch.shape.model != self._model:
            self._note_model(batch, now)
        batch.load = LoadAtSend(self._area, self.limit.limit, self.in_flight)
        batch.pace = self.pace(batch.shape)
        batch.pace.sent(batch.id, sequences)
        if not batch.failures:
            self.budget.sent(batch.tokens_at_risk, len(batch.requests))
        if self.rates is not None:
            self.rates.charge(batch.charged_tokens, now)

    def _note_model(self, batch: Batch, now: float) -> None:
        """Calls of another model are sent than the first, or the first of all."""
        if self._model is None:
            self._model = batch.shape.model
        elif self.offer.model is None and self.offer.holds_one is None:
            self.card = Card(self._model, is_told=None, wait_s=self.offer.model_wait_s, now=now)
            self.card.sent(batch, now)

    def give_back(self, sequences: int, now: float) -> None:
        """Return permits."""
        self._area += self.in_flight * (now - self._area_at)
        self._area_at = now
        self.in_flight -= sequences
        assert self.in_flight >= 0, "more permits returned than taken"

    def area(self, now: float) -> float:
        """The integral of ``in_flight``, in sequence-seconds; a difference is mean load × time."""
        return self._area + self.in_flight * (now - self._area_at)

    def pace(self, shape: Shape) -> Pace:
        """What may be sent of the calls of a shape's kind and model."""
        subject = shape.subject
        pace = self.paces.get(subject)
        if pace is None:
            if len(self.paces) >= _MOST_PACES:
                self.paces = {key: one for key, one in self.paces.items() if one.under_way or not one.is_open}
            self.paces[subject] = pace = Pace(of_stranger=self.abilities.is_unknown(shape.kind))
        return pace

    def sendable(self, now: float) -> Hold | None:
        """The gate. Move on with time; return what holds the next request back, of whatever kind.

        ``None``: it may go, with as many sequences as permits are ``free``; to an ejected endpoint
        a single call.
        """
        if self.leaving:
            return _REMOVED
        if self.is_unfit:
            return _UNFIT
        if self.health.ailing and not self.is_hopeless:
            self.health.grow(self.limit.limit, now)
            hold = self.health.hold(now)
            if hold is not None and (hold.next_at > now or self.health.probe is not None):
                return hold
        if self.pause is not None:
            if now < self.pause.until:
                return self.pause
            self.pause = None
        return None if self.rates is None else self.rates.sendable(now)

    def holds(self, now: float, shape: Shape | None = None) -> list[Hold]:
        """All that holds calls back now though permits are free. Changes nothing.

        Without a ``shape``: calls of any kind and model.
        """
        paces = self.paces.values() if shape is None else (self.pace(shape),)
        # Where no permit is free, it is the limit that holds calls back, and no spell.
        holds = [pace.hold(now) for pace in paces if pace.rest_until is not None or self.free > 0]
        if self.pause is not None and now < self.pause.until:
            holds.append(self.pause)
        if self.rates is not None:
            holds.append(self.rates.hold(now))
        if self.is_unfit:
            holds.append(_UNFIT)
        if self.health.ailing:
            holds.append(self.health.hold(now))
            grows_at = self.health.grows_at
            if grows_at is not None and grows_at > now and self.free <= 0 < self.limit.limit - self.in_flight:
                holds.append(Hold(grows_at, SLOW_START, grows_at))
        return [hold for hold in holds if hold is not None]

    def hold(self, now: float, shape: Shape | None = None) -> Hold | None:
        """The longest of these; ``None``: nothing holds calls back."""
        return max(self.holds(now, shape), key=lambda hold: hold.until, default=None)

    @property
    def is_hopeless(self) -> bool:
        """Whether this is the only endpoint, and a wrong address: nothing is waited for."""
        return self.is_lone and self.health.is_wrong_address

    @property
    def is_unfit(self) -> bool:
        """Whether a guest cannot be there: it would not see the others."""
        return self.hides_load != "" and self.limit.is_guest

    def answer(self, now: float) -> None:
        """A call was answered."""
        life = self.life
        life.served_at = life.answered_at = now
        self.health.answered_once = True

    def live(self, sequences: int, now: float, sent_at: float | None = None) -> None:
        """Take in a sign of life with ``sequences`` done."""
        self.life.answered_at = now
        if self.health.ailing and self.health.answer(sequences, self.limit.limit, now, sent_at):
            self.speed.forget()
            self.abilities.restart()
            self.limit.on_restart(now)
        self.health.answered_once = True

    def failed(self, event: Failed, left: list[Request], alive: list[Request], now: float) -> None:
        """A batch has failed: judge its refusal, if it is one (see ``Pace.failed``)."""
        batch = event.batch
        takes_work = self.takes_work(now - batch.sent_at, now)
        batch.refusal = batch.pace.failed(event, left, alive, self.open.values(), now, takes_work=takes_work)
        if batch.refusal.is_free and not batch.failures:
            self.budget.sent(-batch.tokens_at_risk * len(left) / len(batch.requests), -len(left))

    def sign_of(self, batch: Batch, failure: Failure) -> Sign:
        """What a batch's failure says of the endpoint, decided here once."""
        if batch.ended_for is not None:
            return Sign.STILL
        if batch.refusal.is_free and self.health.in_use:
            return Sign.ALIVE
        sign, isolation = failure.sign, batch.isolation
        if sign is Sign.NOTHING and batch.expired and self.life.answered_at < batch.sent_at:
            # The callers' deadlines passed, and in all their time the endpoint answered nobody.
            return Sign.SILENT
        if sign is Sign.FAULTY and isolation is not None and isolation.blind and len(batch.requests) > 1:
            # A member was answered: the fault is with the list.
            return Sign.NOTHING
        return sign

    def fail(
        self, sign: Sign, batch: int, now: float, *, others: bool, sent_at: float | None = None, seen: str = ""
    ) -> bool:
        """A batch has failed for a reason of the server's; return whether that is now ejected.

        See ``Health.fail``.
        """
        there, since, until = False, self.health.row_since or now, now if sent_at is None else sent_at
        if sign is Sign.UNSERVED:
            holds = self.health.in_use and any(since <= one.sent_at <= until for one in self.open.values())
            there = holds or self.life.served_at == -math.inf
        return self.health.fail(sign, batch, now, others=others, sent_at=sent_at, seen=seen, there=there)

    def read_at(self) -> float:
        """When a part of a reply under way last came; ``-inf``: none has begun."""
        notes = (batch.wire for batch in self.open.values())
        return max((wire.read_at for wire in notes if wire.replied), default=-math.inf)

    def takes_work(self, refusal_s: float, now: float) -> bool:
        """Whether the server takes other work than what it refused after ``refusal_s`` (``pace``)."""
        if now - self.life.served_at <= ANSWERED_S:
            return True
        oldest = next(iter(self.open.values()), None)
        return oldest is not None and 0 < now - oldest.sent_at >= HELD_RATIO * refusal_s

    @property
    def probe_is_answering(self) -> bool:
        """Whether a probe is under way, and its reply has begun."""
        probe = self.health.probe
        batch = None if probe is None else self.open.get(probe)
        return batch is not None and batch.wire.heard

    def end_outage(self, now: float) -> str:
        """End the outage, if there is one; return the sentence to tell."""
        outage = self.outage
        if outage is None:
            return ""
        outage.ended_at = now
        self.past_outage, self.outage = outage, None
        return outage.sentence(now)

    def nothing_came(self, now: float) -> str:
        """Say for how long nothing has come from the server; empty if it is not silent."""
        since = self.life.silent_since
        return "" if since is None else f"nothing came from {self.shown_name} for {seconds(now - since)}"

    def statistics(self, now: float) -> EndpointStatistics:
        """Return a snapshot."""
        hold = self.hold(now)
        return EndpointStatistics(
            limit=self.limit.limit,
            limit_reason=self.limit.reason,
            in_flight=self.in_flight,
            abandoned=self.abandoned,
            batch_size_cap=self.abilities.list_cap(now),
            lists_refused=not self.abilities.of(Kind.COMPLETION).lists.allows(now),
            streams_refused=not self.abilities.of(Kind.COMPLETION).streams(now),
            blocked_until=hold.until if hold is not None and hold.until < math.inf else None,
            blocked_by="" if hold is None else hold.why,
            id=self.id,
            base_url=self.name,
            state="leaving" if self.leaving else self.health.state.value,
            reason="it was removed" if self.leaving else self.health.reason,
            retry_budget_tokens=int(self.budget.level(self.limit.limit, now)),
            server=self.abilities.server,
            outage="" if self.outage is None else self.outage.sentence(now),
            silent_since=self.life.silent_since,
        )
