"""A guest's map on a real vLLM: a colleague's requests find a place there, by its own page."""

from __future__ import annotations

import asyncio
import itertools
import time

import httpx
import pytest

from batchclient import AdaptiveLimit, BatchClient
from batchclient.dialects._metrics import parse_metrics
from tests.live.fixtures import LiveServer

pytestmark = pytest.mark.vllm

SLOTS = 64
FOUND = f"a guest: the server runs {SLOTS}, and others have 0"


def test_beside_a_guest_nobody_waits_and_who_comes_has_a_place_within_a_second(vllm_server: LiveServer) -> None:
    async def ask(http: httpx.AsyncClient, number: int) -> None:
        fields = {
            "model": vllm_server.model,
            "prompt": f"def colleague{number}(",
            "max_tokens": 100,
            "ignore_eos": True,
        }
        (await http.post(f"{vllm_server.base_url}/completions", json=fields)).raise_for_status()

    async def waiting(http: httpx.AsyncClient) -> float:
        """Sequences that wait for a place: one beside free places is about to run."""
        page = await http.get(vllm_server.base_url.removesuffix("/v1") + "/metrics")
        load = parse_metrics(page.content)
        assert load is not None and load.running is not None and load.waiting is not None
        return load.waiting if load.running >= SLOTS else 0.0

    async def work(client: BatchClient) -> None:
        """Answers of many lengths: they do not end all together."""
        for number in itertools.count():
            tokens = 16 + number * 37 % 101
            await client.complete(f"def f{number}(", max_tokens=tokens, extra_body={"ignore_eos": True})

    async def story() -> None:
        async with (
            BatchClient(vllm_server.base_url, model=vllm_server.model, limit=AdaptiveLimit(guest=True)) as client,
            httpx.AsyncClient(timeout=60) as http,
        ):
            jobs = [asyncio.create_task(work(client)) for _ in range(3 * SLOTS)]
            async with asyncio.timeout(60):
                while client.statistics().endpoints[0].limit_reason != FOUND:
                    await asyncio.sleep(0.1)
                while client.statistics().in_flight > SLOTS - 1:
                    await asyncio.sleep(0.1)
            # One after the other: at no look does any wait for a place.
            looks = []
            for number in range(5):
                call = asyncio.create_task(ask(http, number))
                while not call.done():
                    looks.append(await waiting(http))
                    await asyncio.sleep(0.02)
                await call
            # Four at once, where one or two places are free: within a second all of them have one.
            calls = [asyncio.create_task(ask(http, number)) for number in range(4)]
            sent_at = time.monotonic()
            await asyncio.sleep(0.1)
            while await waiting(http):
                await asyncio.sleep(0.02)
            placed_s = time.monotonic() - sent_at
            await asyncio.gather(*calls)
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        print(f"{len(looks)} looks; all four had a place after {placed_s:.2f} s")
        assert len(looks) >= 5
        assert sum(looks) == 0, looks
        assert placed_s <= 1.0

    asyncio.run(story())
