"""What a client spends where a second server has a price: draws, in virtual time.

    python benchmarks/lab/overflow.py --draws 40 --each    # a line for each draw, and the table
    python benchmarks/lab/overflow.py --draws 40 --write   # the result that the page shows

One's own server has a load of 0.6 to 1.4 of what it can answer, in bursts; calls have deadlines. A
second server has ten times the room, and a price for each token. The arms:

- ``prices``: the client, told the price, with ``preset="latency"`` and ``order="deadline"``;
- ``balanced`` and ``first come``: the same with the usual preset, or the usual order;
- ``least wait``: the client, not told: each call goes where it waits least;
- ``planner``: on the same servers ``benchmarks/lab/planner.py``, which knows how long answers are.

A *miss* is a call without an answer at its deadline. The *cost* is that of all calls that the dear
server was sent, by their true tokens, over that of all calls.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import linear_regression, mean
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, provenance, table, write_results
from benchmarks.lab.planner import Waiting, plan
from benchmarks.lab.profiles import Scenario
from benchmarks.lab.server import ContinuousServer
from benchmarks.lab.workloads import PROMPT, Call, Calls, Closed, Lengths
from tests.core import (
    AbortBatch,
    Answered,
    Batch,
    Failed,
    Limit,
    Offer,
    Reject,
    Request,
    Resolve,
    Scheduler,
    SchedulerSettings,
    SendBatch,
    Shape,
    Submitted,
    Turn,
    Woke,
)

from batchclient._client.make_limit import make_limit
from batchclient._settings import make_settings
from batchclient._shell.attempts import CANCELLED
from batchclient.dialects import make_dialect
from batchclient.options import Queue
from batchclient.retry import Backoff
from batchclient.simulator import Profile

__all__ = ["ARMS", "Drawn", "Outcome", "draw", "run"]

_LEAST_CALLS, _MOST_CALLS = 2000, 10_000
_PATIENCES = 10
"""How many times the mean patience a draw lasts at least: the queue is to have its length."""
_ROOM = 10
_MEASURED = 12
_PREDICTED = 1.1
"""The planner knows lengths, but not the engine's noise."""
_Line = tuple[float, float]
PRICE = Offer(None, 0.15e-6, 0.60e-6)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Two servers and their calls.

    Args:
        seed: of everything drawn.
        own, dear: the servers.
        slots: sequences that one's own server runs at once.
        load: calls a second over those that it can answer.
        calls: when each comes, its deadline, its prompt's tokens and its answer's.
        times: of both servers: seconds of a call, and of each token of its answer.
        max_tokens: as the callers say it.
    """

    seed: int
    own: Profile
    dear: Profile
    slots: int
    load: float
    calls: list[tuple[float, float, int, int]]
    times: tuple[_Line, _Line]
    max_tokens: int


def _full_load(server: Profile, slots: int, prompts: Lengths, outputs: Lengths, seed: int) -> tuple[float, _Line]:
    """Calls a second, and how long they take, at a server with so many calls always under way."""
    engine = ContinuousServer(Scenario("", server, Closed(Calls(prompts, outputs))), seed)
    rng, tokens, seconds, number = random.Random(f"full/{seed}"), list[int](), list[float](), 0
    shape = Shape(key=b"call", body=b"{}")

    def send(now: float) -> None:
        nonlocal number
        number += 1
        request = Request(shape, PROMPT, waiter=Call(prompts.draw(rng), (outputs.draw(rng),)))
        engine.send(Batch(number, 0, shape, [request], streamed=True, failures=0, sent_at=now), now)

    for _ in range(slots):
        send(0.0)
    began_at, ended, now = 0.0, 0, 0.0
    while ended < _MEASURED * slots:
        for reply in engine.advance(math.inf):
            now = reply.at
            send(now)
            ended += 1
            if ended <= slots:
                # At first all are at their beginnings.
                began_at = now
                continue
            tokens.append(reply.batch.requests[0].waiter.outputs[0])
            seconds.append(now - reply.batch.sent_at)
    # Where all are equally long, a line through their middle has no slope of its own.
    a_token_s, once_s = linear_regression(tokens, seconds) if len(set(tokens)) > 8 else (0.0, mean(seconds))
    return (ended - slots) / (now - began_at), (once_s, a_token_s)


def _log(rng: random.Random, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


def draw(seed: int) -> Drawn:
    """The servers and the calls of a seed; every number evenly, or evenly in its logarithm (``_log``)."""
    rng = random.Random(f"overflow/{seed}")
    prompts = Lengths(round(_log(rng, 30, 200)), rng.uniform(0.0, 0.7), 8000)
    output, sigma = rng.choice((64, 150, 300, 600)), rng.uniform(0.0, 1.0)
    outputs = Lengths(output, sigma, 4 * output)
    slots = rng.choice((8, 16, 32, 64))
    own = Profile(
        "own",
        "",
        step_s=_log(rng, 8e-3, 30e-3),
        kv_token_s=_log(rng, 2e-9, 15e-9),
        compute_s=1e-6,
        prefill_token_s=_log(rng, 4e-6, 30e-6),
        step_tokens=8192,
        max_num_seqs=slots,
        kv_tokens=4_000_000,
        request_s=0.2e-3,
        prompt_s=0.1e-3,
        event_s=10e-6,
        noise_ratio=0.03,
    )
    dear = replace(
        own,
        name="dear",
        step_s=own.step_s * rng.uniform(0.7, 1.3),
        kv_token_s=own.kv_token_s / _ROOM,
        prefill_token_s=own.prefill_token_s / _ROOM,
        max_num_seqs=_ROOM * slots,
        request_s=own.request_s / _ROOM,
        prompt_s=own.prompt_s / _ROOM,
    )
    (most_per_s, own_s), load = _full_load(own, slots, prompts, outputs, seed), rng.uniform(0.6, 1.4)
    # The dear one is never full.
    _, dear_s = _full_load(dear, slots, prompts, outputs, seed)
    service_s = slots / most_per_s
    patience_s = service_s * _log(rng, 6, 24)
    count = round(min(_MOST_CALLS, max(_LEAST_CALLS, _PATIENCES * patience_s * load * most_per_s)))
    # In a burst so many times as many come as between two; the mean is the load.
    burst, share, length_s = rng.uniform(1.5, 5.0), rng.uniform(0.1, 0.5), service_s * _log(rng, 3, 30)
    quiet_per_s = load * most_per_s / (share * burst + 1 - share)
    times: list[float] = []
    now, ends, is_burst = 0.0, 0.0, False
    while len(times) < count:
        if now >= ends:
            is_burst = not is_burst
            ends = now + rng.expovariate(1 / (length_s * (share if is_burst else 1 - share)))
        now += rng.expovariate(quiet_per_s * (burst if is_burst else 1.0))
        times.append(now)
    # So many as are drawn may have fewer bursts than the mean: the load is to be as it is said.
    stretch = count / (load * most_per_s) / now
    calls = [
        (stretch * at, stretch * at + patience_s * rng.uniform(0.5, 1.5), prompts.draw(rng), outputs.draw(rng))
        for at in times
    ]
    return Drawn(seed, own, dear, slots, load, calls, (own_s, dear_s), outputs.most_tokens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an arm came to: shares of all calls, and of what all would have cost at the dear server."""

    missed: float
    cost: float
    sent: float


