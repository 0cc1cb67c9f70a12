"""Calls that are all asked at once, on a real vLLM: how long until the last is answered.

    python benchmarks/burst_vllm.py                                            # boots a vLLM (tests/live/vllm_server.py)
    python benchmarks/burst_vllm.py --cells 256:64 --repetitions 9

A small map, a rollout or an evaluation may be over before a limit has found itself. Each burst has a fresh client; the ways of a repetition are
interleaved, in a new order each time, and ratios are taken within it, against ``no limit``.

- ``default``: the client as it comes; ``no limit``: the same with ``limit=1024``; ``64``: with ``limit=64``, where the default begins; ``openai``:
  ``AsyncOpenAI`` and ``gather``.
- Cells are ``calls:max_tokens``: a number (every answer has just that many tokens) or ``mixed`` (4 to 128, as in ``limits_vllm.py``).

Prompts are random and never repeat. An answer that is not of the length asked for is an error. What other processes used is shown, nothing is
left out for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
from _callers import MIXTURE
from _common import Measured, machine, machine_line, median, spread, table, write_results
from limits_vllm import vllm
from vllm_cpu import Gauges, Prompts, Server, learn_prompts

from batchclient import BatchClient

WAYS: dict[str, int | str | None] = {"default": "auto", "no limit": 1024, "64": 64, "openai": None}
TO = "no limit"

Ask = Callable[[str, int], Awaitable[int | None]]
"""A prompt and the length of its answer in; how many tokens came."""


@contextlib.asynccontextmanager
async def ours(server: Server, limit: Any) -> AsyncIterator[Ask]:
    async with BatchClient(server.base_url, model=server.model, limit=limit) as client:

        async def ask(prompt: str, tokens: int) -> int | None:
            answer = await client.complete(prompt, max_tokens=tokens, temperature=0, ignore_eos=True)
            return answer.output_tokens

        yield ask


@contextlib.asynccontextmanager
async def async_openai(server: Server) -> AsyncIterator[Ask]:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:

        async def ask(prompt: str, tokens: int) -> int | None:
            reply = await client.completions.create(
                model=server.model, prompt=prompt, max_tokens=tokens, temperature=0, extra_body={"ignore_eos": True}
            )
            return reply.usage.completion_tokens if reply.usage else None

        yield ask


async def burst(server: Server, way: str, asked: list[tuple[str, int]]) -> dict[str, float]:
    """Ask everything at once; return the seconds until the last answer, and the mean."""
    latencies: list[float] = []
    async with async_openai(server) if way == "openai" else ours(server, WAYS[way]) as ask:
        gauges, began = Gauges(server), time.perf_counter()

        async def one(prompt: str, tokens: int) -> None:
            made = await ask(prompt, tokens)
            if made != tokens:
                raise AssertionError(f"an answer of {made} tokens where {tokens} were asked for")
            latencies.append(time.perf_counter() - began)

        await asyncio.gather(*(one(prompt, tokens) for prompt, tokens in asked))
        took_s = time.perf_counter() - began
        run = gauges.run(Measured(len(asked), took_s, 0.0, 0.0, 0.0, 0.0))
    return {"took_s": took_s, "mean_s": sum(latencies) / len(latencies), "other": run.other_cores}


async def measure(server: Server, prompts: Prompts, cell: str, repetitions: int) -> dict[str, Any]:
    calls, _, length = cell.partition(":")
    count = int(calls)
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for repetition in range(-1, repetitions):
        lengths = [random.choice(MIXTURE) if length == "mixed" else int(length) for _ in range(count)]
        for way in random.sample(list(WAYS), len(WAYS)):
            run = await burst(server, way, list(zip(prompts.make(count, 20), lengths, strict=True)))
            if repetition >= 0:  # the first round warms the server
                runs[way].append(run)
    for way, done in runs.items():
        print(f"  {cell:10} {way:9} {median([run['took_s'] for run in done]):6.2f} s", flush=True)
    return {"cell": cell, "runs": runs}


def rows(case: dict[str, Any]) -> list[list[str]]:
    count, _, length = case["cell"].partition(":")
    made = []
    for way in WAYS:
        runs = case["runs"][way]
        ratios = [run["took_s"] / other["took_s"] for run, other in zip(runs, case["runs"][TO], strict=True)]
        made.append(
            [
                f"{int(count):,}",
                "4 to 128 tokens" if length == "mixed" else f"{length} tokens each",
                way,
                f"{median([run['took_s'] for run in runs]):.2f}",
                f"{median(ratios):.2f} ({spread(ratios)})",
                f"{median([run['mean_s'] for run in runs]):.2f}",
                f"{median([run['other'] for run in runs]):.2f}",
            ]
        )
    return made


def markdown(data: dict[str, Any]) -> str:
    header = ("calls", "answers", "client", "s until the last answer", f"over {TO}", "mean s", "others' cores")
    return "\n\n".join(
        [
            "# Calls that are all asked at once",
            "A fresh client for every burst, on a real vLLM; medians of interleaved repetitions, and of their ratios (smallest to largest).",
            table(header, [row for case in data["cases"] for row in rows(case)]),
            data["machine"],
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="64:64,256:64,256:mixed")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    for cell in options.cells.split(","):
        # Before a server is booted for it.
        if not re.fullmatch(r"[1-9]\d*:([1-9]\d*|mixed)", cell):
            parser.error(f"--cells: {cell!r} is not calls:max_tokens, such as 256:64 or 256:mixed")
    data: dict[str, Any] = {"cases": [], "machine": machine_line(machine())}
    with vllm("--max-num-seqs", "256") as server:
        prompts = asyncio.run(learn_prompts(server))
        for cell in options.cells.split(","):
            data["cases"].append(asyncio.run(measure(server, prompts, cell, options.repetitions)))
            write_results("burst_vllm", data, markdown(data))
    print(markdown(data))


if __name__ == "__main__":
    main()
