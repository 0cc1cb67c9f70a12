"""What a journal costs a map, in pairs with it and without, and how long a resume takes.

    python benchmarks/journal.py                     # pairs, then a job of a million rows and its resume
    python benchmarks/journal.py --pairs 5 --rows 100000 --resume 0
    python benchmarks/journal.py --check             # exit status 1 if a bar is missed

Measured are rows/s, client CPU a row, the lateness of the event loop and the peak of memory. Pairs
are interleaved. Each run is a process of its own, against one instant server with answers of some
1 KB. The resume is of a finished job: every row is read back from the journal, and the server must
see no request.

The bars: at most 18 µs CPU a row more than without, at least 0.65 of the rows/s, the event loop at
most 10 ms late (p99), at most 20 MiB more memory; a resume of a million rows in 15 s and 150 MiB,
without a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import (
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
from million import check, documents, memory_mib

from batchclient import BatchClient

PAD = 640
"""So an answer's body in the journal has about 1 KB."""
BARS = {"cpu_us": 18.0, "rows_ratio": 0.65, "late_ms": 10.0, "more_mib": 20.0, "resume_s": 15.0, "resume_mib": 150.0}


async def run(base_url: str, rows: int, journal: str | None, max_tokens: int, *, resume: bool) -> dict[str, Any]:
    late: list[float] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + 0.005
            await asyncio.sleep(0.005)
            late.append(loop.time() - wanted)

    settings: dict[str, Any] = {"model": "instant", "dialect": "vllm", "preset": "throughput", "limit": 64}
    async with BatchClient(base_url, **settings) as client:
        watcher = asyncio.create_task(watch())
        cpu, wall = time.process_time(), time.perf_counter()
        done = reused = 0
        async for row in client.stream_map(
            documents(rows), "{}", max_tokens=max_tokens, journal=journal, resume=resume
        ):
            if row.error is not None or not row.completion.text.startswith("echo:" + row.document[:16]):
                check(row)
            done += 1
            reused += row.reused
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        watcher.cancel()
    assert done == rows, f"{done} rows of {rows}"
    return {
        "rows_per_s": rows / wall_s,
        "cpu_us": cpu_s / rows * 1e6,
        "wall_s": wall_s,
        "late_ms": percentile(late, 0.99) * 1e3 if late else 0.0,
        "peak_mib": memory_mib("VmHWM"),
        "reused": reused,
    }


def in_a_process(
    base_url: str, rows: int, journal: Path | None, max_tokens: int, *, resume: bool = False
) -> dict[str, Any]:
    given = {
        "base_url": base_url,
        "rows": rows,
        "journal": journal and str(journal),
        "max_tokens": max_tokens,
        "resume": resume,
    }
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(given)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def pairs(base_url: str, folder: Path, rows: int, count: int, max_tokens: int) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {"none": [], "journal": []}
    for number in range(count):
        for arm in random.sample(list(runs), 2):
            path = folder / f"{max_tokens}-{number}.sqlite"
            result = in_a_process(base_url, rows, path if arm == "journal" else None, max_tokens)
            result["load"] = os.getloadavg()[0]
            runs[arm].append(result)
            print(
                f"  {number + 1}/{count} {arm:8} {result['rows_per_s']:8,.0f} rows/s {result['cpu_us']:6.1f} µs"
                f" {result['late_ms']:5.1f} ms late {result['peak_mib']:6.1f} MiB, load {result['load']:.1f}",
                flush=True,
            )
            for left in folder.glob(f"{path.name}*"):
                left.unlink()
    return runs


