"""The same texts through this client and through ``AsyncOpenAI``, on one server, in one run.

Rules:
- The server is in another process: the CPU time here is the client's alone.
- Every run has texts of its own (a word in front differs), so no run finds the answers of an
  earlier run in the server's prefix cache. Both clients are warm: each has made one call before.
- Generation is greedy, so answers can be checked.
- Latency is the time of one caller, from the call to the answer, with a given number of callers at
  once. Both clients are measured on single calls; no caller waits for a row of a map.
- Nothing is read from the environment: ``demo`` decides which server is meant.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from batchclient.bench.strategies import rival_of
from batchclient.client import BatchClient, InnerClient

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["Contest", "Report", "Run", "percentile"]

_TRIALS = {16: 128, 64: 192, 256: 384}
"""Calls in flight to try ``AsyncOpenAI`` with, and on how many texts: more than one wave each."""
_CALLED = 1000
"""Texts for ``complete()``: enough for a p95."""
_COMPARED = 64
_TEMPERATURE = 0.0

Call = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One client's pass over the texts.

    Args:
        prompts, answers: in the same order.
        seconds, cpu_s: of this process.
        requests: HTTP requests sent.
        latencies_s: of each call; empty for a map.
        batch_sizes: how many requests carried how many prompts.
        failed: calls without an answer; the text in ``answers`` is empty.
        cause: of the first failure.
    """

    prompts: Sequence[str]
    answers: Sequence[str]
    seconds: float
    cpu_s: float
    requests: int
    latencies_s: Sequence[float] = ()
    batch_sizes: Counter[int] = field(default_factory=Counter)
    failed: int = 0
    cause: str = ""

    @property
    def per_s(self) -> float:
        """Texts answered per second."""
        return (len(self.answers) - self.failed) / self.seconds


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a contest.

    Args:
        mapped: ``batch_map`` over all texts.
        called: ``complete()`` for the first thousand texts, with as many callers at once as
            ``rival``.
        rival: ``AsyncOpenAI`` and ``gather`` at their best.
        trials: texts per second of the rival, by calls in flight.
        best: the calls in flight of the best trial.
        agreeing: of ``compared`` prompts, how many got the same answer from both clients.
        compared: prompts sent by both clients.
    """

    mapped: Run
    called: Run
    rival: Run
    trials: dict[int, float]
    best: int
    agreeing: int
    compared: int


class Contest:
    """Runs the clients one after the other.

    Args:
        base_url, model, api_key: of the server.
        texts: to be mapped.
        max_tokens: per answer.
        say: told each step before it begins.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None,
        texts: Sequence[str],
        max_tokens: int,
        say: Callable[[str], None],
    ) -> None:
        self._base_url = base_url
        self._model = model
        self._api_key = api_key
        self._texts = texts
        self._max_tokens = max_tokens
        self._say = say

    def __repr__(self) -> str:
        return f"<Contest: {len(self._texts)} texts on {self._base_url}>"

    async def run(self) -> Report:
        """Run everything.

        Raises:
            BatchClientError: our client got an error. The ``Run`` of the rival counts its errors.
        """
        self._say("batch_map …")
        mapped = await self._map()
        async with rival_of(self._base_url, self._api_key, {}) as rival_client:
            rival = self._rival_call(rival_client)
            await _gather(rival, ["warm"], 1)
            trials = {}
            for number, size in _TRIALS.items():
                self._say(f"AsyncOpenAI + gather, {number} in flight, on a sample …")
                prompts = self._prompts(f"sample {number}")[:size]
                trials[number] = (await _gather(rival, prompts, number)).per_s
            best = max(trials, key=lambda number: trials[number])
            self._say(f"AsyncOpenAI + gather, {best} in flight …")
            rival_run = await _gather(rival, self._prompts("gather"), best)
            self._say(f"complete() + gather, {best} callers at once …")
            called = await self._call(best)
            compared = mapped.prompts[:_COMPARED]
            theirs = await _gather(rival, compared, best)
        agreeing = sum(a == b for a, b in zip(mapped.answers, theirs.answers, strict=False))
        return Report(mapped, called, rival_run, trials, best, agreeing, len(compared))

    def _prompts(self, name: str) -> list[str]:
        return [_template(name).format(text) for text in self._texts]

    async def _map(self) -> Run:
        template = _template("map")
        async with self._client("throughput") as client:
            await client.complete("warm", max_tokens=1)
            before = client.statistics()
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            completions = await client.batch_map(
                self._texts, template, max_tokens=self._max_tokens, temperature=_TEMPERATURE
            )
            seconds, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
            after = client.statistics()
        return Run(
            self._prompts("map"),
            [completion.text for completion in completions],
            seconds,
            cpu_s,
            after.batches - before.batches,
            batch_sizes=Counter(after.list_sizes) - Counter(before.list_sizes),
        )

    async def _call(self, in_flight: int) -> Run:
        async with self._client("balanced", limit=in_flight) as client:

            async def call(prompt: str) -> str:
                return (await client.complete(prompt, max_tokens=self._max_tokens, temperature=_TEMPERATURE)).text

            await call("warm")
            before = client.statistics().batches
            run = await _gather(call, self._prompts("call")[:_CALLED], in_flight)
            return replace(run, requests=client.statistics().batches - before)

    def _client(self, preset: Literal["balanced", "throughput"], limit: int | None = None) -> BatchClient:
        return InnerClient(self._base_url, model=self._model, api_key=self._api_key, preset=preset, limit=limit)

    def _rival_call(self, client: AsyncOpenAI) -> Call:
        async def call(prompt: str) -> str:
            reply = await client.completions.create(
                model=self._model, prompt=prompt, max_tokens=self._max_tokens, temperature=_TEMPERATURE
            )
            return reply.choices[0].text

        return call


def _template(name: str) -> str:
    return f"({name}) Summarise in one line: {{}}"


async def _gather(call: Call, prompts: Sequence[str], in_flight: int) -> Run:
    """Ask for all prompts, ``in_flight`` at once, as people write without this library."""
    import openai

    latencies: list[float] = []
    causes: list[str] = []
    free = asyncio.Semaphore(in_flight)

    async def ask(prompt: str) -> str:
        async with free:
            started = time.perf_counter()
            try:
                answer = await call(prompt)
            except openai.OpenAIError as error:
                # The message alone says "Connection error." and no more.
                causes.append(f"{type(error).__name__}: {error.__cause__ or error!s:.200}")
                return ""
            latencies.append(time.perf_counter() - started)
            return answer

    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    answers = await _all(ask(prompt) for prompt in prompts)
    seconds, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    cause = causes[0] if causes else ""
    return Run(prompts, answers, seconds, cpu_s, len(prompts), latencies, failed=len(causes), cause=cause)


async def _all(calls: Iterable[Awaitable[str]]) -> list[str]:
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # After a failure gather leaves the others running.
        for task in tasks:
            task.cancel()


def percentile(values: Sequence[float], share: float) -> float:
    """Return a value exceeded by a share of ``1 - share`` of the values, at most."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
