"""A real vLLM for the benchmarks: started or given, its prompts, and the CPU of its processes."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import openai
from _common import HERE

from batchclient.bench import Times, Workload
from batchclient.bench.pages import Page, fetch_page
from batchclient.bench.session import begin
from batchclient.bench.strategies import Target

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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

    def api_cpu_s(self) -> float:
        """CPU of the API server's process; 0 where the process is not known."""
        return sum(cpu_s for pid, _, cpu_s in processes() if pid == self.pid)

    def whole_cpu_s(self) -> float:
        """CPU of the API server and the engine's processes: of all in the process group."""
        return sum(cpu_s for _, group, cpu_s in processes() if group == self.pid)


def processes() -> Iterator[tuple[int, int, float]]:
    """(process, process group, CPU seconds) of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The second field is the command in parentheses, which may hold spaces.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), int(fields[2]), (int(fields[11]) + int(fields[12])) / TICKS_PER_S


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


@contextlib.contextmanager
def vllm(*flags: str) -> Iterator[Server]:
    """Start a vLLM with these flags. It and this process go before its engine."""
    sys.path.insert(0, str(HERE.parent))
    from tests.live.real_time import go_first
    from tests.live.servers import VllmServer

    with VllmServer(flags) as server:
        go_first()
        yield Server(server.base_url, server.model, server.pid)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base-url", help="a running server's, with /v1; without it one is started")
    parser.add_argument("--model", help="its first model if not given")
    parser.add_argument("--server-pid", type=int, help="its API server, to tell its CPU from other processes'")


@contextlib.contextmanager
def given_or_started(options: argparse.Namespace, *flags: str) -> Iterator[Server]:
    """The server of ``--base-url``, or a vLLM with these flags."""
    if not options.base_url:
        with vllm(*flags) as server:
            yield server
        return
    with openai.OpenAI(base_url=options.base_url, api_key="none") as client:
        model = options.model or client.models.list().data[0].id
    yield Server(options.base_url, model, options.server_pid)


async def page_of(server: Server) -> Page:
    """The load that the server's metrics page tells; ``None``: no page."""
    return await fetch_page(Target(server.base_url, server.model))


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
