"""Scenarios of the laboratory: a server, a workload and changes; and those that have a name.

The module is data only. The servers are those of ``batchclient.simulator.profiles``, whose
docstring gives the source of each constant:

- the GPU constants of the design's controller simulation: 12 ms a step, 12 ns a KV token, 20 µs a
  prefill token, a budget of 2,048 tokens, 3 % noise;
- ``tiny-cpu``, fitted to a real vLLM 0.32 on two CPU cores.

Output lengths are lognormal with sigma 0.9 to 1.1, as there. The mean of 200 tokens is chosen here.
It is below 256, above which the client sends calls singly. Draws (``draws.py``) are scenarios
without a name here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from benchmarks.lab.workloads import Callers, Calls, Closed, Conversations, Lengths, Workload

from batchclient.dialects._fingerprints import ServerFacts
from batchclient.simulator import PROFILES, Profile


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to the server.

    Args:
        at_s: when.
        slowdown: how many times as slow as its profile the engine is from then on.
        output_scale: how many times as long as drawn the outputs are from then on.
        tenant_sequences: so many sequences of other users run from then on, each followed by
            another.
    """

    at_s: float
    slowdown: float | None = None
    output_scale: float | None = None
    tenant_sequences: int = 0


@dataclass(frozen=True, slots=True)
class Cache:
    """A prefix cache: least recently used out first.

    Args:
        tokens: the room of the cache.
        held_tokens: the room that one conversation takes.
        found_tokens: tokens of a prompt that are found in the cache; whole blocks only.
        shared: the room is the KV that running sequences leave; ``tokens`` and ``held_tokens``
            are then not used.
    """

    tokens: int
    held_tokens: int
    found_tokens: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class RateLimit:
    """429 for calls above a number in a window of time.

    ``Retry-After`` gives the seconds until the next window.
    """

    calls_per_window: int
    window_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """The server says which product it is.

    Args:
        after_s: forty times the seconds from the question to the answer.
        facts: the facts on the server's pages.
    """

    after_s: float
    facts: ServerFacts


@dataclass(frozen=True, slots=True)
class Scenario:
    """A server, its callers, and the changes during the run.

    Args:
        name: the scenario's name.
        server: the engine's and the API server's constants.
        workload: the callers.
        duration_s: the length of the run.
        changes: changes of the server, in order of time.
        settings: settings that differ from the ``balanced`` preset.
        list_cap: longer lists are refused (422).
        padding: the server pads and runs static batches.
        cache: the server's prefix cache, if it has one.
        unsteadiness: the standard deviation of the logarithm of the machine's speed, which
            wanders within about a second. 0.2 was seen between waves of equal calls on a real
            vLLM on two shared cores.
        has_page: whether the server has a metrics page.
        known: when the server says which product it is; ``None``: never.
        rate: calls that the server takes in a window of time, at most.
        gateway_s: how long a gateway before the server waits for a byte; ``None``: no gateway.
        urgent: callers beside the workload, in a higher priority class.
        clients: the number of clients, each with such a workload.
        join_every_s: seconds from one client's start to the next client's.
    """

    name: str
    server: Profile
    workload: Workload
    duration_s: float = 240.0
    changes: tuple[Change, ...] = ()
    settings: Mapping[str, float | int | None] = field(default_factory=lambda: MappingProxyType({}))
    list_cap: int | None = None
    padding: bool = False
    cache: Cache | None = None
    unsteadiness: float = 0.0
    has_page: bool = True
    known: Known | None = None
    rate: RateLimit | None = None
    gateway_s: float | None = None
    urgent: Workload | None = None
    clients: int = 1
    join_every_s: float = 0.0


_TEXTS = Lengths(200, 0.6, 4096)
_ANSWERS = Lengths(200, 1.0, 4096)
_USUAL = Closed(Calls(_TEXTS, _ANSWERS, 8192))
_CPU = PROFILES["tiny-cpu"]
# Prompts of 22 and answers of 64 tokens, as in the sweep of the real vLLM (its tables C and T).
_SWEPT = Calls(Lengths(22), Lengths(64), max_tokens=64)

_ALL = (
    # The most throughput is reached near 256 sequences.
    Scenario("A", PROFILES["compute-knee"], _USUAL),
    # 429 above 96 sequences, lists of at most 32.
    Scenario(
        "rejecting",
        replace(PROFILES["gpu"], max_queued=96),
        _USUAL,
        duration_s=90.0,
        settings=MappingProxyType({"max_size": 64}),
        list_cap=32,
    ),
    # A static batcher of 64: a batch takes as long as its longest.
    Scenario(
        "padding",
        replace(PROFILES["gpu"], max_num_seqs=64),
        Closed(Calls(Lengths(200, 0.6, 2048), Lengths(64, 0.9, 256), max_tokens=256)),
        settings=MappingProxyType({"length_reach": 0}),
        padding=True,
    ),
    # The fitted vLLM on two cores.
    Scenario("tiny-cpu", _CPU, Closed(_SWEPT), duration_s=120.0),
    # The fitted vLLM with conversations that share a cache of 3,072 tokens, ten turns each. The
    # lengths are those of the sweep's table W: 300 + 41 tokens of which 288 (nine blocks of 32) can
    # be found again, four tokens out.
    Scenario(
        "prefix",
        _CPU,
        Conversations(Calls(Lengths(341), Lengths(4), max_tokens=4), 48, turns=10),
        duration_s=120.0,
        cache=Cache(tokens=3072, held_tokens=341, found_tokens=288),
    ),
    # The fitted vLLM with callers that wait 1 s at most. In the sweep's table T, 16, 64 and 128 in
    # flight gave 49, 86 and 0 useful answers/s.
    Scenario(
        "timeouts",
        replace(_CPU, max_num_seqs=256),
        Callers(replace(_SWEPT, timeout_s=1.0), 256),
        duration_s=120.0,
    ),
)

SCENARIOS: dict[str, Scenario] = {each.name: each for each in _ALL}
"""The scenarios that have a name: for tests and other benchmarks.

The worth of a limit is judged on draws.
"""
