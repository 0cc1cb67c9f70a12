"""Cost of being watched: counting in the core, and pages for Prometheus. Exits with 1 past a bar.

    python benchmarks/observing.py
    python benchmarks/observing.py --before v0.1.0 --repetitions 9

- Counting: CPU time of the scheduler per call, in plain lists of 64, against an earlier revision.
  Both are measured in turns, each time in a process of its own; the least of each counts. By
  default the revision is the last one without histograms.
- A scrape: wall time and CPU time of a page for 8 servers, two kinds of calls and all sizes of
  requests. A scrape each second costs the share of a core that its CPU time is of a second.
- The loop: how long the event loop is held by a scrape.
- Spans: CPU time of the whole process per call, in plain lists of 64, against a client without
  telemetry, in one run. The clients take turns; the median of the differences counts. Beside them
  stand spans by hand: a span around each call of a client without telemetry, with as many
  attributes. They show the share of the SDK, and have no bar. Rows of a map are held against a map
  without telemetry.

``--only spans`` measures the spans alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import json
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
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind

from batchclient import BatchClient, Batching, Telemetry
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
MOST_SPANS_US = {"no SDK": 0.6, "ratio 0.01": 4.0, "all": 22.0, "one row in 100": 4.0}
LIST = 64
LISTS = 60
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


class Answered:
    """A reply in memory: one choice for each prompt of a list."""

    status = 200
    headers: dict[str, str] = {"content-type": "application/json"}  # noqa: RUF012

    def __init__(self, prompts: int) -> None:
        choices = [{"index": index, "text": "a b c", "finish_reason": "stop"} for index in range(prompts)]
        usage = {"prompt_tokens": 4 * prompts, "completion_tokens": 3 * prompts, "total_tokens": 7 * prompts}
        self._body = json.dumps({"id": "cmpl-1", "model": "m", "choices": choices, "usage": usage}).encode()

    async def chunks(self):
        yield self._body

    async def aclose(self) -> None:
        pass


class AnswersAtOnce:
    """A transport that sends nothing."""

    def __init__(self, *_: object) -> None:
        pass

    async def send(self, request, timeouts) -> Answered:
        prompts = json.loads(request.body)["prompt"]
        return Answered(len(prompts) if isinstance(prompts, list) else 1)

    async def aclose(self) -> None:
        pass


class Dropped(SpanExporter):
    """Takes every span and keeps none."""

    def export(self, spans) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def provider_of(sampler) -> TracerProvider:
    """Spans into a batch processor of the SDK."""
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    return provider


AT_FIRST = {
    "gen_ai.operation.name": "text_completion", "gen_ai.request.model": "m", "gen_ai.request.max_tokens": 8,
    "gen_ai.request.temperature": 0.5, "gen_ai.provider.name": "openai",
}  # fmt: skip
AT_LAST = {
    "batchclient.request.size": 64, "server.address": "server", "server.port": 80, "batchclient.queue_s": 0.001,
    "batchclient.request.span_id": "0123456789abcdef", "batchclient.request.trace_id": "0123456789abcdef" * 2,
    "gen_ai.response.model": "m", "gen_ai.response.id": "cmpl-1", "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.usage.input_tokens": 4, "gen_ai.usage.output_tokens": 3,
}  # fmt: skip


async def by_hand(client: BatchClient, tracer) -> None:
    span = tracer.start_span("text_completion m", kind=SpanKind.CLIENT, attributes=AT_FIRST)
    await client.complete("a prompt", max_tokens=8, temperature=0.5)
    if span.is_recording():
        span.set_attributes(AT_LAST)
    span.end()


async def calls_us(client: BatchClient, tracer=None) -> float:
    """CPU microseconds of the process per call."""
    gc.collect()
    started = time.process_time()
    for _ in range(LISTS):
        if tracer is None:
            calls = [client.complete("a prompt", max_tokens=8, temperature=0.5) for _ in range(LIST)]
        else:
            calls = [by_hand(client, tracer) for _ in range(LIST)]
        await asyncio.gather(*calls)
    return (time.process_time() - started) / (LISTS * LIST) * 1e6


async def rows_us(client: BatchClient) -> float:
    """CPU microseconds of the process per row of a map."""
    gc.collect()
    started = time.process_time()
    await client.batch_map(["a prompt"] * (LISTS * LIST), "{}", max_tokens=8, temperature=0.5)
    return (time.process_time() - started) / (LISTS * LIST) * 1e6


async def spans_us(repetitions: int) -> tuple[float, dict[str, float]]:
    """The median without telemetry, and the medians of the differences to it."""
    ratio, everything = provider_of(ParentBased(TraceIdRatioBased(0.01))), provider_of(ParentBased(ALWAYS_ON))
    kinds: dict[str, tuple[Telemetry | None, TracerProvider | None]] = {
        "off": (None, None),
        "no SDK": (Telemetry(), None),
        "ratio 0.01": (Telemetry(tracer_provider=ratio), None),
        "all": (Telemetry(tracer_provider=everything), None),
        "ratio 0.01, by hand": (None, ratio),
        "all, by hand": (None, everything),
    }
    arms = {}
    for kind, (telemetry, provider) in kinds.items():
        client = BatchClient(
            "http://server/v1", model="m", transport=AnswersAtOnce, limit=LIST, batching=Batching(max_size=LIST),
            telemetry=telemetry,
        )  # fmt: skip
        arms[kind] = client, None if provider is None else provider.get_tracer("by hand")
    runs: list[dict[str, float]] = []
    for repetition in range(repetitions + 1):
        order = list(arms) if repetition % 2 else list(reversed(arms))
        run = {kind: await calls_us(*arms[kind]) for kind in order}
        rows_off, rows = await rows_us(arms["off"][0]), await rows_us(arms["all"][0])
        runs.append({**run, "one row in 100": run["off"] + rows - rows_off})
    # The first run of each learns.
    runs = runs[1:]
    for client, _ in arms.values():
        await client.aclose()
    differences = {kind: median([run[kind] - run["off"] for run in runs]) for kind in runs[0] if kind != "off"}
    return median([run["off"] for run in runs]), differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="the earlier revision (default: the last one without histograms)")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--only", choices=["spans"], help="measure a part")
    options = parser.parse_args()
    bars = [] if options.only else bars_of_metrics(options.before, options.repetitions)
    off, differences = asyncio.run(spans_us(3 * options.repetitions))
    for kind, more in differences.items():
        most = MOST_SPANS_US.get(kind, float("inf"))
        bars.append((f"spans, {kind}, CPU µs a call", f"{more:+.2f} (from {off:.1f})", most, more))
    print(machine_line(machine()))
    print(
        table(
            ("", "measured", "at most"), [[name, said, f"{most:g}".replace("inf", "")] for name, said, most, _ in bars]
        )
    )
    missed = [name for name, _, most, measured in bars if measured > most]
    if missed:
        sys.exit(f"past the bar: {', '.join(missed)}")


def bars_of_metrics(revision: str | None, repetitions: int) -> list[tuple[str, str, float, float]]:
    """What counting and scrapes cost: the name, the words, the bar, the measure."""
    before, now = counting_us(revision or last_without_histograms(), repetitions)
    took, cpu_ms, held = asyncio.run(scrapes())
    return [
        ("counting, CPU µs a call", f"{now - before:+.2f} ({before:.2f} to {now:.2f})", MOST_COUNTING_US, now - before),
        ("a scrape each second, share of a core", f"{cpu_ms / 1e3:.2%}", MOST_SHARE, cpu_ms / 1e3),
        ("a scrape, ms, median", f"{median(took):.1f}", MOST_SCRAPE_MS, median(took)),
        ("the loop held by a scrape, ms, median", f"{median(held):.2f}", MOST_HOLD_MS, median(held)),
    ]


if __name__ == "__main__":
    main()
