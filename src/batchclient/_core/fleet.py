"""All endpoints of one scheduler: they come and go, fail and come back, and get new numbers.

Rules:
- An id is given once: a fact about a removed endpoint is never taken to be about another.
- ``serving`` holds the endpoints that may be granted on. A leaving endpoint stays in ``by_id``
  until nothing is in flight there.
- Health is told how each failed batch ended; a change of state is a command. A probe that fails
  changes nothing to tell: an ejection is told once per outage.
- A removed endpoint is forgotten once its last batch is over: the reply's connection is released by
  then.
- A batch which is ended because its endpoint was removed counts neither for nor against the
  endpoint.
- A silence of an endpoint is watched, and told (see ``life``).
- An endpoint whose engine stands still is given up: its requests in flight fail as after too long a
  silence.
- A guest sends nothing to an endpoint that shows no load; its calls there go elsewhere, or end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from batchclient._core.adjustments import Adjustments
from batchclient._core.asking import Asking
from batchclient._core.failures import Sign
from batchclient._core.learnt.lengths import Lengths
from batchclient._core.learnt.proof import Proof
from batchclient._core.messages import (
    FREE,
    AbortBatch,
    Asked,
    Batch,
    Command,
    EndpointAdded,
    EndpointGone,
    EndpointRemoved,
    Failure,
    FailureKind,
    GuestChanged,
    HealthChanged,
    LoadHidden,
    LoadReported,
    Notice,
    RatesReported,
    Request,
    Retuned,
    ServerKnown,
    Shape,
)
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState
from batchclient._core.servers.life import STILL
from batchclient._core.servers.outage import Outages
from batchclient._core.servers.rates import pause_of
from batchclient._core.settings import SchedulerSettings
from batchclient._core.spent import ServerOutage
from batchclient._core.statistics import Counters
from batchclient.errors import ReadTimedOut

__all__ = ["Fleet"]

_NO_BATCH = -1
_OPEN = attrgetter("open")
_UNHEARD = Failure(FailureKind.MAYBE_PROCESSED, ReadTimedOut, "nothing came from the server before its calls' timeouts")


class Fleet:
    """The endpoints, in order of arrival.

    Args:
        endpoints: the first ones.
        settings: the scheduler's.
        lengths: what is known of the lengths of answers.
        command: takes a command.
        adjustments: told of changed limits and list caps.
        asks_first: see ``Asking``.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        settings: SchedulerSettings,
        lengths: Lengths,
        command: Callable[[Command], None],
        counters: Counters,
        adjustments: Adjustments,
        asks_first: Callable[[], bool] | None,
    ) -> None:
        self.by_id = {endpoint.id: endpoint for endpoint in endpoints}
        self.serving = list(self.by_id.values())
        self.outage = Outages(self.by_id, self.serving, settings.outage_patience_s)
        self.asking = Asking(self.serving, command, self.tell, asks_first, settings.wait_for_server_s)
        self._settings = settings
        self.lengths = lengths
        self._command = command
        self._observed = counters.observed
        self._adjustments = adjustments
        self._is_guest = False
        """Whether all are to leave places to others, besides those whose limits do always."""
        self.has_offers = self.is_priced = False
        """Whether some server has a model of its own or a price; whether some has a price."""
        self.has_lost_model = False
        """Whether a server with a model of its own was ever removed."""
        self._count()

    def __repr__(self) -> str:
        return f"<Fleet {list(self.by_id)}>"

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.by_id.values())

    # Questions -------------------------------------------------------------------------------------------------------

    def others_in_use(self, endpoint: Endpoint, call: Request) -> bool:
        """Whether calls like this one go to another endpoint as they come."""
        return any(other is not endpoint and other.health.in_use and self.serves(other, call) for other in self.serving)

    def serves(self, endpoint: Endpoint, call: Request) -> bool:
        """Whether an endpoint is for calls like this one: by its model, and by what their job can pay."""
        # What is under way may cost less than is charged.
        is_open = call.shape.budget is not None and call.shape.budget.under_way > 0
        return endpoint.serves(call.shape) and (is_open or self.affordable(endpoint, [call]) > 0)

    def affordable(self, endpoint: Endpoint, calls: Sequence[Request]) -> int:
        """How many of these calls, the first ones, their job can pay for at an endpoint."""
        budget, offer, most = calls[0].shape.budget, endpoint.offer, self.lengths.most
        if budget is None or not offer.is_priced:
            return len(calls)
        return budget.pays(offer.cost(call.most_prompt_tokens, most(call)) for call in calls)

    @property
    def total_limit(self) -> int:
        """The sum of the serving endpoints' present limits, in sequences."""
        return sum(endpoint.limit.limit for endpoint in self.serving)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is under way."""
        return not any(map(_OPEN, self.by_id.values()))

    def described(self, now: float) -> str:
        """Describe the sequences in flight, silent servers, and the outages if every one has one."""
        in_flight = sum(endpoint.in_flight for endpoint in self)
        silences = [endpoint.nothing_came(now) for endpoint in self if endpoint.life.silent_since is not None]
        told = [*silences, *(outage.sentence(now) for outage in self.outage.all_after(now))]
        return f"{in_flight} in flight" + "".join(f"; {one}" for one in told)

    def others_take(self, call: Request, endpoint: Endpoint, now: float) -> bool:
        """Whether another endpoint is in use and has not refused such calls."""
        shape, subject = call.shape, call.shape.subject
        return any(
            other is not endpoint
            and other.health.in_use
            and self.serves(other, call)
            and subject not in other.abilities.models.refused
            and other.abilities.lacks(shape, now) is None
            for other in self.serving
        )

    def refuses(self, shape: Shape) -> bool:
        """Whether all in use refuse such calls' model, or key, and answer others meanwhile."""
        used = [endpoint for endpoint in self.serving if endpoint.health.in_use and endpoint.serves(shape)]
        return bool(used) and all(endpoint.refuses(shape) for endpoint in used)

    def take_now(self, call: Request, endpoint: Endpoint, now: float) -> bool:
        """Whether another endpoint takes such calls, and may be sent any number of them now."""
        others = (other for other in self.serving if other is not endpoint and other.health.in_use)
        are_open = any(other.pace(call.shape).is_open and self.serves(other, call) for other in others)
        return are_open and self.others_take(call, endpoint, now)

    def home_of(self, call: Request, now: float) -> Endpoint | None:
        """Return the endpoint of a call's session, while it takes calls; ``None``: any other will do."""
        shape = call.shape
        home = None if shape.home is None or call.failed_on == shape.home else self.by_id.get(shape.home)
        if home is None or home.leaving or not home.health.in_use or home.pace(shape).sendable(now) is not None:
            return None
        is_refused = shape.subject in home.abilities.models.refused or home.abilities.lacks(shape, now) is not None
        return home if home.serves(shape) and not (is_refused or home.is_unfit) else None

    def takers(self, choices: list[Endpoint], call: Request, now: float) -> list[Endpoint]:
        """The ``choices`` that may take a call; all, if none may."""
        shape = call.shape
        free = [endpoint for endpoint in choices if endpoint.pace(shape).sendable(now) is None] or choices
        lacking = [each for each in free if each.abilities.shapes and each.abilities.lacks(shape, now) is not None]
        left = [each for each in lacking if self.others_take(call, each, now)]
        return [endpoint for endpoint in free if endpoint not in left] or free

    # Failures and answers --------------------------------------------------------------------------------------------

    def judge(self, batch: Batch, failure: Failure, now: float) -> None:
        """Tell an endpoint's health and rates how a batch failed."""
        endpoint = self.by_id[batch.endpoint]
        if endpoint.rates is not None and (failure.sign is Sign.REFUSED or not failure.begun):
            endpoint.rates.refund(batch.charged_tokens, batch.sent_at, now)
        if failure.is_said or batch.wire.replied:
            self.hear(endpoint, now if failure.is_said else batch.wire.read_at, now)
        elif failure.sign is Sign.SILENT and not batch.expired:
            self.end_unanswered(batch, now)
        if batch.moving:
            endpoint.health.end_probe(batch.id)
        else:
            self._judge_health(endpoint, batch, failure, now)
        self.outage.watch(now, failure if failure.is_of_the_server else None, endpoint)

    def _judge_health(self, endpoint: Endpoint, batch: Batch, failure: Failure, now: float) -> None:
        health = endpoint.health
        sign, state = endpoint.sign_of(batch, failure), health.state
        if sign is Sign.SILENT and failure.sign is Sign.NOTHING:
            failure = _UNHEARD
        if sign is Sign.ALIVE:
            endpoint.live(0, now, batch.sent_at)
        elif sign is not Sign.NOTHING:
            # Who takes a request before the connection breaks is no wrong address.
            health.answered_once |= failure.is_said or sign is Sign.BROKEN
            others = self.others_in_use(endpoint, batch.requests[0])
            if endpoint.fail(sign, batch.id, now, others=others, sent_at=batch.sent_at, seen=failure.seen):
                self._keep_one_in_use(endpoint)
        health.end_probe(batch.id)
        if health.state is not state:
            self._tell_health(endpoint, now, failure)
        elif endpoint.outage is not None and not health.in_use and sign is not Sign.NOTHING:
            endpoint.outage.failure = failure.of_the_server

    def welcome(self, endpoint: Endpoint, sequences: int, sent_at: float | None, now: float) -> None:
        """A failing endpoint has answered a request that was sent then, or has taken a probe on."""
        state = endpoint.health.state
        endpoint.live(sequences, now, sent_at)
        if endpoint.health.state is not state:
            self._tell_health(endpoint, now)
        self.outage.watch(now)

    def take_load(self, event: LoadReported, now: float) -> bool:
        """A server has reported its load; return whether anything changed."""
        endpoint = self.by_id.get(event.endpoint)
        if endpoint is None:
            return False
        load = event.load
        if load.running is not None and load.waiting is not None:
            endpoint.shows_load, endpoint.hides_load = True, ""
        elif not endpoint.shows_load:
            endpoint.hides_load = "shows not both what runs and what waits"
        endpoint.limit.on_load(load, endpoint.in_flight, now, event.took_s)
        changed = self._adjustments.note_limit(endpoint, now)
        self.hear(endpoint, now, now)
        if endpoint.health.state is HealthState.EJECTED:
            return changed
        own = list(endpoint.open.values())
        if not endpoint.life.stands_still(load, sum(batch.tokens_at_risk for batch in own), now):
            return changed
        # At once, so that nothing more is sent there before these batches have ended.
        probe = endpoint.health.probe
        others = any(other is not endpoint and other.health.in_use and other.shares(endpoint) for other in self.serving)
        endpoint.fail(Sign.STILL, _NO_BATCH if probe is None else probe, now, others=others)
        self._keep_one_in_use(endpoint)
        self._tell_health(endpoint, now, STILL)
        for batch in own:
            if not batch.aborting:
                batch.ended_for = STILL
                self._abort(batch)
        self.outage.watch(now, STILL, endpoint)
        return True

    def hide_load(self, event: LoadHidden) -> None:
        """A server has shown no load, and will not for a while; one that has shown it is down."""
        endpoint = self.by_id.get(event.endpoint)
        if endpoint is not None and not endpoint.shows_load:
            endpoint.hides_load = event.why

    def be_guest(self, event: GuestChanged, now: float) -> None:
        """Leave places to others at all servers from now on, or only where the limit does always."""
        self._is_guest = event.on
        for endpoint in self:
            endpoint.limit.heed_wish(event.on)
            self._adjustments.note_limit(endpoint, now)

    @property
    def unfit(self) -> list[Endpoint]:
        """The endpoints at which a guest cannot be."""
        return [endpoint for endpoint in self.serving if endpoint.is_unfit]

    def move_from_unfit(self) -> None:
        """End a guest's batches where it cannot be, if another endpoint may answer their calls."""
        fit = [endpoint for endpoint in self.serving if not endpoint.is_unfit]
        for unfit in self.unfit:
            for batch in unfit.open.values():
                if not batch.aborting and any(endpoint.serves(batch.shape) for endpoint in fit):
                    batch.moving = True
                    self._abort(batch)

    def _abort(self, batch: Batch) -> None:
        batch.aborting = True
        self._command(AbortBatch(batch))

    def take_outcome(self, event: Asked, now: float, *, busy: bool) -> None:
        """A question which server an endpoint is has ended."""
        endpoint = self.by_id.get(event.endpoint)
        # Lists wait no longer, nor does any call for a server that was awaited.
        if endpoint is not None and self.asking.asked(endpoint, event, now, busy=busy):
            self.outage.watch(now)

    def hear_rates(self, event: RatesReported, now: float) -> bool:
        """A gateway has reported the rest of its rate limits; a shorter pause ends no longer one."""
        endpoint, pause = self.by_id[event.endpoint], pause_of(event.windows, now)
        if pause is not None and (endpoint.pause is None or pause.until > endpoint.pause.until):
            endpoint.pause = pause
        # Calls that it holds back are looked at with the reply that it came with.
        return False

    def end_unanswered(self, batch: Batch, now: float) -> None:
        """A request has ended in silence, or a caller's deadline has passed there."""
        endpoint = self.by_id[batch.endpoint]
        if endpoint.leaving or not endpoint.health.in_use or self.others_in_use(endpoint, batch.requests[0]):
            return
        words = endpoint.life.end_request(batch.sent_at, endpoint.read_at, endpoint.shown_name, now)
        self._tell_silence(endpoint, words)

    def hear(self, endpoint: Endpoint, at: float, now: float) -> None:
        """Something came from a server: part of a reply, or a page."""
        self._tell_silence(endpoint, endpoint.life.hear(at, endpoint.shown_name, now))

    def _tell_silence(self, endpoint: Endpoint, words: str) -> None:
        if words:
            is_silent = endpoint.life.silent_since is not None
            reason = "nothing comes from it" if is_silent else "something came from it"
            notice: Notice = "silence_began" if is_silent else "silence_ended"
            self.tell(endpoint, reason, notice, words, "silent" if is_silent else "")

    def tell_refusals(self, batch: Batch, failure: Failure, now: float) -> None:
        """The call that was to find out about a model is refused: its server is away for its calls."""
        endpoint = self.by_id[batch.endpoint]
        model = endpoint.abilities.models.refused[batch.shape.subject]
        why = ": the key is refused" if failure.refuses_key else ""
        seen = f"{failure.status} to every call for the model {batch.shape.model!r}{why}"
        if endpoint.refuses(batch.shape):
            if not model.is_told:
                model.is_told = True
                self._command(HealthChanged(endpoint.id, endpoint.name, "held", seen))
            return
        if endpoint.outage is not None:
            return
        endpoint.outage = ServerOutage(endpoint.shown_name, seen, model.since, failure.of_the_server)
        self.tell(endpoint, seen, "outage_began", endpoint.outage.opening(now))

    def end_refusals(self, endpoint: Endpoint, now: float) -> None:
        """A server in use has answered, which refused its calls."""
        self.tell(endpoint, endpoint.health.reason, "outage_ended", endpoint.end_outage(now))

    def tell(self, endpoint: Endpoint, reason: str, notice: Notice, words: str, state: str = "") -> None:
        """Announce an endpoint's state, or another word for it, with the warning to log, if any."""
        state = state or endpoint.health.state.value
        self._command(HealthChanged(endpoint.id, endpoint.name, state, reason, words, notice if words else None))

    # Changes ---------------------------------------------------------------------------------------------------------

    def add(self, event: EndpointAdded, now: float) -> None:
        """An endpoint was added."""
        event.limit.heed_wish(self._is_guest)
        endpoint = Endpoint(event.endpoint, event.limit, self._settings, event.name, event.rates, event.offer)
        assert endpoint.id not in self.by_id, "an endpoint's id is given once"
        self.by_id[endpoint.id] = endpoint
        self.serving.append(endpoint)
        self._observed.server_comes(endpoint.shown_name)
        self._count()
        self.asking.add(endpoint)
        self.outage.watch(now)

    def know(self, event: ServerKnown, now: float) -> None:
        """The server was identified: the lists it takes, and how many sequences it runs at all."""
        endpoint = self.by_id.get(event.endpoint)
        if endpoint is None:
            return
        caps = endpoint.abilities.list_caps(now)
        endpoint.abilities.know(event.caps, event.server, event_per_token=event.event_per_token, now=now)
        reason = f"it was found to be {event.server or 'no server that is known'}"
        for kind, cap in caps.items():
            self._adjustments.note_list_cap(endpoint, kind, cap, reason, now)
        if event.server is not None:
            for pace in endpoint.paces.values():
                pace.trust()
        endpoint.slots = event.slots
        endpoint.limit.on_known(event.slots, now)
        self._adjustments.note_limit(endpoint, now)

    def judge_lists(self, proof: Proof, now: float) -> None:
        """Look how a stranger's list goes; one that takes too long is ended, and its calls go singly."""
        batch = proof.batch
        endpoint, kind, served = self.by_id[batch.endpoint], batch.shape.kind, proof.verdict(now)
        is_open = batch.id in endpoint.open
        if is_open and (served is None or (proof.is_judged and now < proof.due_at)):
            return
        if served is not None and not proof.is_judged:
            cap = endpoint.abilities.list_cap(now, kind)
            endpoint.abilities.of(kind).judge_lists(now, at_once=served)
            reason = "it serves a list's prompts one after another"
            self._adjustments.note_list_cap(endpoint, kind, cap, reason, now)
            proof.is_judged = True
        if not is_open or served or now >= proof.due_at:
            endpoint.abilities.proof = None
            if is_open and not served and not batch.aborting:
                batch.moving = True
                self._abort(batch)

    def remove(self, event: EndpointRemoved, now: float) -> None:
        """Send an endpoint nothing more; without ``drain``, end its batches."""
        endpoint = self.by_id.get(event.endpoint)
        if endpoint is None:
            return
        if not endpoint.leaving:
            assert len(self.serving) > 1, "the last endpoint stays"
            self.has_lost_model |= endpoint.offer.model is not None
            endpoint.leaving = True
            self.serving.remove(endpoint)
            self._count()
            self._keep_one_in_use(endpoint)
        endpoint.limit.interrupt(now)
        if not event.drain:
            for batch in endpoint.open.values():
                if not batch.aborting:
                    batch.moving = True
                    self._abort(batch)
        self.see_off(endpoint)
        self.outage.watch(now)

    def _count(self) -> None:
        for endpoint in self.serving:
            endpoint.is_lone = len(self.serving) == 1
        self.has_offers = any(endpoint.offer[:3] != FREE[:3] for endpoint in self.serving)
        self.is_priced = any(endpoint.offer.is_priced for endpoint in self.serving)
        self.outage.count()

    def _keep_one_in_use(self, gone: Endpoint) -> None:
        """If none is in use beside one that goes, probe those ejected but not vanished (the panic rule)."""
        if not (gone.leaving or gone.health.vanished):
            return
        peers = [endpoint for endpoint in self.serving if endpoint.shares(gone)]
        if not any(endpoint.health.in_use for endpoint in peers):
            for endpoint in peers:
                if endpoint.health.state is HealthState.EJECTED and not endpoint.health.vanished:
                    endpoint.health.open_now()

    def see_off(self, endpoint: Endpoint) -> None:
        """Forget a leaving endpoint if its last batch is over."""
        if not (endpoint.in_flight or endpoint.open):
            del self.by_id[endpoint.id]
            self.asking.remove(endpoint)
            self._command(EndpointGone(endpoint.id))
            if all(other.shown_name != endpoint.shown_name for other in self):
                self._observed.server_goes(endpoint.shown_name)

    def resume(self, now: float) -> None:
        """Calls are about to be sent, and nothing is in flight anywhere."""
        for endpoint in self.serving:
            endpoint.limit.on_resume(now)
            if endpoint.limit.limit != endpoint.told_limit:
                self._adjustments.note_limit(endpoint, now)

    def retune(self, event: Retuned, now: float) -> None:
        """Give the serving endpoints new numbers."""
        for place, endpoint in enumerate(self.serving):
            if event.settings is not None:
                caps = endpoint.abilities.list_caps(now)
                endpoint.abilities.max_size = event.settings.max_size
                for kind, cap in caps.items():
                    self._adjustments.note_list_cap(endpoint, kind, cap, "set by the caller", now)
            if event.limits is not None:
                endpoint.limit.interrupt(now)
                endpoint.limit = event.limits[place]
                endpoint.limit.heed_wish(self._is_guest)
                endpoint.limit.on_known(endpoint.slots, now)
                endpoint.limit.reason = "set by the caller"
            self._adjustments.note_limit(endpoint, now)

    def _tell_health(self, endpoint: Endpoint, now: float, failure: Failure | None = None) -> None:
        health = endpoint.health
        is_ejected = health.state is HealthState.EJECTED
        is_known = is_ejected and endpoint.outage is not None
        words = self._follow_outage(endpoint, failure, now)
        if not is_known:
            self.tell(endpoint, health.reason, "outage_ended" if health.in_use else "outage_began", words)
        if health.state is HealthState.RECOVERING:
            self.asking.ask_again(endpoint, now)
        if is_ejected:
            endpoint.life.end_silence()
            endpoint.limit.interrupt(now)
        self._adjustments.note_limit(endpoint, now)

    def _follow_outage(self, endpoint: Endpoint, failure: Failure | None, now: float) -> str:
        """Begin, update or end an outage after a change of state; return the sentence to tell."""
        health, outage = endpoint.health, endpoint.outage
        if health.in_use:
            return endpoint.end_outage(now)
        if failure is None:
            return ""
        failure = failure.of_the_server
        if outage is not None:
            outage.seen, outage.failure = health.reason, failure
            return ""
        endpoint.outage = outage = ServerOutage(endpoint.shown_name, health.reason, health.failing_since, failure)
        return outage.opening(now)
