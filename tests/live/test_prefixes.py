"""Prefix families against a real vLLM whose KV cache holds fewer prefixes than are under way: its own hit counters say what order is worth."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from batchclient import BatchClient, Batching, Queue
from tests.gpu.machine import gauge, get
from tests.live.fixtures import LiveServer, booted

pytestmark = pytest.mark.vllm

GROUPS, MEMBERS = 64, 8
WORDS = ["def", "class", "return", "import", "self", "for", "while", "not", "in", "is", "value", "name", "list", "open"]


@pytest.fixture(scope="module")
def tight() -> Iterator[LiveServer]:
    """A KV cache of 3,072 tokens: about 26 of these prompts."""
    with booted(("--num-gpu-blocks-override", "96", "--block-size", "32")) as server:
        yield server


def hits_and_queries(server: LiveServer) -> tuple[float, float]:
    page = get(f"{server.base_url.removesuffix('/v1')}/metrics").decode()
    return gauge(page, "vllm:prefix_cache_hits_total"), gauge(page, "vllm:prefix_cache_queries_total")


def hit_rate(server: LiveServer, *, shuffled: bool, group_prefixes: bool, max_size: int) -> float:
    """The share of prompt tokens that the server found in its cache, over fresh prompts."""
    heads = [" ".join(random.choices(WORDS, k=100)) for _ in range(GROUPS)]
    prompts = [f"{head} {' '.join(random.choices(WORDS, k=12))}" for head in heads for _ in range(MEMBERS)]
    if shuffled:
        random.shuffle(prompts)
    before = hits_and_queries(server)

    async def story() -> None:
        async with BatchClient(
            server.base_url,
            model=server.model,
            limit=16,
            batching=Batching(max_size=max_size),
            queue=Queue(group_prefixes=group_prefixes),
        ) as client:
            answers = await client.batch_map(prompts, "{}", max_tokens=1, temperature=0)
            assert len(answers) == len(prompts)

    asyncio.run(story())
    hits, queries = (now - then for now, then in zip(hits_and_queries(server), before, strict=True))
    return hits / queries


@pytest.mark.parametrize("max_size", [1, 16])
def test_a_shuffled_input_hits_the_cache_as_one_grouped_by_hand_does(tight: LiveServer, max_size: int) -> None:
    by_hand = hit_rate(tight, shuffled=False, group_prefixes=False, max_size=max_size)
    ours = hit_rate(tight, shuffled=True, group_prefixes=True, max_size=max_size)
    as_it_comes = hit_rate(tight, shuffled=True, group_prefixes=False, max_size=max_size)
    assert ours >= 0.9 * by_hand
    assert ours >= 1.5 * as_it_comes


def test_a_priority_is_passed_on_in_a_list(tight: LiveServer) -> None:
    """vLLM takes the field, also where it was not started with ``--scheduling-policy priority``."""

    async def story() -> list[int]:
        async with BatchClient(tight.base_url, model=tight.model, queue=Queue(tell_server=True)) as client:
            calls = (client.complete(f"def f{i}(", max_tokens=2, priority=1) for i in range(8))
            return [answer.attempts for answer in await asyncio.gather(*calls)]

    assert asyncio.run(story()) == [1] * 8
