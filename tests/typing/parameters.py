"""The parameters of calls as type checkers see them: names, types, choices, and answers by call.

Never run. ``mypy --strict`` and pyright's strict mode must accept every line without a comment, and must refuse every line
with one: an ignore that ignores nothing is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

from pydantic import BaseModel

from batchclient import (
    BatchClient,
    Classification,
    Completion,
    MapResults,
    Delta,
    Embedding,
    LogLikelihood,
    MapResult,
    RankedDocument,
    Score,
    Stream,
    SyncBatchClient,
    SyncStream,
)
from batchclient.params import ChatParams, CompletionParams, EmbeddingParams, StructuredOutputs

MESSAGES = [{"role": "user", "content": "hi"}]


class Verdict(BaseModel):
    right: bool


def prompt_of(document: str) -> str:
    return document


async def names(client: BatchClient) -> None:
    """Each server's fields have names and types."""
    await client.complete("p", max_tokens=5, temperature=0, top_p=0.9, stop=["\n"], seed=7, n=2, logprobs=1)
    await client.complete("p", top_k=40, min_p=0.05, repetition_penalty=1.1, ignore_eos=True, min_tokens=2)
    await client.complete("p", structured_outputs={"choice": ["yes", "no"]}, stop_token_ids=[2], json_schema={})
    await client.complete("p", extra_body={"guided_choice": ["a"], "stop_regex": "a", "mirostat": 2})
    await client.complete("p", max_tokens=None, stop=None, user="u", metadata={"a": 1}, extra_body={"of_tomorrow": 1})
    await client.chat(MESSAGES, max_completion_tokens=5, tools=[{}], tool_choice="auto", reasoning_effort="low")
    await client.chat(MESSAGES, logprobs=True, top_logprobs=2, chat_template_kwargs={"enable_thinking": False})
    await client.embed("t", dimensions=4, encoding_format="float", truncate_prompt_tokens=8)
    await client.classify("t", raw_scores=False)
    await client.score("q", "d", instruction="i")
    await client.rerank("q", ["d"], top_n=1, return_documents=False)
    await client.log_likelihood("b", given="a", temperature=0)
    await client.tokenize("t", add_special_tokens=False)
    client.stream("p", stream_interval=4)
    client.stream_chat(MESSAGES, stream_interval=4, tools=[{}])


