"""Cost of measuring: what the generator of ``batchclient bench`` adds. Exits with 1 past a bar.

    python benchmarks/measuring.py

- Recording: CPU time and bytes of a call in the table of calls.
- Lateness: how late calls begin at 2,000 arrivals a second, with answers after 50 ms and no client.
"""

from __future__ import annotations

import asyncio
import sys
import time

from _common import machine, machine_line, median, table

from batchclient.bench import Poisson, Times
from batchclient.bench.calls import Calls
from batchclient.bench.generator import generate
from batchclient.bench.intervals import quantile

MOST_US, MOST_BYTES, MOST_LATE_MS = 5.0, 200.0, 5.0
CALLS, ROUNDS, RATE = 200_000, 5, 2000.0
COLUMNS = ("scheduled", "begun", "sent", "first", "ended", "prompt_tokens", "output_tokens", "attempts", "outcomes")


def recorded() -> tuple[float, float]:
    """CPU microseconds and bytes of a call."""
    calls = Calls()
    began = time.process_time()
    for number in range(CALLS):
        place = calls.begin(number, number)
        calls.note_request(place, number)
        calls.first[place] = number + 0.1
        calls.answered(place, number, 100, 10)
    seconds = time.process_time() - began
    return seconds / CALLS * 1e6, sum(sys.getsizeof(getattr(calls, name)) for name in COLUMNS) / CALLS


async def lateness_ms() -> list[float]:
    """How late each call of the window began, milliseconds, ascending."""
    loop = asyncio.get_running_loop()

    async def call(_prompt: str, calls: Calls, place: int) -> None:
        await asyncio.sleep(0.05)
        calls.answered(place, loop.time(), 1, 1)

    window = await generate(call, Poisson(RATE), iter(lambda: "", None), Times(1, 5, 5), 7)
    calls = window.calls
    pairs = zip(calls.begun, calls.scheduled, strict=True)
    return sorted((begun - due) * 1e3 for begun, due in pairs if window.begins <= due < window.ends)


def main() -> None:
    costs = [recorded() for _ in range(ROUNDS)]
    late = [asyncio.run(lateness_ms()) for _ in range(3)]
    rows = [
        ("recording a call, µs", median([us for us, _ in costs]), MOST_US),
        ("a recorded call, bytes", median([size for _, size in costs]), MOST_BYTES),
        (f"late at {RATE:,.0f} calls/s, p50, ms", median([quantile(each, 0.5) for each in late]), None),
        (f"late at {RATE:,.0f} calls/s, p99, ms", median([quantile(each, 0.99) for each in late]), MOST_LATE_MS),
    ]
    print(machine_line(machine()))
    print(table(["", "measured", "bar"], [[name, f"{value:.2f}", f"{bar or '':}"] for name, value, bar in rows]))
    sys.exit(any(bar is not None and value > bar for _, value, bar in rows))


if __name__ == "__main__":
    main()
