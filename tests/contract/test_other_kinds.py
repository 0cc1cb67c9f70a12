"""What is asked for beside completions, of every dialect against its server: each caller has its own answer, or is told that there is none.

vLLM's own lists of chats are in ``test_chat.py``.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batchclient import BatchClient, BatchClientError
from batchclient.simulator import (
    expected_text,
    render_messages,
    score_of,
    token_ids,
    vector_of,
)
from tests.contract.peers import CAN, TEI, Peer

TEXTS = [f"text number {i}" + " and more" * (i % 5) for i in range(40)]


@pytest.fixture(scope="module", params=[*CAN, "tei"])
def server(request: pytest.FixtureRequest) -> Peer:
    """Every guise, that which generates nothing too."""
    return Peer(request.param, (CAN | {"tei": TEI})[request.param])


def ask(peer: Peer, kind: str, makers: Any, **settings: Any) -> Any:
    """The answers to calls made at once, and the statistics; ``None`` where the server has none, once every caller was told."""

    async def story(client: BatchClient) -> Any:
        answers = await asyncio.gather(*[make(client) for make in makers], return_exceptions=True)
        return answers, client.statistics()

    answers, statistics = peer.run(story, **settings)
    if kind in peer.can.kinds:
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        return answers, statistics
    assert all(isinstance(answer, BatchClientError) for answer in answers)
    return None, statistics


@pytest.mark.parametrize("max_tokens", [2, 12], ids=["plain", "streamed"])
def test_chats(server: Peer, max_tokens: int) -> None:
    conversations = [[{"role": "user", "content": text}] for text in TEXTS[:12]]
    makers = [
        lambda client, messages=messages: client.chat(messages, max_tokens=max_tokens, temperature=0)
        for messages in conversations
    ]
    answers, _ = ask(server, "chat", makers)
    if answers is not None:
        expected = [
            expected_text(render_messages(messages), max_tokens=max_tokens, temperature=0) for messages in conversations
        ]
        assert [answer.text for answer in answers] == expected
        if server.name != "vllm":
            assert all(answer.usage.completion_tokens == max_tokens for answer in answers)


def test_embeddings(server: Peer) -> None:
    makers = [lambda client, text=text: client.embed(text) for text in TEXTS]
    answers, statistics = ask(server, "embed", makers)
    if answers is not None:
        assert [list(answer.vector) for answer in answers] == [list(vector_of(text)) for text in TEXTS]
        # A list's usage is its total: each has a share.
        assert all(answer.usage is None or answer.usage.prompt_tokens > 0 for answer in answers)
        # TEI pads: what is about as long travels together, 32 at most.
        assert max(statistics.list_sizes) == (24 if server.name == "tei" else 40)


def test_a_rerank(server: Peer) -> None:
    makers = [lambda client, query=query: client.rerank(query, TEXTS[:9]) for query in ("one", "other")]
    answers, statistics = ask(server, "rerank", makers)
    if answers is not None:
        for query, ranked in zip(("one", "other"), answers, strict=True):
            scores = {i: score_of(query, TEXTS[i]) for i in range(9)}
            assert [each.index for each in ranked] == sorted(scores, key=lambda i: -scores[i])
            assert [each.score for each in ranked] == pytest.approx(sorted(scores.values(), reverse=True))
        # Each query's documents travel together, where their lengths allow it.
        assert max(statistics.list_sizes) >= 7


def test_tokens(server: Peer) -> None:
    makers = [lambda client, text=text: client.tokenize(text) for text in TEXTS[:8]]
    answers, statistics = ask(server, "tokenize", makers)
    if answers is not None:
        expected = [token_ids(text) for text in TEXTS[:8]]
        assert [list(answer) for answer in answers] == expected
        assert max(statistics.list_sizes) == {"sglang": 8, "tei": 4}.get(server.name, 1)


def test_tei_is_sent_32_inputs_in_a_request() -> None:
    makers = [lambda client, number=number: client.embed(f"text {number}") for number in range(10, 90)]
    _, statistics = ask(Peer("tei", TEI), "embed", makers)
    assert max(statistics.list_sizes) == 32


def test_a_list_that_teis_start_does_not_allow_is_shortened() -> None:
    # What it says is believed where nothing was known before: here the client takes it for another server.
    peer = Peer("tei", TEI, known=False)
    makers = [lambda client, text=text: client.embed(text) for text in TEXTS]
    answers, statistics = ask(peer, "embed", makers)
    assert [list(answer.vector) for answer in answers] == [list(vector_of(text)) for text in TEXTS]
    assert max(size for size in statistics.list_sizes if size < 40) <= 32


def test_no_completion_is_asked_of_a_server_that_generates_nothing() -> None:
    answers, statistics = ask(Peer("tei", TEI), "complete", [lambda client: client.complete("a", max_tokens=1)])
    assert answers is None
    assert statistics.retries == 0


@pytest.mark.parametrize("stop", [None, " "], ids=["whole", "stopped"])
def test_pieces_as_they_come_are_the_answer(server: Peer, stop: str | None) -> None:
    if server.name == "tei":
        pytest.skip("it generates nothing")
    params = {"max_tokens": 12, "temperature": 0} | ({"stop": [stop]} if stop else {})

    async def story(client: BatchClient) -> Any:
        pieces = client.stream("def f(", **params)
        deltas = [delta async for delta in pieces]
        return deltas, pieces.completion

    deltas, completion = server.run(story)
    expected = expected_text("def f(", **params)
    assert "".join(delta.text for delta in deltas) == completion.text == expected
    assert completion.usage is not None
    assert completion.finish_reason == ("stop" if stop else "length")
    if not stop:
        assert len(deltas) > 6, "they do not come one by one"
        assert completion.usage.completion_tokens == 12
