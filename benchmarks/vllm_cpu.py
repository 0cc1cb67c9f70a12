"""``BatchClient`` beside ``AsyncOpenAI`` on a real vLLM.

Measured are throughput, latency, and the CPU of the client and of the server's API process.

    python benchmarks/vllm_cpu.py                        # boots a vLLM (tests/live/vllm_server.py)
    python benchmarks/vllm_cpu.py --base-url http://127.0.0.1:8000/v1 --server-pid 1234

- Closed loop, per prompt length and ``max_tokens``: ``AsyncOpenAI`` first finds its best number of
  callers (16, 64, 256). Then all clients run with that many callers, interleaved, in a new order
  each time. Ratios are taken within a repetition.
- Poisson arrivals at 0.5 and 0.9 of the rate that single requests can carry: latency from the
  moment a call was due.
- Prompts are random and never repeat, so no prefix is cached.
- Every answer must have all its tokens. In a repetition all clients get the same arrival times.

With ``--server-pid`` (the API server; it must lead its process group) server CPU is measured. The
CPU of all processes that are neither client nor server is measured too. A repetition in which the
CPU of others exceeded ``--max-other`` cores for any client is left out for all clients. Where fewer
than three repetitions are left, the table says so instead of giving figures.

Where client and server share few cores, the engine's spinning processes starve the client now and
then. The table of Poisson arrivals says how late the latest call was started. The lateness is part
of the call's latency, for every client alike. ``--max-late-ms`` leaves such repetitions out too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import openai
from _common import (
    Call,
    Measured,
    closed_loop,
    machine,
    machine_line,
    median,
    percentile,
    spread,
    table,
    write_results,
)

from batchclient import BatchClient, Batching

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CALLERS = (16, 64, 256)
WORDS = [
    "def",
    "class",
    "return",
    "import",
    "self",
    "for",
    "while",
    "not",
    "in",
    "is",
    "the",
    "value",
    "name",
    "list",
    "dict",
    "print",
    "open",
    "read",
    "write",
    "file",
    "data",
]


# --- the server -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A running vLLM. ``pid`` is its API server's, if known."""

    base_url: str
    model: str
    pid: int | None = None

    def api_cpu_s(self) -> float:
        return process_cpu_s(self.pid) if self.pid else 0.0

    def whole_cpu_s(self) -> float:
        """CPU of the API server and the engine's processes: of all in its process group."""
        if not self.pid:
            return 0.0
        return sum(cpu for group, cpu in processes() if group == self.pid)


def stat_fields(pid: int | str) -> list[str]:
    # The second field is the command in parentheses, which may hold spaces.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def process_cpu_s(pid: int) -> float:
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def processes() -> Iterator[tuple[int, float]]:
    """(process group, CPU seconds) of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = stat_fields(entry.name)
                yield int(fields[2]), (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machine_busy_s() -> float:
    """CPU seconds the machine has spent on anything but idling."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS_PER_S


@contextlib.contextmanager
def vllm(options: argparse.Namespace) -> Iterator[Server]:
    """The server at ``--base-url``, or one of our own."""
    if options.base_url:
        model = options.model or first_model(options.base_url)
        yield Server(options.base_url, model, options.server_pid)
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.live.real_time import go_first  # here, so that --base-url works without the tests
    from tests.live.vllm_server import VllmServer

    with VllmServer() as server:
        go_first()
        yield Server(server.base_url, server.model, server.pid)


def first_model(base_url: str) -> str:
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        return client.models.list().data[0].id


# --- the clients ----------------------------------------------------------------------------------


Lists = Counter[int]
"""How many requests had how many prompts, as the client counts them."""


def checked(text: str, made_tokens: int | None, max_tokens: int) -> str:
    # A client that answers early would look fast.
    if made_tokens != max_tokens:
        raise AssertionError(f"an answer of {made_tokens} tokens instead of {max_tokens}")
    return text


