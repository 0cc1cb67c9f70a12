"""One worker of a Redis stream: messages/s, CPU a message, and memory beside a long queue.

    python benchmarks/redis_worker.py                # 200,000 messages, then a queue of a million
    python benchmarks/redis_worker.py --messages 50000 --queued 0
    python benchmarks/redis_worker.py --check        # exit status 1 if a bar is missed

The worker is ``batchclient.integrations.redis.Worker`` in a process of its own, with the defaults
of ``batchclient work``: lists of 32 prompts, results as keys. Redis writes its log to the disk
(AOF, ``everysec``), and the instant server answers at once; both are on the same machine.
``scripts/environments.py`` fetches the server.

The bars: at least 8,000 messages/s, at most 115 µs CPU a message, and at most 10 MiB more memory
beside a queue of a million messages than beside a short one. A message is a task and a call of the
client: half as much again as the 76 µs of a worker that was part of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import (
    documents,
    in_a_process,
    instant_server,
    machine,
    median,
    memory_mib,
    provenance,
    report,
    shortfalls,
    table,
)
from redis.asyncio import Redis

from batchclient import BatchClient, Batching
from batchclient.integrations.redis import Worker, enqueue

ROOT = Path(__file__).parent.parent
BARS = {"messages_per_s": 8_000.0, "cpu_us": 115.0, "more_mib": 10.0}
STREAM = "inference_queue"


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A redis-server with its log on the disk; yields the path of its socket."""
    found = shutil.which("redis-server") or str(ROOT / ".cache/redis/bin/redis-server")
    socket = str(folder / "redis.sock")
    command = [found, "--port", "0", "--unixsocket", socket, "--dir", str(folder), "--appendonly", "yes", "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not Path(socket).exists():
            if process.poll() is not None:
                raise SystemExit("redis-server did not start; scripts/environments.py fetches one")
            time.sleep(0.05)
        yield socket
    finally:
        process.terminate()
        process.wait()


async def work(base_url: str, socket: str, messages: int) -> dict[str, Any]:
    redis = Redis(unix_socket_path=socket)
    batching = Batching(max_size=32, linger_s=0.1)
    async with BatchClient(base_url, model="instant", dialect="vllm", preset="throughput", batching=batching) as client:
        worker = Worker(client, redis, STREAM, results="keys")
        running = asyncio.create_task(worker.run())
        cpu, wall = time.process_time(), time.perf_counter()
        while worker.statistics().results < messages and not running.done():
            await asyncio.sleep(0.02)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        done = worker.statistics().results
        worker.stop()
        await running
    await redis.aclose()
    return {
        "messages_per_s": done / wall_s,
        "cpu_us": cpu_s / done * 1e6,
        "peak_mib": memory_mib("VmHWM"),
        "done": done,
        "load": os.getloadavg()[0],
    }


async def fill(socket: str, count: int) -> float:
    redis = Redis(unix_socket_path=socket)
    await redis.flushall()
    began = time.perf_counter()
    await enqueue(
        redis,
        ({"id": f"doc-{number}", "prompt": text, "max_tokens": 4} for number, text in enumerate(documents(count))),
        stream=STREAM,
        max_queued=10 * count,
    )
    took_s = time.perf_counter() - began
    await redis.aclose()
    return count / took_s


def measure(base_url: str, socket: str, options: argparse.Namespace) -> dict[str, Any]:
    runs = []
    result: dict[str, Any] = {}
    given = {"base_url": base_url, "socket": socket, "messages": options.messages}
    for number in range(options.runs):
        result["enqueued_per_s"] = asyncio.run(fill(socket, options.messages))
        run = in_a_process(__file__, given)
        runs.append(run)
        print(
            f"  {number + 1}/{options.runs} {run['messages_per_s']:8,.0f} messages/s {run['cpu_us']:6.1f} µs"
            f" {run['peak_mib']:6.1f} MiB, load {run['load']:.1f}",
            flush=True,
        )
    result |= {name: median([run[name] for run in runs]) for name in ("messages_per_s", "cpu_us", "peak_mib")}
    result["runs"] = runs
    if options.queued:
        # As many messages are done as in the runs before: the queue alone is longer.
        result["enqueued_per_s"] = asyncio.run(fill(socket, options.queued))
        long = in_a_process(__file__, given)
        result["queued"] = options.queued
        result["queued_mib"] = long["peak_mib"]
        result["queued_per_s"] = long["messages_per_s"]
        result["more_mib"] = long["peak_mib"] - result["peak_mib"]
        print(f"  {options.queued:,} queued: {long['peak_mib']:.1f} MiB, {long['messages_per_s']:,.0f} messages/s")
    return result


def markdown(facts: dict[str, Any], result: dict[str, Any]) -> str:
    row = [f"{result['messages_per_s']:,.0f}", f"{result['cpu_us']:.1f}", f"{result['peak_mib']:.1f}"]
    row.append(f"{result['queued']:,}: {result['queued_mib']:.1f} MiB" if "queued" in result else "")
    header = ("messages/s", "CPU µs a message", "peak MiB", "beside a queue of")
    return f"{table(header, [row])}\n\n{provenance(facts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--queued", type=int, default=1_000_000, help="messages of the long queue; 0: none")
    parser.add_argument("--folder", help="where the log of Redis lies, on a local disk")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--name", default="redis_worker", help="file name of the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asyncio.run(work(**json.loads(options.child)))))
        return
    facts = machine()
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        instant_server() as base_url,
        redis_server(Path(folder)) as socket,
    ):
        result = measure(base_url, socket, options)
    missed = shortfalls("the worker", result, BARS, at_least="messages_per_s")
    report(options.name, {"machine": facts, **result}, markdown(facts, result), missed, check=options.check)


if __name__ == "__main__":
    main()
