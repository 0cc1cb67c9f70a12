"""Cost of a call in the client: CPU, calls/s and latency of ``BatchClient`` and of other clients.

    python benchmarks/overhead.py                     # everything, about three minutes
    python benchmarks/overhead.py --page drop_in      # openai's client with and without batching underneath
    python benchmarks/overhead.py --cpu-s 0.5 --repetitions 3 --arms plain,openai
    python benchmarks/overhead.py --beside ../before  # this checkout beside another one
    python benchmarks/overhead.py --beside ../before --arms plain,lone --repetitions 9 --cpu-s 0.5

All clients talk to ``instant_server.py`` (another process, loopback). They are measured in one run,
in a new order per repetition, each as a fresh client that is warmed up first. Ratios are taken
within a repetition, so that a drift of the machine cancels out. Absolute figures belong to the
machine; read the ratios.

The program of ``--page drop_in`` is the same in every row, ``await client.completions.create(…)``;
only the construction of the client differs.

``--beside`` runs our own arms by the source of this checkout and of another one, in turns, each run
in a process of its own. Which of them begins changes from pair to pair. It prints medians, and the
ratio within pairs: below 1 in CPU this checkout is the cheaper one. It writes no file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
from _common import (
    HERE,
    Call,
    Measured,
    closed_loop,
    commit,
    in_a_process,
    instant_server,
    machine,
    median,
    provenance,
    server_counts,
    spread,
    table,
    write_results,
)

import batchclient
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


def ours(max_tokens: int, *, chats: bool = False, **settings: Any) -> OpenClient:
    @contextlib.asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Call]:
        async with batch_client(base_url, **settings) as client:

            async def complete(prompt: str) -> str:
                text: str = (await client.complete(prompt, max_tokens=max_tokens)).text
                return text

            async def chat(prompt: str) -> str:
                answer = await client.chat([{"role": "user", "content": prompt}], max_tokens=max_tokens)
                text: str = answer.text
                return text

            yield chat if chats else complete

    return opened


def openai_client(make: Callable[[str], Any], *, chats: bool = False) -> OpenClient:
    """One of openai's clients, made from a base URL; ``chats``: asked for a chat."""

    @contextlib.asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Call]:
        async with make(base_url) as client:

            async def complete(prompt: str) -> str:
                return (await client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)).choices[0].text

            async def chat(prompt: str) -> str:
                messages = [{"role": "user", "content": prompt}]
                answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
                text: str = answer.choices[0].message.content
                return text

            yield chat if chats else complete

    return opened


def plain_openai(base_url: str) -> Any:
    return openai.AsyncOpenAI(base_url=base_url, api_key="none")


def openai_aiohttp(base_url: str) -> Any:
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=openai.DefaultAioHttpClient())


def drop_in(base_url: str) -> Any:
    from batchclient.openai import AsyncOpenAI  # not in every checkout that ``--beside`` is given

    return AsyncOpenAI(base_url=base_url, api_key="none", preset="throughput", dialect="vllm", limit=LIMIT)


def over_transport(base_url: str) -> Any:
    import httpx2

    from batchclient.integrations.httpx2 import BatchTransport

    http = httpx2.AsyncClient(transport=BatchTransport(preset="throughput", dialect="vllm", limit=LIMIT))
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http)


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
    rival: str = "openai"
    """The arm that it is held against."""

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
    Arm(
        "streamed_singles",
        "the same, streamed",
        ours(16, preset="throughput", batching=Batching(max_size=1)),
        needs_us=True,
    ),
    Arm(
        "single_chats",
        "the same, chats",
        ours(1, chats=True, preset="throughput", batching=Batching(max_size=1)),
        needs_us=True,
    ),
    Arm("lone", "`BatchClient` as it comes, one call after the other", ours(1), in_flight=1, needs_us=True),
    Arm("chats", "`BatchClient`, lists of chats", ours(1, chats=True, preset="throughput"), needs_us=True),
    Arm("openai_aiohttp", "`AsyncOpenAI` with its aiohttp client", openai_client(openai_aiohttp)),
    Arm("openai", "`AsyncOpenAI`", openai_client(plain_openai)),
    Arm("drop_in", "`batchclient.openai.AsyncOpenAI`", openai_client(drop_in), needs_us=True),
    Arm("openai_chat", "`AsyncOpenAI`, chats", openai_client(plain_openai, chats=True), rival="openai_chat"),
    Arm(
        "drop_in_chat",
        "`batchclient.openai.AsyncOpenAI`, chats",
        openai_client(drop_in, chats=True),
        needs_us=True,
        rival="openai_chat",
    ),
    Arm("transport", "`AsyncOpenAI` over `BatchTransport`", openai_client(over_transport), needs_us=True),
)
BY_NAME = {arm.name: arm for arm in ARMS}
DROP_IN = ("openai", "drop_in", "openai_chat", "drop_in_chat", "transport")
BESIDE = ("plain", "streamed", "streamed_spaced", "singles", "streamed_singles", "single_chats", "lone", "chats")
PAGES = {"overhead": tuple(name for name in BY_NAME if name == "openai" or name not in DROP_IN), "drop_in": DROP_IN}
"""The arms of each page of results, where none are named."""


# --- closed loop ----------------------------------------------------------------------------------


def expected(prompt: str) -> str:
    return "echo:" + prompt[:16]


def prompts(count: int) -> list[str]:
    """Prompts of about 12 tokens; the answer echoes the first 16 characters, which never repeat."""
    start = random.getrandbits(48)
    return [f"{start + i:016x} please summarise the quarterly report in one line" for i in range(count)]


