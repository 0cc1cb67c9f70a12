"""What batchclient relies on in an embedding server: lists, their order, base64, errors, tokens; pairs by their vectors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from batchclient import BadRequest, BatchClient, Batching, Embedding, NotFound
from batchclient.openai import AsyncOpenAI
from tests.contract.conftest import SERVERS, Server, pooling_server
from tests.live.server_process import DEFAULT_MODEL_DIR
from tests.live.servers import EMBED_FLAGS

TEXTS = [f"def function_{i}(argument" for i in range(24)]


@pytest.fixture(scope="module", params=SERVERS)
def embedder(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each of the servers in turn."""
    yield from pooling_server(request, EMBED_FLAGS, DEFAULT_MODEL_DIR)


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


async def together(server: Server, name: str, items: list[tuple[Any, ...]], **settings: Any) -> tuple[list[Any], Any]:
    """The answers to some calls made at once, and the client's statistics."""
    async with BatchClient(server.base_url, model=server.model, preset="throughput", **settings) as client:
        calls = [getattr(client, name)(*item) for item in items]
        return await asyncio.gather(*calls, return_exceptions=True), client.statistics()


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    root = server.base_url.removesuffix("/v1")
    return httpx.post(root + path, json={"model": server.model, **body}, timeout=60)


def close(one: Any, other: Any) -> bool:
    """Whether two vectors are the same but for the order in which a batch was added up (bfloat16 on the real one)."""
    return math.dist(one, other) < 0.02


def test_a_list_answers_as_singles_do(embedder: Server) -> None:
    items = [(text,) for text in TEXTS]
    answers, statistics = run(together(embedder, "embed", items))
    alone, _ = run(together(embedder, "embed", items, batching=Batching(max_size=1)))
    assert max(statistics.list_sizes) > 8
    for one, other in zip(answers, alone, strict=True):
        assert isinstance(one, Embedding)
        assert close(one.vector, other.vector)
        assert math.hypot(*one.vector) == pytest.approx(1.0, abs=0.01)
    # The vectors differ, so that a swapped one would show.
    assert not any(close(answers[i].vector, alone[i + 1].vector) for i in range(23))


def test_usage_is_known_alone_and_by_token_ids(embedder: Server) -> None:
    (one,), _ = run(together(embedder, "embed", [("hello world",)]))
    many, _ = run(together(embedder, "embed", [([5 + i] * (i + 1),) for i in range(6)]))
    assert one.usage.prompt_tokens > 0
    assert [answer.usage.prompt_tokens for answer in many] == [1, 2, 3, 4, 5, 6]


def test_base64_and_numbers_are_the_same(embedder: Server) -> None:
    async def both() -> Any:
        async with BatchClient(embedder.base_url, model=embedder.model) as client:
            return await client.embed("a b"), await client.embed("a b", encoding_format="float")

    packed, plain = run(both())
    assert close(packed.vector, plain.vector)
    raw = post(embedder, "/v1/embeddings", input=["a b", "c"], encoding_format="base64").json()
    assert [item["index"] for item in raw["data"]] == [0, 1]
    assert all(isinstance(item["embedding"], str) for item in raw["data"])


def test_one_bad_text_fails_alone(embedder: Server) -> None:
    items = [(text,) for text in TEXTS[:8]]
    items[2], items[5] = ("",), ("a b " * 600,)
    answers, _ = run(together(embedder, "embed", items))
    assert [i for i, answer in enumerate(answers) if isinstance(answer, BadRequest)] == [2, 5]
    assert sum(isinstance(answer, Embedding) for answer in answers) == 6
    assert "maximum context length is 512" in str(answers[5])


def test_unrelated_pairs_share_a_request(embedder: Server) -> None:
    pairs = [(TEXTS[i], TEXTS[(7 * i) % 24]) for i in range(24)]
    answers, statistics = run(together(embedder, "score", pairs))
    alone, _ = run(together(embedder, "score", pairs, batching=Batching(max_size=1)))
    assert max(statistics.list_sizes) > 8
    assert [answer.score for answer in answers] == pytest.approx([answer.score for answer in alone], abs=0.02)


def test_a_ranking_is_the_servers_own(embedder: Server) -> None:
    documents = TEXTS[:6]
    (ranked,), _ = run(together(embedder, "rerank", [(TEXTS[3], documents)]))
    theirs = post(embedder, "/rerank", query=TEXTS[3], documents=documents).json()["results"]
    assert ranked[0].index == 3
    assert [document.score for document in ranked] == pytest.approx(
        [result["relevance_score"] for result in theirs], abs=0.02
    )
    assert {document.index: document.document for document in ranked} == dict(enumerate(documents))


