"""Servers and work drawn at random, by family and seed.

The module is data only: the same family and seed always give the same draw. Each number is drawn
evenly or, where the code says *log*, log-uniformly. ``FAMILIES`` names the families; each function
below is one.

Three features are in half of the draws: a server that says which product it is, a metrics page, a
gateway. The seed's digits in base two choose them, so eight seeds in a row have every mixture.

The time for which a draw is watched is virtual:

- For a job that has no end the duration is the longest of three: the time to answer ``_CALLS``
  calls at the server's highest throughput (``capacity``), 40 mean latencies, and four minutes. It
  is ten minutes at most.
- Where the duration would give more than ``_MOST_CALLS`` calls, it is shorter, but a minute at
  least, and four minutes for ``sessions``.
- ``once`` ends with its last answer.
- Where something happens at a certain time, the duration is given. A server and calls that would
  make more than ``_MOST_CALLS`` in it are drawn again. A simulation takes about a second for 25,000
  calls.

Chosen here: ``max_tokens`` is the answers' length where all are equal, else four times their mean.
A turn of a conversation has 16 to 128 tokens (log) beside its prefix. A call of a higher class is
as long as others and has 8 tokens for an answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.lab.capacity import Capacity
from benchmarks.lab.prefix_cache import BLOCK_TOKENS
from benchmarks.lab.profiles import Cache, Change, Known, RateLimit, Scenario
from benchmarks.lab.workloads import Callers, Calls, Closed, Conversations, Every, Lengths, Once, Workload

from batchclient.dialects._fingerprints import ServerFacts
from batchclient.simulator import Profile

__all__ = ["FAMILIES", "Draw", "draw"]

_CALLS = 6000
_LATENCIES = 40
_USUAL_S = 240.0
_SHORTEST_S = 60.0
_LONGEST_S = 600.0
_MOST_CALLS = 40_000
_ONCE_S = 20_000.0
_TURNS = 20
"""Of each conversation that pauses, about."""
_RATED_S = 180.0
"""Six of the longest waits."""
_RATED_RATIO = 0.7
"""The rate's share of the server's highest throughput: the rate is the scarce resource."""
_CHANGES_S = 160.0
_COMES_S = 40.0
_JOIN_S = 10.0
_SIBLINGS_S = 80.0
_SMALL_S = 120.0
_URGENT_EVERY_S = 2.0
_URGENT_TOKENS = 8
_TIMED = ("changes", "neighbour", "siblings")
_ROOM_CALLS = 8
_SPREAD = 4
"""A prompt or an answer is at most this many times as long as the mean.

