"""The endpoints' lives: they come and go, fail and come back, and get new numbers.

Rules:
- Health is told how each failed batch ended; a change of state is a command. A probe that fails
  changes nothing to tell: an ejection is told once per outage.
- A removed endpoint is forgotten once its last batch is over: the reply's connection is released by
  then.
- A batch which is ended because its endpoint was removed counts neither for nor against the
  endpoint.
- A silence of an endpoint is watched, and told (see ``silence``).
- An endpoint whose engine stands still is given up: its requests in flight fail as after too long a
  silence.
"""

from __future__ import annotations

from collections.abc import Callable

from batchclient._core.asking import Asking
from batchclient._core.failures import Sign
from batchclient._core.feeding import Feeding
from batchclient._core.learnt.proof import Proof
from batchclient._core.limits import LimitChange
from batchclient._core.messages import (
    AbortBatch,
    Batch,
    Command,
    EndpointAdded,
    EndpointGone,
    EndpointRemoved,
    Failure,
    FailureKind,
    HealthChanged,
    LoadReported,
    RatesReported,
    Retuned,
    ServerKnown,
)
from batchclient._core.servers.dead_engine import STILL, DeadEngine
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.health import HealthState
from batchclient._core.settings import SchedulerSettings
from batchclient._core.spent import ServerOutage
from batchclient.errors import ReadTimedOut

__all__ = ["Fleet"]

_NO_BATCH = -1
_UNHEARD = Failure(FailureKind.MAYBE_PROCESSED, ReadTimedOut, "nothing came from the server before its calls' timeouts")