class _Policy(Protocol):
    """Who decides: told of calls and replies; sends by the run."""

    next_at: float

    def ask(self, request: Request, now: float) -> None: ...

    def read(self, reply: Any, now: float) -> None: ...

    def woke(self, now: float) -> None: ...


class _Run:
    """Both servers, the callers, and what came of the calls."""

    def __init__(self, drawn: Drawn, make: Callable[[_Run], _Policy]) -> None:
        self.drawn = drawn
        workload = Closed(Calls(Lengths(1), Lengths(1)))
        self.servers = [
            ContinuousServer(Scenario("", profile, workload), drawn.seed) for profile in (drawn.own, drawn.dear)
        ]
        self.sent: set[Call] = set()
        self.in_time = 0
        self._policy = make(self)

    def send(self, batch: Batch, now: float) -> None:
        """A policy sends."""
        self.servers[batch.endpoint].send(batch, now)
        if batch.endpoint:
            self.sent.update(request.waiter for request in batch.requests)

    def answered(self, request: Request, now: float) -> None:
        """A call has its answer."""
        self.in_time += now <= request.waiter.asked_at

    def run(self) -> Outcome:
        """Run to the end."""
        drawn, policy = self.drawn, self._policy
        shape = Shape(key=b"call", body=b"{}", max_output_tokens=drawn.max_tokens)
        coming = iter(drawn.calls)
        upcoming = next(coming, None)
        while True:
            arrives_at = math.inf if upcoming is None else upcoming[0]
            server = min(self.servers, key=lambda one: one.next_at)
            until = min(arrives_at, policy.next_at)
            if server.next_at <= until:
                if server.next_at == math.inf:
                    break
                for reply in server.advance(server.next_at):
                    policy.read(reply, reply.at)
            elif arrives_at <= policy.next_at:
                assert upcoming is not None
                at, deadline, prompt, output = upcoming
                call = Call(prompt, (output,))
                call.asked_at = deadline
                policy.ask(Request(shape, PROMPT, prompt_tokens=prompt, deadline=deadline, waiter=call), at)
                upcoming = next(coming, None)
            else:
                policy.woke(policy.next_at)
        costs = [PRICE.cost(prompt, output) for _, _, prompt, output in drawn.calls]
        sent = sum(PRICE.cost(call.prompt_tokens, call.outputs[0]) for call in self.sent)
        count = len(drawn.calls)
        return Outcome(1 - self.in_time / count, sent / sum(costs), len(self.sent) / count)


