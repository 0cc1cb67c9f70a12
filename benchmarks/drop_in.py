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
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import openai
from _common import Call, instant_server, machine, provenance, write_results
from overhead import LIMIT, MODEL, Arm, OpenClient, closed_loops, loop_data, loop_table, usable

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
    Arm("openai", "`AsyncOpenAI`", with_openai(plain)),
    Arm("drop_in", "`batchclient.openai.AsyncOpenAI`", with_openai(drop_in), needs_us=True),
    Arm("openai_chat", "`AsyncOpenAI`, chats", chats(plain)),
    Arm("drop_in_chat", "`batchclient.openai.AsyncOpenAI`, chats", chats(drop_in), needs_us=True),
    Arm("transport", "`AsyncOpenAI` over `BatchTransport`", with_openai(over_transport), needs_us=True),
)
RIVALS = {"drop_in": "openai", "transport": "openai", "openai": "openai"}
RIVALS |= {"drop_in_chat": "openai_chat", "openai_chat": "openai_chat"}
"""The page's arms, each with the one that it is held against."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cpu-s", type=float, default=1.5, help="CPU time per run, roughly")
    parser.add_argument("--name", default="drop_in", help="of the result files")
    options = parser.parse_args()
    facts = machine()
    with instant_server() as base_url:
        arms, left_out = usable(ARMS, base_url)
        runs = closed_loops(base_url, base_url, arms, options.repetitions, options.cpu_s)
    shown = f"{loop_table(arms, runs, RIVALS)}\n\n{provenance(facts)}"
    write_results(options.name, {"machine": facts, "loop": loop_data(arms, runs), "left_out": left_out}, shown)
    print(shown)


if __name__ == "__main__":
    main()