@dataclass(frozen=True, slots=True)
class LoopRun:
    """One arm's run, and the mean size of its lists by the server's count."""

    measured: Measured
    mean_list: float


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
    return LoopRun(measured, measured.calls / requests if requests else 0.0)


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


def loop_table(arms: Sequence[Arm], runs: dict[str, list[LoopRun]]) -> str:
    """A row for each arm with calls in flight, beside its rival within a repetition."""
    rows = []
    for arm in arms:
        if arm.in_flight != LIMIT or arm.rival not in runs:
            continue
        done, others = runs[arm.name], runs[arm.rival]
        over = [one.measured.cpu_us / other.measured.cpu_us for one, other in zip(done, others, strict=True)]
        cpu_us = median([run.measured.cpu_us for run in done])
        calls_per_s = median([run.measured.calls_per_s for run in done])
        share = "1" if arm.rival == arm.name else f"{median(over):.3f} ({spread(over)})"
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


# --- two checkouts --------------------------------------------------------------------------------


def by_checkout(root: Path, arm: Arm, base_url: str, cpu_s: float) -> dict[str, Any]:
    """One arm's run by the source of a checkout."""
    given = {"arm": arm.name, "base_url": base_url, "cpu_s": cpu_s}
    run = in_a_process(__file__, given, root / "src")
    if not Path(run["imported"]).is_relative_to(root / "src"):
        raise SystemExit(f"{root}: batchclient was imported from {run['imported']}")
    return run


def child(given: dict[str, Any]) -> dict[str, Any]:
    run = asyncio.run(run_arm(BY_NAME[given["arm"]], given["base_url"], given["cpu_s"]))
    figures = {"cpu_us": run.measured.cpu_us, "calls_per_s": run.measured.calls_per_s, "mean_list": run.mean_list}
    return {"imported": batchclient.__file__, **figures}


def beside(options: argparse.Namespace, base_url: str, spaced_url: str) -> str:
    """A row for each arm: this checkout, the other one, and the ratio within pairs of runs."""
    roots = (HERE.parent, options.beside)
    runs: dict[str, list[list[dict[str, Any]]]] = {arm.name: [] for arm in options.arms}
    for repetition in range(options.repetitions):
        for place, arm in enumerate(options.arms):
            url = spaced_url if arm.spaced else base_url
            turns = roots if (repetition + place) % 2 == 0 else roots[::-1]
            by_root = {root: by_checkout(root, arm, url, arm.cpu_share * options.cpu_s) for root in turns}
            pair = [by_root[root] for root in roots]
            runs[arm.name].append(pair)
            shown = " and ".join(f"{run['cpu_us']:8.1f}" for run in pair)
            print(f"  {repetition + 1}/{options.repetitions} {arm.name:18} {shown} µs/call", flush=True)
    rows = []
    for name, pairs in runs.items():
        row = [name]
        for figure, digits in (("cpu_us", 1), ("calls_per_s", 0)):
            row += [f"{median([pair[place][figure] for pair in pairs]):,.{digits}f}" for place in (0, 1)]
            ratios = [here[figure] / other[figure] for here, other in pairs]
            row.append(f"{median(ratios):.3f} ({spread(ratios)})")
        row.append(", ".join(f"{median([pair[place]['mean_list'] for pair in pairs]):.1f}" for place in (0, 1)))
        rows.append(row)
    figures = [f"{figure}: {column}" for figure in ("CPU µs/call", "calls/s") for column in ("here", "beside", "ratio")]
    return table(("arm", *figures, "mean list: here, beside"), rows)


def checkout(text: str) -> Path:
    """A folder that holds ``src/batchclient``, as argparse's type."""
    root = Path(text).resolve()
    if not (root / "src" / "batchclient").is_dir():
        raise ValueError(text)
    return root


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
    own, theirs = median(medians["BatchClient"]), median(medians["httpx.post"])
    return f"A lone call on an idle client takes {own:.2f} ms, and `httpx.post` with the same body\n{theirs:.2f} ms."


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--cpu-s", type=float, default=1.6, help="client CPU seconds per run; half for the slow clients"
    )
    parser.add_argument("--page", choices=PAGES, default="overhead", help="which results, and so which clients")
    parser.add_argument("--arms", help="comma-separated names of clients; those of the page, or the usual of --beside")
    parser.add_argument("--name", help="file name of the results; the page's if not given")
    parser.add_argument("--beside", type=checkout, metavar="CHECKOUT", help="another checkout of batchclient")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = [name for name, arm in BY_NAME.items() if arm.needs_us or options.beside is None]
    names = options.arms.split(",") if options.arms else BESIDE if options.beside else PAGES[options.page]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--arms: no {', '.join(unknown)}; there are {', '.join(known)}")
    options.arms = [BY_NAME[name] for name in names]
    return options


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(child(options.child)))
        return
    facts = machine()
    with instant_server() as base_url, instant_server(EVENT_GAP_S) as spaced_url:
        if options.beside:
            shown = beside(options, base_url, spaced_url)
            print(f"{shown}\n\nbeside commit {commit(options.beside)}; {provenance(facts)}")
            return
        arms = options.arms
        runs = closed_loops(base_url, spaced_url, arms, options.repetitions, options.cpu_s)
        is_overhead = options.page == "overhead"
        lone = asyncio.run(lone_latencies(base_url, 2 * options.repetitions, 300)) if is_overhead else {}
    data = {"machine": facts, "loop": loop_data(arms, runs), "lone_ms": lone}
    shown = "\n\n".join([loop_table(arms, runs), *([lone_text(lone)] if lone else []), provenance(facts)])
    write_results(options.name or options.page, data, shown)
    print(shown)


if __name__ == "__main__":
    main()
