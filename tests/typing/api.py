"""Code that uses the public API as users do. It is never run; ``mypy --strict`` and pyright must accept every line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, assert_type

import httpx
import tenacity
from pydantic import BaseModel

from batchclient import (
    Queue,
    Batching,
    AnswerInvalid,
    Backoff,
    BatchClient,
    BatchClientError,
    BatchMapFailed,
    Choice,
    Completion,
    MapResults,
    ConfigError,
    DeadlineExceeded,
    Delta,
    Embedding,
    EndpointStatistics,
    Journal,
    LocalError,
    MapProgress,
    MapResult,
    Price,
    QueueFull,
    RankedDocument,
    RateLimited,
    RemoteError,
    Repair,
    RetryPolicy,
    RowCall,
    RowClient,
    RowStream,
    Statistics,
    Stream,
    SyncBatchClient,
    SyncRowStream,
    SyncStream,
    TenacityRetry,
    TransportError,
    Usage,
    __version__,
)

version: str = __version__


def clients() -> list[BatchClient]:
    return [
        BatchClient("http://localhost:8000/v1"),
        BatchClient(["http://a/v1", "http://b/v1"], model="m", api_key="k", preset="throughput"),
        BatchClient("http://a/v1", http=httpx.AsyncClient(), headers={"x": "y"}, timeout_s=5),
        BatchClient("http://a/v1", retry=Backoff(max_attempts=3, base_s=0.1, cap_s=1.0)),
        BatchClient(
            "http://a/v1", retry=TenacityRetry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(1))
        ),
        BatchClient("http://a/v1", limit=64, batching=Batching(max_size=32, linger_s=0.001)),
        BatchClient(
            "http://a/v1",
            probe=False,
            batching=Batching(max_size=lambda queue_depth: queue_depth // 2),
        ),
        BatchClient("http://a/v1", queue=Queue(max_calls=10, when_full="raise")),
    ]


async def completing(client: BatchClient) -> None:
    answer = await client.complete("a prompt", max_tokens=5, temperature=0.0, stop=["\n"])
    assert_type(answer, Completion)
    assert_type(answer.text, str)
    assert_type(answer.finish_reason, str | None)
    assert_type(answer.choices, tuple[Choice, ...])
    assert_type(answer.attempts, int)
    assert_type(answer.time_to_first_token_s, float | None)
    assert_type(answer.extra, Mapping[str, Any])
    if answer.usage is not None:
        assert_type(answer.usage, Usage)
        assert_type(answer.usage.prompt_tokens + answer.usage.completion_tokens, int)
        assert_type(answer.usage.total_tokens, int)
    for choice in answer.choices:
        assert_type(choice.index, int)
        assert_type(choice.logprobs, Mapping[str, Any] | None)
        assert_type(choice.token_ids, tuple[int, ...] | None)
    assert_type(await client.complete([1, 2, 3], model="other", timeout_s=1.5), Completion)


class Verdict(BaseModel):
    right: bool


async def chatting(client: BatchClient) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = await client.chat(messages, max_tokens=5, response_model=Verdict, priority=1, tenant="t")
    assert_type(answer, Completion)
    assert_type(answer.message, Mapping[str, Any] | None)
    assert_type(answer.output_tokens, int | None)
    assert_type(answer.parsed, Any)
    assert_type(await client.complete("a prompt", response_model=Verdict), Completion)
    assert_type(await client.batch_map([{"prompt": "a"}], rows="prompt", row_params="take"), MapResults[Any])
    client.stream_map([{"prompt": "a"}], max_tokens=1)
    await client.batch_map([{"text": "a", "seed": 1}], "{text}", row_params="take")
    await client.batch_map(["a"], lambda text: [{"role": "user", "content": text}], response_model=Verdict)
    assert_type(client.stream_map(["a"], "{}", response_model=Verdict, repair=Repair(invalid=2)).counts.invalid, int)
    async with client.stream("a prompt", max_tokens=5) as pieces:
        assert_type(pieces, Stream)
        async for delta in pieces:
            assert_type(delta, Delta)
            assert_type(delta.text, str)
            assert_type(delta.message, Mapping[str, Any] | None)
    assert_type(pieces.completion, Completion | None)
    stream = client.stream_chat(messages, timeout_s=5)
    assert_type(await stream.__anext__(), Delta)
    await stream.aclose()
    try:
        await client.chat(messages, response_model=Verdict)
    except AnswerInvalid as error:
        assert_type(error.retryable, bool)


def lines() -> Iterator[str]:
    yield "a document"


async def rows() -> AsyncIterator[dict[str, str]]:
    yield {"title": "t", "body": "b"}


def prompt_of(document: Any) -> str:
    return f"Summarise: {document}"


async def mapping(client: BatchClient) -> None:
    answers = await client.batch_map(["a", "b"], "Summarise: {}", max_tokens=64)
    for answer in answers:
        print(answer.text)
    await client.batch_map(lines(), prompt_of, return_exceptions=True)
    try:
        await client.batch_map(rows(), "{title}: {body}", timeout_s=5.0, look_ahead=10)
    except BatchMapFailed as failed:
        assert_type(failed.results, MapResults[Any])
    results = client.stream_map(lines(), "{}", ordered=True, seed=7)
    async for row in results:
        assert_type(row, MapResult)
        assert_type(row.id, str)
        assert_type(row.index, int)
        assert_type(row.completion, Completion | None)
        assert_type(row.error, Exception | None)
    await results.aclose()


async def review(row: dict[str, str], client: RowClient) -> int:
    draft = await client.chat([{"role": "user", "content": row["title"]}], max_tokens=5, response_model=Verdict)
    assert_type(draft, Completion)
    assert_type((await client.embed("a")).vector[0], float)
    assert_type(await client.rerank("q", ["a"], top_n=1), list[RankedDocument])
    return len(draft.text)


def call_of(document: Any) -> RowCall:
    return RowCall("embed", document, {"dimensions": 8})


async def functions(client: BatchClient, blocking: SyncBatchClient) -> None:
    results = client.run(review, rows(), ordered=True, fail_if=["failed>5%"], journal=Journal("j"))
    assert_type(results, RowStream[int])
    async with results:
        async for result in results:
            assert_type(result, MapResult[int])
            assert_type(result.answer, int | None)
    assert_type(results.counts, MapProgress)
    assert_type(blocking.run(review, [{"title": "a"}]), SyncRowStream[int])
    assert_type(client.stream_map(["a"], call_of), RowStream[Any])
    assert_type(await client.batch_map(["a"], call_of), MapResults[Any])


async def living(client: BatchClient) -> None:
    async with client as same:
        assert_type(same, BatchClient)
        same.pause()
        same.resume()
        same.abort()
    statistics = client.statistics()
    assert_type(statistics, Statistics)
    assert_type(statistics.in_flight, int)
    assert_type(statistics.endpoints, tuple[EndpointStatistics, ...])
    assert_type(statistics.list_sizes, Mapping[int, int])
    assert_type(statistics.endpoints[0].blocked_until, float | None)
    client.add_endpoint("http://other:8000/v1")
    assert_type(await client.remove_endpoint("http://other:8000/v1", drain=False), None)
    assert_type(client.statistics().endpoints[0].state, str)
    await client.drain()
    await client.aclose()


def blocking() -> None:
    with SyncBatchClient("http://a/v1", model="m", preset="throughput", limit=64) as client:
        assert_type(client, SyncBatchClient)
        assert_type(client.complete("a prompt", max_tokens=5), Completion)
        assert_type(client.chat([{"role": "user", "content": "hi"}], response_model=Verdict), Completion)
        assert_type(client.embed("a text"), Embedding)
        assert_type(client.rerank("a query", ["a", "b"], top_n=1), list[RankedDocument])
        assert_type(client.tokenize("a text", timeout_s=1.5), list[int])
        assert_type(client.statistics(), Statistics)
        assert_type(client.batch_map(["a"], "{}"), MapResults[Completion])
        assert_type(client.batch_map(lines(), prompt_of, return_exceptions=True), MapResults[Completion | Exception])
        assert_type(client.batch_map(["a"], "{}", call="embed"), MapResults[Embedding])
        for row in client.stream_map(lines(), "{}", ordered=True, look_ahead=10):
            assert_type(row, MapResult)
        with client.stream("a prompt", max_tokens=5) as pieces:
            assert_type(pieces, SyncStream)
            for delta in pieces:
                assert_type(delta, Delta)
        assert_type(pieces.completion, Completion | None)
        with ThreadPoolExecutor() as pool:
            assert_type(list(pool.map(client.complete, ["a", "b"])), list[Completion])
        client.retune(limit=3)
        client.add_endpoint("http://other:8000/v1")
        client.remove_endpoint("http://other:8000/v1", drain=False)
        client.drain()
        client.close()
    client.complete(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.complete("a prompt", timeout_s="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SyncBatchClient("http://a/v1", limits=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SyncBatchClient(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def failing(client: BatchClient) -> float | None:
    try:
        await client.complete("a prompt")
    except ConfigError as error:
        assert_type(error.field, str | None)
    except RateLimited as error:
        return error.retry_after_s
    except (QueueFull, DeadlineExceeded) as error:
        assert_type(error.retryable, bool)
    except (LocalError, RemoteError, TransportError) as error:
        assert_type(error.attempt, int)
        assert_type(error.status, int | None)
    except BatchClientError as error:
        assert_type(error.message, str)
        assert_type(error.code, str | None)
    return None


class Patient:
    """A user's own retry policy."""

    def decide(self, failure: BatchClientError, attempt: int, elapsed_s: float, rng: Random) -> float | None:
        return rng.uniform(0, 1) if failure.retryable and elapsed_s < 60 else None


