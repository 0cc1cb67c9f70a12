"""The limit that finds itself, beside fixed ones, on a real vLLM on two CPU cores.

    python benchmarks/limits_vllm.py                               # everything; boots a vLLM per part (tests/live/vllm_server.py)
    python benchmarks/limits_vllm.py --parts outputs --cells 16    # one part, one cell

- ``outputs``: 512 callers in a closed loop, prompts of about 20 tokens, ``max_tokens`` 1, 16, 64 and a mixture of 4 to 128, the default client
  beside clients with a fixed limit. Every client stays open; windows are interleaved in a new order each time; the default client's search
  before its first window is timed and shown.
- ``conversations``: ten turns each on a 300-token prefix of its own, with a KV cache of 3,072 tokens: beyond ten conversations at once the
  prefix cache thrashes, and no preemption counter moves. The default client is given 48 conversations at once.
- ``timeouts``: 256 callers that wait a second at most, 64 tokens each: with too many in flight nobody gets an answer. Beside them fixed limits
  with the same callers, and with no more callers than permits.

Prompts are random and never repeat (but for the conversations' own prefixes). An answer counts if it has all its tokens and came in the window. But in
``outputs`` answers of equal length come in waves of a hundred and more, of which a window holds one more or one less: as nobody gives up there, the
server's own counter of generated tokens says how many there were, and ``answers/s`` is that over the mean tokens of an answer.
Where other processes used more than ``--max-other`` cores in a window, the window is left out.

The server computes in bfloat16, as its model asks. On a CPU without AVX-512 that is many times slower than ``--dtype float32``, and answers come in waves
seconds apart: there take that, longer windows and a name of their own, ``--name limits_vllm_float32``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from _common import RESULTS, Measured, machine, machine_line, median, spread, table, write_results
from vllm_cpu import Gauges, Prompts, Server, learn_prompts

from batchclient import BatchClient, DeadlineExceeded

CALLERS = 512
MIXTURE = (4, 8, 16, 16, 32, 32, 64, 128)
"""Output lengths of the mixed cell: a mean of 37 tokens, a few long ones."""


@contextlib.contextmanager
def vllm(*flags: str, dtype: str = "auto") -> Iterator[Server]:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.live.real_time import go_first
    from tests.live.vllm_server import VllmServer

    with VllmServer((*flags, "--dtype", dtype)) as server:
        go_first()
        yield Server(server.base_url, server.model, server.pid)


async def generated_tokens(server: Server) -> float:
    """Output tokens since the server's start, by its metrics page."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        page = await client.get(server.base_url.removesuffix("/v1") + "/metrics")
    (total,) = re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", page.text, re.MULTILINE)
    return float(total)


