"""Calls as they once came, at their own times and of their own lengths: how long each caller waits.

    python benchmarks/trace.py --trace FILE
    python benchmarks/trace.py --trace CONVERSATIONS --trace CODE --calls 2000 --write
    python benchmarks/trace.py --trace FILE --loads 0.5 --calls 4000 --kind plain --page none

- FILE is a CSV that you bring: a line of names, then a call a line, with its time (ISO 8601, or
  seconds), the tokens of its prompt and those of its answer. Azure's public traces are such files:
  ``AzureLLMInferenceTrace_conv.csv`` and ``…_code.csv`` of github.com/Azure/AzurePublicDataset.
- The server is the embedded one with the profile ``gpu`` and 256 sequences at once. Time is
  virtual, so that the same command gives the same figures on every machine.
- What the server can do is measured first: the calls a second with all calls there at once. A load
  of 0.5 plays the trace so fast that half as many come.
- The arms: the client as it comes, with ``preset="latency"``, as a guest, with the shortest calls
  first, and ``AsyncOpenAI``, each fresh for each load. Nobody holds a call back before it is given
  to the client. A guest needs the page.
- Measured from a call's own time on: seconds to the first piece of its answer, if it is streamed,
  and to the end. Exits with 1 past a bar (``faults``), which are of the default, ``latency`` and
  ``AsyncOpenAI``. A thousand streamed calls of 200 tokens take some minutes, plain ones a tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import math
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the guises of ``tests``

import httpx
import openai
from _common import machine, percentile, provenance, table, write_results

from batchclient import AdaptiveLimit, BatchClient, Queue
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop
from batchclient.transport import Timeouts, WireRequest, WireResponse

MODEL, URL = "simulated", "http://trace/v1"
SEQUENCES = 256
LOADS = (0.7, 0.9, 1.1)
STREAMED_LOAD = 0.7
"""Up to this load nobody needs to wait for a first token."""
AS_GOOD, DEFAULT_AS_GOOD = 1.1, 1.03
_OWN_PIECES = 3
"""Of a prompt: its number, by which no two are alike."""
GUISES = {"full": "vllm", "none": "tests.guises:OPENAI"}
"""The server with its metrics page, and one without any."""


@dataclass(frozen=True, slots=True)
class Call:
    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Took:
    """The seconds of one arm's calls; ``first_s``: to the first piece, of streamed answers."""

    first_s: list[float]
    end_s: list[float]

    @property
    def mean_s(self) -> float:
        return statistics.mean(self.end_s)

    @property
    def p95_s(self) -> float:
        return percentile(self.end_s, 0.95)

    @property
    def p99_s(self) -> float:
        return percentile(self.end_s, 0.99)

    @property
    def mean_first_s(self) -> float:
        return statistics.mean(self.first_s) if self.first_s else 0.0


def read(path: Path, most: int) -> list[Call]:
    """The first calls of a trace, the first of them at 0.

    A prompt or an answer has at least one token.

    Raises:
        ValueError: a line is not a time and two numbers, or the times go back.
    """
    calls: list[Call] = []
    with path.open(newline="") as lines:
        rows = csv.reader(lines)
        next(rows)
        for number, row in enumerate(rows, 2):
            try:
                at, prompt, output = row
                calls.append(Call(_seconds(at), int(prompt), int(output)))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not a time and two numbers of tokens: {row}") from error
            if len(calls) == most:
                break
    if len(calls) < 2 or calls != sorted(calls, key=lambda call: call.at_s) or calls[0].at_s == calls[-1].at_s:
        raise ValueError(f"{path} has no two calls in the order of their times")
    return [Call(call.at_s - calls[0].at_s, max(1, call.prompt_tokens), max(1, call.output_tokens)) for call in calls]


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()


# --- the clients ---

Answered = Callable[[], None]
Client = Callable[[str, int, Answered], Awaitable[None]]
"""Asks for a prompt and so many tokens, and says when the first piece has come."""