class _Client:
    """The client's scheduler, told the price or not."""

    def __init__(
        self, run: _Run, *, is_priced: bool, order: str = "deadline", preset: str = "latency", limit: Any = None
    ) -> None:
        slots = run.drawn.slots

        def limit_of(most: int) -> Limit:
            return make_limit(make_settings(preset, {"base_url": _URL, "limit": limit or most}), turn=Turn())

        settings = make_settings(preset, {"base_url": _URL, "queue": Queue(order=order)})  # type: ignore[arg-type]
        core: SchedulerSettings = settings.scheduler(make_dialect("vllm"), trusts_lists=lambda: True)
        self._run = run
        self._rng = random.Random(f"{run.drawn.seed}/retry")
        self._closed: set[int] = set()
        self.core = Scheduler(
            core, [limit_of(slots), limit_of(_ROOM * slots)], offers=[Offer(), PRICE if is_priced else Offer()]
        )
        self.next_at = math.inf

    def ask(self, request: Request, now: float) -> None:
        self._tell(Submitted(request), now)

    def read(self, reply: Any, now: float) -> None:
        batch = reply.batch
        if batch.id in self._closed:
            return
        if reply.failure is None:
            self._tell(Answered(batch, reply.answers, reply.ended), now)
        else:
            error = reply.failure.to_error(1)
            delay_s = Backoff().decide(error, batch.failures + 1, now - batch.oldest_at, self._rng)
            self._tell(Failed(batch, reply.failure, delay_s, self._rng.random()), now)

    def woke(self, now: float) -> None:
        self._tell(Woke(), now)

    def _tell(self, event: Any, now: float) -> None:
        core, run = self.core, self._run
        core.handle(event, now)
        while commands := core.commands():
            for command in commands:
                match command:
                    case SendBatch(batch):
                        run.send(batch, now)
                    case Resolve(answers):
                        for request, _ in answers:
                            run.answered(request, now)
                    case AbortBatch(batch):
                        self._closed.add(batch.id)
                        run.servers[batch.endpoint].abort(batch, now)
                        core.handle(Failed(batch, batch.ended_for or CANCELLED, None), now)
                    case Reject():
                        pass
        due = core.next_deadline()
        self.next_at = math.inf if due is None else max(due, now)


