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
import contextlib
import resource
import socket
import subprocess
import sys
import time

from _common import machine, machine_line, median, spread, table

from batchclient import BatchClient, Batching

ARMS = {
    "one seed for all": (False, False),
    "a seed each, mixed lists": (False, True),
    "a seed each, singly": (True, True),
}
"""Whether calls go singly, and whether each has a seed of its own."""


async def run(port: int, *, singly: bool, own: bool, calls: int) -> tuple[float, float, int]:
    """(client CPU per call, µs; calls per second; requests)."""
    settings = {"batching": Batching(max_size=1)} if singly else {}
    async with BatchClient(
        f"http://127.0.0.1:{port}/v1", model="m", dialect="sglang", preset="throughput", limit=256, **settings
    ) as client:
        await client.complete("warm", max_tokens=1)
        cpu, began = cpu_s(), time.perf_counter()
        await asyncio.gather(
            *[client.complete(f"Question {i}:", max_tokens=1, seed=i if own else 1) for i in range(calls)]
        )
        cpu, seconds = cpu_s() - cpu, time.perf_counter() - began
        return 1e6 * cpu / calls, calls / seconds, client.statistics().batches - 1


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_up(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit("the server did not come up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "batchclient",
        "simulate",
        "--port",
        str(port),
        "--model",
        "m",
        "--guise",
        "sglang",
    ]
    server = subprocess.Popen([*command, "--profile", "instant"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_up(port)
        seen: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ARMS}
        for _ in range(arguments.repetitions):
            for name, (singly, own) in ARMS.items():
                seen[name].append(asyncio.run(run(port, singly=singly, own=own, calls=arguments.calls)))
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
    rows = [
        [name, *(f"{median([one[k] for one in runs]):,.0f} ({spread([one[k] for one in runs])})" for k in range(3))]
        for name, runs in seen.items()
    ]
    print(machine_line(machine()))
    print(table(["", "client CPU per call, µs", "calls/s", "requests"], rows))


if __name__ == "__main__":
    main()