@contextlib.asynccontextmanager
async def ours(server: Server, max_tokens: int, lists: Lists, **settings: Any) -> AsyncIterator[Call]:
    async with BatchClient(server.base_url, model=server.model, dialect="vllm", **settings) as client:

        async def call(prompt: str) -> str:
            answer = await client.complete(prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True)
            return checked(answer.text, answer.usage.completion_tokens if answer.usage else None, max_tokens)

        yield call
        lists.update(client.statistics().list_sizes)


@contextlib.asynccontextmanager
async def async_openai(server: Server, max_tokens: int) -> AsyncIterator[Call]:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:

        async def call(prompt: str) -> str:
            reply = await client.completions.create(
                model=server.model,
                prompt=prompt,
                max_tokens=max_tokens,
                temperature=0,
                extra_body={"ignore_eos": True},  # every call generates max_tokens, so that runs compare
            )
            return checked(reply.choices[0].text, reply.usage.completion_tokens if reply.usage else None, max_tokens)

        yield call


def opened(
    name: str, server: Server, max_tokens: int, limit: int, lists: Lists
) -> contextlib.AbstractAsyncContextManager[Call]:
    if name == "openai":
        return async_openai(server, max_tokens)
    if name == "singles":
        return ours(server, max_tokens, lists, preset="balanced", limit=limit, batching=Batching(max_size=1))
    return ours(server, max_tokens, lists, preset=name, limit=limit)


LABELS = {
    "throughput": "BatchClient, throughput",
    "balanced": "BatchClient, balanced",
    "singles": "BatchClient, singles (`max_size=1`)",
    "openai": "AsyncOpenAI + gather",
}


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one client."""

    measured: Measured
    api_ms: float
    """CPU of the server's API process per prompt, ms."""
    other_cores: float
    """Cores kept busy by whatever is neither this process nor the server."""
    lists: dict[int, int]
    late_ms: float = 0.0
    """How late the latest call of a Poisson run was started: if much, the client was starved."""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "prompts_per_s": self.measured.calls_per_s, "cpu_us": self.measured.cpu_us}


class Gauges:
    """Reads every CPU counter before and after."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = self._read()

    def _read(self) -> tuple[float, float, float, float]:
        return self._server.api_cpu_s(), self._server.whole_cpu_s(), machine_busy_s(), time.process_time()

    def run(self, measured: Measured, late_ms: float = 0.0) -> Run:
        api, whole, busy, own = (after - before for after, before in zip(self._read(), self._before, strict=True))
        other = (busy - whole - own) / measured.wall_s if self._server.pid else float("nan")
        return Run(measured, api / measured.calls * 1e3, other, {}, late_ms)


class Prompts:
    """Random prompts of about so many tokens, by the tokens of one word on this server's tokenizer."""

    def __init__(self, tokens_per_word: float) -> None:
        self._tokens_per_word = tokens_per_word

    def make(self, count: int, tokens: int) -> list[str]:
        words = max(1, round(tokens / self._tokens_per_word) - 4)
        return [f"{random.getrandbits(32):x} " + " ".join(random.choices(WORDS, k=words)) for _ in range(count)]


async def learn_prompts(server: Server) -> Prompts:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        text = " ".join(random.choices(WORDS, k=200))
        reply = await client.completions.create(model=server.model, prompt=text, max_tokens=1)
    assert reply.usage is not None
    return Prompts(reply.usage.prompt_tokens / 200)


@dataclass(frozen=True, slots=True)
class Cell:
    """One closed-loop setting."""

    tokens: int
    max_tokens: int

    @property
    def label(self) -> str:
        return f"{self.tokens} tokens in, {self.max_tokens} out"


