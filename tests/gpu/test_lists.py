"""Lists on a vLLM: plain, streamed, given up; and chat."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import pytest

from batchclient import Batching, Completion
from tests.gpu.loads import prompts
from tests.gpu.report import Report
from tests.gpu.targets import Target

pytestmark = pytest.mark.gpu

RUNNING = "vllm:num_requests_running"


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 600))


async def answers_of(target: Target, texts: list[str], lengths: list[int], **settings: Any) -> tuple[list[float], Any]:
    """When each caller had its answer, and what the client did."""
    async with target.client(limit=64, **settings) as client:

        async def one(text: str, tokens: int) -> float:
            answer = await client.complete(text, max_tokens=64, ignore_eos=True, min_tokens=tokens, temperature=0)
            assert answer.usage is not None
            return time.monotonic() - started

        await client.complete("warm up", max_tokens=8)
        started = time.monotonic()
        times = await asyncio.gather(*map(one, texts, lengths))
        return times, client.statistics()


def test_a_streamed_list_tells_times_to_first_token_and_each_ones_usage(vllm: Target) -> None:
    async def story() -> tuple[list[Completion], Any]:
        async with vllm.client() as client:
            texts = prompts(48)
            answers = await asyncio.gather(*[client.complete(t, max_tokens=32, ignore_eos=True) for t in texts])
            return answers, client.statistics()

    answers, done = run(story())
    assert max(done.list_sizes) > 8, "the calls did not share requests"
    assert all(answer.time_to_first_token_s is not None for answer in answers)
    assert [answer.usage.completion_tokens for answer in answers] == [32] * 48


def test_a_list_takes_no_longer_than_singles(vllm: Target, report: Report) -> None:
    async def story(max_size: int) -> float:
        async with vllm.client(limit=64, batching=Batching(max_size=max_size)) as client:
            await client.complete("warm up", max_tokens=1)
            started = time.monotonic()
            await client.batch_map(prompts(1024), "{}", max_tokens=1, temperature=0)
            return time.monotonic() - started

    pairs = [(run(story(64)), run(story(1))) for _ in range(3)]
    ratio = statistics.median(single / together for together, single in pairs)
    report.figure("lists", "prompts/s, lists of up to 64 / singles", ratio, "×", max_tokens=1, prompts=1024)
    assert ratio > 0.9


def test_an_abandoned_list_stops_on_the_server(vllm: Target) -> None:
    async def story() -> None:
        async with vllm.client() as client:
            calls = [client.complete(text, max_tokens=1900, ignore_eos=True) for text in prompts(16)]
            tasks = [asyncio.create_task(call) for call in calls]
            await vllm.until(lambda: vllm.gauge(RUNNING) >= 8, 60)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            cancelled = time.monotonic()
            while await asyncio.to_thread(vllm.gauge, RUNNING) > 1:
                # An engine with nothing to do says nothing: its gauge keeps the last value until the next step.
                await client.complete("a", max_tokens=1)
                assert time.monotonic() - cancelled < 30
            assert client.statistics().abandoned == 0

    run(story())


def test_abort_empties_the_server(vllm: Target) -> None:
    async def story() -> None:
        async with vllm.client() as client:
            calls = [client.complete(text, max_tokens=1900, ignore_eos=True) for text in prompts(16)]
            tasks = [asyncio.create_task(call) for call in calls]
            await vllm.until(lambda: vllm.gauge(RUNNING) >= 8, 60)
            client.abort()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, Exception) for outcome in outcomes)
            aborted = time.monotonic()
            while await asyncio.to_thread(vllm.gauge, RUNNING) > 1:
                await client.complete("a", max_tokens=1)
                assert time.monotonic() - aborted < 30

    run(story())


def test_the_same_answers_to_token_ids_as_to_text(vllm: Target) -> None:
    async def story() -> list[Completion]:
        async with vllm.client() as client:
            ids = [[100 + i, 200, 300] for i in range(16)]
            return await asyncio.gather(*[client.complete(one, max_tokens=8, return_token_ids=True) for one in ids])

    answers = run(story())
    assert all(answer.usage.prompt_tokens == 3 for answer in answers)
    assert all(len(answer.choices[0].token_ids) == answer.usage.completion_tokens for answer in answers)


def test_every_conversation_gets_its_own_answer(vllm: Target) -> None:
    async def story() -> tuple[list[Any], list[Any]]:
        async with vllm.client() as client:
            talks = [[{"role": "user", "content": text}] for text in prompts(24)]
            params = {"max_tokens": 8, "temperature": 0}
            alone = [await client.chat(talk, **params) for talk in talks]
            return alone, await asyncio.gather(*[client.chat(talk, **params) for talk in talks])

    alone, answers = run(story())
    # A list of chats has one usage: each answer's prompt tokens are its share, and shares add up.
    assert sum(answer.usage.prompt_tokens for answer in answers) == sum(answer.usage.prompt_tokens for answer in alone)
    for one, other in zip(alone, answers, strict=True):
        assert other.usage.prompt_tokens == one.usage.prompt_tokens or other.usage.prompt_tokens_estimated
    agreed = sum(one.text[:4] == other.text[:4] for one, other in zip(alone, answers, strict=True))
    assert agreed >= 0.8 * len(answers)
