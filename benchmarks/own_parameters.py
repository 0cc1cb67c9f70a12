"""Savings of a list whose calls have a seed each, at the embedded server as SGLang.

    python benchmarks/own_parameters.py --calls 2000

The arms have the same calls. In the first all calls have one seed. In the second each call has its
own seed, in mixed lists. In the third each call has its own seed and is sent singly, as every other
server has to be asked. The arms take turns. Client CPU is this process's; the server has a process
of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from _common import machine, machine_line, median, spread, table

from batchclient import BatchClient, Batching
from batchclient.simulator import EmbeddedServer

ARMS = {
    "one seed for all": (False, False),
    "a seed each, mixed lists": (False, True),
    "a seed each, singly": (True, True),
}
"""Whether calls go singly, and whether each has a seed of its own."""


async def run(base_url: str, *, singly: bool, own: bool, calls: int) -> tuple[float, float, int]:
    """(client CPU per call, µs; calls per second; requests)."""
    settings = {"batching": Batching(max_size=1)} if singly else {}
    async with BatchClient(base_url, model="m", dialect="sglang", preset="throughput", limit=256, **settings) as client:
        await client.complete("warm", max_tokens=1)
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.gather(
            *[client.complete(f"Question {i}:", max_tokens=1, seed=i if own else 1) for i in range(calls)]
        )
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
        return 1e6 * cpu / calls, calls / seconds, client.statistics().batches - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    seen: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ARMS}
    with EmbeddedServer("instant", process=True, model="m", guise="sglang") as server:
        for _ in range(arguments.repetitions):
            for name, (singly, own) in ARMS.items():
                seen[name].append(asyncio.run(run(server.base_url, singly=singly, own=own, calls=arguments.calls)))
    rows = [
        [name, *(f"{median([one[k] for one in runs]):,.0f} ({spread([one[k] for one in runs])})" for k in range(3))]
        for name, runs in seen.items()
    ]
    print(machine_line(machine()))
    print(table(["", "client CPU per call, µs", "calls/s", "requests"], rows))


if __name__ == "__main__":
    main()
