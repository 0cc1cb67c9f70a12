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

from batchclient.simulator.profiles import PROFILES, Profile

from benchmarks.lab.workloads import Calls, Closed, Lengths, Workload


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
        cache_tokens: room for prefixes; 0: no prefix cache.
        prefix_tokens: of each conversation.
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
    cache_tokens: int = 0
    prefix_tokens: int = 0

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

_ALL = (
    Scenario("A", "compute knee near 256", PROFILES["compute-knee"], _USUAL),
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
)

SCENARIOS: dict[str, Scenario] = {each.name: each for each in _ALL}
