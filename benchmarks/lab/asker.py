"""One client of the laboratory: the real scheduler, its callers, and the figures of its run.

Rules:
- A ``Setup`` has the parts that a client is made from. ``client_setup`` makes a ``Setup`` from
  ``BatchClient``'s arguments with the client's own functions. ``limit_setup`` makes one from a
  given limit, with the scenario's settings.
- A client has one server. So a limit shares its turn to try something with no other.
- The client acts in the moment in which a reply comes. Retries follow its default policy
  (``Backoff``).
- The scheduler hears of the server's load and product when a client would, if the client's
  arguments let it ask.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.lab.exchange import Reply
from benchmarks.lab.profiles import Scenario
from benchmarks.lab.trace import Trace
from benchmarks.lab.workloads import Call, Running
from tests.core import (
    AbortBatch,
    Adjusted,
    Answered,
    Ask,
    Asked,
    Batch,
    Failed,
    Failure,
    FailureKind,
    Limit,
    LoadReported,
    Reject,
    Request,
    Resolve,
    Scheduler,
    SchedulerSettings,
    SendBatch,
    ServerKnown,
    Submitted,
    Turn,
    Woke,
)

from batchclient._client.connections import Connections
from batchclient._client.make_limit import make_limit
from batchclient._settings import make_settings
from batchclient._shell.pages import Page, PageTimes
from batchclient._shell.servers import DialectChoice
from batchclient.dialects import make_dialect
from batchclient.errors import ConnectionLost
from batchclient.retry import Backoff

if TYPE_CHECKING:
    from benchmarks.lab.driver import Run

__all__ = ["Client", "Setup", "client_setup", "limit_setup"]

_CLOSED = Failure(FailureKind.MAYBE_PROCESSED, ConnectionLost, "nobody waited for it any more")
_URL = "http://lab/v1"
_POLICY = Backoff()
_PAGE_TIMES = PageTimes()
_NO_PAGE_S = 60.0
"""From a question for a page that is not there to the next."""
_SAYS_NOTHING_AFTER_S = 0.005
"""From the question which server it is to an answer that tells nothing."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The parts that a client is made from.

    Args:
        settings: the core's.
        make_limit: makes a new limit.
        choice: the client's choice of a dialect; ``None``: the server is not asked for its product.
        pages: the pages that the server may be asked for beside the calls.
    """

    settings: SchedulerSettings
    make_limit: Callable[[], Limit]
    choice: DialectChoice | None = None
    pages: frozenset[Page] = frozenset({Page.LOAD})


def client_setup(arguments: Mapping[str, Any]) -> Setup:
    """Return the setup that ``BatchClient(url, **arguments)`` makes.

    Of the arguments about connections only ``dialect`` is known here.
    """
    given = dict(arguments)
    settings = make_settings(given.pop("preset", "balanced"), {"base_url": _URL, **given})
    connections, dialect = Connections(settings), settings.dialect
    choice = DialectChoice(dialect, ())
    return Setup(
        settings.scheduler(choice.at_first, trusts_lists=lambda: dialect is not None),
        lambda: make_limit(settings, turn=Turn()),
        choice if Page.SERVER in connections.pages else None,
        frozenset(connections.pages),
    )


def limit_setup(scenario: Scenario, limit: Limit) -> Setup:
    """A scenario's own settings with this limit."""
    settings = make_settings("balanced", {"base_url": _URL})
    return Setup(
        replace(settings.scheduler(make_dialect("vllm"), trusts_lists=lambda: True), **scenario.settings), lambda: limit
    )


