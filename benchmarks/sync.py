"""Cost of a blocking call: ``SyncBatchClient`` in threads, ``BatchClient``, ``openai.OpenAI``.

    python benchmarks/sync.py                         # 1, 16 and 256 callers, about two minutes
    python benchmarks/sync.py --callers 64 --repetitions 3

``BatchClient`` has as many calls in flight; ``openai.OpenAI`` runs in threads. All clients talk to
``instant_server.py`` (another process, loopback) in one run. Each repetition has a new order, and
each client is fresh and warmed up first. Every caller makes one call after the other. CPU is that
of the whole process, threads included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import openai
from _common import (
    Measured,
    closed_loop,
    instant_server,
    machine,
    machine_line,
    median,
    percentile,
    server_counts,
    spread,
    table,
    write_results,
)
from overhead import MODEL, expected, prompts

from batchclient import BatchClient, SyncBatchClient

SETTINGS: dict[str, Any] = {"model": MODEL, "dialect": "vllm", "limit": 256}
PARAMS: dict[str, Any] = {"max_tokens": 1}
HEADER = ("callers", "client", "calls/s", "CPU µs/call", "min to max", "p50 ms", "p95 ms", "mean list")
LABELS = {
    "sync": "SyncBatchClient, threads",
    "gather": "BatchClient, tasks",
    "openai": "openai.OpenAI, threads",
}

Blocking = Callable[[str], str]


@contextlib.contextmanager
def ours(base_url: str) -> Iterator[Blocking]:
    with SyncBatchClient(base_url, **SETTINGS) as client:
        yield lambda prompt: client.complete(prompt, **PARAMS).text


@contextlib.contextmanager
def theirs(base_url: str) -> Iterator[Blocking]:
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        yield lambda prompt: client.completions.create(model=MODEL, prompt=prompt, **PARAMS).choices[0].text


def threaded_loop(call: Blocking, texts: Sequence[str], callers: int) -> Measured:
    """Keep ``callers`` threads calling until every prompt is answered.

    The threads' start is not measured.
    """
    pending = iter(texts)
    latencies: list[float] = []
    wrong: list[str] = []
    now = time.perf_counter
    ready = threading.Barrier(callers + 1)

    def work() -> None:
        ready.wait()
        for prompt in pending:
            started = now()
            text = call(prompt)
            latencies.append(now() - started)
            if text != expected(prompt):
                wrong.append(prompt)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    gc.collect()
    gc.freeze()
    cpu, wall = time.process_time(), now()
    ready.wait()
    for thread in threads:
        thread.join()
    wall_s, cpu_s = now() - wall, time.process_time() - cpu
    gc.unfreeze()
    assert not wrong and len(latencies) == len(texts)
    return Measured(
        len(texts),
        wall_s,
        cpu_s,
        percentile(latencies, 0.5) * 1e3,
        percentile(latencies, 0.95) * 1e3,
        statistics.fmean(latencies) * 1e3,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one client."""

    measured: Measured
    mean_list: float


def run(name: str, base_url: str, callers: int, wall_target_s: float) -> Run:
    """Warm a fresh client up, learn its speed, then measure for ``wall_target_s``."""
    if name == "gather":
        return asyncio.run(run_tasks(base_url, callers, wall_target_s))
    with (ours if name == "sync" else theirs)(base_url) as call:
        threaded_loop(call, prompts(2 * callers + 20), callers)
        trial = threaded_loop(call, prompts(4 * callers + 100), callers)
        count = calls_for(trial, callers, wall_target_s)
        before = server_counts(base_url)
        measured = threaded_loop(call, prompts(count), callers)
        return Run(measured, mean_list(before, server_counts(base_url)))


async def run_tasks(base_url: str, callers: int, wall_target_s: float) -> Run:
    async with BatchClient(base_url, **SETTINGS) as client:

        async def call(prompt: str) -> str:
            return (await client.complete(prompt, **PARAMS)).text

        await closed_loop(call, prompts(2 * callers + 20), callers, expected)
        trial = await closed_loop(call, prompts(4 * callers + 100), callers, expected)
        count = calls_for(trial, callers, wall_target_s)
        before = server_counts(base_url)
        measured = await closed_loop(call, prompts(count), callers, expected)
        return Run(measured, mean_list(before, server_counts(base_url)))


def calls_for(trial: Measured, callers: int, wall_target_s: float) -> int:
    return max(4 * callers, min(50_000, int(wall_target_s * trial.calls_per_s)))


def mean_list(before: dict[str, Any], after: dict[str, Any]) -> float:
    requests = after["requests"] - before["requests"]
    return float((after["prompts"] - before["prompts"]) / requests)


def ratio(runs: dict[str, list[Run]], other: str) -> list[float]:
    """CPU per call, ours by another's, within each repetition."""
    pairs = zip(runs["sync"], runs[other], strict=True)
    return [mine.measured.cpu_us / its.measured.cpu_us for mine, its in pairs]


def rows(results: dict[int, dict[str, list[Run]]]) -> list[list[str]]:
    lines = []
    for callers, runs in results.items():
        for name, done in runs.items():
            cpu = [one.measured.cpu_us for one in done]
            lines.append(
                [
                    str(callers),
                    LABELS[name],
                    f"{median([one.measured.calls_per_s for one in done]):,.0f}",
                    f"{median(cpu):.0f}",
                    spread(cpu),
                    f"{median([one.measured.p50_ms for one in done]):.2f}",
                    f"{median([one.measured.p95_ms for one in done]):.2f}",
                    f"{median([one.mean_list for one in done]):.1f}",
                ]
            )
    return lines


def ratio_rows(results: dict[int, dict[str, list[Run]]]) -> list[list[str]]:
    return [
        [
            f"{callers} callers: CPU per call, SyncBatchClient / {LABELS[other]}",
            f"{median(values):.3g} ×",
            spread(values),
        ]
        for callers, runs in results.items()
        for other in ("openai", "gather")
        for values in [ratio(runs, other)]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--wall-s", type=float, default=1.5, help="seconds per run")
    parser.add_argument("--name", default="sync", help="file name of the results")
    options = parser.parse_args()
    facts = machine()
    results: dict[int, dict[str, list[Run]]] = {callers: {name: [] for name in LABELS} for callers in options.callers}
    with instant_server() as base_url:
        for repetition in range(options.repetitions):
            for callers in random.sample(options.callers, len(options.callers)):
                for name in random.sample(list(LABELS), len(LABELS)):
                    done = run(name, base_url, callers, options.wall_s)
                    results[callers][name].append(done)
                    shown = f"{done.measured.cpu_us:8.1f} µs/call {done.measured.calls_per_s:8.0f} calls/s"
                    print(f"  {repetition + 1}/{options.repetitions} {callers:4} {name:8} {shown}", flush=True)
    markdown = "\n".join(
        [
            "# What a blocking call costs the client\n",
            machine_line(facts) + "\n",
            (
                f"`max_tokens=1`, `limit=256`, preset balanced; "
                f"medians of {options.repetitions} interleaved repetitions.\n"
            ),
            table(("figure", "median", "min to max"), ratio_rows(results)) + "\n",
            table(HEADER, rows(results)),
        ]
    )
    data = {
        "machine": facts,
        "callers": {
            str(callers): {
                name: [{**asdict(one), "cpu_us": one.measured.cpu_us} for one in done] for name, done in runs.items()
            }
            for callers, runs in results.items()
        },
    }
    write_results(options.name, data, markdown)
    print(markdown)


if __name__ == "__main__":
    main()
