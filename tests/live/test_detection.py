"""What a client finds out of a real vLLM by itself: its model, its version, its length, its tokens per byte; and that its lists stay."""

import asyncio
import json
import random

import pytest
from tests.live.fixtures import LiveServer
from tests.seams import watch_cores

from batchclient import BatchClient, ConfigError
from tests.core import Event, Submitted

pytestmark = pytest.mark.vllm

TEXTS = {
    "English": "The quick brown fox jumps over the lazy dog, and then it sleeps. ",
    "Chinese": "批量推理把许多小请求合并成少数几个大请求。",
    "code": "def f(x):\n    return [y ** 2 for y in range(x)]\n",
    "digits": "3.14159265358979 2718281828459045 ",
}


def test_a_url_is_enough(vllm_server: LiveServer) -> None:
    async def story() -> None:
        async with BatchClient(vllm_server.base_url) as client:
            assert (await client.complete("def f(", max_tokens=2)).text
            for _ in range(100):
                await client.complete("def f(", max_tokens=2)
                await asyncio.sleep(0.02)
                if " " in (client.statistics().endpoints[0].server or ""):
                    break
            assert (client.statistics().endpoints[0].server or "").startswith("vllm 0.")
            with pytest.raises(ConfigError, match="model's length is 2048"):
                await client.complete([5] * 2048)
            assert (await client.complete([5] * 2047, max_tokens=1)).usage is not None

    asyncio.run(story())


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("max_tokens", [1, 8], ids=["plain", "streamed"])
def test_prompt_lengths_are_learnt(
    vllm_server: LiveServer, name: str, max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 64 calls the next prompts' lengths are known within 15 %."""
    estimates: dict[str, int] = {}

    def look(event: Event) -> None:
        if isinstance(event, Submitted):
            estimates[json.loads(event.request.prompt)] = event.request.prompt_tokens

    watch_cores(monkeypatch, told=look)

    async def story() -> None:
        async with BatchClient(vllm_server.base_url, model=vllm_server.model, limit=16) as client:
            prompts = [f"{number} " + TEXTS[name] * (1 + number % 5) for number in range(96)]
            first = await client.batch_map(prompts[:64], "{}", max_tokens=max_tokens)
            assert all(answer.usage is not None for answer in first)
            later = await client.batch_map(prompts[64:], "{}", max_tokens=max_tokens)
            guesses = [estimates[prompt] for prompt in prompts[64:]]
            counts = [answer.usage.prompt_tokens for answer in later if answer.usage is not None]
            errors = [abs(guess - count) / count for guess, count in zip(guesses, counts, strict=True)]
            print(f"{name}: mean error {sum(errors) / len(errors):.1%}")
            assert sum(errors) / len(errors) < 0.15

    asyncio.run(story())


@pytest.mark.parametrize("words", [4, 400], ids=["short", "long"])
@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
def test_lists_stay(vllm_server: LiveServer, words: int, max_tokens: int) -> None:
    """Also where nobody finds out which server it is, and lists are compared with singles."""

    async def story() -> None:
        rng = random.Random(words)
        async with BatchClient(vllm_server.base_url, model=vllm_server.model, limit=64, probe=False) as client:
            vocabulary = ["def", "class", "return", "import", "self", "for", "in", "value"]
            prompts = [" ".join(rng.choices(vocabulary, k=words)) for _ in range(2048 if words < 100 else 512)]
            await client.batch_map(prompts, "{}", max_tokens=max_tokens, temperature=0)
            statistics = client.statistics()
            print(statistics.list_sizes, statistics.alone)
            assert [each for each in statistics.adjustments if each.setting == "max_size"] == []
            assert max(statistics.list_sizes) >= 8

    asyncio.run(story())
