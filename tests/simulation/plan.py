"""From a seed to everything that will happen in one run: settings, servers with their faults, calls, and what the user does.

Each seed has a few faults of its own, and many of them (swarm testing): runs in which everything goes wrong a little find less
than runs in which three things go wrong all the time. Times are seconds since the beginning of the run.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from batchclient import AdaptiveLimit, Batching, Http, Queue
from tests.simulation.pairs import SERVER_FAULTS, Fault

__all__ = ["READ_TIMEOUT_S", "CallPlan", "Outage", "Plan", "ServerPlan", "make_plan", "make_server_plan"]

READ_TIMEOUT_S = 2.0
_DRAWN = sorted(SERVER_FAULTS - {Fault.BAD_PROMPT}, key=lambda fault: fault.value)
_OUTAGES = [Fault.REFUSED, Fault.REFUSED, Fault.RESET, Fault.SILENT, Fault.BROKEN, Fault.UNAVAILABLE]
_TOGETHER = [1, 2, 5, 12, 30]
_PREFIX = "Read this again and again. " * 12
"""Longer than 256 bytes: such prompts have a prefix family."""


@dataclass
class Outage:
    """A time in which a server does the same wrong thing with every request."""

    fault: Fault
    begins_s: float
    ends_s: float


@dataclass
class ServerPlan:
    """How one server behaves."""

    seed: int
    faults: list[Fault]
    fault_ratio: float
    outages: list[Outage]
    connect_s: float
    first_byte_s: float
    per_prompt_s: float
    longest_list: int


@dataclass
class CallPlan:
    """One call. The prompt is unique and says what the call asks for."""

    at_s: float
    prompt: str
    params: dict[str, Any]
    timeout_s: float | None
    bad: bool


@dataclass
class Plan:
    """One run."""

    seed: int
    settings: dict[str, Any]
    requests_per_minute: float | None
    max_attempts: int
    servers: list[ServerPlan]
    calls: list[CallPlan]
    actions: list[tuple[float, str]]
    heal_at_s: float
    """From then on the servers do nothing wrong."""
    ending: str
    rng: Random = field(repr=False)
    """For what is decided while running: the user's targets, the retry policy's jitter."""


def make_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = Random(seed)
    # What a server refused is tried again after a minute or five: some runs last longer. Time costs nothing here.
    heal_at_s = rng.uniform(4.0, 15.0) * rng.choice([1, 1, 1, 1, 60])
    count = rng.choice([1, 2, 2, 3, 3])
    actions = sorted(
        (rng.uniform(0.0, heal_at_s), rng.choice(_actions(rng))) for _ in range(rng.choice([0, 4, 10, 25]))
    )
    return Plan(
        seed=seed,
        settings=_settings(rng),
        requests_per_minute=rng.choice([None, None, None, None, 600.0]),
        max_attempts=rng.choice([1, 2, 3, 5]),
        servers=[make_server_plan(rng, heal_at_s) for _ in range(count)],
        calls=_calls(rng, heal_at_s),
        actions=actions,
        heal_at_s=heal_at_s,
        ending=rng.choice(["wait", "wait", "drain", "close"]),
        rng=Random(rng.random()),
    )


def make_server_plan(rng: Random, heal_at_s: float) -> ServerPlan:
    """Return the plan of one server."""
    outages = []
    for _ in range(rng.choice([0, 0, 1, 2, 4])):
        begins_s = rng.uniform(0.0, heal_at_s)
        outages.append(Outage(rng.choice(_OUTAGES), begins_s, begins_s + rng.choice([0.3, 1.0, 4.0])))
    return ServerPlan(
        seed=rng.getrandbits(32),
        faults=rng.sample(_DRAWN, rng.choice([2, 4, 8, len(_DRAWN)])),
        fault_ratio=rng.choice([0.0, 0.1, 0.3, 0.5, 0.7]),
        outages=outages,
        connect_s=rng.choice([0.001, 0.001, 0.2]),
        first_byte_s=rng.choice([0.001, 0.2, 0.9]),
        per_prompt_s=rng.choice([0.0, 0.01, 0.05]),
        longest_list=rng.choice([1000, 1000, 1000, 6, 3]),
    )


def _settings(rng: Random) -> dict[str, Any]:
    preset = rng.choice(["latency", "balanced", "throughput"])
    limit = rng.choice([1, 3, 8, 16, 16, 32, "auto", "auto"])
    batching = Batching(
        max_size=rng.choice([1, 3, 8, 32, 32]),
        linger_s=rng.choice([0.0, 0.005, 0.2]),
    )
    return {
        "preset": preset,
        "limit": AdaptiveLimit(start=8, max=32) if limit == "auto" else limit,
        "batching": batching,
        "queue": Queue(
            max_calls=rng.choice([1, 3, 10, 1000, 1000]),
            when_full=rng.choice(["wait", "wait", "wait", "raise"]),
            order=rng.choice(["fcfs", "fcfs", "fcfs", "shortest_first", "deadline"]),
        ),
        "http": Http(read_timeout_s=READ_TIMEOUT_S),
        "probe": False,
    }


def _actions(rng: Random) -> list[str]:
    fleet = ["add", "remove", "remove", "remove now"]
    names = ["cancel", "pause", "resume", "retune", "add", "remove", "remove now", "abort"]
    return rng.choice([names, ["cancel"], ["pause", "resume", "cancel"], fleet, fleet])


def _calls(rng: Random, heal_at_s: float) -> list[CallPlan]:
    bad_ratio = rng.choice([0.0, 0.0, 0.1, 0.3])
    hasty_ratio = rng.choice([0.0, 0.2, 0.6])
    shapes = rng.sample(_SHAPES, rng.choice([1, 1, 3]))
    prefix = rng.choice(["", "", _PREFIX])
    total = rng.choice([10, 30, 60])
    calls: list[CallPlan] = []
    while len(calls) < total:
        at_s = rng.uniform(0.0, heal_at_s)
        params = dict(rng.choice(shapes))
        for _ in range(min(rng.choice(_TOGETHER), total - len(calls))):
            timeout_s = rng.choice([0.05, 0.3, 1.0, 4.0]) if rng.random() < hasty_ratio else None
            bad = rng.random() < bad_ratio
            asked = f"n={params.get('n', 1)} max_tokens={params['max_tokens']}"
            calls.append(CallPlan(at_s, f"{prefix}Call {len(calls)}, {asked}.", params, timeout_s, bad))
    return calls


_SHAPES: list[dict[str, Any]] = [
    {"max_tokens": 1},
    {"max_tokens": 16},
    {"max_tokens": 16},
    {"max_tokens": 16, "n": 2},
    {"max_tokens": 1, "n": 9},
    {"max_tokens": 4000},
    {"max_tokens": 16, "priority": 1},
    {"max_tokens": 1, "tenant": "a"},
]
