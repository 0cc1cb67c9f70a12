"""CPU per call of openai's client, with and without batching underneath: one run, medians.

    python benchmarks/drop_in.py                       # about a minute; writes results/drop_in.md
    python benchmarks/drop_in.py --repetitions 3 --cpu-s 0.5

The program is the same in every row, ``await client.completions.create(…)``; only the construction
of the client differs. The server is ``instant_server.py``. 64 calls are in flight, and each
repetition has a new order. Ratios are taken within each repetition. Absolute figures belong to the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any

import httpx2
import openai
from _common import Call, instant_server, machine, machine_line, median, table, write_results
from overhead import (
    LIMIT,
    LOOP_HEADER,
    MODEL,
    Arm,
    LoopRun,
    OpenClient,
    Target,
    loop_rows,
    ours,
    run_arm,
    usable,
)

from batchclient.integrations.httpx2 import BatchTransport
from batchclient.openai import AsyncOpenAI


def with_openai(make: Callable[[str], Any]) -> OpenClient:
    """One of openai's clients, made from a base URL."""

    @contextlib.asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Call]:
        async with make(base_url) as client:

            async def call(prompt: str) -> str:
                return (await client.completions.create(model=MODEL, prompt=prompt, max_tokens=1)).choices[0].text

            yield call

    return opened


def plain(base_url: str) -> Any:
    return openai.AsyncOpenAI(base_url=base_url, api_key="none")


def over_transport(base_url: str) -> Any:
    http = httpx2.AsyncClient(transport=BatchTransport(preset="throughput", dialect="vllm", limit=LIMIT))
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http)


async def _answer(request: httpx2.Request) -> httpx2.Response:
    """An answer without a server: the rest is openai's own share, which no transport can save."""
    prompt = request.content.partition(b'"prompt":"')[2][:16].decode()
    body = (
        b'{"id":"cmpl-0","object":"text_completion","created":1760000000,"model":"instant",'
        b'"choices":[{"index":0,"text":"echo:' + prompt.encode() + b'","logprobs":null,"finish_reason":"length"}],'
        b'"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1}}'
    )
    return httpx2.Response(200, content=body, headers={"content-type": "application/json"})


def over_nothing(base_url: str) -> Any:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(_answer))
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http)


def drop_in(base_url: str) -> Any:
    return AsyncOpenAI(base_url=base_url, api_key="none", preset="throughput", dialect="vllm", limit=LIMIT)


def chats(make: Callable[[str], Any]) -> OpenClient:
    """The same, asked for a chat."""

    @contextlib.asynccontextmanager
    async def opened(base_url: str) -> AsyncIterator[Call]:
        async with make(base_url) as client:

            async def call(prompt: str) -> str:
                messages = [{"role": "user", "content": prompt}]
                answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
                text: str = answer.choices[0].message.content
                return text

            yield call

    return opened


ARMS = (
    Arm("openai", "AsyncOpenAI", with_openai(plain)),
    Arm("drop_in", "batchclient.openai.AsyncOpenAI", with_openai(drop_in), needs_us=True),
    Arm("openai_chat", "AsyncOpenAI, chats", chats(plain)),
    Arm("drop_in_chat", "batchclient.openai.AsyncOpenAI, chats", chats(drop_in), needs_us=True),
    Arm("transport", "AsyncOpenAI over BatchTransport", with_openai(over_transport), needs_us=True),
    Arm("nothing", "AsyncOpenAI over a transport that costs nothing", with_openai(over_nothing)),
    Arm("batchclient", "BatchClient.complete", ours(1, preset="throughput"), needs_us=True),
)
BOUNDS: dict[str, float | None] = {
    "drop_in": 1 / 15,
    "drop_in_chat": 1 / 8,
    "transport": 1 / 2,
    "nothing": None,
    "batchclient": None,
}
"""Of openai's own CPU per call."""
BASES = {"drop_in_chat": "openai_chat"}
"""The arm that another arm is compared with, where that is not openai's completion."""


def measure(base_url: str, arms: Sequence[Arm], repetitions: int, cpu_s: float) -> dict[str, list[LoopRun]]:
    runs: dict[str, list[LoopRun]] = {arm.name: [] for arm in arms}
    for repetition in range(repetitions):
        for arm in random.sample(arms, len(arms)):
            run = asyncio.run(run_arm(arm, base_url, cpu_s))
            runs[arm.name].append(run)
            print(f"  {repetition + 1}/{repetitions} {arm.name:12} {run.measured.cpu_us:8.1f} µs/call", flush=True)
    return runs


def targets(runs: dict[str, list[LoopRun]]) -> list[Target]:
    labels = {arm.name: arm.label for arm in ARMS}
    return [
        Target(
            f"CPU per call: {labels[name]} / {labels[BASES.get(name, 'openai')]}",
            [
                mine.measured.cpu_us / theirs.measured.cpu_us
                for mine, theirs in zip(runs[name], runs[BASES.get(name, "openai")], strict=True)
            ],
            bound,
        )
        for name, bound in BOUNDS.items()
        if name in runs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cpu-s", type=float, default=1.5, help="CPU time per run, roughly")
    parser.add_argument("--name", default="drop_in", help="of the result files")
    options = parser.parse_args()
    facts = machine()
    with instant_server() as base_url:
        arms, left_out = usable(ARMS, base_url)
        runs = measure(base_url, arms, options.repetitions, options.cpu_s)
    found = targets(runs)
    missing = "".join(f"\n\nLeft out, `{name}`: {reason}" for name, reason in left_out.items())
    markdown = "\n".join(
        [
            "# What a call of openai's costs the client\n",
            machine_line(facts),
            f"\n{LIMIT} calls in flight; medians of {options.repetitions} interleaved repetitions.\n",
            table(("figure", "median", "min to max", "target", "met"), [target.row() for target in found]),
            "",
            table(LOOP_HEADER, loop_rows(arms, runs)) + missing,
        ]
    )
    data = {
        "machine": facts,
        "targets": [target.as_dict() for target in found],
        "loop": {
            arm.name: {
                "label": arm.label,
                "cpu_us": median([run.measured.cpu_us for run in runs[arm.name]]),
                "runs": [asdict(run) for run in runs[arm.name]],
            }
            for arm in arms
        },
    }
    write_results(options.name, data, markdown)
    print(markdown)


if __name__ == "__main__":
    main()
