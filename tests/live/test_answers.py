"""Bad answers, and their repair, on a real vLLM: greedy answers that go on, and loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batchclient import Batching, Repair, SyncBatchClient
from tests.live.fixtures import LiveServer

pytestmark = pytest.mark.vllm

PROMPTS = [
    f"def {name}({argument}):\n"
    for name in ("read", "write", "main", "total")
    for argument in ("self", "x", "path", "")
]
CHATS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
LONG, SHORT = 96, 24


def mapped(server: LiveServer, documents: list[Any], **arguments: Any) -> Any:
    """The answers, and the client's statistics."""

    async def story() -> Any:
        async with server.client(batching=Batching(max_size=arguments.pop("max_size", 8))) as client:
            results = await client.batch_map(documents, lambda document: document, temperature=0, **arguments)
            return results, client.statistics()

    return asyncio.run(story())


@pytest.mark.parametrize("form", ["ids", "text", "chat"])
def test_a_repaired_answer_is_what_one_long_answer_would_have_been(vllm_server: LiveServer, form: str) -> None:
    documents: list[Any] = list(PROMPTS)
    arguments: dict[str, Any] = {}
    if form == "ids":
        with SyncBatchClient(vllm_server.base_url, model=vllm_server.model) as client:
            documents = [client.tokenize(prompt) for prompt in PROMPTS]
        arguments["return_token_ids"] = True
    if form == "chat":
        documents, arguments["call"] = CHATS, "chat"
    whole, _ = mapped(vllm_server, documents, max_tokens=LONG, **arguments)
    parts, statistics = mapped(vllm_server, documents, max_tokens=SHORT, repair=Repair(truncated=2), **arguments)
    begun, _ = mapped(vllm_server, documents, max_tokens=SHORT, **arguments)
    assert statistics.regained_tokens and not statistics.wasted_tokens
    differ = sum(a.text != b.text for a, b in zip(whole, parts, strict=True))
    went_on = sum(answer.usage.completion_tokens > SHORT for answer in parts)
    print(f"{form}: {went_on} of {len(parts)} went on, {differ} differ from one long answer")
    if form == "ids":
        # Where a text is sent again, its last word may be other tokens than the model had written.
        assert not differ
        assert [each.choices[0].token_ids for each in whole] == [each.choices[0].token_ids for each in parts]
    for one, first, joined in zip(whole, begun, parts, strict=True):
        assert joined.text.startswith(first.text.rstrip())
        assert joined.usage.completion_tokens <= LONG
        assert form == "chat" or joined.usage.prompt_tokens == one.usage.prompt_tokens


@pytest.mark.parametrize("call", ["complete", "chat"])
def test_a_loop_is_ended_by_the_server_or_by_closing_its_stream(vllm_server: LiveServer, call: str) -> None:
    documents: list[Any] = CHATS[:6] if call == "chat" else PROMPTS[:6]
    arguments = {"call": call, "max_tokens": 1500}
    loops, _ = mapped(vllm_server, documents, **arguments)
    places = [place for place, answer in enumerate(loops) if answer.health == "runaway"]
    assert places, "the tiny model goes round and round"
    documents = [documents[place] for place in places]
    for max_size in (1, 8):
        ended, _ = mapped(vllm_server, documents, max_size=max_size, runaway=True, **arguments)
        assert ended.health["runaway"] == len(documents)
        assert {answer.finish_reason for answer in ended} <= {"repetition", None, "length"}
        assert sum(answer.usage.completion_tokens for answer in ended) < sum(
            loops[place].usage.completion_tokens for place in places
        )
    # Where the server is not asked, as one before 0.17 is not, the stream is closed.
    closed, _ = mapped(
        vllm_server, documents, max_size=1, runaway=True, extra_body={"repetition_detection": None}, **arguments
    )
    assert closed.health["runaway"] == len(documents) and None in {answer.finish_reason for answer in closed}
