"""The driver: the real scheduler against a server of the laboratory, in virtual time.

Rules:
- Time jumps from event to event: a reply, the scheduler's deadline, the workload's, a change of the server, a look at its load.
- The client reads a reply at the moment it leaves the server, and acts in the same moment: the network costs nothing.
- Retries follow the client's default policy (``Backoff``).
- The same scenario, algorithm and seed give the same trace.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from benchmarks.lab.padding import PaddingServer
from benchmarks.lab.profiles import Scenario
from benchmarks.lab.server import ContinuousServer, LabServer, Reply
from benchmarks.lab.workloads import Call

from batchclient._core.limits import Limit
from batchclient._core.messages import (
    AbortBatch,
    Adjusted,
    Answered,
    Batch,
    Begun,
    Failed,
    Failure,
    FailureKind,
    Reject,
    Request,
    Resolve,
    SendBatch,
    Submitted,
    Woke,
)
from batchclient._core.scheduler import Scheduler
from batchclient.config import make_settings
from batchclient.dialects.vllm import VllmDialect
from batchclient.errors import ConnectionLost
from batchclient.retry import Backoff

LOAD_EVERY_S = 1.0
_CLOSED = Failure(FailureKind.MAYBE_PROCESSED, ConnectionLost, "nobody waited for it any more")


@dataclass(slots=True)
class Trace:
    """What happened in one run. ``ends``, ``tokens`` and ``latencies_s`` have one entry per answered call, in order of time.

    Latency counts from when a call was sent; where arrivals are open (``Running.latency_from_asked``) from when it was asked.
    """

    duration_s: float
    ends: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[int] = field(default_factory=lambda: array("q"))
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    limits: list[tuple[float, int]] = field(default_factory=list)
    """(when, limit), from the start on."""
    changes: list[tuple[float, int, str]] = field(default_factory=list)
    """(when, limit, reason)."""
    in_flight: list[int] = field(default_factory=list)
    """One sample a second, from 0 on."""
    useful: list[float] = field(default_factory=list)
    """Useful tokens generated until then, one sample a second."""
    submitted: int = 0
    resolved: int = 0
    failed: int = 0
    left: int = 0
    """Calls that had not ended when the run did."""
    requests: int = 0
    prompts: int = 0
    over_limit: int = 0
    """Batches that were granted above the limit in force though something else was in flight."""
    rejected: int = 0
    preemptions: int = 0
    generated_tokens: int = 0

    def throughput(self, begin_s: float, end_s: float) -> float:
        """Useful tokens generated per second: those of answers that came, and so far of answers that somebody waits for.

        What is delivered in a time says less: an algorithm that lowers its limit delivers what was generated before.
        """
        return (self._useful(end_s) - self._useful(begin_s)) / (end_s - begin_s)

    def _useful(self, at_s: float) -> float:
        place = min(at_s, len(self.useful) - 1)
        before = int(place)
        after = min(before + 1, len(self.useful) - 1)
        return self.useful[before] + (place - before) * (self.useful[after] - self.useful[before])

    def latency_s(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Mean and 95th percentile of the calls that ended in between."""
        first, last = bisect_left(self.ends, begin_s), bisect_left(self.ends, end_s)
        window = sorted(self.latencies_s[first:last])
        if not window:
            return math.nan, math.nan
        return sum(window) / len(window), window[min(len(window) - 1, int(0.95 * len(window)))]

    def mean_limit(self, begin_s: float, end_s: float) -> float:
        """Its average over time."""
        area, (at, limit) = 0.0, self.limits[0]
        for next_at, next_limit in [*self.limits[1:], (end_s, 0)]:
            area += max(0.0, min(next_at, end_s) - max(at, begin_s)) * limit
            at, limit = next_at, next_limit
        return area / (end_s - begin_s)

    def reached_s(self, tokens_per_s: float, from_s: float, window_s: float = 5.0) -> float:
        """How long after ``from_s`` the trailing window first had that throughput; infinite if never."""
        for end in range(int(from_s + window_s), len(self.useful)):
            if self.throughput(end - window_s, end) >= tokens_per_s:
                return end - from_s
        return math.inf


def simulate(scenario: Scenario, limit: Limit, seed: int = 0, *, max_list: int | None = None) -> Trace:
    """Run one scenario with one limit algorithm.

    Args:
        scenario: the server and who asks.
        limit: the algorithm, new.
        seed: of lengths, noise and retry delays.
        max_list: prompts per request, instead of the preset's.
    """
    return _Run(scenario, limit, seed, max_list).run()