policies: list[RetryPolicy] = [Backoff(), Patient(), TenacityRetry()]


def prices(client: SyncBatchClient) -> None:
    """What a client's work costs."""
    spent = client.statistics()
    price = Price(per_hour=8 * 2.5, input=0.15, output=0.6)
    assert_type(
        price.cost(prompt_tokens=spent.prompt_tokens, completion_tokens=spent.completion_tokens, seconds=3600), float
    )
    assert_type(spent.wasted_tokens, int)
    assert_type(client.stream_map(["a"], "{}", response_model=Verdict, repair=Repair(invalid=2)).counts.invalid, int)


async def journals(client: BatchClient, blocking: SyncBatchClient) -> None:
    """Maps with a journal."""
    journal = Journal("night.journal", resume=False, retry_failed=True, settings={"prompt": 2})

    def progress(now: MapProgress) -> None:
        assert_type(now.reused, int)

    async for row in client.stream_map(["a"], "{}", journal=journal, progress=progress, max_tokens=1):
        assert_type(row.reused, bool)
        assert_type(row.attempts, int)
    answers = await client.batch_map(["a"], "{}", journal=Journal("night.journal", retry_failed=True))
    assert_type(answers, MapResults[Completion])
    for row in blocking.stream_map(["a"], "{}", journal=Path("night.journal")):
        assert_type(row, MapResult[Completion])