async def loop_run(name: str, server: Server, cell: Cell, prompts: list[str], callers: int, limit: int) -> Run:
    lists = Lists()
    async with opened(name, server, cell.max_tokens, limit, lists) as call:
        warm = prompts[: max(8, callers // 4)]
        await closed_loop(call, warm, len(warm))
        gauges = Gauges(server)
        run = gauges.run(await closed_loop(call, prompts[len(warm) :], callers))
    return replace(run, lists=dict(lists))  # known once the client has closed; the warm-up is in it


class ClosedLoop:
    """All clients on one cell."""

    def __init__(self, server: Server, prompts: Prompts, options: argparse.Namespace) -> None:
        self._server = server
        self._prompts = prompts
        self._options = options

    def _run(self, name: str, cell: Cell, count: int, callers: int) -> Run:
        made = self._prompts.make(count + max(8, callers // 4), cell.tokens)
        return asyncio.run(loop_run(name, self._server, cell, made, callers, self._options.limit))

    def best_callers(self, cell: Cell) -> tuple[int, float]:
        """How many calls in flight serve ``AsyncOpenAI`` best, and the rate it reaches so."""
        rates = {}
        count = 128
        for callers in CALLERS:
            count = max(count, 3 * callers)
            rates[callers] = self._run("openai", cell, count, callers).measured.calls_per_s
            count = int(rates[callers] * self._options.seconds)
        best = max(rates, key=lambda callers: rates[callers])
        print(f"{cell.label}: AsyncOpenAI " + ", ".join(f"{c}: {rate:.0f}/s" for c, rate in rates.items()), flush=True)
        return best, rates[best]

    def cell(self, cell: Cell) -> dict[str, Any]:
        callers, rate = self.best_callers(cell)
        names = ("throughput", "balanced", "openai")
        runs: dict[str, list[Run]] = {name: [] for name in names}
        count = max(4 * callers, int(rate * self._options.seconds))
        for _ in range(self._options.repetitions):
            for name in random.sample(names, len(names)):
                runs[name].append(self._run(name, cell, count, callers))
        for name in names:
            print(f"  {name:11} {median([r.measured.calls_per_s for r in runs[name]]):7.0f}/s", flush=True)
        return {
            **asdict(cell),
            "callers": callers,
            "prompts": count,
            "kept": quiet_repetitions(runs, self._options),
            "runs": {name: [run.as_dict() for run in done] for name, done in runs.items()},
        }


def quiet_repetitions(runs: dict[str, list[Run]], options: argparse.Namespace) -> list[int]:
    """The repetitions in which no client was disturbed.

    Little else ran in them, and calls started when they were due.

    An unknown figure does not exclude.
    """
    repetitions = range(len(next(iter(runs.values()))))
    return [i for i in repetitions if not any(disturbed(done[i], options) for done in runs.values())]


def disturbed(run: Run, options: argparse.Namespace) -> bool:
    max_other: float = options.max_other
    max_late_ms: float = options.max_late_ms
    return run.other_cores > max_other or run.late_ms > max_late_ms


# --- Poisson arrivals -----------------------------------------------------------------------------


async def arrivals(call: Call, prompts: Sequence[str], rate: float, seed: int) -> tuple[Measured, float]:
    """Start calls at random moments, ``rate`` a second.

    A call's latency counts from the moment the call was due, however late it started.

    Returns:
        The measured figures, and how late (ms) the latest call was started.
    """
    moments = random.Random(seed)
    latencies: list[float] = []
    late_s = 0.0

    async def one(prompt: str, due: float) -> None:
        await call(prompt)
        latencies.append(time.perf_counter() - due)

    cpu, wall = time.process_time(), time.perf_counter()
    due = wall
    async with asyncio.TaskGroup() as group:
        for prompt in prompts:
            due += moments.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            late_s = max(late_s, time.perf_counter() - due)
            group.create_task(one(prompt, due))
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    p50, p95 = percentile(latencies, 0.5) * 1e3, percentile(latencies, 0.95) * 1e3
    return Measured(len(prompts), wall_s, cpu_s, p50, p95, sum(latencies) / len(latencies) * 1e3), late_s * 1e3


async def arrivals_run(
    name: str, server: Server, cell: Cell, prompts: list[str], rate: float, limit: int, seed: int
) -> Run:
    lists = Lists()
    async with opened(name, server, cell.max_tokens, limit, lists) as call:
        await closed_loop(call, prompts[:16], 4)
        gauges = Gauges(server)
        run = gauges.run(*await arrivals(call, prompts[16:], rate, seed))
    return replace(run, lists=dict(lists))


def poisson(server: Server, prompts: Prompts, cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Measure latency at 0.5 and 0.9 of the rate of the slower single-request client.

    So none is overloaded by design.
    """
    capacity = min(
        asyncio.run(
            loop_run(name, server, cell, prompts.make(options.capacity_prompts, cell.tokens), 64, options.limit)
        ).measured.calls_per_s
        for name in ("singles", "openai")
    )
    names = ("balanced", "singles", "openai")
    loads = {}
    for load in (0.5, 0.9):
        rate = load * capacity
        runs: dict[str, list[Run]] = {name: [] for name in names}
        for repetition in range(options.repetitions):
            for name in random.sample(names, len(names)):
                made = prompts.make(16 + int(rate * 3 * options.seconds), cell.tokens)
                run = arrivals_run(name, server, cell, made, rate, options.limit, seed=repetition)
                runs[name].append(asyncio.run(run))
        loads[str(load)] = {
            "kept": quiet_repetitions(runs, options),
            "runs": {name: [run.as_dict() for run in done] for name, done in runs.items()},
        }
        print(f"  {cell.label}, {load} of {capacity:.0f}/s: done", flush=True)
    return {**asdict(cell), "capacity_per_s": capacity, "loads": loads}


# --- the report -----------------------------------------------------------------------------------


TOO_NOISY = "too noisy"
FEWEST = 3
RATIOS = {
    "prompts/s": ("prompts_per_s",),
    "mean latency": ("measured", "mean_ms"),
    "p95 latency": ("measured", "p95_ms"),
    "client CPU": ("cpu_us",),
    "API server CPU": ("api_ms",),
}


def over(part: dict[str, Any], name: str, *path: str) -> list[float]:
    """One figure of one client, over the repetitions that were kept."""
    values = []
    for repetition in part["kept"]:
        value: Any = part["runs"][name][repetition]
        for key in path:
            value = value[key]
        values.append(float(value))
    return values


def enough(part: dict[str, Any]) -> bool:
    return len(part["kept"]) >= FEWEST


def shown(part: dict[str, Any], name: str, digits: int, *path: str) -> str:
    return f"{median(over(part, name, *path)):.{digits}f}" if enough(part) else TOO_NOISY


def kept(part: dict[str, Any]) -> str:
    return f"{len(part['kept'])} of {len(next(iter(part['runs'].values())))}"


def mean_list(part: dict[str, Any], name: str) -> str:
    lists: Counter[int] = Counter()
    for repetition in part["kept"]:
        lists.update({int(size): count for size, count in part["runs"][name][repetition]["lists"].items()})
    return f"{sum(size * count for size, count in lists.items()) / lists.total():.1f}" if lists else ""


def ratio_values(cell: dict[str, Any], name: str, figure: str, to: str = "openai") -> list[float]:
    pairs = zip(over(cell, name, *RATIOS[figure]), over(cell, to, *RATIOS[figure]), strict=True)
    return [a / b if b else float("nan") for a, b in pairs]


def ratio_rows(cell: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name in ("throughput", "balanced"):
        values = [ratio_values(cell, name, figure) for figure in RATIOS]
        texts = [f"{median(v):.3g} ({spread(v)})" if enough(cell) else TOO_NOISY for v in values]
        rows.append([f"{cell['tokens']}", f"{cell['max_tokens']}", LABELS[name], *texts, kept(cell)])
    return rows


def cell_rows(cell: dict[str, Any]) -> list[list[str]]:
    return [
        [
            f"{cell['tokens']}",
            f"{cell['max_tokens']}",
            f"{cell['callers']}",
            LABELS[name],
            shown(cell, name, 0, "prompts_per_s"),
            shown(cell, name, 0, "measured", "mean_ms"),
            shown(cell, name, 0, "measured", "p95_ms"),
            shown(cell, name, 0, "cpu_us"),
            shown(cell, name, 2, "api_ms"),
            mean_list(cell, name),
            kept(cell),
        ]
        for name in cell["runs"]
    ]


def p95_ratio(part: dict[str, Any], name: str) -> str:
    """The arm's p95 latency over that of single requests by the same client, pair by pair."""
    if not enough(part):
        return TOO_NOISY
    values = ratio_values(part, name, "p95 latency", to="singles")
    return f"{median(values):.2f} ({spread(values)})"


def poisson_rows(cell: dict[str, Any]) -> list[list[str]]:
    return [
        [
            f"{cell['tokens']}",
            f"{cell['max_tokens']}",
            f"{load} of {cell['capacity_per_s']:.0f}/s",
            LABELS[name],
            shown(part, name, 0, "measured", "p50_ms"),
            shown(part, name, 0, "measured", "p95_ms"),
            p95_ratio(part, name),
            shown(part, name, 0, "cpu_us"),
            shown(part, name, 0, "late_ms"),
            mean_list(part, name),
            kept(part),
        ]
        for load, part in cell["loads"].items()
        for name in part["runs"]
    ]


LOOP_HEADER = (
    "in",
    "out",
    "callers",
    "client",
    "prompts/s",
    "mean ms",
    "p95 ms",
    "client CPU µs",
    "API CPU ms",
    "mean list",
    "kept",
)
RATIO_HEADER = ("in", "out", "client", *RATIOS, "kept")
POISSON_HEADER = (
    "in",
    "out",
    "load",
    "client",
    "p50 ms",
    "p95 ms",
    "p95 of singles'",
    "client CPU µs",
    "latest start ms",
    "mean list",
    "kept",
)


def markdown(data: dict[str, Any]) -> str:
    parts = ["# On a real vLLM, two CPU cores, tiny model", machine_line(data["machine"])]
    if data["cells"]:
        parts.append("## Ratios to AsyncOpenAI, medians of pairs (min to max)")
        parts.append(table(RATIO_HEADER, [row for cell in data["cells"] for row in ratio_rows(cell)]))
        parts.append("## Closed loop, medians")
        parts.append(table(LOOP_HEADER, [row for cell in data["cells"] for row in cell_rows(cell)]))
    if data["poisson"]:
        parts.append("## Poisson arrivals, medians")
        parts.append(table(POISSON_HEADER, [row for cell in data["poisson"] for row in poisson_rows(cell)]))
    return "\n\n".join(parts)


def cells(text: str) -> list[Cell]:
    return [Cell(*map(int, part.split("x"))) for part in text.split(",") if part]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="a running server's, with /v1; without it one is started")
    parser.add_argument("--model", help="its first model if not given")
    parser.add_argument("--server-pid", type=int, help="its API server, for the CPU columns")
    parser.add_argument("--limit", type=int, default=64, help="BatchClient's limit")
    parser.add_argument("--seconds", type=float, default=4.0, help="about how long a run takes")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--max-other", type=float, default=0.3, help="cores others may use in a repetition that counts")
    parser.add_argument(
        "--max-late-ms", type=float, default=float("inf"), help="how late a Poisson call may start, likewise"
    )
    parser.add_argument("--cells", default="20x1,20x16,20x64,100x1,100x16,100x64", help="tokens in x tokens out")
    parser.add_argument("--poisson-cells", default="20x1,20x16")
    parser.add_argument("--capacity-prompts", type=int, default=600)
    parser.add_argument("--name", default="vllm_cpu", help="file name of the results")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    data: dict[str, Any] = {"machine": machine(), "cells": [], "poisson": []}
    with vllm(options) as server:
        prompts = asyncio.run(learn_prompts(server))
        closed = ClosedLoop(server, prompts, options)
        for cell in cells(options.cells):
            data["cells"].append(closed.cell(cell))
            write_results(options.name, data, markdown(data))  # what is done stays, should a later cell fail
        for cell in cells(options.poisson_cells):
            data["poisson"].append(poisson(server, prompts, cell, options))
    write_results(options.name, data, markdown(data))
    print(markdown(data))


if __name__ == "__main__":
    main()
