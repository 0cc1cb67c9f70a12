"""The scenarios of the laboratory: a server, who asks, and what happens. Data only.

Sources. The servers are those of ``batchclient.simulator.profiles`` (its docstring says where each constant comes from): the GPU constants of
the design's controller simulation, 12 ms a step, 12 ns a KV token, 20 µs a prefill token, a budget of 2,048 tokens, 3 % noise, and
``tiny-cpu``, fitted to a real vLLM 0.32 on two CPU cores. Output lengths are lognormal with sigma 0.9 to 1.1, as there; a mean of 200 tokens is
ours, below the 256 above which the client sends calls singly. Scenarios A to G are those of that simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from benchmarks.lab.workloads import Calls, Closed, Lengths, Open, Sessions, Workload

from batchclient.dialects._fingerprints import ServerFacts
from batchclient.simulator.profiles import PROFILES, Profile


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to the server.

    Args:
        at_s: when.
        slowdown: how many times as slow as its profile the engine is from then on.
        output_scale: how many times as long as drawn the outputs are from then on.
        tenant_sequences: so many sequences of somebody else run from then on, each followed by another.
    """

    at_s: float
    slowdown: float | None = None
    output_scale: float | None = None
    tenant_sequences: int = 0


@dataclass(frozen=True, slots=True)
class Cache:
    """A prefix cache: least recently used out first.

    Args:
        tokens: how many it holds.
        held_tokens: what one conversation takes of it.
        found_tokens: how many of a prompt's tokens are found there; whole blocks only.
        shared: its room is what running sequences leave of the KV; ``tokens`` and ``held_tokens`` are then not looked at.
    """

    tokens: int
    held_tokens: int
    found_tokens: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """When a client asks for a server's metrics page.

    Args:
        first_s: how long after it began.
        every_s: how often from then on.
    """

    first_s: float = 1.0
    every_s: float = 1.0


@dataclass(frozen=True, slots=True)
class RateLimit:
    """429 for calls above so many in a window of time, with the seconds until the next one as ``Retry-After``."""

    calls_per_window: int
    window_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """The server says which it is.

    Args:
        after_s: so long after a client's first request.
        facts: what its pages say.
    """

    after_s: float
    facts: ServerFacts


@dataclass(frozen=True, slots=True)
class Scenario:
    """A server, who asks, and what happens.

    Args:
        name: what ``--profiles`` takes.
        summary: one line.
        server: the engine's and the API server's constants.
        workload: who asks.
        duration_s: how long an algorithm is watched.
        static_s: how long a fixed limit is watched; it has nothing to learn.
        changes: what happens, in order of time.
        limits: the fixed limits that are tried.
        settings: what differs from the ``balanced`` preset.
        list_cap: longer lists are refused (422).
        padding: the server pads and runs static batches.
        cache: the server's prefix cache, if it has one.
        unsteadiness: how unsteady the machine under it is: the standard deviation of the logarithm of its speed, which wanders
            within about a second. 0.2 was seen between waves of equal calls on a real vLLM on two shared cores.
        page: when its metrics page is asked for; ``None``: it has none.
        known: when it says which server it is; ``None``: it never does.
        rate: calls it takes in a window of time, at most.
        gateway_s: how long a gateway before it waits for a byte; ``None``: there is no gateway.
        urgent: who asks beside the workload, in a higher priority class.
        clients: how many clients there are, each with such a workload.
        join_every_s: how long after one client the next one begins.
    """

    name: str
    summary: str
    server: Profile
    workload: Workload
    duration_s: float = 240.0
    static_s: float = 240.0
    changes: tuple[Change, ...] = ()
    limits: tuple[int, ...] = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
    settings: Mapping[str, float | int | None] = field(default_factory=lambda: MappingProxyType({}))
    list_cap: int | None = None
    padding: bool = False
    cache: Cache | None = None
    unsteadiness: float = 0.0
    page: Page | None = Page()
    known: Known | None = None
    rate: RateLimit | None = None
    gateway_s: float | None = None
    urgent: Workload | None = None
    clients: int = 1
    join_every_s: float = 0.0

    def phases(self) -> tuple[float, ...]:
        """When the server is another one: 0 and every change after it."""
        return (0.0, *(change.at_s for change in self.changes if change.at_s > 0))

    def settled(self, phase: int) -> Scenario:
        """The scenario as it is from the phase's beginning on, without what comes later."""
        begun = self.phases()[phase]
        past = tuple(replace(change, at_s=0.0) for change in self.changes if change.at_s <= begun)
        return replace(self, changes=past, duration_s=self.static_s)


