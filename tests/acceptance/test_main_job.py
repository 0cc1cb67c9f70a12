"""The main job on the embedded server: a thousand calls and more, long lists, every caller its own answer."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from batchclient import BatchClient
from batchclient.simulator import (
    EmbeddedServer,
    OutputLengths,
    expected_text,
)

CALLS = 1200
LENGTHS = "lognormal:24:0.9"


@pytest.mark.parametrize(("max_tokens", "streamed"), [(4, False), (128, True)], ids=["plain", "streamed"])
def test_a_deep_queue_makes_long_lists_and_every_caller_gets_its_own_answer(max_tokens: int, streamed: bool) -> None:
    """1,200 calls at once under ``throughput``, limit 64, lognormal outputs: once under way the median list is at least 16."""
    prompts = [f"Call number {i}: say something" for i in range(CALLS)]

    async def story(server: EmbeddedServer) -> None:
        async with BatchClient(server.base_url, model=server.model, preset="throughput", limit=64) as client:
            tasks = [
                asyncio.create_task(client.complete(prompt, max_tokens=max_tokens, temperature=0)) for prompt in prompts
            ]
            # From a tenth of the work on the queue is deep and permits come back singly.
            await asyncio.wait(tasks[: CALLS // 10])
            before = dict(client.statistics().list_sizes)
            answers = await asyncio.gather(*tasks)
            after = client.statistics().list_sizes
        sizes = [size for size, count in after.items() for _ in range(count - before.get(size, 0))]
        assert statistics.median(sizes) >= 16, sorted(sizes)
        lengths = OutputLengths.parse(LENGTHS)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.text == expected_text(prompt, max_tokens=max_tokens, temperature=0, lengths=lengths)
            assert (answer.time_to_first_token_s is not None) == streamed
            assert answer.attempts == 1
            assert answer.usage is not None

    with EmbeddedServer(profile="gpu", output_lengths=LENGTHS, process=True, speed=4.0) as server:
        asyncio.run(asyncio.wait_for(story(server), 120))
