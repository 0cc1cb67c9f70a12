"""Cost of being watched: counting in the core, and pages for Prometheus. Exits with 1 past a bar.

    python benchmarks/observing.py
    python benchmarks/observing.py --before v0.1.0 --repetitions 9

- Counting: CPU time of the scheduler per call, in plain lists of 64, against an earlier revision.
  Both are measured in turns, each time in a process of its own; the least of each counts. By
  default the revision is the last one without histograms.
- A scrape: wall time and CPU time of a page for 8 servers, two kinds of calls and all sizes of
  requests. A scrape each second costs the share of a core that its CPU time is of a second.
- The loop: how long the event loop is held by a scrape.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from urllib.request import urlopen

from _common import machine, machine_line, median, table

from batchclient import BatchClient
from batchclient.integrations.prometheus import serve
from batchclient.testing import MockLLM

ROOT = Path(__file__).resolve().parents[1]
MOST_COUNTING_US = 0.8
MOST_SHARE = 0.01
MOST_SCRAPE_MS = 10.0
MOST_HOLD_MS = 10.0
SERVERS = 8
SIZES = (1, 3, 7, 15, 31, 63)
SCRAPES = 50
_ONE_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1]); import core_cost;"
    " print(core_cost.window_us(100, *core_cost.KINDS['all in the queue']))"
)


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def last_without_histograms() -> str:
    """The first parent of the commit that added the histograms."""
    added = git("log", "--diff-filter=A", "--format=%H", "--", "src/batchclient/_core/histograms.py").split()
    return f"{added[-1].decode()}^"


def cpu_us(source: Path) -> float:
    """CPU microseconds of the scheduler per call, in a process of its own."""
    command = [sys.executable, "-c", _ONE_RUN, str(ROOT / "benchmarks")]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(source)}
    )
    return float(done.stdout)


def counting_us(revision: str, repetitions: int) -> tuple[float, float]:
    """The least of the earlier revision's runs, and of this tree's."""
    before, now = [], []
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(git("archive", revision, "src"))) as archive:
            archive.extractall(folder, filter="data")
        for _ in range(repetitions):
            before.append(cpu_us(Path(folder) / "src"))
            now.append(cpu_us(ROOT / "src"))
    return min(before), min(now)


async def scrapes() -> tuple[list[float], float, list[float]]:
    """Milliseconds of each scrape, CPU milliseconds of one, milliseconds of each hold."""
    mock = MockLLM()
    urls = [f"http://server-{number}:8000/v1" for number in range(SERVERS)]
    async with BatchClient(urls, model="m", transport=mock.transport, limit=64) as client:
        for size in SIZES:
            for _ in range(4):
                calls = [client.complete(f"p{n}", max_tokens=1) for n in range(size * SERVERS)]
                chats = [client.chat([{"role": "user", "content": str(n)}], max_tokens=1) for n in range(size)]
                await asyncio.gather(*calls, *chats)
        held = []
        for _ in range(SCRAPES):
            started = time.perf_counter()
            client.statistics()
            held.append((time.perf_counter() - started) * 1e3)
        with serve(client, 0) as server:
            took: list[float] = []

            def scrape() -> None:
                for _ in range(SCRAPES):
                    started = time.perf_counter()
                    with urlopen(f"{server.url}/metrics") as page:
                        page.read()
                    took.append((time.perf_counter() - started) * 1e3)

            thread, started = threading.Thread(target=scrape), time.process_time()
            thread.start()
            await asyncio.to_thread(thread.join)
            cpu_ms = (time.process_time() - started) / SCRAPES * 1e3
    return took, cpu_ms, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="the earlier revision (default: the last one without histograms)")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    before, now = counting_us(options.before or last_without_histograms(), options.repetitions)
    took, cpu_ms, held = asyncio.run(scrapes())
    bars = [
        ("counting, CPU µs a call", f"{now - before:+.2f} ({before:.2f} to {now:.2f})", MOST_COUNTING_US, now - before),
        ("a scrape each second, share of a core", f"{cpu_ms / 1e3:.2%}", MOST_SHARE, cpu_ms / 1e3),
        ("a scrape, ms, median", f"{median(took):.1f}", MOST_SCRAPE_MS, median(took)),
        ("the loop held by a scrape, ms, median", f"{median(held):.2f}", MOST_HOLD_MS, median(held)),
    ]
    print(machine_line(machine()))
    print(table(("", "measured", "at most"), [[name, said, f"{most:g}"] for name, said, most, _ in bars]))
    missed = [name for name, _, most, measured in bars if measured > most]
    if missed:
        sys.exit(f"past the bar: {', '.join(missed)}")


if __name__ == "__main__":
    main()