def compare(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Medians of the pairs' differences: the machine is another one from minute to minute."""
    both = list(zip(runs["none"], runs["journal"], strict=True))
    return {
        "cpu_us": median([kept["cpu_us"] - plain["cpu_us"] for plain, kept in both]),
        "rows_ratio": median([kept["rows_per_s"] / plain["rows_per_s"] for plain, kept in both]),
        "more_mib": median([kept["peak_mib"] - plain["peak_mib"] for plain, kept in both]),
        "late_ms": median([kept["late_ms"] for _, kept in both]),
    }


def shortfalls(result: dict[str, Any]) -> list[str]:
    found = []
    for name, value in {**result.get("cost", {}), **result.get("resume", {})}.items():
        bar = BARS.get(name)
        if bar is not None and (value < bar if name == "rows_ratio" else value > bar):
            found.append(f"{name}: {value:.2f}, the bar is {bar:g}")
    if result.get("resume", {}).get("requests"):
        found.append(f"the resume sent {result['resume']['requests']} requests")
    return found


def resumed(base_url: str, folder: Path, rows: int) -> dict[str, Any]:
    path = folder / "job.sqlite"
    first = in_a_process(base_url, rows, path, 1)
    print(f"  {rows:,} rows written: {first['rows_per_s']:,.0f} rows/s, {first['peak_mib']:.1f} MiB", flush=True)
    before = server_counts(base_url)["requests"]
    load = os.getloadavg()[0]
    again = in_a_process(base_url, rows, path, 1, resume=True)
    assert again["reused"] == rows, again
    result = {
        "rows": rows,
        "write_rows_per_s": first["rows_per_s"],
        "write_mib": first["peak_mib"],
        "journal_mb": path.stat().st_size / 1e6,
        "resume_s": again["wall_s"],
        "resume_cpu_us": again["cpu_us"],
        "resume_mib": again["peak_mib"],
        "requests": server_counts(base_url)["requests"] - before,
        "load": load,
    }
    print(f"  resumed in {result['resume_s']:.1f} s, {result['resume_mib']:.1f} MiB, load {load:.1f}", flush=True)
    return result


def markdown(facts: dict[str, Any], result: dict[str, Any]) -> str:
    parts = ["# What a journal costs a map", machine_line(facts)]
    if "runs" in result:
        rows = []
        for arm, runs in result["runs"].items():
            cells = [
                f"{median([run[name] for run in runs]):,.1f}"
                for name in ("rows_per_s", "cpu_us", "late_ms", "peak_mib")
            ]
            rows.append(
                [arm, *cells, spread([run["rows_per_s"] for run in runs]), spread([run["load"] for run in runs])]
            )
        parts.append(
            table(("journal", "rows/s", "CPU µs a row", "loop late p99 ms", "peak MiB", "rows/s, all", "load"), rows)
        )
        cost = result["cost"]
        parts.append(
            f"Medians of the pairs: {cost['cpu_us']:+.1f} µs CPU a row, {cost['rows_ratio']:.2f} of the rows/s, "
            f"{cost['more_mib']:+.1f} MiB."
        )
    if "resume" in result:
        again = result["resume"]
        parts.append(
            f"{again['rows']:,} rows: written at {again['write_rows_per_s']:,.0f} rows/s "
            f"({again['journal_mb']:,.0f} MB, {again['write_mib']:.0f} MiB at the most); "
            f"resumed in {again['resume_s']:.1f} s, {again['resume_cpu_us']:.1f} µs CPU a row, "
            f"{again['resume_mib']:.0f} MiB at the most, {again['requests']} requests, at load {again['load']:.1f}."
        )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--max-tokens", type=int, default=1, help="above 4 the lists are streamed")
    parser.add_argument("--resume", type=int, default=1_000_000, help="rows of the job that is resumed; 0: none")
    parser.add_argument("--folder", help="where the journals lie, on a local disk")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--name", default="journal", help="file name of the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        given = json.loads(options.child)
        resume = given.pop("resume")
        print(json.dumps(asyncio.run(run(**given, resume=resume))))
        return
    facts = machine()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, instant_server(pad=PAD) as base_url:
        if options.pairs:
            result["runs"] = pairs(base_url, Path(folder), options.rows, options.pairs, options.max_tokens)
            result["cost"] = compare(result["runs"])
        if options.resume:
            result["resume"] = resumed(base_url, Path(folder), options.resume)
    text = markdown(facts, result)
    write_results(options.name, {"machine": facts, **result}, text)
    print(text)
    missed = shortfalls(result)
    print("\n".join(missed) or "every bar is met")
    if options.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