async def misspelt(client: BatchClient) -> None:
    """A name that no call has is refused."""
    await client.complete("p", max_token=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.complete("p", mirostat=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.complete("p", temprature=0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.complete("p", tools=[{}])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.complete("p", stream_interval=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.chat(MESSAGES, max_new_tokens=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.embed("t", dimension=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.classify("t", use_activations=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.score("q", "d", instructions="i")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.rerank("q", ["d"], topn=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.log_likelihood("b", context="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.tokenize("t", add_special_token=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.stream("p", max_token=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.stream_chat(MESSAGES, max_token=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def of_another_type(client: BatchClient) -> None:
    """A value of another type, and a word that is no choice, are refused."""
    await client.complete("p", max_tokens="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.complete("p", temperature="hot")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.embed("t", truncation_side="top")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.complete("p", structured_outputs={"choices": ["a"]})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.complete("p", extra_body=[1])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.chat(MESSAGES, tool_choice="any")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.chat(MESSAGES, reasoning_effort="lots")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.embed("t", encoding_format="base32")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    BatchClient("http://a/v1", preset="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    BatchClient("http://a/v1", dialect="vlm")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    BatchClient("http://a/v1", when_full="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def kept(client: BatchClient) -> None:
    """Parameters may be kept in a dictionary of their own type."""
    sampling: CompletionParams = {"temperature": 0, "max_tokens": 5}
    assert_type(await client.complete("p", **sampling), Completion)
    assert_type(await client.batch_map(["a"], "{}", **sampling), MapResults[Completion])
    chat: ChatParams = {"tools": [{}], "tool_choice": "required"}
    assert_type(await client.chat(MESSAGES, **chat), Completion)
    vectors: EmbeddingParams = {"dimensions": 4}
    assert_type(await client.batch_map(["a"], "{}", call="embed", **vectors), MapResults[Embedding])
    form: StructuredOutputs = {"json": {"type": "object"}}
    await client.complete("p", structured_outputs=form)
    wrong: CompletionParams = {"max_token": 5}  # type: ignore[typeddict-unknown-key]  # pyright: ignore[reportAssignmentType]
    print(wrong)


async def answers(client: BatchClient) -> None:
    assert_type(await client.complete("p"), Completion)
    assert_type(await client.embed("t"), Embedding)
    assert_type(await client.classify("t"), Classification)
    assert_type(await client.score("q", "d"), Score)
    assert_type(await client.rerank("q", ["d"]), list[RankedDocument])
    assert_type(await client.log_likelihood("b"), LogLikelihood)
    assert_type(await client.tokenize("t"), list[int])
    assert_type(client.stream("p"), Stream)


async def answers_of_maps(client: BatchClient) -> None:
    """A map's answers have the type of its call."""
    assert_type(await client.batch_map(["a"], "{}"), MapResults[Completion])
    assert_type(
        await client.batch_map(["a"], prompt_of, call="complete", response_model=Verdict), MapResults[Completion]
    )
    assert_type(await client.batch_map(["a"], "{}", call="chat", tools=[{}]), MapResults[Completion])
    assert_type(await client.batch_map(["a"], lambda text: MESSAGES, call="chat"), MapResults[Completion])
    assert_type(await client.batch_map(["a"], "{}", call="embed", dimensions=4), MapResults[Embedding])
    assert_type(await client.batch_map(["a"], "{}", call="classify"), MapResults[Classification])
    assert_type(await client.batch_map(["a"], "{}", return_exceptions=True), MapResults[Completion | Exception])
    assert_type(
        await client.batch_map(["a"], "{}", call="embed", return_exceptions=True), MapResults[Embedding | Exception]
    )
    assert_type(
        await client.batch_map(["a"], "{}", call="classify", return_exceptions=True),
        MapResults[Classification | Exception],
    )
    async for row in client.stream_map(["a"], "{}", max_tokens=5, timeout_s=3, look_ahead=5):
        assert_type(row, MapResult[Completion])
        assert_type(row.answer, Completion | None)
    async for vector in client.stream_map(["a"], "{}", call="embed", ordered=True):
        assert_type(vector, MapResult[Embedding])
        assert_type(vector.answer, Embedding | None)
    async for label in client.stream_map(["a"], "{}", call="classify"):
        assert_type(label, MapResult[Classification])


async def refused_of_maps(client: BatchClient) -> None:
    await client.batch_map(["a"], "{}", max_token=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await client.batch_map(["a"], "{}", tools=[{}])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await client.batch_map(["a"], "{}", call="embedd")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await client.batch_map(["a"], "{}", call="embed", max_tokens=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await client.batch_map(["a"], "{}", call="embed", response_model=Verdict)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    client.stream_map(["a"], "{}", call="classify", dimensions=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def blocking(client: SyncBatchClient) -> None:
    """The same for threads."""
    assert_type(client.complete("p", top_k=3), Completion)
    assert_type(client.embed("t", dimensions=4), Embedding)
    assert_type(client.stream("p", stream_interval=4), SyncStream)
    for delta in client.stream_chat(MESSAGES, max_tokens=5):
        assert_type(delta, Delta)
    assert_type(client.batch_map(["a"], "{}", max_tokens=5), MapResults[Completion])
    assert_type(client.batch_map(["a"], "{}", call="embed"), MapResults[Embedding])
    assert_type(
        client.batch_map(["a"], "{}", call="classify", return_exceptions=True), MapResults[Classification | Exception]
    )
    for row in client.stream_map(["a"], "{}", call="embed"):
        assert_type(row, MapResult[Embedding])
    client.complete("p", max_token=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.embed("t", dimension=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.batch_map(["a"], "{}", call="embed", dimension=4)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def rows_of(handle: Callable[[MapResult], None], handle_any: Callable[[MapResult[Any]], None]) -> None:
    """``MapResult`` by itself is a completion's."""
    assert_type(handle, Callable[[MapResult[Completion]], None])
    handle_any(MapResult[Embedding]("id", 0, "document"))
