"""A million documents through ``client.stream_map`` on the instant server, every answer checked.

    python benchmarks/million.py --count 1000000

Measured are the documents/s and the memory during the run. The documents come from a generator. One
byte of each document is kept (answered or not), so any memory that grows is the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import instant_server, machine, provenance, server_counts, table, write_results

from batchclient import BatchClient

EVERY = 50_000


def documents(count: int) -> Iterator[str]:
    for i in range(count):
        yield f"{i:016x} please summarise the quarterly report in one line"


def memory_mib(field: str = "VmRSS") -> float:
    """Return memory in MiB: ``VmRSS`` is the resident memory now, ``VmHWM`` its peak."""
    with Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def check(row: Any) -> None:
    if row.error is not None:
        raise row.error
    if row.completion.text != "echo:" + row.document[:16] or int(row.document[:16], 16) != row.index:
        raise AssertionError(f"a wrong answer to document {row.index}: {row.completion.text!r}")


async def run(base_url: str, count: int, max_tokens: int, settings: dict[str, Any]) -> dict[str, Any]:
    answered = bytearray(count)
    samples: list[dict[str, float]] = []
    async with BatchClient(base_url, model="instant", dialect="vllm", **settings) as client:
        cpu, wall = time.process_time(), time.perf_counter()

        def sample(done: int) -> None:
            passed = time.perf_counter() - wall
            samples.append({"documents": done, "wall_s": passed, "rss_mib": memory_mib()})
            print(f"  {done:>9,} documents, {done / passed if done else 0:8,.0f}/s, {memory_mib():.1f} MiB", flush=True)

        sample(0)
        done = 0
        async for row in client.stream_map(documents(count), "{}", max_tokens=max_tokens):
            check(row)
            assert not answered[row.index], f"document {row.index} came twice"
            answered[row.index] = 1
            done += 1
            if done % EVERY == 0:
                sample(done)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    assert sum(answered) == count, "not every document came back"
    return {
        "documents": count,
        "max_tokens": max_tokens,
        "documents_per_s": count / wall_s,
        "cpu_us_per_document": cpu_s / count * 1e6,
        "peak_mib": memory_mib("VmHWM"),
        "growth_mib": samples[-1]["rss_mib"] - samples[min(1, len(samples) - 1)]["rss_mib"],
        "samples": samples,
    }


def markdown(facts: dict[str, Any], result: dict[str, Any]) -> str:
    figures = (result["documents"], result["documents_per_s"], result["cpu_us_per_document"], result["peak_mib"])
    row = [f"{figure:,.{digits}f}" for figure, digits in zip(figures, (0, 0, 1, 0), strict=True)]
    shown = table(("documents", "documents/s", "client CPU µs/document", "peak MiB"), [row])
    return f"{shown}\n\n{provenance(facts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--max-tokens", type=int, default=1, help="above 4 the lists are streamed")
    parser.add_argument("--preset", default="throughput")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--name", default="million", help="file name of the results")
    options = parser.parse_args()
    facts = machine()
    with instant_server() as base_url:
        settings = {"preset": options.preset, "limit": options.limit}
        result = asyncio.run(run(base_url, options.count, options.max_tokens, settings))
        counts = server_counts(base_url)
    text = markdown(facts, result)
    write_results(options.name, {"machine": facts, **result, "list_sizes": counts["list_sizes"]}, text)
    print(text)


if __name__ == "__main__":
    main()
