"""A real vLLM for the benchmarks: started or given, its prompts, and the CPU of its processes."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from _common import HERE, TICKS_PER_S, processes

from batchclient import BatchClient, ServerLoad
from batchclient.bench import Times, Workload
from batchclient.bench.session import begin

sys.path.insert(0, str(HERE.parent))
"""For the servers of ``tests/live``."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Args:
        base_url, model: for a client.
        pid: of its API server, which leads the server's process group; ``None``: not known.
    """

    base_url: str
    model: str
    pid: int | None = None

    def whole_cpu_s(self) -> float:
        """CPU of the API server and the engine's processes: of all in the process group."""
        return sum(cpu_s for _, group, cpu_s in processes() if group == self.pid)


class OtherCores:
    """Cores that neither this process nor the server kept busy, since the object was made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._began_s, self._before_s = time.perf_counter(), self._used_s()

    def _used_s(self) -> float:
        counts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
        user, nice, system, _idle, _waiting, irq, softirq = counts
        used_s = (user + nice + system + irq + softirq) / TICKS_PER_S
        return used_s - self._server.whole_cpu_s() - time.process_time()

    def mean(self) -> float:
        """The mean until now; not a number where the server's processes are not known."""
        if self._server.pid is None:
            return math.nan
        return (self._used_s() - self._before_s) / (time.perf_counter() - self._began_s)


# --- the server ---


def go_first(pid: int = 0) -> None:
    """Let a process, or this one, go before an engine that spins."""
    from tests.live import real_time

    real_time.go_first(pid)


@contextlib.contextmanager
def vllm(*flags: str) -> Iterator[Server]:
    """Start a vLLM with these flags. It and this process go before its engine."""
    from tests.live.servers import VllmServer

    with VllmServer(flags) as server:
        go_first()
        yield Server(server.base_url, server.model, server.pid)


async def page_of(server: Server) -> ServerLoad | None:
    """The load that the server's metrics page tells; ``None``: no page."""
    async with BatchClient(server.base_url, model=server.model, from_environment=False) as client:
        return (await client.servers())[0].load


# --- prompts ---


class Prompts:
    """Prompts of about so many tokens on one server. None comes twice, so no prefix is cached."""

    def __init__(self, fitted: Workload) -> None:
        self._fitted = fitted
        self._numbers = itertools.count(1)

    def make(self, count: int, tokens: int) -> list[str]:
        workload = replace(self._fitted, prompt_tokens=tokens)
        return [workload.prompt(next(self._numbers)) for _ in range(count)]


async def learn_prompts(server: Server) -> Prompts:
    """Ask the server once how many tokens a word has."""
    drawn = Workload(prompt_tokens=200, output_tokens=1, seed=random.getrandbits(32))
    return Prompts((await begin(server.base_url, drawn, Times(), model=server.model)).workload)
