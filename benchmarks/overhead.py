"""Cost of a call in the client: CPU, calls/s and latency of ``BatchClient`` and of other clients.

    python benchmarks/overhead.py                     # everything, about three minutes
    python benchmarks/overhead.py --cpu-s 0.5 --repetitions 3 --arms plain,openai
    python benchmarks/overhead.py --beside ../before  # this checkout beside another one
    python benchmarks/overhead.py --beside ../before --arms plain,lone --repetitions 9 --cpu-s 0.5

The other clients are a hand-written floor, ``AsyncOpenAI`` and ``httpx``. All clients talk to
``instant_server.py`` (another process, loopback). They are measured in one run, in a new order per
repetition, each as a fresh client that is warmed up first. Absolute figures belong to the machine;
read the ratios.

``--beside`` runs our own arms by the source of this checkout and of another one, in turns. It
prints medians, and the ratio within pairs: below 1 in CPU this checkout is the cheaper one. It
writes no file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import openai
from _beside import checkout, obey, pair_table, pairs
from _common import (
    Call,
    Measured,
    closed_loop,
    commit,
    instant_server,
    machine,
    median,
    provenance,
    server_counts,
    spread,
    table,
    write_results,
)
from floor import Floor

from batchclient import BatchClient, Batching

MODEL = "instant"
LIMIT = 64
TIMEOUT_S = 60.0
EVENT_GAP_S = 0.001
JSON_BODY = {"content-type": "application/json"}

OpenClient = Callable[[str], contextlib.AbstractAsyncContextManager[Call]]
"""From a base URL to a fresh client, as the one function ``prompt -> text``."""


# --- the compared clients -------------------------------------------------------------------------


def batch_client(base_url: str, **settings: Any) -> Any:
    return BatchClient(base_url, model=MODEL, dialect="vllm", limit=LIMIT, **settings)


def ours(max_tokens: int, **settings: Any) -> OpenClient:
    @contextlib.asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Call]:
        async with batch_client(base_url, **settings) as client:

            async def call(prompt: str) -> str:
                text: str = (await client.complete(prompt, max_tokens=max_tokens)).text
                return text

            yield call

    return opened


@contextlib.asynccontextmanager
async def our_chats(base_url: str) -> AsyncIterator[Call]:
    async with batch_client(base_url, preset="throughput") as client:

        async def call(prompt: str) -> str:
            answer = await client.chat([{"role": "user", "content": prompt}], max_tokens=1)
            text: str = answer.text
            return text

        yield call


@contextlib.asynccontextmanager
async def floor(base_url: str) -> AsyncIterator[Call]:
    async with Floor(base_url, model=MODEL, max_tokens=1, limit=LIMIT) as client:
        yield client.complete


def openai_client(*, aiohttp: bool = False) -> OpenClient:
    @contextlib.asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Call]:
        http = openai.DefaultAioHttpClient() if aiohttp else None
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http) as client:

            async def call(prompt: str) -> str:
                return (await client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)).choices[0].text

            yield call

    return opened


@dataclass(frozen=True, slots=True)
class Arm:
    """One compared client."""

    name: str
    label: str
    open: OpenClient
    in_flight: int = LIMIT
    needs_us: bool = False
    spaced: bool = False
    """Against the server that leaves ``EVENT_GAP_S`` between the events of a stream."""

    @property
    def cpu_share(self) -> float:
        """Of the CPU seconds of a run.

        The slow clients need fewer calls for as steady a figure. The spaced ones mostly wait.
        """
        return 0.15 if self.spaced else 1.0 if self.needs_us else 0.5


ARMS = (
    Arm("plain", "`BatchClient`, plain batches (`max_tokens` ≤ 4)", ours(1, preset="throughput"), needs_us=True),
    Arm("plain_balanced", 'the same, `preset="balanced"`', ours(1, preset="balanced"), needs_us=True),
    Arm("streamed", "`BatchClient`, streamed batches", ours(16, preset="throughput"), needs_us=True),
    Arm(
        "streamed_spaced",
        "the same, each event 1 ms after the last",
        ours(16, preset="throughput"),
        needs_us=True,
        spaced=True,
    ),
    Arm(
        "singles",
        "`BatchClient`, a request for each call",
        ours(1, preset="throughput", batching=Batching(max_size=1)),
        needs_us=True,
    ),
    Arm("lone", "`BatchClient` as it comes, one call after the other", ours(1), in_flight=1, needs_us=True),
    Arm("chats", "`BatchClient`, lists of chats", our_chats, needs_us=True),
    Arm("floor", "a micro-batcher by hand, without retries or checks", floor),
    Arm("openai_aiohttp", "`AsyncOpenAI` with its aiohttp client", openai_client(aiohttp=True)),
    Arm("openai", "`AsyncOpenAI`", openai_client()),
)
BESIDE = ("plain", "streamed", "streamed_spaced", "singles", "lone", "chats")
"""Arms of ``--beside`` where none are named."""


# --- closed loop ----------------------------------------------------------------------------------


def expected(prompt: str) -> str:
    return "echo:" + prompt[:16]


def prompts(count: int) -> list[str]:
    """Prompts of about 12 tokens; the answer echoes the first 16 characters, which never repeat."""
    start = random.getrandbits(48)
    return [f"{start + i:016x} please summarise the quarterly report in one line" for i in range(count)]


@dataclass(frozen=True, slots=True)
class LoopRun:
    """One arm's run, with the server's counts."""

    measured: Measured
    mean_list: float
    server_us: float
    list_sizes: dict[str, int]


async def run_arm(arm: Arm, base_url: str, cpu_target_s: float) -> LoopRun:
    """Warm a fresh client up, learn the CPU per call, then measure for ``cpu_target_s``."""
    few = 4 * max(16, arm.in_flight)
    async with arm.open(base_url) as call:
        await closed_loop(call, prompts(few), arm.in_flight, expected)
        trial = await closed_loop(call, prompts(2 * few), arm.in_flight, expected)
        count = max(2 * few, min(100_000, int(cpu_target_s / trial.cpu_us * 1e6)))
        before = server_counts(base_url)
        measured = await closed_loop(call, prompts(count), arm.in_flight, expected)
        after = server_counts(base_url)
    requests = after["requests"] - before["requests"]
    sizes = {size: n - before["list_sizes"].get(size, 0) for size, n in after["list_sizes"].items()}
    return LoopRun(
        measured,
        measured.calls / requests if requests else 0.0,
        (after["cpu_s"] - before["cpu_s"]) / measured.calls * 1e6,
        {size: n for size, n in sizes.items() if n},
    )


def run_as_told() -> None:
    """Be one of the two processes of ``--beside``."""
    arms = {arm.name: arm for arm in ARMS}
    obey(lambda name, base_url, cpu_s: run_arm(arms[name], base_url, cpu_s))


def usable(arms: Sequence[Arm], base_url: str) -> tuple[list[Arm], dict[str, str]]:
    """The arms that answer one call, and why the others fail: an optional package may be missing."""
    left_out = {}

    async def one_call(arm: Arm) -> None:
        async with arm.open(base_url) as call:
            await call(prompts(1)[0])

    for arm in arms:
        try:
            asyncio.run(one_call(arm))
        except Exception as error:
            left_out[arm.name] = f"{type(error).__name__}: {error}"
            print(f"  left out: {arm.label}: {left_out[arm.name]}", flush=True)
    return [arm for arm in arms if arm.name not in left_out], left_out


def closed_loops(
    base_url: str, spaced_url: str, arms: Sequence[Arm], repetitions: int, cpu_target_s: float
) -> dict[str, list[LoopRun]]:
    runs: dict[str, list[LoopRun]] = {arm.name: [] for arm in arms}
    for repetition in range(repetitions):
        for arm in random.sample(arms, len(arms)):
            url = spaced_url if arm.spaced else base_url
            run = asyncio.run(run_arm(arm, url, arm.cpu_share * cpu_target_s))
            runs[arm.name].append(run)
            print(f"  {repetition + 1}/{repetitions} {arm.name:18} {run.measured.cpu_us:8.1f} µs/call", flush=True)
    return runs


def loop_table(arms: Sequence[Arm], runs: dict[str, list[LoopRun]], rivals: dict[str, str]) -> str:
    """A row for each arm that ``rivals`` has, whose ratio is taken within a repetition: a drift cancels out."""
    rows = []
    for arm in arms:
        if arm.name not in rivals or rivals[arm.name] not in runs:
            continue
        done, others = runs[arm.name], runs[rivals[arm.name]]
        over = [one.measured.cpu_us / other.measured.cpu_us for one, other in zip(done, others, strict=True)]
        cpu_us = median([run.measured.cpu_us for run in done])
        calls_per_s = median([run.measured.calls_per_s for run in done])
        share = "1" if rivals[arm.name] == arm.name else f"{median(over):.3f} ({spread(over)})"
        rows.append([arm.label, f"{cpu_us:,.1f}", share, f"{calls_per_s:,.0f}"])
    return table(("client", "CPU µs/call", "of `AsyncOpenAI`'s (min to max)", "calls/s"), rows)


def loop_data(arms: Sequence[Arm], runs: dict[str, list[LoopRun]]) -> dict[str, Any]:
    return {
        arm.name: {
            "label": arm.label,
            "in_flight": arm.in_flight,
            "cpu_us": median([run.measured.cpu_us for run in runs[arm.name]]),
            "runs": [{**asdict(run), "cpu_us": run.measured.cpu_us} for run in runs[arm.name]],
        }
        for arm in arms
    }


# --- a lone call ----------------------------------------------------------------------------------


async def lone_latencies(base_url: str, blocks: int, calls: int) -> dict[str, list[float]]:
    """p50 (ms) of sequential calls per block: ours, and ``httpx.post`` of the very body our client sends."""
    medians: dict[str, list[float]] = {"httpx.post": [], "BatchClient": []}
    async with batch_client(base_url) as client, httpx.AsyncClient(timeout=TIMEOUT_S, headers=JSON_BODY) as http:
        await client.complete(prompts(1)[0], max_tokens=1)
        body = (await http.get(f"{base_url}/last")).content
        url = httpx.URL(f"{base_url}/completions")

        async def post(_: str) -> None:
            await http.post(url, content=body)

        async def complete(prompt: str) -> None:
            await client.complete(prompt, max_tokens=1)

        calling: dict[str, Callable[[str], Any]] = {"httpx.post": post, "BatchClient": complete}
        for _ in range(blocks):
            for name in random.sample(list(calling), len(calling)):
                await sequential_p50(calling[name], calls // 10)  # a pool that idled through the other block wakes up
                medians[name].append(await sequential_p50(calling[name], calls))
    return medians


async def sequential_p50(call: Callable[[str], Any], count: int) -> float:
    latencies = []
    for prompt in prompts(count):
        started = time.perf_counter()
        await call(prompt)
        latencies.append(time.perf_counter() - started)
    return median(latencies) * 1e3


def lone_text(medians: dict[str, list[float]]) -> str:
    own, theirs = medians["BatchClient"], medians["httpx.post"]
    added = [one - other for one, other in zip(own, theirs, strict=True)]
    return (
        f"A lone call on an idle client takes {median(own):.2f} ms, and `httpx.post` with the same body\n"
        f"{median(theirs):.2f} ms. The difference within a block of calls is {median(added):.2f} ms\n({spread(added)})."
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--cpu-s", type=float, default=1.6, help="client CPU seconds per run; half for the slow clients"
    )
    parser.add_argument("--arms", help="comma-separated names of clients; all, or the usual ones of --beside")
    parser.add_argument("--name", default="overhead", help="file name of the results")
    parser.add_argument("--beside", type=checkout, metavar="CHECKOUT", help="another checkout of batchclient")
    options = parser.parse_args()
    known = {arm.name: arm for arm in ARMS if arm.needs_us or options.beside is None}
    names = options.arms.split(",") if options.arms else list(BESIDE if options.beside else known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--arms: no {', '.join(unknown)}; there are {', '.join(known)}")
    options.arms = [known[name] for name in names]
    return options


def main() -> None:
    options = arguments()
    facts = machine()
    with instant_server() as base_url, instant_server(EVENT_GAP_S) as spaced_url:
        if options.beside:
            told = [
                (arm.name, spaced_url if arm.spaced else base_url, arm.cpu_share * options.cpu_s)
                for arm in options.arms
            ]
            shown = pair_table(*pairs(options.beside, told, options.repetitions))
            print(f"{shown}\n\nbeside commit {commit(options.beside)}; {provenance(facts)}")
            return
        arms, left_out = usable(options.arms, base_url)
        runs = closed_loops(base_url, spaced_url, arms, options.repetitions, options.cpu_s)
        lone = asyncio.run(lone_latencies(base_url, 2 * options.repetitions, 300))
    data = {"machine": facts, "loop": loop_data(arms, runs), "lone_ms": lone, "left_out": left_out}
    rivals = {arm.name: "openai" for arm in arms if arm.in_flight == LIMIT}
    shown = "\n\n".join([loop_table(arms, runs, rivals), lone_text(lone), provenance(facts)])
    write_results(options.name, data, shown)
    print(shown)


if __name__ == "__main__":
    main()
