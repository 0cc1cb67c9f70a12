"""Cost of a call in the client: CPU, calls/s and latency of ``BatchClient`` and of other clients.

    python benchmarks/overhead.py                     # everything, about five minutes
    python benchmarks/overhead.py --cpu-s 0.5 --repetitions 3 --sections loop --arms plain,openai
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
import gc
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
    machine_line,
    median,
    percentile,
    server_counts,
    spread,
    table,
    write_results,
)
from floor import Floor
from pydantic_core import from_json, to_json

from batchclient import BatchClient, Batching, Http

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


def floor(**extra: Any) -> OpenClient:
    @contextlib.asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Call]:
        async with Floor(base_url, model=MODEL, max_tokens=1, limit=LIMIT, **extra) as client:
            yield client.complete

    return opened


def openai_client(*, aiohttp: bool = False) -> OpenClient:
    @contextlib.asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Call]:
        http = openai.DefaultAioHttpClient() if aiohttp else None
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http) as client:

            async def call(prompt: str) -> str:
                return (await client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)).choices[0].text

            yield call

    return opened


@contextlib.asynccontextmanager
async def plain_httpx(base_url: str) -> AsyncIterator[Call]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, headers=JSON_BODY) as client:
        url = httpx.URL(f"{base_url}/completions")

        async def call(prompt: str) -> str:
            reply = await client.post(url, content=to_json({"model": MODEL, "prompt": prompt, "max_tokens": 1}))
            text: str = from_json(reply.content)["choices"][0]["text"]
            return text

        yield call


@contextlib.asynccontextmanager
async def nothing(_base_url: str) -> AsyncIterator[Call]:
    async def call(prompt: str) -> str:
        return "echo:" + prompt[:16]

    yield call


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
    Arm("harness", "the loop itself (no client)", nothing),
    Arm("floor", "hand-written micro-batcher, plain lists", floor()),
    Arm("floor_ids", "the same, asking for token ids as we do", floor(return_token_ids=True)),
    Arm("plain", "BatchClient, plain lists", ours(1, preset="throughput"), needs_us=True),
    Arm("plain_balanced", "BatchClient, plain lists, preset balanced", ours(1, preset="balanced"), needs_us=True),
    Arm(
        "plain_aiohttp",
        "BatchClient, plain lists, aiohttp",
        ours(1, preset="throughput", http=Http(backend="aiohttp")),
        needs_us=True,
    ),
    Arm("streamed", "BatchClient, streamed lists", ours(16, preset="throughput"), needs_us=True),
    Arm(
        "streamed_aiohttp",
        "BatchClient, streamed lists, aiohttp",
        ours(16, preset="throughput", http=Http(backend="aiohttp")),
        needs_us=True,
    ),
    Arm(
        "streamed_spaced",
        "BatchClient, streamed lists, each event 1 ms after the last",
        ours(16, preset="throughput"),
        needs_us=True,
        spaced=True,
    ),
    Arm(
        "streamed_spaced_aiohttp",
        "BatchClient, streamed lists, aiohttp, each event 1 ms after the last",
        ours(16, preset="throughput", http=Http(backend="aiohttp")),
        needs_us=True,
        spaced=True,
    ),
    Arm(
        "singles",
        "BatchClient, a request for each call",
        ours(1, preset="throughput", batching=Batching(max_size=1)),
        needs_us=True,
    ),
    Arm("lone", "BatchClient as it comes, one call after the other", ours(1), in_flight=1, needs_us=True),
    Arm("chats", "BatchClient, lists of chats", our_chats, needs_us=True),
    Arm("openai_16", "AsyncOpenAI, 16 in flight", openai_client(), in_flight=16),
    Arm("openai", "AsyncOpenAI, 64 in flight", openai_client()),
    Arm(
        "openai_aiohttp_16",
        "AsyncOpenAI with its aiohttp client, 16 in flight",
        openai_client(aiohttp=True),
        in_flight=16,
    ),
    Arm("openai_aiohttp", "AsyncOpenAI with its aiohttp client, 64 in flight", openai_client(aiohttp=True)),
    Arm("httpx_16", "httpx, one pool, 16 in flight", plain_httpx, in_flight=16),
    Arm("httpx", "httpx, one pool, 64 in flight", plain_httpx),
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


def loop_rows(arms: Sequence[Arm], runs: dict[str, list[LoopRun]]) -> list[list[str]]:
    rows = []
    for arm in arms:
        done = runs[arm.name]
        cpu = [run.measured.cpu_us for run in done]
        rows.append(
            [
                arm.label,
                f"{median(cpu):.1f}",
                spread(cpu),
                f"{median([run.measured.calls_per_s for run in done]):,.0f}",
                f"{median([run.measured.p50_ms for run in done]):.2f}",
                f"{median([run.measured.p95_ms for run in done]):.2f}",
                f"{median([run.mean_list for run in done]):.1f}",
                f"{median([run.server_us for run in done]):.1f}",
            ]
        )
    return rows


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


LOOP_HEADER = ("client", "CPU µs/call", "min to max", "calls/s", "p50 ms", "p95 ms", "mean list", "server CPU µs/call")


# --- a lone call ----------------------------------------------------------------------------------

LONE_PRESETS = ("latency", "balanced", "throughput")


async def lone_latencies(base_url: str, blocks: int, calls: int) -> dict[str, list[float]]:
    """p50 (ms) of sequential calls per block: each preset, and ``httpx.post``.

    ``httpx.post`` sends the very body our client sends.
    """
    medians: dict[str, list[float]] = {name: [] for name in ("httpx.post", *LONE_PRESETS)}
    async with contextlib.AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(batch_client(base_url, preset=name)) for name in LONE_PRESETS}
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=TIMEOUT_S, headers=JSON_BODY))
        await clients["balanced"].complete(prompts(1)[0], max_tokens=1)
        body = (await http.get(f"{base_url}/last")).content
        url = httpx.URL(f"{base_url}/completions")

        async def post(_: str) -> None:
            await http.post(url, content=body)

        def completing(client: Any) -> Callable[[str], Any]:
            return lambda prompt: client.complete(prompt, max_tokens=1)

        calling = {"httpx.post": post, **{name: completing(client) for name, client in clients.items()}}
        for _ in range(blocks):
            for name in random.sample(list(calling), len(calling)):
                await sequential_p50(calling[name], calls // 10)  # a pool that idled through the other blocks wakes up
                medians[name].append(await sequential_p50(calling[name], calls))
    return medians


async def sequential_p50(call: Callable[[str], Any], count: int) -> float:
    latencies = []
    for prompt in prompts(count):
        started = time.perf_counter()
        await call(prompt)
        latencies.append(time.perf_counter() - started)
    return median(latencies) * 1e3


async def first_calls(base_url: str, repetitions: int) -> dict[str, list[float]]:
    """Milliseconds from nothing to the first answer: (building the client included, the call alone)."""
    body = to_json({"model": MODEL, "prompt": prompts(1)[0], "max_tokens": 1})

    async def first_httpx() -> tuple[float, float]:
        started = time.perf_counter()
        async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=JSON_BODY) as client:
            built = time.perf_counter()
            await client.post(f"{base_url}/completions", content=body)
            ended = time.perf_counter()
        return ended - started, ended - built

    async def first_ours() -> tuple[float, float]:
        started = time.perf_counter()
        async with batch_client(base_url) as client:
            built = time.perf_counter()
            await client.complete(prompts(1)[0], max_tokens=1)
            ended = time.perf_counter()
        return ended - started, ended - built

    firsts = {"BatchClient": first_ours, "httpx": first_httpx}
    taken: dict[str, list[float]] = {
        f"{name}, {what}": [] for name in firsts for what in ("built and called", "called")
    }
    for repetition in range(repetitions + 1):
        for name in random.sample(list(firsts), len(firsts)):
            both, call = await firsts[name]()
            if repetition:  # the first pays for imports
                taken[f"{name}, built and called"].append(both * 1e3)
                taken[f"{name}, called"].append(call * 1e3)
    return taken


# --- a deep queue ---------------------------------------------------------------------------------


async def gathered(base_url: str, count: int, max_tokens: int) -> Measured:
    """``gather`` of ``count`` calls made in one turn.

    No application code makes a deeper queue without a map.
    """
    async with batch_client(base_url, preset="throughput") as client:
        await asyncio.gather(*(client.complete(prompt, max_tokens=max_tokens) for prompt in prompts(LIMIT)))
        documents = prompts(count)
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        answers = await asyncio.gather(*(client.complete(prompt, max_tokens=max_tokens) for prompt in documents))
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    assert [answer.text for answer in answers] == [expected(prompt) for prompt in documents]
    return Measured(count, wall_s, cpu_s, 0.0, 0.0, 0.0)


def gathers(base_url: str, repetitions: int, count: int) -> dict[str, list[Measured]]:
    kinds = {"plain": 1, "streamed": 16}
    runs: dict[str, list[Measured]] = {kind: [] for kind in kinds}
    for _ in range(repetitions):
        for kind in random.sample(list(kinds), len(kinds)):
            runs[kind].append(asyncio.run(gathered(base_url, count, kinds[kind])))
    return runs


# --- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A figure, one value a repetition; its median must stay at or below the bound, if any."""

    name: str
    values: list[float]
    bound: float | None
    unit: str = "×"

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def met(self) -> bool | None:
        return None if self.bound is None else self.value <= self.bound

    def row(self) -> list[str]:
        bound = "none" if self.bound is None else f"≤ {self.bound:.3g} {self.unit}"
        verdict = {True: "yes", False: "**no**", None: ""}[self.met]
        return [self.name, f"{self.value:.3g} {self.unit}", spread(self.values), bound, verdict]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "value": self.value, "met": self.met}


