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
import random
import time
from typing import Any

from _common import machine, machine_line, median, spread, table, write_results
from _vllm import Server, page_of, vllm

from batchclient import BatchClient, Batching, Schedule
from batchclient.bench.pages import cache_hit_share

FLAGS = ("--block-size", "32", "--num-gpu-blocks-override")
BLOCKS = "96"
WORDS = "def class return import self for while not in is the value name list dict print open".split()  # noqa: SIM905
"""Each has about one token of the toy model."""
GROUPS, MEMBERS, PREFIX_WORDS, OWN_WORDS = 64, 8, 100, 15
ARMS = {
    "grouped by hand": (False, False),
    "shuffled, grouped by prefix": (True, True),
    "shuffled": (True, False),
}
"""Whether the input is shuffled, and ``group_prefixes``."""


def make_prompts() -> list[str]:
    """Groups of prompts, one group after the other; all of them new."""
    heads = [random.choices(WORDS, k=PREFIX_WORDS) for _ in range(GROUPS)]
    return [" ".join(head + random.choices(WORDS, k=OWN_WORDS)) for head in heads for _ in range(MEMBERS)]


async def one_run(server: Server, arm: str, limit: int, max_size: int) -> dict[str, Any]:
    shuffled, grouping = ARMS[arm]
    prompts = make_prompts()
    if shuffled:
        random.shuffle(prompts)
    before = await page_of(server)
    chosen = {"limit": limit, "batching": Batching(max_size=max_size), "schedule": Schedule(group_prefixes=grouping)}
    async with BatchClient(server.base_url, model=server.model, **chosen) as client:
        started = time.perf_counter()
        answers = await client.batch_map(prompts, "{}", max_tokens=1, temperature=0)
        seconds = time.perf_counter() - started
        lists = client.statistics().batches
    assert len(answers) == GROUPS * MEMBERS
    hit_rate = cache_hit_share(before, await page_of(server))
    assert hit_rate is not None, "the server's metrics page has no counts of its prefix cache"
    return {"per_s": len(prompts) / seconds, "hit_rate": hit_rate, "mean_list": len(prompts) / lists}


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
    parser.add_argument("--blocks", default=BLOCKS, help="the KV cache, in blocks of 32 tokens")
    parser.add_argument("--lists", default="1,16", help="values of max_size")
    parser.add_argument("--name", default="prefix", help="file name of the results")
    options = parser.parse_args()
    data: dict[str, Any] = {"machine": machine(), "runs": {}}
    with vllm(*FLAGS, options.blocks) as server:
        for max_size in map(int, options.lists.split(",")):
            runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
            asyncio.run(one_run(server, "shuffled", options.limit, max_size))  # warms the server up
            for _ in range(options.repetitions):
                for arm in random.sample(list(ARMS), len(ARMS)):
                    runs[arm].append(asyncio.run(one_run(server, arm, options.limit, max_size)))
            data["runs"][max_size] = runs
    write_results(options.name, data, report(data))
    print(report(data))


if __name__ == "__main__":
    main()