class _Run:
    def __init__(self, scenario: Scenario, limit: Limit, seed: int, max_list: int | None) -> None:
        settings = dict(scenario.settings)
        if max_list is not None:
            settings["max_list"] = max_list
        made = make_settings("balanced", {"base_url": "http://lab/v1", **settings})
        self.core = Scheduler(made.scheduler(VllmDialect()), [limit])
        self.endpoint = next(iter(self.core._endpoints))
        self.server: LabServer = (PaddingServer if scenario.padding else ContinuousServer)(scenario, seed)
        self.limit = limit
        self.changes = list(scenario.changes)
        self.rng = random.Random(f"{seed}/retry")
        self.policy = Backoff()
        self.closed: set[int] = set()
        self.delivered = 0
        self.trace = Trace(scenario.duration_s)
        self.trace.limits.append((0.0, limit.limit))
        self.workload = scenario.workload.start(random.Random(f"{seed}/calls"), self.submit)

    def submit(self, request: Request, now: float) -> None:
        self.trace.submitted += 1
        self.core.handle(Submitted(request), now)

    def run(self) -> Trace:
        core, server, workload, changes = self.core, self.server, self.workload, self.changes
        end, now, load_at = self.trace.duration_s, 0.0, 0.0
        while True:
            self.obey(now)
            core_at = core.next_deadline()
            until = min(
                end,
                math.inf if core_at is None else core_at,
                workload.next_at,
                load_at,
                changes[0].at_s if changes else math.inf,
            )
            replies = server.advance(until)
            if replies:
                now = replies[0].at
                for reply in replies:
                    if reply.batch.id not in self.closed:
                        self.read(reply, now)
                        self.obey(now)
                continue
            now = max(now, until)
            if now >= end:
                break
            while changes and changes[0].at_s <= now:
                server.apply(changes.pop(0), now)
            if load_at <= now:
                self.look_at_load(now)
                load_at += LOAD_EVERY_S
            if workload.next_at <= now:
                workload.woke(now)
            if core_at is not None and core_at <= now:
                core.handle(Woke(), now)
        self.look_at_load(end)
        trace = self.trace
        left = core.statistics()
        trace.left = (
            left.queued + left.waiting + left.backing_off + (left.in_flight - left.abandoned) // workload.shape.weight
        )
        trace.rejected = server.rejected
        trace.preemptions = server.preemptions
        trace.generated_tokens = server.generated_tokens
        return trace

    def look_at_load(self, now: float) -> None:
        self.trace.in_flight.append(self.endpoint.in_flight)
        self.trace.useful.append(self.delivered + self.server.underway_tokens(now))
        listen = getattr(self.limit, "on_load", None)
        load = self.server.load()
        if listen is None or load is None:
            return
        change = listen(load, self.endpoint.in_flight, now)
        if change is not None:
            self.note_limit(now, change.limit, change.reason)
            self.core.handle(Woke(), now)

    def read(self, reply: Reply, now: float) -> None:
        if reply.begun:
            self.core.handle(Begun(reply.batch), now)
            return
        if reply.failure is None:
            self.core.handle(Answered(reply.batch, reply.answers, reply.ended), now)
            return
        batch, failure = reply.batch, reply.failure
        error = failure.to_error(batch.requests[0].attempts)
        delay_s = self.policy.decide(error, batch.failures + 1, now - batch.oldest_at, self.rng)
        self.core.handle(Failed(batch, failure, delay_s), now)

    def obey(self, now: float) -> None:
        """Do what the scheduler says, until it says no more."""
        core, trace, workload = self.core, self.trace, self.workload
        while True:
            commands = core.commands()
            for command in commands:
                kind = type(command)
                if kind is Resolve:
                    for request, completion in command.answers:
                        call: Call = request.waiter
                        self.end(request)
                        trace.resolved += 1
                        trace.ends.append(now)
                        trace.tokens.append(completion.usage.completion_tokens)
                        self.delivered += completion.usage.completion_tokens
                        trace.latencies_s.append(now - (call.asked_at if workload.latency_from_asked else call.sent_at))
                        workload.ended(call, now)
                elif kind is SendBatch:
                    self.send(command.batch, now)
                elif kind is Adjusted:
                    adjustment = command.adjustment
                    if adjustment.setting == "limit":
                        self.note_limit(adjustment.at, adjustment.new, adjustment.reason)
                elif kind is Reject:
                    for request, _ in command.errors:
                        self.end(request)
                        trace.failed += 1
                        workload.ended(request.waiter, now)
                elif kind is AbortBatch:
                    self.closed.add(command.batch.id)
                    self.server.abort(command.batch, now)
                    core.handle(Failed(command.batch, _CLOSED, None), now)
            workload.look(core, now)
            if not core._commands:
                return

    def send(self, batch: Batch, now: float) -> None:
        trace, in_flight = self.trace, self.endpoint.in_flight
        trace.requests += 1
        # A call heavier than the limit may run alone.
        trace.over_limit += in_flight > max(batch.admitted_at, len(batch.requests) * batch.shape.weight)
        trace.prompts += len(batch.requests)
        for request in batch.requests:
            request.waiter.sent_at = now
        self.server.send(batch, now)

    def end(self, request: Request) -> None:
        """A caller is told; it is told once."""
        if request.waiter.ended:
            raise AssertionError(f"{request!r} ended twice")
        request.waiter.ended = True

    def note_limit(self, now: float, limit: int, reason: str) -> None:
        self.trace.limits.append((now, limit))
        self.trace.changes.append((now, limit, reason))