Bounds = tuple[tuple[str, str, float | None], ...]
"""(an arm, another one, the most that the first's CPU may be of the second's)."""
BOUNDS: Bounds = (
    ("plain", "openai", 1 / 30),
    ("plain", "openai_aiohttp", 1 / 8),
    ("plain", "floor", 2.0),
    ("plain_aiohttp", "openai_aiohttp", 1 / 8),
    ("streamed", "openai", 1 / 15),
    ("streamed_aiohttp", "openai", 1 / 15),
    ("streamed_spaced", "openai", None),
    ("streamed_spaced_aiohttp", "openai", None),
)


def ratios(arms: Sequence[Arm], runs: dict[str, list[LoopRun]], bounds: Bounds) -> list[Target]:
    """Ratios of CPU per call, taken within each repetition: a drift of the machine cancels out."""
    labels = {arm.name: arm.label for arm in arms}
    targets = []
    for ours_name, theirs, bound in bounds:
        if runs.get(ours_name) and runs.get(theirs):
            pairs = zip(runs[ours_name], runs[theirs], strict=True)
            values = [a.measured.cpu_us / b.measured.cpu_us for a, b in pairs]
            targets.append(Target(f"CPU per call: {labels[ours_name]} / {labels[theirs]}", values, bound))
    return targets


