"""Order of calls that share prefixes at a real vLLM, and what the order is worth.

The prefixes are more than the server's KV cache holds.

    python benchmarks/prefix.py   # boots a vLLM with a small KV cache (tests/live/vllm_server.py)

- There are 64 groups of 8 prompts, with ``max_tokens=1``. A group shares its first 100 tokens or
  so; each prompt ends with 15 of its own. The KV cache holds 3,072 tokens: about 26 such prompts.
- Arms: the input grouped by hand; the same input shuffled, with ``group_prefixes`` on; shuffled,
  with ``group_prefixes`` off.
- Arms are interleaved, in a new order each time, with fresh prompts, so no run finds another's
  prefixes. Ratios to the hand-grouped arm are taken within a repetition. The hit rate is the
  server's own: ``vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import machine, machine_line, median, spread, table, write_results

from batchclient import BatchClient, Batching, Schedule

FLAGS = ("--num-gpu-blocks-override", "96", "--block-size", "32")
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
    "if",
    "else",
    "try",
    "except",
    "with",
    "as",
    "from",
    "lambda",
    "yield",
    "assert",
    "pass",
    "break",
]
GROUPS, MEMBERS, PREFIX_TOKENS, OWN_TOKENS = 64, 8, 100, 15
ARMS = {
    "grouped by hand": (False, False),
    "shuffled, grouped by prefix": (True, True),
    "shuffled": (True, False),
}
"""Whether the input is shuffled, and ``group_prefixes``."""


@contextmanager
def server(blocks: str) -> Iterator[tuple[str, str]]:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.live.real_time import go_first
    from tests.live.vllm_server import VllmServer

    bind = os.environ.get("VLLM_CPU_OMP_THREADS_BIND")
    flags = (FLAGS[0], blocks, *FLAGS[2:])
    with VllmServer(flags, env={"VLLM_CPU_OMP_THREADS_BIND": bind} if bind else None) as running:
        go_first()
        yield running.base_url, running.model


def counter(base_url: str, name: str) -> float:
    with urllib.request.urlopen(base_url.removesuffix("/v1") + "/metrics", timeout=10) as reply:
        page = reply.read().decode()
    return sum(float(value) for value in re.findall(rf"^vllm:{name}_total{{[^}}]*}} (\S+)$", page, re.MULTILINE))


def make_prompts(words_per_token: float) -> list[list[str]]:
    """Groups of prompts, all of them new."""
    prefix, own = round(PREFIX_TOKENS * words_per_token), round(OWN_TOKENS * words_per_token)
    heads = [" ".join(random.choices(WORDS, k=prefix)) for _ in range(GROUPS)]
    return [[f"{head} {' '.join(random.choices(WORDS, k=own))}" for _ in range(MEMBERS)] for head in heads]


async def words_per_token(base_url: str, model: str) -> float:
    async with BatchClient(base_url, model=model) as client:
        answer = await client.complete(" ".join(random.choices(WORDS, k=400)), max_tokens=1)
    assert answer.usage is not None
    return 400 / answer.usage.prompt_tokens


async def one_run(base_url: str, model: str, arm: str, ratio: float, limit: int, max_size: int) -> dict[str, Any]:
    shuffled, grouping = ARMS[arm]
    prompts = [prompt for group in make_prompts(ratio) for prompt in group]
    if shuffled:
        random.shuffle(prompts)
    hits, queries = (counter(base_url, f"prefix_cache_{name}") for name in ("hits", "queries"))
    chosen = {"limit": limit, "batching": Batching(max_size=max_size), "schedule": Schedule(group_prefixes=grouping)}
    async with BatchClient(base_url, model=model, **chosen) as client:
        started = time.perf_counter()
        answers = await client.batch_map(prompts, "{}", max_tokens=1, temperature=0)
        seconds = time.perf_counter() - started
        lists = client.statistics().batches
    assert len(answers) == GROUPS * MEMBERS
    hits, queries = counter(base_url, "prefix_cache_hits") - hits, counter(base_url, "prefix_cache_queries") - queries
    return {
        "per_s": len(prompts) / seconds, "hit_rate": hits / queries, "hits": hits, "queries": queries,
        "mean_list": len(prompts) / lists,
    }  # fmt: skip


def report(data: dict[str, Any]) -> str:
    rows = []
    for max_size, arms in data["runs"].items():
        base = [run["per_s"] for run in arms["grouped by hand"]]
        for arm, runs in arms.items():
            rates = [run["per_s"] for run in runs]
            ratios = [a / b for a, b in zip(rates, base, strict=True)]
            rows.append(
                [
                    max_size, arm, f"{median(rates):.0f}", f"{median(ratios):.2f} ({spread(ratios)})",
                    f"{median([run['hit_rate'] for run in runs]):.2f}",
                    f"{median([run['mean_list'] for run in runs]):.1f}",
                ]
            )  # fmt: skip
    header = ("max_size", "order", "prompts/s", "of grouped by hand, median (min to max)", "hit rate", "mean list")
    title = "# Shared prefixes that do not fit the server's KV cache together, real vLLM, two CPU cores, tiny model"
    return "\n\n".join([title, machine_line(data["machine"]), table(header, rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--blocks", default=FLAGS[1], help="the KV cache, in blocks of 32 tokens")
    parser.add_argument("--lists", default="1,16", help="values of max_size")
    parser.add_argument("--name", default="prefix", help="file name of the results")
    options = parser.parse_args()
    data: dict[str, Any] = {"machine": machine(), "runs": {}}
    with server(options.blocks) as (base_url, model):
        ratio = asyncio.run(words_per_token(base_url, model))
        for max_size in map(int, options.lists.split(",")):
            runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
            asyncio.run(one_run(base_url, model, "shuffled", ratio, options.limit, max_size))  # warms the server up
            for _ in range(options.repetitions):
                for arm in random.sample(list(ARMS), len(ARMS)):
                    runs[arm].append(asyncio.run(one_run(base_url, model, arm, ratio, options.limit, max_size)))
            data["runs"][max_size] = runs
    write_results(options.name, data, report(data))
    print(report(data))


if __name__ == "__main__":
    main()
