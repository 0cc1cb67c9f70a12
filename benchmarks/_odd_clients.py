"""The clients that ``odd_servers.py`` puts side by side: ours, ``AsyncOpenAI``, ``httpx``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import openai
from _common import percentile
from _odd_proxy import MODEL

from batchclient import BatchClient

LONGEST_PAUSE_S = 1.0
TRIES, FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 5, 0.5, 8.0
"""Of a careful client."""
FINAL = (400, 413, 422)
"""A careful client sends such a request no second time."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a program.

    Args:
        counts: whether the server answers it at all; else nobody waits for its end.
        at_s: when the program makes it.
    """

    prompt: str
    model: str = MODEL
    counts: bool = True
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """The calls of a program.

    Args:
        is_map: the program has all prompts in hand, and reads the answers at the end.
        is_chat: the calls are chats, which go singly; else they are completions.
        patience_s: calls without an answer by then have failed.
    """

    calls: Sequence[Call]
    max_tokens: int
    patience_s: float
    is_map: bool = False
    is_chat: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds from the first call to the last answer, failed calls, and seconds from call to answer."""

    took_s: float
    failed: int
    mean_s: float = 0.0
    p95_s: float = 0.0


Client = Callable[[Sequence[str], Work], Coroutine[Any, Any, Outcome]]
"""Takes the servers' base URLs."""


async def measured(
    jobs: Sequence[tuple[Callable[[], Awaitable[object]], Sequence[Call]]], patience_s: float
) -> Outcome:
    """Run jobs, each of so many calls, until those that count are over."""
    began = time.perf_counter()

    async def timed(job: Callable[[], Awaitable[object]], at_s: float) -> float:
        await asyncio.sleep(at_s)
        sent = time.perf_counter()
        await job()
        return time.perf_counter() - sent

    tasks = {
        asyncio.ensure_future(timed(job, calls[0].at_s)): sum(call.counts for call in calls) for job, calls in jobs
    }
    counted = [task for task, calls in tasks.items() if calls]
    await asyncio.wait(counted, timeout=patience_s)
    took_s = time.perf_counter() - began
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    ends = await asyncio.gather(*counted, return_exceptions=True)
    errors = {task: end for task, end in zip(counted, ends, strict=True) if isinstance(end, BaseException)}
    failed = sum(tasks[task] for task in errors)
    if errors:
        told(next(iter(errors.values())), failed)
    return Outcome(took_s, failed, *latencies([end for end in ends if isinstance(end, float)]))


def told(error: BaseException, failed: int) -> None:
    print(f"    {failed} failed; the first: {error!r:.200}")