So a server that has room for 8 calls has room for any one.
"""


@dataclass(frozen=True, slots=True)
class Draw:
    """One server and its work.

    Args:
        family: the family's name.
        seed: the seed of the draw.
        scenario: the driver's input.
        capacity: the server's highest throughput, by the formula.
        judged_from_s: the time from which on the throughput counts.
        slots: sequences that the server runs at once; only in the family that is about slots.
        most_fixed: no fixed limit above this one is tried: it would be the same, or refused
            even more often.
    """

    family: str
    seed: int
    scenario: Scenario
    capacity: Capacity
    judged_from_s: float = 0.0
    slots: int | None = None
    most_fixed: int = 1024

    @property
    def known(self) -> bool:
        """Whether the client is told which server it is."""
        return self.scenario.known is not None

    @property
    def has_page(self) -> bool:
        """Whether the server has a metrics page."""
        return self.scenario.has_page


def draw(family: str, seed: int) -> Draw:
    """The server and the work of that seed.

    Raises:
        KeyError: there is no such family.
    """
    rng = random.Random(f"{family}/{seed}")
    while True:
        made = FAMILIES[family](rng)
        if family not in _TIMED or made.capacity.most_per_s * made.scenario.duration_s <= _MOST_CALLS:
            break
    scenario = made.scenario
    scenario = replace(
        scenario,
        name=f"{family}/{seed}",
        known=scenario.known if seed % 2 else None,
        has_page=scenario.has_page and seed // 2 % 2 == 1,
        gateway_s=scenario.gateway_s if seed // 4 % 2 else None,
    )
    return replace(made, family=family, seed=seed, scenario=scenario)


# What all families draw alike ---------------------------------------------------------------------


def _log(rng: random.Random, low: float, high: float) -> float:
    return low * (high / low) ** rng.random()


def _answers(rng: random.Random, mean: int) -> Lengths:
    """All equal in a third of the draws, else of very different lengths.

    With a mean of one token, every answer has one.
    """
    sigma = 0.0 if rng.random() < 1 / 3 else rng.uniform(0.4, 1.1)
    return Lengths(mean, sigma, _SPREAD * mean) if mean > 1 and sigma else Lengths(mean, 0.0, mean)


def _calls(rng: random.Random, means: Sequence[int] = (1, 1, 4, 16, 32, 64, 150, 300)) -> Calls:
    mean = round(_log(rng, 16, 1500))
    outputs = _answers(rng, rng.choice(means))
    return Calls(Lengths(mean, rng.uniform(0.0, 0.7), _SPREAD * mean), outputs, outputs.most_tokens)


def _server(rng: random.Random, call_tokens: float) -> Profile:
    """A server with room for eight calls of that many tokens, at least."""
    per_sequence_s = _log(rng, 5e-6, 100e-6) if rng.random() < 1 / 3 else 0.0
    return Profile(
        "drawn",
        "",
        step_s=_log(rng, 4e-3, 30e-3),
        kv_token_s=_log(rng, 2e-9, 30e-9),
        compute_s=_log(rng, 15e-6, 300e-6),
        sequence_s=per_sequence_s,
        prefill_token_s=_log(rng, 4e-6, 60e-6),
        step_tokens=rng.choice((2048, 8192, 8192, 16_384)),
        max_num_seqs=rng.choice((32, 64, 128, 256, 256, 512, 1024)),
        kv_tokens=round(max(_log(rng, 20_000, 2_000_000), _ROOM_CALLS * call_tokens)),
        request_s=rng.uniform(0.1e-3, 0.8e-3),
        prompt_s=rng.uniform(0.05e-3, 0.4e-3),
        event_s=rng.uniform(5e-6, 40e-6),
        noise_ratio=rng.uniform(0.01, 0.08),
    )


def _means(calls: Calls) -> tuple[float, float]:
    return calls.prompts.mean_tokens, calls.outputs.mean_tokens


def _watched_s(calls_per_s: float, latencies_s: float, most_calls: int = _MOST_CALLS) -> float:
    """Return how long a draw with so many answers a second is watched.

    ``latencies_s``: the time that its number of mean latencies takes.
    """
    enough_s = min(_LONGEST_S, max(_CALLS / calls_per_s, latencies_s, _USUAL_S))
    return min(enough_s, max(most_calls / calls_per_s, _SHORTEST_S))


def _usually_s(capacity: Capacity) -> float:
    return _watched_s(capacity.most_per_s, _LATENCIES * capacity.busy_s)


def _draw(
    rng: random.Random,
    server: Profile,
    workload: Workload,
    capacity: Capacity,
    duration_s: float,
    facts: ServerFacts = ServerFacts("vllm", "0.32.0"),  # noqa: B008  # frozen
    judged_from_s: float = 0.0,
    slots: int | None = None,
    most_fixed: int = 1024,
    **more: Any,
) -> Draw:
    unsteadiness = rng.choice((0.0, 0.0, 0.05, 0.15))
    known = Known(rng.uniform(0.1, 0.3), facts)
    scenario = Scenario("", server, workload, duration_s, unsteadiness=unsteadiness, known=known, **more)
    return Draw("", 0, scenario, capacity, judged_from_s, slots, most_fixed)


def _plain(rng: random.Random, longest: float = 1.0) -> tuple[Profile, Calls, Capacity]:
    """A server and calls; ``longest``: how many times as long answers may become."""
    calls = _calls(rng)
    prompt, output = _means(calls)
    server = _server(rng, prompt + longest * output)
    return server, calls, Capacity(server, prompt, output, prompt)


# The families -------------------------------------------------------------------------------------


def _once(rng: random.Random) -> Draw:
    server, calls, capacity = _plain(rng)
    count = rng.choice((50, 200, 300, 1000, 3000))
    return _draw(rng, server, Once(calls, count), capacity, _ONCE_S, most_fixed=_power_above(count))


def _closed(rng: random.Random) -> Draw:
    server, calls, capacity = _plain(rng)
    return _draw(rng, server, Closed(calls), capacity, _usually_s(capacity))


def _conversation(rng: random.Random) -> tuple[Calls, int, int]:
    """One turn's calls, the tokens of each that are found again, and how many conversations fit."""
    prefix = round(_log(rng, 200, 3000))
    outputs = _answers(rng, rng.choice((4, 32, 150)))
    own = round(_log(rng, 16, 128))
    calls = Calls(Lengths(prefix + own), outputs, outputs.most_tokens)
    return calls, prefix // BLOCK_TOKENS * BLOCK_TOKENS, round(_log(rng, 4, 96))


def _sessions(rng: random.Random) -> Draw:
    calls, found, room = _conversation(rng)
    prompt, output = _means(calls)
    server = _server(rng, prompt + output)
    held = round(prompt + output)
    # What is found is not in the engine's KV: the cache has room of its own.
    capacity = Capacity(server, prompt - found, output, prompt - found)
    # With fewer than the limit it would not be used, and nothing would be learnt.
    workload = Conversations(calls, rng.choice((256, 512, 1024)), rng.randint(5, 20))
    cache = Cache(room * held, held, found)
    duration_s = max(_USUAL_S, _usually_s(capacity))
    return _draw(rng, server, workload, capacity, duration_s, most_fixed=_power_above(workload.count), cache=cache)


