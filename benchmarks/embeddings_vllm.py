"""Embeddings from a real vLLM: ``embed`` against ``AsyncOpenAI().embeddings.create``.

    python benchmarks/embeddings_vllm.py                     # boots vLLM: see scripts/test_vllm.sh
    python benchmarks/embeddings_vllm.py --base-url URL --pid PID  # PID: a running API server's

In both arms each text is a call, and all calls start at once. Rounds are interleaved, and medians
are shown with their spread: on a shared machine only ratios within a run mean anything. The
server's CPU is that of its API process (HTTP, JSON, tokenizing), not the engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import machine, machine_line, median, spread, table, write_results
from openai import AsyncOpenAI
from vllm_cpu import process_cpu_s

from batchclient import BatchClient

WORDS = "kettle lamp chair desk river bridge cloud stone window letter garden summer winter paper silver copper".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Run:
    """One round of one client."""

    wall_s: float
    client_cpu_s: float
    server_cpu_s: float


def texts(count: int, words: int) -> list[str]:
    """Texts that are all different."""
    return [
        " ".join([f"item {number}"] + [WORDS[(number * 7 + place * 3) % len(WORDS)] for place in range(words)])
        for number in range(count)
    ]


async def measure(embed: Callable[[str], Awaitable[Sequence[float]]], prompts: Sequence[str], pid: int) -> Run:
    """Embed all prompts at once."""
    server, client, started = process_cpu_s(pid), time.process_time(), time.perf_counter()
    vectors = await asyncio.gather(*[embed(prompt) for prompt in prompts])
    wall = time.perf_counter() - started
    assert len({len(vector) for vector in vectors}) == 1
    return Run(wall, time.process_time() - client, process_cpu_s(pid) - server)


async def compare(base_url: str, pid: int, prompts: Sequence[str], rounds: int) -> dict[str, list[Run]]:
    """Measure both, in turns."""
    async with (
        BatchClient(base_url, model="tiny", preset="throughput") as ours,
        AsyncOpenAI(base_url=base_url, api_key="none", timeout=300) as theirs,
    ):

        async def batched(text: str) -> Sequence[float]:
            return (await ours.embed(text)).vector

        async def single(text: str) -> Sequence[float]:
            return (await theirs.embeddings.create(model="tiny", input=text)).data[0].embedding

        arms = {"AsyncOpenAI, singles": single, "BatchClient.embed": batched}
        runs: dict[str, list[Run]] = {name: [] for name in arms}
        for embed in arms.values():
            await measure(embed, prompts, pid)
        for _ in range(rounds):
            for name, embed in arms.items():
                runs[name].append(await measure(embed, prompts, pid))
        sizes = ours.statistics().list_sizes
        print("list sizes:", dict(sorted(sizes.items())), file=sys.stderr)
        return runs


def report(runs: dict[str, list[Run]], calls: int) -> tuple[str, dict[str, Any]]:
    """The table, and the ratios of the second client to the first."""
    rows, figures = [], {}
    for name, each in runs.items():
        rates = [calls / run.wall_s for run in each]
        client = [run.client_cpu_s / calls * 1e6 for run in each]
        server = [run.server_cpu_s / calls * 1e6 for run in each]
        figures[name] = {
            "texts_per_s": median(rates),
            "client_cpu_us": median(client),
            "api_server_cpu_us": median(server),
        }
        rows.append(
            [
                name,
                f"{median(rates):.0f} ({spread(rates)})",
                f"{median(client):.0f} ({spread(client)})",
                f"{median(server):.0f} ({spread(server)})",
            ]
        )
    one, other = figures.values()
    ratios = {name: other[name] / one[name] for name in one}
    rows.append(["ratio of the medians", *[f"{ratio:.2f}" for ratio in ratios.values()]])
    header = ["client", "texts/s (spread)", "client CPU per text, µs", "API server CPU per text, µs"]
    return table(header, rows), {"figures": figures, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description="Embeddings from a real vLLM, in lists and singly.")
    parser.add_argument("--base-url", help="of a server that runs, with its /v1")
    parser.add_argument("--pid", type=int, help="its API server's process")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/embeddings_vllm.*")
    options = parser.parse_args()
    if (options.base_url is None) != (options.pid is None):
        parser.error("--base-url and --pid go together")
    facts = machine()
    prompts = texts(options.texts, options.words)
    with ExitStack() as stack:
        base_url, pid = options.base_url, options.pid
        if base_url is None:
            sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
            from tests.live.real_time import go_first
            from tests.live.vllm_server import EMBED_FLAGS, VllmServer

            server = stack.enter_context(VllmServer(EMBED_FLAGS))
            go_first()
            base_url, pid = server.base_url, server.pid
        runs = asyncio.run(compare(base_url, pid, prompts, options.rounds))
    shown, data = report(runs, options.texts)
    page = (
        f"# Embeddings\n\n{options.texts} texts at once, {options.rounds} interleaved rounds.\n\n"
        f"{shown}\n\n{machine_line(facts)}\n"
    )
    print(page)
    if options.save:
        write_results("embeddings_vllm", {"machine": facts, **data}, page)


if __name__ == "__main__":
    main()
