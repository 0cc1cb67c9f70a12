"""Rows per second through Ray Data, beside the same client without Ray, on the instant server.

    .ray/bin/python benchmarks/ray_rows.py --count 100000

The environment is that of `make test-ray`. Each round has both arms, one after the other. The time
of Ray's arm runs from the data set to its last row, with the actor's start; the time of the rows
alone begins with the first request at the server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from threading import Thread

from _common import instant_server, median, server_counts

from batchclient import BatchClient

SETTINGS = {"model": "instant", "dialect": "vllm", "preset": "throughput"}


def texts(count: int) -> list[dict[str, str]]:
    return [{"text": f"{number:016x} please summarise the quarterly report in one line"} for number in range(count)]


async def alone(base_url: str, count: int) -> float:
    started = time.perf_counter()
    async with BatchClient(base_url, **SETTINGS) as client:
        answers = await client.batch_map(texts(count), "{text}", max_tokens=1)
    assert len(answers) == count
    return time.perf_counter() - started


def through_ray(base_url: str, count: int) -> tuple[float, float]:
    """Return the seconds of the whole, and those from the first request on."""
    import ray

    from batchclient.integrations.ray import MapBatches

    dataset = ray.data.from_items(texts(count), override_num_blocks=max(1, count // 10_000)).materialize()
    before = server_counts(base_url)["prompts"]
    first: list[float] = []

    def watch() -> None:
        while server_counts(base_url)["prompts"] == before:
            time.sleep(0.02)
        first.append(time.perf_counter())

    Thread(target=watch, daemon=True).start()
    started = time.perf_counter()
    done = dataset.map_batches(
        MapBatches,
        fn_constructor_kwargs={"base_url": base_url, "prompt": "{text}", "max_tokens": 1, **SETTINGS},
        compute=ray.data.ActorPoolStrategy(size=1),
        batch_size=1024,
        max_concurrency=4,
    ).materialize()
    ended = time.perf_counter()
    assert sum(row["error"] is None for row in done.iter_rows()) == count
    return ended - started, ended - first[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    arms: dict[str, list[float]] = {"alone": [], "Ray, with its start": [], "Ray, from the first request": []}
    with instant_server() as base_url:
        for _ in range(args.rounds):
            arms["alone"].append(args.count / asyncio.run(alone(base_url, args.count)))
            whole, rows = through_ray(base_url, args.count)
            arms["Ray, with its start"].append(args.count / whole)
            arms["Ray, from the first request"].append(args.count / rows)
    for name, rates in arms.items():
        print(f"{name}: {median(rates):,.0f} rows/s ({', '.join(f'{rate:,.0f}' for rate in rates)})")


if __name__ == "__main__":
    main()