def ms_rows(taken: dict[str, list[float]]) -> list[list[str]]:
    return [
        [name, f"{median(values):.3f}", spread(values), f"{percentile(values, 0.95):.3f}"]
        for name, values in taken.items()
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--cpu-s", type=float, default=1.6, help="client CPU seconds per run; half for the slow clients"
    )
    parser.add_argument("--arms", help="comma-separated names of clients; all, or the usual ones of --beside")
    parser.add_argument("--sections", default="loop,lone,gather", help="comma-separated")
    parser.add_argument("--gather", type=int, default=10_000, help="calls of the gather section")
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
    sections = options.sections.split(",")
    report = Report(machine())
    with instant_server() as base_url, instant_server(EVENT_GAP_S) as spaced_url:
        if options.beside:
            told = [
                (arm.name, spaced_url if arm.spaced else base_url, arm.cpu_share * options.cpu_s)
                for arm in options.arms
            ]
            shown = pair_table(*pairs(options.beside, told, options.repetitions))
            print(f"{machine_line(machine())}; beside commit {commit(options.beside)}\n\n{shown}")
            return
        if "loop" in sections:
            arms, left_out = usable(options.arms, base_url)
            report.loops(arms, closed_loops(base_url, spaced_url, arms, options.repetitions, options.cpu_s), left_out)
        if "lone" in sections:
            report.lone(asyncio.run(lone_latencies(base_url, 2 * options.repetitions, 300)))
            report.first(asyncio.run(first_calls(base_url, 4 * options.repetitions)))
        if "gather" in sections:
            report.gathered(options.gather, gathers(base_url, options.repetitions, options.gather))
    report.write(options.name)