class Fleet:
    """Keeps the endpoints of a scheduler. ``batches`` are the scheduler's open batches, by id.

    ``feeding`` is told of changed limits and list caps. ``asking`` is told which endpoints exist,
    and which may be another server now.
    """

    __slots__ = ("_adjusted", "_asking", "_batches", "_command", "_endpoints", "_note_list_cap")

    def __init__(
        self,
        endpoints: Endpoints,
        batches: dict[int, Batch],
        command: Callable[[Command], None],
        feeding: Feeding,
        asking: Asking,
    ) -> None:
        self._endpoints = endpoints
        self._batches = batches
        self._command = command
        self._asking = asking
        self._adjusted = feeding.adjusted
        self._note_list_cap = feeding.note_list_cap

    def judge(self, batch: Batch, failure: Failure, now: float) -> None:
        """Tell an endpoint's health and rates how a batch failed."""
        endpoint = self._endpoints.by_id[batch.endpoint]
        sign = Sign.ALIVE if batch.refused_freely and endpoint.health.in_use else failure.sign
        if endpoint.rates is not None and (sign is Sign.REFUSED or failure.is_unsent):
            endpoint.rates.refund(batch.charged_tokens, batch.sent_at, now)
        if failure.is_said or batch.wire.replied:
            self.hear(endpoint, now if failure.is_said else batch.wire.read_at, now)
        elif sign is Sign.SILENT and not batch.expired:
            self.end_unanswered(batch, now)
        if batch.moving:
            endpoint.health.end_probe(batch.id)
            return
        limit, state, change = endpoint.limit.limit, endpoint.health.state, None
        if sign is Sign.NOTHING and batch.expired and endpoint.answered_at < batch.sent_at:
            # The callers' deadlines passed, and in all their time the endpoint answered nobody.
            sign, failure = Sign.SILENT, _UNHEARD
        if batch.ended_for is not None:
            sign = Sign.STILL
        isolation = batch.isolation
        if sign is Sign.FAULTY and isolation is not None and isolation.blind and len(batch.requests) > 1:
            # A member was answered: the fault is with the list.
            sign = Sign.NOTHING
        if sign is Sign.ALIVE:
            change = endpoint.live(0, now, batch.sent_at)
        elif sign is not Sign.NOTHING:
            # Who takes a request before the connection breaks is no wrong address.
            endpoint.health.answered_once |= failure.is_said or sign is Sign.BROKEN
            self._endpoints.fail(endpoint, sign, batch.id, now, batch.sent_at, failure.seen)
        endpoint.health.end_probe(batch.id)
        if endpoint.health.state is not state:
            self._tell_health(endpoint, limit, change, now, failure)
        elif endpoint.outage is not None and not endpoint.health.in_use and sign is not Sign.NOTHING:
            endpoint.outage.failure = failure.of_the_server

    def welcome(self, endpoint: Endpoint, sequences: int, sent_at: float, now: float) -> None:
        """A failing endpoint has answered a request that was sent then."""
        limit, state = endpoint.limit.limit, endpoint.health.state
        change = endpoint.answer(sequences, now, sent_at)
        if endpoint.health.state is not state:
            self._tell_health(endpoint, limit, change, now)

    def take_back(self, endpoint: Endpoint, now: float) -> None:
        """A server is back, since it has taken a probe on."""
        limit = endpoint.limit.limit
        self._tell_health(endpoint, limit, endpoint.live(0, now), now)

    def look_for_life(self, event: LoadReported, now: float) -> bool:
        """A server has reported its load; return whether to give it up for a still engine."""
        endpoint = self._endpoints.by_id.get(event.endpoint)
        if endpoint is not None:
            self.hear(endpoint, now, now)
        if endpoint is None or endpoint.health.state is HealthState.EJECTED:
            return False
        own = [batch for batch in self._batches.values() if batch.endpoint == endpoint.id]
        if not endpoint.dead_engine.observe(
            event.load, endpoint.answered_at, sum(batch.tokens_at_risk for batch in own), now
        ):
            return False
        # The probe has a minute of its own.
        endpoint.dead_engine = DeadEngine()
        # At once, so that nothing more is sent there before these batches have ended.
        probe = endpoint.health.probe
        self._endpoints.fail(endpoint, Sign.STILL, _NO_BATCH if probe is None else probe, now)
        self._tell_health(endpoint, endpoint.limit.limit, None, now, STILL)
        for batch in own:
            if not batch.aborting:
                batch.aborting = True
                batch.ended_for = STILL
                self._command(AbortBatch(batch))
        return True

    def hear_rates(self, event: RatesReported, now: float) -> None:
        """A gateway has reported the rest of its rate limits."""
        self._endpoints.by_id[event.endpoint].hear_rates(event.windows, now)

    def end_unanswered(self, batch: Batch, now: float) -> None:
        """A request has ended in silence, or a caller's deadline has passed there."""
        endpoint = self._endpoints.by_id[batch.endpoint]
        if endpoint.leaving or not endpoint.health.in_use or self._endpoints.others_in_use(endpoint):
            return

        def heard_at() -> float:
            own = [one.wire for one in self._batches.values() if one.endpoint == endpoint.id]
            return max([endpoint.answered_at, *(wire.read_at for wire in own if wire.replied)])

        words = endpoint.silence.end_request(batch.sent_at, heard_at, endpoint.shown_name, now)
        self._tell_silence(endpoint, words)

    def hear(self, endpoint: Endpoint, at: float, now: float) -> None:
        """Something came from a server: part of a reply, or a page."""
        self._tell_silence(endpoint, endpoint.silence.hear(at, endpoint.shown_name, now))

    def _tell_silence(self, endpoint: Endpoint, words: str) -> None:
        if words:
            is_silent = endpoint.silence.since is not None
            state = "silent" if is_silent else endpoint.health.state.value
            reason = "nothing comes from it" if is_silent else "something came from it"
            self._command(HealthChanged(endpoint.id, endpoint.name, state, reason, words))

    def tell_refusals(self, batch: Batch, failure: Failure, now: float) -> None:
        """The call that was to find out about a model is refused: its server is away for its calls."""
        endpoint = self._endpoints.by_id[batch.endpoint]
        doubt = endpoint.denials.models[batch.shape.subject]
        # Answers to older calls may come after the first refusal.
        serves_others = any(pace.answered_from > doubt.sent_at for pace in endpoint.paces.values())
        if serves_others or _has_outage(endpoint):
            return
        seen = f"{failure.status} to every call for the model {batch.shape.model!r}"
        endpoint.outage = ServerOutage(endpoint.shown_name, seen, doubt.since, failure.of_the_server)
        self._tell_words(endpoint, seen, endpoint.outage.opening(now))

    def end_refusals(self, endpoint: Endpoint, outage: ServerOutage, now: float) -> None:
        """A server in use has answered that refused its calls."""
        outage.ended_at = now
        self._tell_words(endpoint, endpoint.health.reason, outage.sentence(now))

    def _tell_words(self, endpoint: Endpoint, reason: str, words: str) -> None:
        self._command(HealthChanged(endpoint.id, endpoint.name, endpoint.health.state.value, reason, words))

    def add(self, event: EndpointAdded, settings: SchedulerSettings) -> None:
        """An endpoint was added."""
        self._endpoints.add(Endpoint.made_for(settings, event.endpoint, event.limit, event.name))
        self._asking.add(event.endpoint)

    def know(self, event: ServerKnown, now: float) -> None:
        """The server was identified: the lists it takes, and how many sequences it runs at all."""
        endpoint = self._endpoints.by_id.get(event.endpoint)
        if endpoint is None:
            return
        caps = endpoint.list_caps(now)
        endpoint.know(event.caps, event.server, event_per_token=event.event_per_token)
        reason = f"it was found to be {event.server or 'no server that is known'}"
        for kind, cap in caps.items():
            self._note_list_cap(endpoint, kind, cap, reason, now)
        before = endpoint.limit.limit
        endpoint.slots = event.slots
        change = endpoint.limit.on_known(event.slots, now)
        if change is not None:
            self._adjusted(endpoint.id, "limit", before, change.limit, change.reason, now)

    def judge_lists(self, proof: Proof, now: float) -> None:
        """Look how a stranger's list goes; one that takes too long is ended, and its calls go singly."""
        batch = proof.batch
        endpoint, kind, served = self._endpoints.by_id[batch.endpoint], batch.shape.kind, proof.verdict(now)
        if served is None and batch.id in endpoint.open:
            return
        cap = endpoint.list_cap(now, kind)
        endpoint.proof = None
        if served is not None:
            endpoint.verdicts[kind] = served, now
        self._note_list_cap(endpoint, kind, cap, "it serves a list's prompts one after another", now)
        if served is False and batch.unanswered and not batch.aborting:
            batch.aborting = batch.moving = True
            self._command(AbortBatch(batch))

    def remove(self, event: EndpointRemoved, now: float) -> None:
        """Send an endpoint nothing more; without ``drain``, end its batches."""
        endpoint = self._endpoints.by_id.get(event.endpoint)
        if endpoint is None:
            return
        self._endpoints.remove(endpoint)
        endpoint.limit.interrupt(now)
        if not event.drain:
            for batch in self._batches.values():
                if batch.endpoint == endpoint.id and not batch.aborting:
                    batch.aborting = batch.moving = True
                    self._command(AbortBatch(batch))
        self.see_off(endpoint)

    def see_off(self, endpoint: Endpoint) -> None:
        """Forget a leaving endpoint if its last batch is over."""
        if not endpoint.in_flight and all(batch.endpoint != endpoint.id for batch in self._batches.values()):
            self._endpoints.forget(endpoint)
            self._asking.remove(endpoint.id)
            self._command(EndpointGone(endpoint.id))

    def retune(self, event: Retuned, before: SchedulerSettings, now: float) -> None:
        """Give the serving endpoints new numbers; ``before`` are the old settings."""
        for place, endpoint in enumerate(self._endpoints.serving):
            limit = endpoint.limit.limit
            if event.settings is not None:
                caps = endpoint.list_caps(now)
                endpoint.max_size = event.settings.max_size
                for kind, cap in caps.items():
                    self._note_list_cap(endpoint, kind, cap, "set by the caller", now)
                if _rates(event.settings) != _rates(before):
                    endpoint.set_rates(event.settings)
            if event.limits is not None:
                endpoint.limit.interrupt(now)
                endpoint.limit = event.limits[place]
                endpoint.limit.on_known(endpoint.slots, now)
                endpoint.limit.reason = "set by the caller"
            if event.pin is not None:
                endpoint.limit.pin(event.pin or None, now)
            if endpoint.limit.limit != limit:
                self._adjusted(endpoint.id, "limit", limit, endpoint.limit.limit, endpoint.limit.reason, now)

    def _tell_health(
        self, endpoint: Endpoint, limit: int, change: LimitChange | None, now: float, failure: Failure | None = None
    ) -> None:
        health = endpoint.health
        is_known = health.state is HealthState.EJECTED and _has_outage(endpoint)
        outage = self._follow_outage(endpoint, failure, now)
        if not is_known:
            self._command(HealthChanged(endpoint.id, endpoint.name, health.state.value, health.reason, outage))
        if health.state is HealthState.RECOVERING:
            self._asking.ask_again(endpoint.id, now)
        if health.state is HealthState.EJECTED:
            endpoint.silence.forget()
            change = endpoint.limit.interrupt(now) or change
        if change is not None:
            self._adjusted(endpoint.id, "limit", limit, change.limit, change.reason, now)

    def _follow_outage(self, endpoint: Endpoint, failure: Failure | None, now: float) -> str:
        """Begin, update or end an outage after a change of state; return the sentence to tell."""
        health, outage = endpoint.health, endpoint.outage
        is_open = _has_outage(endpoint)
        if health.in_use:
            if outage is None or not is_open:
                return ""
            outage.ended_at = now
            return outage.sentence(now)
        if failure is None:
            return ""
        if outage is not None and is_open:
            outage.seen, outage.failure = health.reason, failure.of_the_server
            return ""
        failure = failure.of_the_server
        endpoint.outage = outage = ServerOutage(endpoint.shown_name, health.reason, health.failing_since, failure)
        return outage.opening(now)


def _has_outage(endpoint: Endpoint) -> bool:
    """Whether an outage of the endpoint has begun and not ended."""
    return endpoint.outage is not None and endpoint.outage.ended_at is None


def _rates(settings: SchedulerSettings) -> tuple[float | None, float | None]:
    return settings.requests_per_minute, settings.tokens_per_minute