def latencies(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the 95th percentile."""
    return (sum(seconds) / len(seconds), percentile(seconds, 0.95)) if seconds else (0.0, 0.0)


# --- ours ---


async def ours(urls: Sequence[str], work: Work, **settings: Any) -> Outcome:
    async with BatchClient(list(urls), model=MODEL, **settings) as client:
        if work.is_map:
            return await mapped(client, work)

        async def call(each: Call) -> None:
            if work.is_chat:
                answer = await client.chat(messages(each.prompt), model=each.model, max_tokens=work.max_tokens)
            else:
                answer = await client.complete(each.prompt, model=each.model, max_tokens=work.max_tokens)
            assert answer.text

        return await measured([(partial(call, each), [each]) for each in work.calls], work.patience_s)


async def mapped(client: BatchClient, work: Work) -> Outcome:
    answered = 0
    errors: list[Exception]

    def see(progress: Any) -> None:
        nonlocal answered
        answered = progress.answered

    began = time.perf_counter()
    rows = client.batch_map(
        [call.prompt for call in work.calls],
        lambda prompt: prompt,
        max_tokens=work.max_tokens,
        return_exceptions=True,
        progress=see,
    )
    try:
        answers = await asyncio.wait_for(rows, work.patience_s)
    except TimeoutError as late:
        took_s, errors = time.perf_counter() - began, [late] * (len(work.calls) - answered)
    else:
        took_s, errors = time.perf_counter() - began, [each for each in answers if isinstance(each, Exception)]
    if errors:
        told(errors[0], len(errors))
    return Outcome(took_s, len(errors))


def messages(prompt: str) -> Any:
    return [{"role": "user", "content": prompt}]


# --- AsyncOpenAI ---


async def async_openai(urls: Sequence[str], work: Work, *, in_flight: int, **settings: Any) -> Outcome:
    """Replicas take turns."""
    gate = asyncio.Semaphore(in_flight)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="none", **settings))
            for url in urls
        ]

        async def call(client: openai.AsyncOpenAI, each: Call) -> None:
            async with gate:
                if work.is_chat:
                    await client.chat.completions.create(
                        model=each.model, messages=messages(each.prompt), max_tokens=work.max_tokens
                    )
                    return
                reply = await client.completions.create(
                    model=each.model, prompt=each.prompt, max_tokens=work.max_tokens
                )
                assert reply.choices[0].text

        turns = itertools.cycle(clients)
        return await measured([(partial(call, next(turns), each), [each]) for each in work.calls], work.patience_s)


# --- httpx ---

Ask = Callable[[httpx.AsyncClient, str, dict[str, Any]], Awaitable[None]]
"""Sends a body to a URL until it is answered."""


async def httpx_lists(urls: Sequence[str], work: Work, *, ask: Ask, size: int, at_once: int) -> Outcome:
    """Lists of one model each; of chats, a list is one. Replicas take turns."""
    gate = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    turns = itertools.cycle(urls)
    async with httpx.AsyncClient(timeout=work.patience_s, limits=limits) as client:

        async def send(url: str, calls: Sequence[Call]) -> None:
            body: dict[str, Any] = {"model": calls[0].model, "max_tokens": work.max_tokens}
            if work.is_chat:
                path, body["messages"] = "chat/completions", messages(calls[0].prompt)
            else:
                path, body["prompt"] = "completions", [call.prompt for call in calls]
            async with gate:
                await ask(client, f"{url}/{path}", body)

        return await measured(
            [(partial(send, next(turns), some), some) for some in lists(work.calls, size)], work.patience_s
        )


def lists(calls: Sequence[Call], size: int) -> Iterator[list[Call]]:
    for model in dict.fromkeys(call.model for call in calls):
        alike = [call for call in calls if call.model == model]
        yield from (alike[begin : begin + size] for begin in range(0, len(alike), size))


async def untiring(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
    """Try for ever, after what the server asks for, else after a random pause that doubles up to a second."""
    async with contextlib.aclosing(pauses()) as waiting:
        async for waited_s in waiting:
            rest_s = await asked(client, url, body)
            if rest_s is None:
                return
            await asyncio.sleep(rest_s or waited_s)


async def asked(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> float | None:
    """Send a list; return the seconds that a refusal asks for, or ``None`` if all was answered."""
    try:
        reply = await client.post(url, json=body)
    except httpx.TransportError:
        return 0.0
    if reply.status_code in (429, 503):
        return rest_of(reply)
    assert len(reply.raise_for_status().json()["choices"]) == len(body.get("prompt", "1"))
    return None


async def pauses() -> AsyncGenerator[float]:
    most_s = 0.05
    while True:
        yield random.uniform(0, most_s)
        most_s = min(LONGEST_PAUSE_S, 2 * most_s)


async def careful(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
    """Five tries, whatever went wrong, but for a request that is wrong itself; ``Retry-After`` is heeded."""
    backoff_s = FIRST_BACKOFF_S
    for left in reversed(range(TRIES)):
        rest_s = 0.0
        try:
            reply = await client.post(url, json=body)
            if reply.is_success:
                assert len(reply.json()["choices"]) == len(body.get("prompt", "1"))
                return
            rest_s = rest_of(reply)
            if not left or reply.status_code in FINAL:
                reply.raise_for_status()
        except httpx.TransportError:
            if not left:
                raise
        await asyncio.sleep(rest_s or backoff_s * random.uniform(0.75, 1))
        backoff_s = min(LONGEST_BACKOFF_S, 2 * backoff_s)


def rest_of(reply: httpx.Response) -> float:
    """Return the seconds that a refusal asks for, as openai's client reads them."""
    if "retry-after-ms" in reply.headers:
        return float(reply.headers["retry-after-ms"]) / 1000
    return float(reply.headers.get("retry-after", 0))


def openai_settings(**settings: Any) -> dict[str, Client]:
    return {f"{many} in flight": partial(async_openai, in_flight=many, **settings) for many in (16, 64, 256)}


def raw_settings(ask: Ask, shapes: Sequence[tuple[int, int]]) -> dict[str, Client]:
    """Sizes of lists, and how many lists at once."""
    return {
        f"{at_once} lists of {size}" if size > 1 else f"{at_once} in flight": partial(
            httpx_lists, ask=ask, size=size, at_once=at_once
        )
        for size, at_once in shapes
    }
