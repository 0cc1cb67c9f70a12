"""Callers in a closed loop on one client, and their next calls: for benchmarks on a real vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from _vllm import OtherCores, Prompts, Server, page_of

from batchclient import BatchClient, DeadlineExceeded

MIXTURE = (4, 8, 16, 16, 32, 32, 64, 128)
"""Output lengths of a mixed load: a mean of 37 tokens, a few long ones."""

Work = Callable[[BatchClient], Any]
"""One caller's next call; returns the answer's tokens, or 0 without an answer."""


async def generated_tokens(server: Server) -> float:
    """Output tokens since the server's start, by its metrics page."""
    page = await page_of(server)
    assert page is not None and page.generation_tokens is not None
    return page.generation_tokens


class Load:
    """Callers in a closed loop on one client, and a count of their answers.

    Args:
        client: the client whose answers are counted.
        work: the call that each caller makes, again and again.
        callers: the number of callers.
        pause_s: the shortest and the longest pause of a caller between two calls, seconds.
    """

    def __init__(
        self, client: BatchClient, work: Work, callers: int, pause_s: tuple[float, float] | None = None
    ) -> None:
        self._client = client
        self._work = work
        self._callers = callers
        self._pause_s = pause_s
        self.answers = 0
        self.tokens = 0
        self.latencies: list[float] = []

    async def _call(self) -> None:
        while True:
            began = time.perf_counter()
            tokens = await self._work(self._client)
            if tokens:
                self.answers += 1
                self.tokens += tokens
                self.latencies.append(time.perf_counter() - began)
            if self._pause_s:
                await asyncio.sleep(random.uniform(*self._pause_s))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._call()) for _ in range(self._callers)]
        try:
            yield
        finally:
            ended = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while self._client.statistics().in_flight:
                await asyncio.sleep(0.02)
        for task in ended:
            task.result()  # a caller never ends by itself: it failed, and the count is not what it says

    async def window(
        self, server: Server, warm_s: float, seconds: float, answer_tokens: float | None
    ) -> dict[str, float]:
        """Run the callers, and count the answers that come in a window after a warm-up.

        With ``answer_tokens``, the mean tokens of an answer, the server's counter of generated
        tokens gives the number of answers.
        """
        async with self.running():
            await asyncio.sleep(warm_s)
            self.answers = self.tokens = 0
            self.latencies = []
            generated = await generated_tokens(server)
            others, began = OtherCores(server), time.perf_counter()
            await asyncio.sleep(seconds)
            generated = await generated_tokens(server) - generated
            took = time.perf_counter() - began
            other = others.mean()
            limit = self._client.statistics().endpoints[0].limit
        mean_ms = 1e3 * sum(self.latencies) / max(1, len(self.latencies))
        return {
            "per_s": (self.answers if answer_tokens is None else generated / answer_tokens) / took,
            "tokens_per_s": (self.tokens if answer_tokens is None else generated) / took,
            "mean_ms": mean_ms,
            "limit": limit,
            "other": other,
        }


async def whole_answer(client: BatchClient, prompt: str, tokens: int, timeout_s: float | None = None) -> int:
    """Ask for just so many tokens; return them, or 0 if the answer did not come in time."""
    try:
        answer = await client.complete(prompt, max_tokens=tokens, temperature=0, ignore_eos=True, timeout_s=timeout_s)
    except DeadlineExceeded:
        return 0
    if answer.usage is None or answer.usage.completion_tokens != tokens:
        raise AssertionError("an answer without all its tokens")
    return tokens


def completing(prompts: Prompts, max_tokens: int | None, timeout_s: float | None = None) -> Work:
    """Prompts of about 20 tokens; without ``max_tokens`` answers of the mixture's lengths."""

    async def work(client: BatchClient) -> int:
        (prompt,) = prompts.make(1, 20)
        return await whole_answer(client, prompt, max_tokens or random.choice(MIXTURE), timeout_s)

    return work


class Conversations:
    """Each caller holds one, on a prefix of 300 tokens of its own.

    Args:
        tokens: of an answer.
        turns: after so many the caller begins another one; ``None``: never.
    """

    def __init__(self, prompts: Prompts, tokens: int, turns: int | None) -> None:
        self._prompts = prompts
        self._tokens = tokens
        self._turns = turns
        self._open: dict[asyncio.Task[Any], tuple[str, int]] = {}

    async def work(self, client: BatchClient) -> int:
        task = asyncio.current_task()
        assert task is not None
        prefix, turn = self._open.get(task, ("", self._turns or 0))
        if not prefix or turn == self._turns:
            (prefix,), turn = self._prompts.make(1, 300), 0
        self._open[task] = (prefix, turn + 1)
        return await whole_answer(client, f"{prefix} turn {turn}", self._tokens)