class Load:
    """Callers in a closed loop on one client; counts what they get.

    Args:
        client: whose answers are counted.
        work: one caller's next call; returns its tokens, or 0 if it got nothing.
        callers: how many.
    """

    def __init__(self, client: BatchClient, work: Callable[[BatchClient], Any], callers: int) -> None:
        self._client = client
        self._work = work
        self._callers = callers
        self.answers = 0
        self.tokens = 0
        self.latencies: list[float] = []

    async def _call(self) -> None:
        while True:
            began = time.perf_counter()
            tokens = await self._work(self._client)
            if tokens:
                self.answers += 1
                self.tokens += tokens
                self.latencies.append(time.perf_counter() - began)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._call()) for _ in range(self._callers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while self._client.statistics().in_flight:
                await asyncio.sleep(0.02)

    async def window(
        self, server: Server, warm_s: float, seconds: float, answer_tokens: float | None
    ) -> dict[str, float]:
        """Run, and count what comes in a window after a warm-up; with ``answer_tokens``, their mean, by the server's count of tokens."""
        async with self.running():
            await asyncio.sleep(warm_s)
            self.answers = self.tokens = 0
            self.latencies = []
            generated = await generated_tokens(server)
            gauges, began = Gauges(server), time.perf_counter()
            await asyncio.sleep(seconds)
            generated = await generated_tokens(server) - generated
            took = time.perf_counter() - began
            run = gauges.run(Measured(max(1, self.answers), took, 0.0, 0.0, 0.0, 0.0))
            limit = self._client.statistics().endpoints[0].limit
        mean_ms = 1e3 * sum(self.latencies) / max(1, len(self.latencies))
        return {
            "per_s": (self.answers if answer_tokens is None else generated / answer_tokens) / took,
            "tokens_per_s": (self.tokens if answer_tokens is None else generated) / took,
            "mean_ms": mean_ms,
            "limit": limit,
            "other": run.other_cores,
        }


Work = Callable[[BatchClient], Any]


def completing(prompts: Prompts, max_tokens: int | None, timeout_s: float | None = None) -> Work:
    async def work(client: BatchClient) -> int:
        tokens = max_tokens or random.choice(MIXTURE)
        (prompt,) = prompts.make(1, 20)
        try:
            answer = await client.complete(
                prompt, max_tokens=tokens, temperature=0, ignore_eos=True, timeout_s=timeout_s
            )
        except DeadlineExceeded:
            return 0
        if answer.usage is None or answer.usage.completion_tokens != tokens:
            raise AssertionError("an answer without all its tokens")
        return tokens

    return work


class Conversations:
    """Each caller holds one: a prefix of its own, ten turns, then another."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._open: dict[asyncio.Task[Any], tuple[str, int]] = {}

    async def work(self, client: BatchClient) -> int:
        task = asyncio.current_task()
        assert task is not None
        prefix, turn = self._open.get(task, ("", 10))
        if turn == 10:
            (prefix,), turn = self._prompts.make(1, 300), 0
        self._open[task] = (prefix, turn + 1)
        answer = await client.complete(f"{prefix} turn {turn}", max_tokens=4, temperature=0, ignore_eos=True)
        return answer.usage.completion_tokens if answer.usage else 0


def client_for(server: Server, limit: int | None) -> BatchClient:
    return BatchClient(server.base_url, model=server.model, limit=limit or "knee")


async def compare(
    server: Server,
    arms: dict[str, tuple[BatchClient, Load]],
    options: argparse.Namespace,
    answer_tokens: float | None,
) -> dict[str, Any]:
    """Interleaved windows of all arms; the default client searches first."""
    searched = arms["default"][1]
    series = []
    async with searched.running():
        began = time.perf_counter()
        while (at := time.perf_counter() - began) < options.search_s:
            before = searched.answers
            await asyncio.sleep(1.0)
            limit = arms["default"][0].statistics().endpoints[0].limit
            series.append((round(at + 1), searched.answers - before, limit))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    for _ in range(options.repetitions):
        for name in random.sample(list(arms), len(arms)):
            runs[name].append(await arms[name][1].window(server, options.warm_s, options.seconds, answer_tokens))
    for name, done in runs.items():
        print(
            f"  {name:12} {median([run['per_s'] for run in done]):7.1f}/s  limit {median([run['limit'] for run in done]):.0f}",
            flush=True,
        )
    return {"runs": runs, "search": series}


async def part(
    server: Server,
    works: dict[str, tuple[int | None, int, Work]],
    options: argparse.Namespace,
    answer_tokens: float | None = None,
) -> dict[str, Any]:
    """Open a client per arm, compare them, close them."""
    async with contextlib.AsyncExitStack() as stack:
        arms = {}
        for name, (limit, callers, work) in works.items():
            client = await stack.enter_async_context(client_for(server, limit))
            arms[name] = (client, Load(client, work, callers))
        return await compare(server, arms, options, answer_tokens)


def outputs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with vllm("--max-num-seqs", "256", dtype=options.dtype) as server:
        prompts = asyncio.run(learn_prompts(server))
        for cell in options.cells.split(","):
            work = completing(prompts, None if cell == "mixed" else int(cell))
            tokens = sum(MIXTURE) / len(MIXTURE) if cell == "mixed" else float(cell)
            works: dict[str, tuple[int | None, int, Work]] = {"default": (None, CALLERS, work)}
            works |= {str(limit): (limit, CALLERS, work) for limit in (16, 32, 64, 128, 256)}
            print(f"max_tokens {cell}", flush=True)
            yield {
                "part": "outputs",
                "case": f"max_tokens {cell}",
                **asyncio.run(part(server, works, options, tokens)),
            }


def conversations(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with vllm(
        "--max-num-seqs", "256", "--num-gpu-blocks-override", "96", "--block-size", "32", dtype=options.dtype
    ) as server:
        prompts = asyncio.run(learn_prompts(server))
        works: dict[str, tuple[int | None, int, Work]] = {}
        works["default"] = (None, 48, Conversations(prompts).work)
        works |= {str(many): (256, many, Conversations(prompts).work) for many in (4, 6, 8, 10, 12, 48)}
        print("conversations", flush=True)
        yield {"part": "conversations", "case": "ten turns on a prefix", **asyncio.run(part(server, works, options))}


def timeouts(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with vllm("--max-num-seqs", "256", dtype=options.dtype) as server:
        prompts = asyncio.run(learn_prompts(server))
        in_time = completing(prompts, 64, timeout_s=1.0)
        works: dict[str, tuple[int | None, int, Work]] = {"default": (None, 256, in_time)}
        # The same callers on fixed limits, and as many callers as permits: what waits in our queue uses up its second there.
        works |= {str(limit): (limit, 256, in_time) for limit in (16, 32, 64, 128)}
        works |= {f"{limit}, as many callers": (limit, limit, in_time) for limit in (32, 64)}
        print("timeouts", flush=True)
        yield {"part": "timeouts", "case": "1 s, 64 tokens", **asyncio.run(part(server, works, options))}


PARTS = {"outputs": outputs, "conversations": conversations, "timeouts": timeouts}


def kept(case: dict[str, Any], name: str, options_max_other: float) -> list[dict[str, float]]:
    return [run for run in case["runs"][name] if not run["other"] > options_max_other]


def rows(case: dict[str, Any], max_other: float) -> list[list[str]]:
    best = max(
        (
            median([run["per_s"] for run in kept(case, name, max_other)] or [0.0])
            for name in case["runs"]
            if name != "default"
        ),
    )
    # Without all the fixed limits the best of them is not known.
    whole = all(kept(case, name, max_other) for name in case["runs"])
    made = []
    for name in case["runs"]:
        runs = kept(case, name, max_other)
        if not runs:
            made.append([case["case"], name, "too noisy", "", "", "", "0"])
            continue
        rates = [run["per_s"] for run in runs]
        made.append(
            [
                case["case"],
                name,
                f"{median(rates):.1f} ({spread(rates)})",
                f"{median(rates) / best:.2f}" if best and whole else "",
                f"{median([run['mean_ms'] for run in runs]):.0f}",
                f"{median([run['limit'] for run in runs]):.0f}",
                f"{len(runs)} of {len(case['runs'][name])}",
            ]
        )
    return made


def markdown(data: dict[str, Any]) -> str:
    header = (
        "case",
        "limit",
        "answers/s, median (min to max)",
        "of the best fixed",
        "mean ms",
        "limit at the end",
        "kept",
    )
    computes_in = data.get("dtype", "auto")
    text = ["# Limits" if computes_in == "auto" else f"# Limits, in {computes_in}"]
    text.append(
        "The default client, whose limit finds itself, beside clients with fixed limits, on a real vLLM; windows interleaved. The default"
        " client has searched before its first window; its limit is shown as it was at the end of its windows. With max_tokens, answers are"
        " counted by the tokens that the server has generated, else by what callers got."
    )
    text.append(table(header, [row for case in data["cases"] for row in rows(case, data["max_other"])]))
    text.append("The default client's search, answers in each second (limit):")
    for case in data["cases"]:
        seconds = ", ".join(f"{count} ({limit})" for _, count, limit in case["search"])
        text.append(f"- {case['part']}, {case['case']}: {seconds}")
    for line in dict.fromkeys(case["machine"] for case in data["cases"]):
        text.append(line)
    return "\n\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--cells", default="1,16,64,mixed")
    parser.add_argument("--seconds", type=float, default=4.0, help="a window")
    parser.add_argument("--warm-s", type=float, default=2.0, help="before a window")
    parser.add_argument(
        "--search-s", type=float, default=20.0, help="the default client's search before its first window"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--max-other", type=float, default=0.3)
    parser.add_argument("--dtype", default="auto", help="what the server computes in")
    parser.add_argument("--name", default="limits_vllm")
    parser.add_argument("--add", action="store_true", help="keep what an earlier run measured of other cases")
    options = parser.parse_args()
    data: dict[str, Any] = {"cases": [], "max_other": options.max_other, "dtype": options.dtype}
    kept_file = RESULTS / f"{options.name}.json"
    if options.add and kept_file.exists():
        data["cases"] = json.loads(kept_file.read_text())["cases"]
    here = machine_line(machine())
    for name in options.parts.split(","):
        for case in PARTS[name](options):
            others = [each for each in data["cases"] if each["case"] != case["case"]]
            # By part, then 1, 16, 64, mixed.
            data["cases"] = sorted(
                [*others, {**case, "machine": here}],
                key=lambda each: (list(PARTS).index(each["part"]), len(each["case"]), each["case"]),
            )
            write_results(options.name, data, markdown(data))
    print(markdown(data))


if __name__ == "__main__":
    main()