class Report:
    """Collects the sections, then writes Markdown and JSON."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._data: dict[str, Any] = {"machine": facts}
        self._parts = ["# What a call costs the client\n", machine_line(facts)]
        self._targets: list[Target] = []

    def _section(self, title: str, body: str) -> None:
        self._parts.append(f"\n## {title}\n\n{body}")

    def loops(self, arms: Sequence[Arm], runs: dict[str, list[LoopRun]], left_out: dict[str, str]) -> None:
        missing = "".join(f"\n\nLeft out, `{name}`: {reason}" for name, reason in left_out.items())
        self._section(
            "Closed loop against the instant server",
            f"{LIMIT} calls in flight unless said; "
            f"medians of {len(next(iter(runs.values())))} interleaved repetitions.\n\n"
            + table(LOOP_HEADER, loop_rows(arms, runs))
            + missing,
        )
        self._targets += ratios(arms, runs, BOUNDS)
        self._data["loop"] = loop_data(arms, runs)

    def lone(self, medians: dict[str, list[float]]) -> None:
        self._section(
            "A lone call on an idle client",
            "p50 of sequential calls, ms; one value a block, blocks interleaved; "
            "`httpx.post` sends the body our client sent and does not parse the answer.\n\n"
            + table(("call", "median p50", "min to max", "worst"), ms_rows(medians)),
        )
        for preset in ("balanced", "latency"):
            pairs = zip(medians[preset], medians["httpx.post"], strict=True)
            added = [a - b for a, b in pairs]
            self._targets.append(Target(f"added latency of a lone call, preset {preset}", added, 0.3, "ms"))
        self._data["lone_ms"] = medians

    def first(self, taken: dict[str, list[float]]) -> None:
        self._section(
            "The first call of a fresh client", table(("what", "median ms", "min to max", "p95"), ms_rows(taken))
        )
        self._data["first_ms"] = taken

    def gathered(self, count: int, runs: dict[str, list[Measured]]) -> None:
        rows = [
            [
                kind,
                f"{median([run.cpu_us for run in done]):.1f}",
                spread([run.cpu_us for run in done]),
                f"{median([run.calls_per_s for run in done]):,.0f}",
            ]
            for kind, done in runs.items()
        ]
        self._section(f"`gather` of {count:,} calls", table(("lists", "CPU µs/call", "min to max", "calls/s"), rows))
        self._data["gather"] = {
            kind: [{**asdict(run), "cpu_us": run.cpu_us} for run in done] for kind, done in runs.items()
        }

    def write(self, name: str) -> None:
        if self._targets:
            rows = table(
                ("figure", "median", "min to max", "target", "met"), [target.row() for target in self._targets]
            )
            self._parts.insert(2, f"\n## Against the targets\n\n{rows}")
        self._data["targets"] = [target.as_dict() for target in self._targets]
        markdown = "\n".join(self._parts)
        write_results(name, self._data, markdown)
        print(markdown)


if __name__ == "__main__":
    main()
