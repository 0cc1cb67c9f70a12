"""Prefix families against a real vLLM whose KV cache holds fewer prefixes than are under way: its own hit counters say what order is worth."""

from __future__ import annotations

import asyncio
import os
import random
import re
import urllib.request
from collections.abc import Iterator

import pytest

from batchclient import BatchClient, Batching, Schedule
from tests.live.vllm_server import VllmServer

pytestmark = pytest.mark.vllm

GROUPS, MEMBERS = 64, 8
WORDS = ["def", "class", "return", "import", "self", "for", "while", "not", "in", "is", "value", "name", "list", "open"]


@pytest.fixture(scope="module")
def tight() -> Iterator[VllmServer]:
    """A KV cache of 3,072 tokens: about 26 of these prompts. On the other core: the common server may run beside it."""
    if not os.environ.get("BATCHCLIENT_TEST_VLLM"):
        pytest.skip("needs a real vLLM: run `make test-extra WHICH=vllm` (it sets BATCHCLIENT_TEST_VLLM=1)")
    flags = ("--num-gpu-blocks-override", "96", "--block-size", "32")
    with VllmServer(flags, env={"VLLM_CPU_OMP_THREADS_BIND": "1"}) as server:
        yield server


def hits_and_queries(server: VllmServer) -> tuple[float, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as reply:
        page = reply.read().decode()
    hits, queries = (
        sum(map(float, re.findall(rf"^vllm:prefix_cache_{name}_total{{[^}}]*}} (\S+)$", page, re.MULTILINE)))
        for name in ("hits", "queries")
    )
    return hits, queries


def hit_rate(server: VllmServer, *, shuffled: bool, group_prefixes: bool, max_size: int) -> float:
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
            schedule=Schedule(group_prefixes=group_prefixes),
        ) as client:
            answers = await client.batch_map(prompts, "{}", max_tokens=1, temperature=0)
            assert len(answers) == len(prompts)

    asyncio.run(story())
    hits, queries = (now - then for now, then in zip(hits_and_queries(server), before, strict=True))
    return hits / queries


@pytest.mark.parametrize("max_size", [1, 16])
def test_a_shuffled_input_hits_the_cache_as_one_grouped_by_hand_does(tight: VllmServer, max_size: int) -> None:
    by_hand = hit_rate(tight, shuffled=False, group_prefixes=False, max_size=max_size)
    ours = hit_rate(tight, shuffled=True, group_prefixes=True, max_size=max_size)
    as_it_comes = hit_rate(tight, shuffled=True, group_prefixes=False, max_size=max_size)
    assert ours >= 0.9 * by_hand
    assert ours >= 1.5 * as_it_comes


def test_a_priority_is_passed_on_in_a_list(tight: VllmServer) -> None:
    """vLLM takes the field, also where it was not started with ``--scheduling-policy priority``."""

    async def story() -> list[int]:
        async with BatchClient(tight.base_url, model=tight.model, schedule=Schedule(send_priority=True)) as client:
            calls = (client.complete(f"def f{i}(", max_tokens=2, priority=1) for i in range(8))
            return [answer.attempts for answer in await asyncio.gather(*calls)]

    assert asyncio.run(story()) == [1] * 8