def test_tokens_are_the_models(embedder: Server) -> None:
    (tokens,), _ = run(together(embedder, "tokenize", [("hello world",)]))
    theirs = post(embedder, "/tokenize", prompt="hello world").json()
    assert tokens == theirs["tokens"]
    assert theirs["count"] == len(tokens)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"input": []}, 400),
        ("/v1/embeddings", {"input": ["a", ""]}, 400),
        ("/v1/embeddings", {"input": ["a", [1]]}, 400),
        ("/v1/embeddings", {"input": 5}, 400),
        ("/v1/embeddings", {}, 400),
        ("/v1/embeddings", {"input": "a", "model": "nope"}, 404),
        ("/v1/embeddings", {"input": "a", "dimensions": 5}, 400),
        ("/v1/embeddings", {"input": "a", "encoding_format": "nope"}, 400),
        ("/v1/embeddings", {"input": [[999999]]}, 400),
        ("/v1/embeddings", {"input": "a", "no_such_field": 1}, 200),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400),
        ("/score", {"text_1": [], "text_2": []}, 400),
        ("/score", {"text_1": ["a"]}, 400),
        ("/rerank", {"query": "a", "documents": []}, 400),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, 400),
        ("/tokenize", {"prompt": ["a"]}, 400),
        ("/tokenize", {"prompt": "a", "model": "nope"}, 404),
    ],
    ids=str,
)
def test_what_is_refused(embedder: Server, path: str, body: dict[str, Any], status: int) -> None:
    reply = post(embedder, path, **body)
    assert reply.status_code == status
    if status != 200:
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == status


def test_an_unknown_model_is_not_found(embedder: Server) -> None:
    async def story() -> None:
        async with BatchClient(embedder.base_url, model="nope") as client:
            with pytest.raises(NotFound, match="nope"):
                await client.embed("a")

    run(story())


def test_replies_have_the_recorded_fields(embedder: Server) -> None:
    """Fields of vLLM 0.32's replies, as they were seen."""
    embedding = post(embedder, "/v1/embeddings", input=["a", "b"]).json()
    assert set(embedding) == {"id", "object", "created", "model", "data", "usage"}
    assert set(embedding["data"][0]) == {"index", "object", "embedding"}
    usage = {"prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"}
    assert set(embedding["usage"]) == usage
    score = post(embedder, "/score", text_1="a", text_2="b").json()
    assert set(score) == {"id", "object", "created", "model", "data", "usage"}
    assert set(score["data"][0]) == {"index", "object", "score"}
    rank = post(embedder, "/rerank", query="a", documents=["b"]).json()
    assert set(rank) == {"id", "model", "usage", "results"}
    assert set(rank["results"][0]) == {"index", "document", "relevance_score"}
    assert rank["results"][0]["document"] == {"text": "b", "multi_modal": None}
    assert set(post(embedder, "/tokenize", prompt="a").json()) == {"count", "max_model_len", "tokens", "token_strs"}


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_through_openais_own_class_the_reply_is_the_servers(embedder: Server, encoding: str | None) -> None:
    """The drop-in beside openai's client: one body with several inputs, in company of others."""
    extra = {} if encoding is None else {"encoding_format": encoding}

    async def story() -> tuple[list[Any], Any]:
        given = {"base_url": embedder.base_url, "api_key": "key"}
        async with AsyncOpenAI(**given, preset="throughput") as ours, openai.AsyncOpenAI(**given) as theirs:
            asks = [ours.embeddings.create(model=embedder.model, input=TEXTS[:3], **extra) for _ in range(8)]
            expected = await theirs.embeddings.create(model=embedder.model, input=TEXTS[:3], **extra)
            return list(await asyncio.gather(*asks)), expected

    several, expected = run(story())
    assert sum(each.usage.prompt_tokens for each in several) == 8 * expected.usage.prompt_tokens
    for each in several:
        assert type(each) is type(expected)
        assert [item.index for item in each.data] == [0, 1, 2]
        for mine, own in zip(each.data, expected.data, strict=True):
            assert type(mine.embedding) is type(own.embedding)
            if encoding != "base64":
                assert close(mine.embedding, own.embedding)
        own_fields = expected.to_dict(warnings=False) | {"data": None, "usage": None, "id": None, "created": None}
        assert each.to_dict(warnings=False) | {"data": None, "usage": None, "id": None, "created": None} == own_fields
