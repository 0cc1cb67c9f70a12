"""Counters of the scheduler and their frozen snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from batchclient._core.histograms import Histogram, Observations
from batchclient._core.lane import Lane
from batchclient._core.messages import Adjustment, Request
from batchclient.errors import BatchClientError
from batchclient.health import Health, no_answers

__all__ = ["Counters", "EndpointStatistics", "LaneStatistics", "LengthStatistics", "Statistics"]

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """An endpoint, now.

    Args:
        limit: sequences that may be in flight.
        limit_reason: why the limit has this value.
        in_flight: sequences on which the server still works.
        abandoned: sequences in flight for which nobody waits any more.
        batch_size_cap: the most completions sent to the endpoint in one request, unless
            a ``max_size`` that is a function decides.
        lists_refused: whether the server refused lists lately.
        streams_refused: whether the server refused to stream lately.
        blocked_until: the scheduler's time until which calls are held back despite free permits.
            After refusals calls may go earlier: with the next answer. ``None``: nothing is held
            back, or only an answer ends the hold.
        blocked_by: why calls are held back: ``"requests_per_minute"`` or ``"tokens_per_minute"``,
            the client's own settings; ``"the server's Retry-After"``; ``"the server's refusals"``;
            ``"the gateway's rate limit"``, once the gateway says nothing is left; ``"the server's
            outage"`` while a call is to find out, or finds out, whether the server is back; ``"the
            server's slow start"``; or ``"the wait for the server"``, which has never answered.
            Empty while nothing is held back.
        id: a number which no other endpoint of the client ever has.
        base_url: without the query, which may hold a key.
        state: ``"healthy"``; ``"ejected"``: failed, and left alone; ``"probing"``: a call finds out
            whether the server is back; ``"recovering"``: back, with a growing share; ``"awaited"``:
            it has not answered yet, and gets no calls before; ``"leaving"``: removed, and
            finishing.
        reason: why the endpoint is in ``state``; empty while nothing has happened.
        retry_budget_tokens: prompt and output tokens which may be resent now; below 0 retries wait.
        server: the server's name and version, such as ``"vllm 0.32.0"``; ``None``: not known (yet).
        outage: the log's sentence about the outage that calls wait for; empty while there is none.
        silent_since: the scheduler's time since when nothing at all has come from a server in use,
            though requests are in flight or ended unanswered there; ``None``: not silent. Calls go
            there as before.
    """

    limit: int
    limit_reason: str
    in_flight: int
    abandoned: int
    batch_size_cap: int
    lists_refused: bool
    streams_refused: bool
    blocked_until: float | None
    id: int
    base_url: str
    state: str
    reason: str
    retry_budget_tokens: int = 0
    server: str | None = None
    blocked_by: str = ""
    outage: str = ""
    silent_since: float | None = None


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """The calls of a priority class, or of a tenant.

    Args:
        queued: calls waiting for a permit.
        waiting: calls waiting for a place in the queue (``Queue.max_calls``).
        in_flight: sequences on which the servers still work.
        prompt_tokens, completion_tokens: served, as the servers counted them.
        oldest_since: the scheduler's time at which the oldest queued call was made; ``None``: none
            is queued.
    """

    queued: int = 0
    waiting: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    oldest_since: float | None = None


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """How well the lengths of answers were foreseen, before each came.

    Args:
        answers: those whose lengths were foreseen: by what came of such calls and prompts of such a
            size before, or by ``expected_tokens``. Of answers that came together one is looked at.
        mean_error: by how much an answer was longer or shorter than foreseen, relative to the mean
            answer; ``0.0``: none was foreseen.
        above_p90: the share of the answers that were longer than nine of ten were to be; about 0.1
            once some hundred have come.
    """

    answers: int = 0
    mean_error: float = 0.0
    above_p90: float = 0.0


def _summed(
    lanes: Iterable[Lane], of: Callable[[Lane], _Key], arrivals: Mapping[Lane, float]
) -> dict[_Key, LaneStatistics]:
    """Sum lanes by what ``of`` returns of them."""
    groups: dict[_Key, list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(of(lane), []).append(lane)
    return {
        key: LaneStatistics(
            queued=sum(lane.queued for lane in group),
            waiting=sum(lane.waiting for lane in group),
            in_flight=sum(lane.in_flight for lane in group),
            prompt_tokens=sum(lane.prompt_tokens for lane in group),
            completion_tokens=sum(lane.completion_tokens for lane in group),
            oldest_since=min((arrivals[lane] for lane in group if lane in arrivals), default=None),
        )
        for key, group in groups.items()
    }


@dataclass(frozen=True, slots=True)
class Statistics:
    """A client's present load, and its counts since the first call in this event loop and process.

    A new loop or a fork starts a client afresh.

    Args:
        queued: calls waiting for a permit.
        waiting: calls waiting for a place in the queue (``Queue.max_calls``).
        backing_off: calls waiting to be tried again.
        in_flight: sequences on which the servers still work.
        abandoned: sequences in flight for which nobody waits any more.
        submitted, succeeded, failed, cancelled: calls; the last three are counted once, at the end.
        batches: requests that were sent and have ended.
        retries: requests sent again after a failure (isolation not counted).
        retries_delayed: retries which waited for the retry budget.
        splits: lists split to find a bad prompt.
        list_sizes: the number of these requests, by their number of prompts.
        alone: the number of those that held one call, by the reason why it went alone.
        prompt_tokens, completion_tokens: as the servers counted them.
        endpoints: an entry per base URL, leaving endpoints included.
        priorities: the calls by priority class, the highest first.
        tenants: the calls by tenant; long-idle tenants are forgotten once there are thousands.
        adjustments: the last changes of limits and list caps, oldest first.
        health: generated answers, by ``Completion.health``; ``"invalid"`` are those that would be
            ``"ok"``, but do not fit ``response_model``.
        shared: calls which joined an equal call under way (``single_flight``); also ``submitted``.
        reused: rows of maps which were taken from a journal; they are in no other count.
        wasted_tokens: of answers which nobody got, prompt and output tokens together: their callers
            had gone, or, in a map, the answers did not fit ``response_model``, or were cut off and
            asked for anew. The tokens are in ``prompt_tokens`` and ``completion_tokens``, too.
        regained_tokens: output tokens of a map's answers that were cut off and gone on with.
        lost_tokens: of answers which had come in part, or whole in a reply that could not be used,
            when their attempt failed and was made again. Of a stream they are the output tokens
            that had come, of a whole reply all that its usage tells. They are in no other count.
        reasoning_tokens: of answers to calls with ``thinking_tokens``, by the server's count or an
            estimate.
        over_thinking_budget: those answers whose reasoning was longer than that by more than a
            fifth: their server ignores it.
        histograms: by name and key, of all that has ended; the reference of statistics has the
            names.
        outcomes: requests that ended, by endpoint (base URL; ``"other"`` for those removed before
            the last 64), kind of call and outcome.
        tokens: by endpoint, model and direction (``"prompt"`` or ``"completion"``); all models
            after the first 32 are ``"other"``.
        errors: failed calls, by the name of their error's class.
        costs: what the answers of servers with a price have cost, by endpoint, as the servers
            counted the tokens.
        overflows: calls sent to a server though another is cheaper, by endpoint and reason:
            ``"would miss its deadline"``, ``"would wait for longer than max_wait_s"``, ``"is
            down"`` or ``"refuses such calls"`` (the cheaper one).
        changes: all changes of limits and list caps, by endpoint, setting and direction (``"up"``
            or ``"down"``).
        lengths: how well the lengths of answers were foreseen.
    """

    queued: int
    waiting: int
    backing_off: int
    in_flight: int
    abandoned: int
    submitted: int
    succeeded: int
    failed: int
    cancelled: int
    batches: int
    retries: int
    splits: int
    list_sizes: Mapping[int, int]
    alone: Mapping[str, int]
    prompt_tokens: int
    completion_tokens: int
    endpoints: tuple[EndpointStatistics, ...]
    priorities: Mapping[int, LaneStatistics]
    tenants: Mapping[str, LaneStatistics]
    adjustments: tuple[Adjustment, ...] = ()
    retries_delayed: int = 0
    shared: int = 0
    reused: int = 0
    wasted_tokens: int = 0
    regained_tokens: int = 0
    lost_tokens: int = 0
    histograms: Mapping[str, Mapping[tuple[str, ...], Histogram]] = field(default_factory=dict, repr=False)
    outcomes: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    tokens: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    costs: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    overflows: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    changes: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    health: Mapping[Health, int] = field(default_factory=no_answers)
    lengths: LengthStatistics = field(default_factory=LengthStatistics)
    reasoning_tokens: int = 0
    over_thinking_budget: int = 0


_NUMBERS = (
    "submitted", "succeeded", "failed", "cancelled", "retries", "retries_delayed", "splits", "prompt_tokens",
    "completion_tokens", "wasted_tokens", "lost_tokens", "shared",
)  # fmt: skip


@dataclass(slots=True)
class Counters:
    """The scheduler's running counts.

    A request made for several callers (``carries``) is in none of the counts of calls' ends: who
    makes it counts its callers.
    """

    submitted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    retries: int = 0
    retries_delayed: int = 0
    splits: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    lost_tokens: int = 0
    shared: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    observed: Observations = field(default_factory=Observations)
    health: dict[Health, int] = field(default_factory=no_answers)

    def call_left(self, request: Request, now: float) -> None:
        """Count a call whose caller has gone."""
        if not request.carries:
            self.cancelled += 1
            self.observed.calls_ended((request,), "cancelled", now)

    def calls_failed(self, errors: Iterable[tuple[Request, BatchClientError]], now: float) -> None:
        """Count calls that end with errors."""
        for request, error in errors:
            if not request.carries:
                self.failed += 1
                self.errors[type(error).__name__] += 1
                self.observed.calls_ended((request,), "failed", now)

    def snapshot(
        self,
        *,
        queued: int,
        waiting: int,
        backing_off: int,
        endpoints: tuple[EndpointStatistics, ...],
        lanes: Iterable[Lane],
        arrivals: Mapping[Lane, float],
        adjustments: Iterable[Adjustment],
        lengths: LengthStatistics,
    ) -> Statistics:
        """Freeze the counts, together with the present load."""
        lanes = list(lanes)
        by_class = sorted(lanes, key=lambda lane: -lane.priority)
        of_tenants = (lane for lane in lanes if lane.account.tenant is not None)
        return Statistics(
            queued=queued,
            waiting=waiting,
            backing_off=backing_off,
            in_flight=sum(endpoint.in_flight for endpoint in endpoints),
            abandoned=sum(endpoint.abandoned for endpoint in endpoints),
            **{name: getattr(self, name) for name in _NUMBERS},
            batches=sum(self.observed.list_sizes.values()),
            list_sizes=dict(sorted(self.observed.list_sizes.items())),
            alone=dict(self.observed.alone),
            endpoints=endpoints,
            adjustments=tuple(adjustments),
            lengths=lengths,
            priorities=_summed(by_class, lambda lane: lane.priority, arrivals),
            tenants=_summed(of_tenants, lambda lane: lane.account.tenant or "", arrivals),
            histograms=self.observed.snapshot(),
            outcomes=dict(self.observed.outcomes),
            tokens=dict(self.observed.tokens),
            errors=dict(self.errors),
            costs=dict(self.observed.costs),
            overflows=dict(self.observed.overflows),
            changes=dict(self.observed.changes),
            health=self.health.copy(),
        )