def _closed(prompts: Lengths, outputs: Lengths, max_tokens: int = 8192) -> Closed:
    return Closed(Calls(prompts, outputs, max_tokens))


_TEXTS = Lengths(200, 0.6, 4096)
_ANSWERS = Lengths(200, 1.0, 4096)
_USUAL = _closed(_TEXTS, _ANSWERS)
_KNEE = Scenario("A", "compute knee near 256", PROFILES["compute-knee"], _USUAL)
_CPU = PROFILES["tiny-cpu"]
_SMALL_LIMITS = (1, 2, 4, 6, 8, 10, 12, 16, 24, 48, 128)
# Prompts of 22 and answers of 64 tokens: what the sweep of the real vLLM asked (its tables C and T).
_SWEPT = Calls(Lengths(22), Lengths(64), max_tokens=64)

_ALL = (
    _KNEE,
    Scenario("B", "KV cliff: 64,000 tokens, about 130 sequences", PROFILES["kv-cliff"], _USUAL),
    Scenario("C", "the server runs 64 sequences", PROFILES["max-seqs-64"], _USUAL),
    Scenario(
        "D",
        "prompts of 4,000 tokens, KV for 65 of them",
        PROFILES["long-prompts"],
        _closed(Lengths(4000, 0.2, 8192), Lengths(200, 0.9, 4096)),
        duration_s=360.0,
        static_s=360.0,
        limits=(8, 16, 32, 48, 64, 80, 96, 128, 256, 1024),
    ),
    replace(
        _KNEE,
        name="E",
        summary="A, outputs 4 times as long from 120 s on",
        changes=(Change(120, output_scale=4),),
        duration_s=360.0,
    ),
    replace(
        _KNEE,
        name="F",
        summary="A, another tenant takes 128 slots at 120 s",
        changes=(Change(120, tenant_sequences=128),),
    ),
    replace(
        _KNEE, name="G", summary="A, half as fast from 120 s on", changes=(Change(120, slowdown=2.0),), duration_s=300.0
    ),
    replace(
        _KNEE,
        name="slower",
        summary="A, a third as fast from 120 s on",
        changes=(Change(120, slowdown=3.0),),
        duration_s=300.0,
    ),
    replace(
        _KNEE,
        name="faster",
        summary="A on a server a third as fast, until 150 s",
        changes=(Change(0, slowdown=3.0), Change(150, slowdown=1.0)),
        duration_s=300.0,
    ),
    replace(
        _KNEE,
        name="shorter",
        summary="B, outputs a third as long from 120 s on: the knee moves up",
        server=PROFILES["kv-cliff"],
        changes=(Change(120, output_scale=1 / 3),),
    ),
    Scenario(
        "api",
        "one token each: the API server is the bottleneck",
        replace(PROFILES["gpu"], request_s=_CPU.request_s, prompt_s=_CPU.prompt_s, event_s=_CPU.event_s),
        _closed(Lengths(12), Lengths(1), max_tokens=1),
        duration_s=40.0,
        static_s=20.0,
        limits=(8, 16, 32, 64, 128, 256, 512, 1024),
    ),
    Scenario(
        "prefix",
        "conversations that share a cache of 3,072 tokens: ten turns on a 300-token prefix",
        _CPU,
        # The sweep's table W: 300 + 41 tokens of which 288 (nine blocks of 32) can be found again, four tokens out.
        Sessions(Calls(Lengths(341), Lengths(4), max_tokens=4), turns=10),
        duration_s=120.0,
        static_s=60.0,
        limits=_SMALL_LIMITS,
        cache=Cache(tokens=3072, held_tokens=341, found_tokens=288),
    ),
    Scenario(
        "agents",
        "long conversations on a GPU: prefixes of 4,000 tokens in a cache of 280,000",
        PROFILES["long-prompts"],
        Sessions(Calls(Lengths(4200), Lengths(200, 0.9, 4096), max_tokens=8192), turns=10),
        duration_s=360.0,
        static_s=360.0,
        limits=(8, 16, 32, 48, 64, 80, 96, 128, 256),
        cache=Cache(tokens=280_000, held_tokens=4400, found_tokens=4000),
    ),
    Scenario(
        "rejecting",
        "429 above 96 sequences, lists of at most 32",
        replace(PROFILES["gpu"], max_queued=96),
        _USUAL,
        # A fixed limit above the bound is no measure: it makes thousands of refusals a second and most calls fail.
        duration_s=90.0,
        static_s=60.0,
        settings=MappingProxyType({"max_list": 64}),
        limits=(8, 16, 32, 64, 72, 80, 88, 96),
        list_cap=32,
    ),
    Scenario(
        "padding",
        "a static batcher of 64: as long as its longest",
        replace(PROFILES["gpu"], max_num_seqs=64),
        _closed(Lengths(200, 0.6, 2048), Lengths(64, 0.9, 256), max_tokens=256),
        settings=MappingProxyType({"length_reach": 0}),
        limits=(4, 8, 16, 32, 64, 96, 128, 256, 512),
        padding=True,
    ),
    Scenario(
        "unsteady",
        "the fitted vLLM on a machine shared with others, calls of equal length",
        replace(_CPU, max_num_seqs=256),
        Closed(_SWEPT),
        duration_s=120.0,
        static_s=240.0,
        unsteadiness=0.2,
    ),
    Scenario("tiny-cpu", "the fitted vLLM on two cores", _CPU, Closed(_SWEPT), duration_s=120.0, static_s=120.0),
    # Both after a real vLLM: 64, 128 and 256 in flight gave 6,400, 7,100 and 7,300 tokens/s on one day, and 1,020, 1,230 and 1,210 with one
    # token each. docs/benchmarks.md has the same cells from another day.
    Scenario(
        "mixed",
        "the fitted vLLM with room for 256 on a machine that wanders a little, answers of a few to 128 tokens",
        replace(_CPU, max_num_seqs=256),
        _closed(Lengths(20), Lengths(44, 1.0, 128), max_tokens=128),
        duration_s=120.0,
        static_s=120.0,
        unsteadiness=0.06,
    ),
    Scenario(
        "one-token",
        "the fitted vLLM, one token each: throughput grows with about the fifth root of the load, up to 128",
        _CPU,
        _closed(Lengths(20), Lengths(1), max_tokens=1),
        duration_s=40.0,
        static_s=20.0,
    ),
    Scenario(
        "one-token-unsteady",
        "the same on a machine as unsteady as a shared one",
        _CPU,
        _closed(Lengths(20), Lengths(1), max_tokens=1),
        duration_s=120.0,
        static_s=60.0,
        unsteadiness=0.12,
    ),
    Scenario(
        "timeouts",
        "the fitted vLLM, callers that wait 1 s at most",
        replace(_CPU, max_num_seqs=256),
        # Its table T: 16, 64 and 128 in flight gave 49, 86 and 0 useful answers/s.
        Sessions(replace(_SWEPT, timeout_s=1.0), turns=1),
        duration_s=120.0,
        static_s=120.0,
        limits=(8, 16, 32, 48, 64, 80, 96, 128, 256),
    ),
    Scenario(
        "impatient",
        "the same on an unsteady machine, far more callers than it can serve",
        replace(_CPU, max_num_seqs=256),
        Closed(replace(_SWEPT, timeout_s=1.0), depth=256),
        duration_s=120.0,
        static_s=120.0,
        limits=(8, 16, 32, 48, 64, 80, 96, 128, 256),
        unsteadiness=0.15,
    ),
    replace(
        _KNEE, name="open", summary="A at 60 % of its capacity, Poisson arrivals", workload=Open(_USUAL.calls, 37.0)
    ),
    Scenario(
        "bursts",
        "the fitted vLLM on a machine shared with others, at 60 % of its capacity, Poisson arrivals",
        replace(_CPU, max_num_seqs=256),
        Open(_SWEPT, 66.0),
        limits=_SMALL_LIMITS,
        unsteadiness=0.2,
    ),
)

SCENARIOS: dict[str, Scenario] = {each.name: each for each in _ALL}