def _agents(rng: random.Random) -> Draw:
    calls, found, room = _conversation(rng)
    prompt, output = _means(calls)
    server = replace(_server(rng, prompt + output), kv_tokens=round(room * (prompt + output)))
    count = round(room * _log(rng, 1, 8))
    workload = Conversations(calls, count, rng.randint(5, 20), _log(rng, 0.5, 5.0))
    capacity = Capacity(server, prompt - found, output, prompt)
    cache = Cache(server.kv_tokens, round(prompt + output), found, shared=True)
    turns_per_s = min(capacity.most_per_s, count / (workload.pause_s + capacity.lone_s))
    duration_s = _watched_s(turns_per_s, _TURNS * (workload.pause_s + capacity.busy_s))
    return _draw(rng, server, workload, capacity, duration_s, most_fixed=_power_above(count), cache=cache)


def _late(rng: random.Random) -> Draw:
    server, calls, capacity = _plain(rng)
    calls = replace(calls, timeout_s=capacity.lone_s * rng.uniform(3, 12))
    return _draw(rng, server, Callers(calls, 512), capacity, _usually_s(capacity), most_fixed=512)


def _refusing(rng: random.Random) -> Draw:
    server, calls, capacity = _plain(rng)
    most = round(_log(rng, 16, 300))
    server = replace(server, max_queued=most)
    # A limit above ``most`` is refused again and again, which takes the simulation's time. Limits
    # above the next power of two would be refused even more often.
    duration_s = _watched_s(capacity.most_per_s, _LATENCIES * capacity.busy_s, _MOST_CALLS // 4)
    return _draw(rng, server, Closed(calls), capacity, duration_s, most_fixed=_power_above(most))


def _rated(rng: random.Random) -> Draw:
    server, calls, capacity = _plain(rng)
    per_minute = min(_log(rng, 60, 6000), 60 * _RATED_RATIO * capacity.most_per_s)
    window_s = _log(rng, 1, 30)
    rate = RateLimit(max(1, round(per_minute * window_s / 60)), window_s)
    # Each in a request of its own, as most chats go: that is what such gateways count.
    calls = replace(calls, alone_reason="a call is a request here")
    return _draw(rng, server, Closed(calls), capacity, _RATED_S, rate=rate)


def _changes(rng: random.Random) -> Draw:
    server, calls, capacity = _plain(rng, longest=2.5)
    slowdown, longer = rng.choice((1 / 0.4, 1 / 3)), rng.choice((0.4, 2.5))
    changes = (Change(50.0, slowdown=slowdown), Change(100.0, output_scale=longer))
    easiest = Capacity(
        server.at_speed(max(1.0, 1 / slowdown)),
        capacity.prompt_tokens,
        calls.outputs.mean_tokens * min(1.0, longer),
        1.0,
    )
    return _draw(rng, server, Closed(calls), easiest, _CHANGES_S, changes=changes)


def _neighbour(rng: random.Random) -> Draw:
    server, calls, capacity = _plain(rng)
    changes = (Change(_COMES_S, tenant_sequences=rng.choice((32, 128))),)
    return _draw(rng, server, Closed(calls), capacity, 3 * _COMES_S, judged_from_s=_COMES_S, changes=changes)


def _siblings(rng: random.Random) -> Draw:
    server, calls, capacity = _plain(rng)
    clients = rng.choice((2, 4, 8))
    duration_s = max(_SIBLINGS_S, 2 * clients * _JOIN_S)
    return _draw(
        rng,
        server,
        Closed(calls, depth=512),
        capacity,
        duration_s,
        judged_from_s=duration_s / 2,
        clients=clients,
        join_every_s=_JOIN_S,
    )


def _small(rng: random.Random) -> Draw:
    calls = _calls(rng, (16, 32, 64, 150, 300))
    prompt, output = _means(calls)
    slots = rng.choice((1, 2, 4, 8))
    server = replace(_server(rng, prompt + output), max_num_seqs=slots)
    capacity = Capacity(server, prompt, output, prompt)
    gateway_s = rng.choice((30.0, 60.0))
    urgent = Every(
        replace(calls, outputs=Lengths(_URGENT_TOKENS), max_tokens=_URGENT_TOKENS, priority=1), _URGENT_EVERY_S
    )
    duration_s = min(_LONGEST_S, max(_LATENCIES * capacity.busy_s, 4 * gateway_s, _SMALL_S))
    return _draw(
        rng,
        server,
        Closed(calls),
        capacity,
        duration_s,
        # Ollama says of itself no more than any server with OpenAI's API; a llama-server says how
        # many slots it has.
        facts=ServerFacts("llamacpp", "b6500", slots=slots),
        slots=slots,
        gateway_s=gateway_s,
        urgent=urgent,
    )


def _power_above(count: int) -> int:
    """The smallest power of two that is no less."""
    return min(1024, 2 ** math.ceil(math.log2(count)))


FAMILIES: dict[str, Callable[[random.Random], Draw]] = {
    "once": _once,
    "closed": _closed,
    "sessions": _sessions,
    "agents": _agents,
    "late": _late,
    "refusing": _refusing,
    "rated": _rated,
    "changes": _changes,
    "neighbour": _neighbour,
    "siblings": _siblings,
    "small": _small,
}
