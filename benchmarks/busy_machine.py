"""Whether a busy machine makes lists shorter.

One job runs alone, then beside two processes that keep two cores busy.

    python benchmarks/busy_machine.py        # a simulated server of no known sort
    python benchmarks/busy_machine.py --base-url http://127.0.0.1:8000/v1 --model m

The server and the client share the cores with the busy processes. The figure is the ratio of the
mean list lengths: noise must not shorten lists. Each run begins with a new client, which knows
nothing of the server. The benchmark fails where the lists on the busy machine are over a fifth
shorter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from _common import machine, machine_line

from batchclient import BatchClient, Batching
from batchclient.simulator import EmbeddedServer
from batchclient.simulator.profiles import Profile

COSTS = Profile("costs", "a step, and something for each text of it", step_s=0.003, sequence_s=1e-4, request_s=0.001)
BAR = 0.2
"""How much shorter a busy machine's lists may be on average."""


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists that one job was sent as."""

    requests: int
    mean: float
    seconds: float
    server: str | None
    told: tuple[str, ...]
    """Changes of the longest list."""


async def job(base_url: str, model: str, texts: int, max_tokens: int, limit: int) -> Lists:
    """Map so many texts."""
    began = time.perf_counter()
    async with BatchClient(
        base_url, model=model, limit=limit, preset="throughput", batching=Batching(max_size=512)
    ) as client:
        await client.batch_map([f"Text {number}: some words" for number in range(texts)], "{}", max_tokens=max_tokens)
        statistics = client.statistics()
        changes = [each for each in statistics.adjustments if each.setting.startswith("batch_size_cap")]
        told = tuple(f"{each.setting} {each.old} -> {each.new}: {each.reason}" for each in changes)
        requests = sum(statistics.list_sizes.values())
        mean = texts / requests
        return Lists(requests, mean, time.perf_counter() - began, statistics.endpoints[0].server, told)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many cores busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="a server of your own; by default a simulated one")
    parser.add_argument("--model", default="simulated")
    parser.add_argument("--texts", type=int, default=12_000)
    parser.add_argument("--max-tokens", type=int, default=1)
    parser.add_argument("--limit", type=int, default=128, help="texts in flight: fixed, so that lists alone differ")
    parser.add_argument("--processes", type=int, default=2, help="how many keep a core busy each")
    arguments = parser.parse_args()

    def run(base_url: str) -> Lists:
        sizes = arguments.texts, arguments.max_tokens, arguments.limit
        return asyncio.run(job(base_url, arguments.model, *sizes))

    print(machine_line(machine()))
    with contextlib.ExitStack() as stack:
        base_url = arguments.base_url
        if base_url is None:
            # The guise names no product, so the server stays of no known sort. The server is a
            # thread: it shares the process, as an engine inside the process would.
            server = EmbeddedServer(COSTS, model=arguments.model, guise="openai")
            base_url = stack.enter_context(server).base_url
        quiet = run(base_url)
        with busy(arguments.processes):
            loud = run(base_url)
    for name, lists in (("quiet", quiet), ("busy", loud)):
        print(
            f"{name:>5}: {lists.requests:,} requests, {lists.mean:.1f} texts in each, {lists.seconds:.1f} s, "
            f"server {lists.server or 'of no known sort'}"
        )
        for change in lists.told:
            print(f"       {change}")
    ratio = loud.mean / quiet.mean
    print(f"the busy machine's lists are {ratio:.2f} times as long; at least {1 - BAR:.2f} is asked for")
    if ratio < 1 - BAR:
        sys.exit(1)


if __name__ == "__main__":
    main()