class _Planner:
    """``plan`` at each call and each answer; it is told the true lengths."""

    next_at = math.inf

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._waiting: list[Request] = []
        self._ends: dict[int, float] = {}
        self._number = 0

    def ask(self, request: Request, now: float) -> None:
        self._waiting.append(request)
        self._plan(now)

    def read(self, reply: Any, now: float) -> None:
        self._run.answered(reply.batch.requests[0], now)
        self._ends.pop(reply.batch.id, None)
        self._plan(now)

    def woke(self, now: float) -> None:
        raise AssertionError("it sets no time")

    def _seconds(self, request: Request, endpoint: int) -> float:
        once_s, a_token_s = self._run.drawn.times[endpoint]
        return _PREDICTED * float(once_s + request.waiter.outputs[0] * a_token_s)

    def _plan(self, now: float) -> None:
        idle = self._run.drawn.slots - len(self._ends)
        waiting = [
            Waiting(one.deadline or math.inf, self._seconds(one, 0), self._seconds(one, 1), one)
            for one in self._waiting
        ]
        made = plan(now, [*self._ends.values(), *[now] * idle], waiting)
        cheap = made.cheap[:idle]
        for endpoint, requests in enumerate((cheap, made.dear)):
            for request in requests:
                self._number += 1
                batch = Batch(self._number, endpoint, request.shape, [request], True, 0, now)
                if not endpoint:
                    self._ends[batch.id] = now + self._seconds(request, 0)
                self._run.send(batch, now)
        gone = {id(one) for one in (*cheap, *made.dear, *made.lost)}
        self._waiting = [one for one in self._waiting if id(one) not in gone]


_URL = "http://lab/v1"
ARMS: dict[str, Callable[[_Run], _Policy]] = {
    "planner": _Planner,
    "prices": partial(_Client, is_priced=True),
    "balanced": partial(_Client, is_priced=True, preset="balanced"),
    "first come": partial(_Client, is_priced=True, order="fcfs"),
    "least wait": partial(_Client, is_priced=False),
}


def run(job: tuple[int, str]) -> Outcome:
    """An arm on the draw of a seed."""
    seed, arm = job
    return _Run(draw(seed), ARMS[arm]).run()


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _table(outcomes: dict[str, list[Outcome]]) -> str:
    planned = outcomes["planner"]
    rows = []
    for arm, of_arm in outcomes.items():
        most = max(each.missed - by.missed for each, by in zip(of_arm, planned, strict=True))
        cost = mean(each.cost for each in of_arm)
        ratio = cost / mean(each.cost for each in planned)
        missed = mean(each.missed for each in of_arm)
        rows.append([arm, _percent(missed), f"{100 * most:.1f} points", _percent(cost), f"{ratio:.2f}"])
    return table(("arm", "missed", "in a draw more than the planner, at most", "cost", "over the planner's"), rows)


def main() -> int:
    """Draw, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--first-seed", type=int, default=20_001)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--arms", default=",".join(ARMS), help="of them these, with commas; the planner is one")
    parser.add_argument("--write", action="store_true", help="write the result that the page shows")
    parser.add_argument("--each", action="store_true", help="a line for each draw, too")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.draws)
    arms = options.arms.split(",")
    jobs = [(seed, arm) for arm in arms for seed in seeds]
    with ProcessPoolExecutor(options.processes) as pool:
        results = list(pool.map(run, jobs))
    outcomes = {arm: results[place * len(seeds) : (place + 1) * len(seeds)] for place, arm in enumerate(arms)}
    if options.each:
        for place, seed in enumerate(seeds):
            drawn = draw(seed)
            of_arms = "; ".join(
                f"{arm} {_percent(each[place].missed)} {_percent(each[place].cost)}" for arm, each in outcomes.items()
            )
            print(f"{seed}: load {drawn.load:.2f}, {drawn.slots} slots: {of_arms}")
    told = machine()
    text = f"{_table(outcomes)}\n\n{provenance(told)}"
    print(text)
    if options.write:
        figures = {arm: [asdict(each) for each in of_arm] for arm, of_arm in outcomes.items()}
        write_results("prices", {"machine": told, "seeds": [seeds[0], seeds[-1]], "arms": figures}, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