class Client:
    """One scheduler with its callers.

    Args:
        run: the server's side.
        setup: the parts of the client.
        number: the client's place among the clients of the run.
        now: the client's start, seconds of virtual time.
    """

    def __init__(self, run: Run, setup: Setup, number: int, now: float) -> None:
        scenario, seed = run.scenario, f"{run.seed}" if not number else f"{run.seed}/{number}"
        self._run = run
        self._setup = setup
        limit = setup.make_limit()
        self.core = Scheduler(
            setup.settings, [limit], asks_first=(lambda: True) if Page.SERVER in setup.pages else None
        )
        self.trace = Trace(scenario.duration_s)
        self.trace.limits.append((now, limit.limit))
        self.delivered = 0
        self.next_at = now
        """The time of the client's next action without an event from outside."""
        self._core_at: float | None = None
        self._closed: set[int] = set()
        self._rng = random.Random(f"{seed}/retry")
        self._known_at = math.inf
        self._load_at = math.inf
        """When the server's load may be asked for."""
        self._no_load_before = 0.0
        self.workloads: list[Running] = []
        for place, workload in enumerate(filter(None, (scenario.workload, scenario.urgent))):
            rng = random.Random(f"{seed}/urgent" if place else f"{seed}/calls")
            self.workloads.append(workload.start(rng, partial(self._submit, place)))

    # Time -----------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Its time may have come."""
        core = self.core
        if self._known_at <= now:
            self._known_at = math.inf
            self._hear_of_server(now)
        if self._load_at <= now:
            self._load_at = math.inf
            if core.heeds_load(0):
                self._read_page(now)
        for workload in self.workloads:
            if workload.next_at <= now:
                workload.woke(now)
        if self._core_at is not None and self._core_at <= now:
            core.handle(Woke(), now)
        self.step(now)

    def step(self, now: float) -> None:
        """Obey the scheduler's commands until none is left."""
        self._obey(now)
        self._core_at = core_at = self.core.next_deadline()
        if self.core.idle:
            self._load_at = math.inf
        next_at = min(self._known_at, self._load_at)
        if core_at is not None and core_at < next_at:
            next_at = core_at
        for workload in self.workloads:
            if workload.next_at < next_at:
                next_at = workload.next_at
        self.next_at = next_at

    @property
    def over(self) -> bool:
        """Whether nothing is left to be asked or answered."""
        return self.workloads[0].over

    def _hear_of_server(self, now: float) -> None:
        known, choice = self._run.scenario.known, self._setup.choice
        assert choice is not None
        if known is not None:
            facts = known.facts
            _, caps = choice.of(facts)
            self.core.handle(ServerKnown(0, caps, facts.takes, facts.server, facts.event_per_token), now)
        self.core.handle(Asked(0, answered=True), now)

    # Replies --------------------------------------------------------------------------------------

    def read(self, reply: Reply, now: float) -> None:
        """A reply has come."""
        batch, failure = reply.batch, reply.failure
        if batch.id in self._closed:
            return
        if failure is None:
            batch.wire.heard = True
            self.core.handle(Answered(batch, reply.answers, reply.ended), now)
        else:
            self.trace.refused += failure.status == 429
            self.trace.cut += failure.kind is FailureKind.MAYBE_PROCESSED
            error = failure.to_error(batch.requests[0].attempts)
            delay_s = _POLICY.decide(error, batch.failures + 1, now - batch.oldest_at, self._rng)
            self.core.handle(Failed(batch, failure, delay_s, self._rng.random()), now)
        self.step(now)

    def _obey(self, now: float) -> None:
        core, trace = self.core, self.trace
        commands = core.commands()
        while True:
            for command in commands:
                kind = type(command)
                if kind is Resolve:
                    for request, completion in command.answers:
                        self._resolve(request, completion.usage.completion_tokens, now)
                elif kind is SendBatch:
                    self._send(command.batch, now)
                elif kind is Ask:
                    known = self._run.scenario.known
                    self._known_at = now + (_SAYS_NOTHING_AFTER_S if known is None else known.after_s / 40)
                elif kind is Adjusted:
                    adjustment = command.adjustment
                    if adjustment.setting == "limit":
                        trace.limits.append((adjustment.at, adjustment.new))
                        trace.changes.append((adjustment.at, adjustment.new, adjustment.reason))
                elif kind is Reject:
                    for request, _ in command.errors:
                        trace.failed += 1
                        request.waiter.failed = True
                        self._end(request, now)
                elif kind is AbortBatch:
                    self._closed.add(command.batch.id)
                    self._run.front.abort(command.batch, now)
                    core.handle(Failed(command.batch, command.batch.ended_for or _CLOSED, None), now)
            for workload in self.workloads:
                workload.look(core, now)
            commands = core.commands()
            if not commands:
                return

    @property
    def _in_flight(self) -> int:
        return self.core.statistics().in_flight

    def _read_page(self, now: float) -> None:
        load = self._run.server.load() if self._run.scenario.has_page else None
        self._no_load_before = now + (_NO_PAGE_S if load is None else _PAGE_TIMES.every_s)
        self._load_at = self._no_load_before
        if load is not None:
            self.core.handle(LoadReported(0, load), now)

    # Calls ----------------------------------------------------------------------------------------

    def _submit(self, place: int, request: Request, now: float) -> None:
        call: Call = request.waiter
        call.client, call.asker = self, place
        call.asked_at = now
        self.trace.submitted += 1
        self.core.handle(Submitted(request), now)

    def _send(self, batch: Batch, now: float) -> None:
        trace, in_flight = self.trace, self._in_flight
        trace.requests += 1
        # A call heavier than the limit may run alone.
        trace.over_limit += in_flight > max(batch.load.admitted_at, len(batch.requests) * batch.shape.weight)
        trace.prompts += len(batch.requests)
        for request in batch.requests:
            request.waiter.sent_at = now
        if self._load_at == math.inf and Page.LOAD in self._setup.pages:
            self._load_at = max(now + _PAGE_TIMES.first_after_s, self._no_load_before)
        self._run.front.send(batch, now)

    def _resolve(self, request: Request, tokens: int, now: float) -> None:
        call: Call = request.waiter
        trace = self.trace
        trace.resolved += 1
        self.delivered += tokens
        if call.asker:
            trace.urgent.append((now, now - call.asked_at))
            trace.urgent_queued_s.append(call.sent_at - call.asked_at)
        else:
            trace.ends.append(now)
            trace.tokens.append(tokens)
            from_asked = self.workloads[0].latency_from_asked
            trace.latencies_s.append(now - (call.asked_at if from_asked else call.sent_at))
        self._end(request, now)

    def _end(self, request: Request, now: float) -> None:
        """A caller is told; it is told once."""
        call: Call = request.waiter
        if call.ended:
            raise AssertionError(f"{request!r} ended twice")
        call.ended = True
        self.workloads[call.asker].ended(call, now)

    # What the run looks at ------------------------------------------------------------------------

    def sample(self, now: float, *, alone: bool) -> None:
        """Note the calls in flight and the useful tokens; ``alone``: there is no other client."""
        self.trace.in_flight.append(self._in_flight)
        underway = self._run.server.underway_tokens(now, None if alone else self)
        self.trace.useful.append(self.delivered + underway)

    def close(self, now: float) -> Trace:
        """The run is over."""
        trace, left = self.trace, self.core.statistics()
        trace.duration_s = now
        flying = (left.in_flight - left.abandoned) // self.workloads[0].shape.weight
        trace.left = left.queued + left.waiting + left.backing_off + flying
        return trace