def over(server: SimulatedServer) -> AbstractContextManager[Any]:
    """Let httpx carry every request to the server, calls and pages, as a mocking library does."""
    transport = SimulatorTransport(server, prefix="")

    async def handle(_: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        sent = WireRequest(request.method, request.url.path, await request.aread(), list(request.headers.items()))
        reply = await transport.send(sent, Timeouts())
        return httpx.Response(reply.status, headers=dict(reply.headers), stream=_Body(reply))

    return patch.object(httpx.AsyncHTTPTransport, "handle_async_request", handle)


class _Body(httpx.AsyncByteStream):
    def __init__(self, reply: WireResponse) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._reply.chunks():
            yield piece

    async def aclose(self) -> None:
        await self._reply.aclose()


def ours(*, streamed: bool, **settings: Any) -> tuple[Any, Client]:
    client = BatchClient(URL, model=MODEL, probe=True, **settings)

    async def ask(prompt: str, tokens: int, answered: Answered) -> None:
        if not streamed:
            await client.complete(prompt, max_tokens=tokens)
            return
        async with client.stream(prompt, max_tokens=tokens) as pieces:
            async for _ in pieces:
                answered()

    return client, ask


def async_openai(*, streamed: bool) -> tuple[Any, Client]:
    bounds = httpx.Limits(max_connections=None)
    client = openai.AsyncOpenAI(
        base_url=URL, api_key="none", http_client=httpx.AsyncClient(timeout=None, limits=bounds)
    )

    async def ask(prompt: str, tokens: int, answered: Answered) -> None:
        if not streamed:
            await client.completions.create(model=MODEL, prompt=prompt, max_tokens=tokens)
            return
        async for _ in await client.completions.create(model=MODEL, prompt=prompt, max_tokens=tokens, stream=True):
            answered()

    return client, ask


ARMS: dict[str, Callable[..., tuple[Any, Client]]] = {
    "default": ours,
    "latency": partial(ours, preset="latency"),
    "guest": partial(ours, limit=AdaptiveLimit(guest=True)),
    "shortest first": partial(ours, queue=Queue(order="shortest_first")),
    "AsyncOpenAI": async_openai,
}
BARRED = ("default", "latency", "AsyncOpenAI")
"""The arms between which the bars are."""


# --- measuring ---


async def play(calls: Sequence[Call], speed: float, arm: str, *, streamed: bool, guise: str) -> Took:
    """One arm with the trace so many times as fast; at an infinite speed all calls come at once."""
    server = SimulatedServer("gpu", model=MODEL, max_num_seqs=SEQUENCES, guise=guise)
    manager, ask = ARMS[arm](streamed=streamed)
    loop = asyncio.get_running_loop()
    began, took = loop.time(), Took([], [])

    async def one(number: int, call: Call) -> None:
        due = began + call.at_s / speed
        await asyncio.sleep(due - loop.time())
        firsts: list[float] = []
        prompt = f"{number:07d}" + " air" * (call.prompt_tokens - _OWN_PIECES)
        await ask(prompt, call.output_tokens, lambda: firsts or firsts.append(loop.time() - due))
        took.first_s.extend(firsts)
        took.end_s.append(loop.time() - due)

    with over(server):
        async with manager, asyncio.TaskGroup() as group:
            for number, call in enumerate(calls):
                group.create_task(one(number, call))
    return took


def played(calls: Sequence[Call], speed: float, arm: str, kind: str, guise: str) -> Took:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(play(calls, speed, arm, streamed=kind == "streamed", guise=guise))


def faults(load: float, took: dict[str, Took]) -> list[str]:
    """The bars that were missed."""
    default, latency, best = took["default"], took["latency"], took["AsyncOpenAI"]
    bars = [
        ("latency's mean", latency.mean_s, AS_GOOD * min(default.mean_s, best.mean_s)),
        ("latency's 95th percentile", latency.p95_s, AS_GOOD * min(default.p95_s, best.p95_s)),
        ("the default's mean", default.mean_s, DEFAULT_AS_GOOD * best.mean_s),
    ]
    if load <= STREAMED_LOAD:
        bars.append(("latency's time to first token", latency.mean_first_s, default.mean_first_s))
    return [
        f"load {load:g}: {what} is {is_s:.3f} s, above {most_s:.3f} s" for what, is_s, most_s in bars if is_s > most_s
    ]


def results_of(calls: Sequence[Call], options: argparse.Namespace) -> tuple[float, dict[tuple[float, str], Took]]:
    """The calls a second that the server can do, and what each arm took at each load."""
    guise, arms = GUISES[options.page], options.arms.split(",")
    with ProcessPoolExecutor(options.processes) as pool:
        span_s = pool.submit(played, calls, math.inf, "AsyncOpenAI", "plain", guise).result()
        can = len(calls) / max(span_s.end_s)
        came = len(calls) / calls[-1].at_s
        cells = list(product([float(load) for load in options.loads.split(",")], arms))
        jobs = [pool.submit(played, calls, load * can / came, arm, options.kind, guise) for load, arm in cells]
        return can, dict(zip(cells, (job.result() for job in jobs), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, action="append", metavar="FILE", help="may be repeated")
    parser.add_argument("--calls", type=int, default=1000, help="the first so many of a trace (default: 1000)")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="with commas, of what the server can do")
    parser.add_argument("--kind", choices=("streamed", "plain"), default="streamed", help="how answers are asked for")
    parser.add_argument("--page", choices=GUISES, default="full", help="the server's metrics page")
    parser.add_argument("--arms", help=f"with commas (default: {','.join(ARMS)}; without a page no guest)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    options = parser.parse_args()
    if options.arms is None:
        options.arms = ",".join(arm for arm in ARMS if arm != "guest" or options.page != "none")
    try:
        traces = {path: read(path, options.calls) for path in options.trace}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    header = ("calls", "load", "arm", "mean, s", "95th, s", "99th, s", "first token, s", "answered")
    rows, missed = [], []
    for path, calls in traces.items():
        can, results = results_of(calls, options)
        print(f"{path.stem}: {len(calls)} calls; the server can do {can:.2f} a second", flush=True)
        for (load, arm), took in results.items():
            ends = (f"{each:.2f}" for each in (took.mean_s, took.p95_s, took.p99_s))
            rows.append([path.stem, f"{load:g}", arm, *ends, f"{took.mean_first_s:.3f}", len(took.end_s)])
        for load in dict.fromkeys(load for load, _ in results):
            barred = {arm: results[load, arm] for arm in BARRED if (load, arm) in results}
            if len(barred) == len(BARRED):
                missed += [f"{path.stem}, {fault}" for fault in faults(load, barred)]
    run, text = machine(), table(header, rows)
    print(f"{provenance(run)}\n\n{text}")
    if options.write:
        found = [dict(zip(header, row, strict=True)) for row in rows]
        write_results("trace", {"machine": run, "rows": found}, f"{text}\n\n{provenance(run)}")
    print("\n".join(missed) if missed else "Every bar is reached.")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
