"""LiteLLM's real proxy before a server whose answers show whose they are (``make test-proxies``)."""

import asyncio
import json
import os
import subprocess
import sys

import openai
import pytest

from batchclient import BatchClient, Usage
from batchclient.errors import AuthenticationFailed, BadRequest, RateLimited, ServerFault
from batchclient.openai import AsyncOpenAI
from batchclient.retry import Backoff
from batchclient.simulator import expected_text
from tests.proxies.litellm_proxy import LIMITED_KEY, LIMITED_REQUESTS, MASTER_KEY, REVOKED_KEY, WINDOW_S

COUNT = 100
ONCE = Backoff(max_attempts=1)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a name up.",
            "parameters": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]},
        },
    }
]
TOO_LONG = "x " * 40_000


def says(prompt, tokens):
    return expected_text(prompt, max_tokens=tokens, temperature=0)


def says_to(text, tokens):
    """The answer to a conversation of one message."""
    return says(f"user: {text}\nassistant:", tokens)


def user(text):
    return [{"role": "user", "content": text}]


def together(calls):
    return asyncio.gather(*calls, return_exceptions=True)


async def collect(stream):
    async with stream as pieces:
        deltas = [delta async for delta in pieces]
    return deltas, pieces.completion


# Completions ---------------------------------------------------------------------------------------------------------


async def test_short_completions_share_lists_and_each_has_its_own_answer(connect, upstream):
    async with connect() as client:
        answers = await together(client.complete(f"word {i}", max_tokens=4, temperature=0) for i in range(COUNT))
    assert answers[7].text == "a8adf24d fit joy lap"
    assert [each.text for each in answers] == [says(f"word {i}", 4) for i in range(COUNT)]
    assert [each.usage for each in answers] == [Usage(3, 4)] * COUNT
    assert upstream.requests <= 10


# Chats ---------------------------------------------------------------------------------------------------------------


async def test_a_hundred_chats_at_once(connect, upstream):
    async with connect() as client:
        answers = await together(client.chat(user(f"word {i}"), max_tokens=4, temperature=0) for i in range(COUNT))
    assert [each.text for each in answers] == [says_to(f"word {i}", 4) for i in range(COUNT)]
    assert [each.usage for each in answers] == [Usage(10, 4)] * COUNT
    assert upstream.requests == COUNT


async def test_tools_are_passed_through(connect, tool_upstream):
    before = len(tool_upstream.bodies)
    async with connect(model="tools") as client:
        answers = await together(client.chat(user(name), tools=TOOLS, max_tokens=64) for name in ("Ada", "Grace"))
    assert [[each["function"] for each in answer.message["tool_calls"]] for answer in answers] == [
        [{"arguments": '{"of": "Ada"}', "name": "look_up"}, {"arguments": '{"of": "adA"}', "name": "look_up"}],
        [{"arguments": '{"of": "Grace"}', "name": "look_up"}, {"arguments": '{"of": "ecarG"}', "name": "look_up"}],
    ]
    assert [answer.finish_reason for answer in answers] == ["tool_calls"] * 2
    assert [body["tools"] for body in tool_upstream.bodies[before:]] == [TOOLS] * 2


async def test_tool_calls_in_pieces(connect):
    async with connect(model="tools") as client:
        made = await together(
            collect(client.stream_chat(user(name), tools=TOOLS, max_tokens=64)) for name in ("Ada", "Grace")
        )
    assert [answer.message["tool_calls"] for _, answer in made] == [
        [
            {"id": "call_0_Ada", "type": "function", "function": {"name": "look_up", "arguments": '{"of": "Ada"}'}},
            {"id": "call_1_adA", "type": "function", "function": {"name": "look_up", "arguments": '{"of": "adA"}'}},
        ],
        [
            {"id": "call_0_Grace", "type": "function", "function": {"name": "look_up", "arguments": '{"of": "Grace"}'}},
            {"id": "call_1_ecarG", "type": "function", "function": {"name": "look_up", "arguments": '{"of": "ecarG"}'}},
        ],
    ]
    assert [sum("tool_calls" in (delta.message or {}) for delta in deltas) for deltas, _ in made] == [8, 8]


# Embeddings, maps ----------------------------------------------------------------------------------------------------


async def test_embeddings_share_lists_and_are_the_upstreams(connect, upstream):
    texts = [f"word {i}" for i in range(COUNT)]
    async with connect() as client, BatchClient(upstream.embedded.base_url, model="m") as direct:
        through = await together(client.embed(text) for text in texts)
        requests = upstream.requests
        straight = await together(direct.embed(text) for text in texts)
    assert [list(each.vector) for each in through] == [list(each.vector) for each in straight]
    assert requests <= 10


# Errors --------------------------------------------------------------------------------------------------------------


async def test_an_unknown_model_is_its_callers_error_alone(connect, upstream):
    async with connect() as client:
        wrong = [client.complete(f"word {i}", model="nope", max_tokens=4) for i in range(4)]
        right = [client.complete(f"word {i}", max_tokens=4, temperature=0) for i in range(20)]
        outcomes = await together([*wrong, *right, client.chat(user("hi"), model="nope")])
    refused = [*outcomes[:4], outcomes[-1]]
    assert [(type(each), each.status, each.retryable) for each in refused] == [(BadRequest, 400, False)] * 5
    assert all("Invalid model name passed in model=nope" in each.message for each in refused)
    assert [each.text for each in outcomes[4:-1]] == [says(f"word {i}", 4) for i in range(20)]


@pytest.mark.parametrize(
    ("api_key", "kind", "status", "words"),
    [
        (None, AuthenticationFailed, 401, "No api key passed in."),
        (REVOKED_KEY, AuthenticationFailed, 401, "Invalid proxy server token passed"),
        # What a proxy without a database says of a key that is not its master key.
        ("sk-other-0000", BadRequest, 400, "No connected db."),
    ],
)
async def test_a_wrong_key_is_said_at_once_and_shown_nowhere(connect, upstream, api_key, kind, status, words):
    async with connect(api_key=api_key) as client:
        refused = await together(
            [*(client.complete(f"word {i}", max_tokens=4) for i in range(8)), client.chat(user("hi"))]
        )
    assert [(type(each), each.status, each.attempt) for each in refused[8:]] == [(kind, status, 1)]
    assert {(type(each), each.status) for each in refused} == {(kind, status)}
    assert all(words in each.message and "0000" not in each.message for each in refused)
    assert upstream.requests == 0


async def test_an_upstream_that_is_down_fails_its_model_and_no_other(connect, upstream):
    async with connect(retry=Backoff(max_attempts=2)) as client:
        dead = [client.complete(f"word {i}", model="dead", max_tokens=4) for i in range(20)]
        well = [client.complete(f"word {i}", max_tokens=4, temperature=0) for i in range(COUNT)]
        outcomes = await together([*dead, *well])
        later = await client.chat(user("hi"), max_tokens=4, temperature=0)
        failed = await together([client.chat(user("hi"), model="dead", max_tokens=4)])
    assert {(type(each), each.status, each.attempt) for each in [*outcomes[:20], *failed]} == {(ServerFault, 500, 2)}
    assert [each.text for each in outcomes[20:]] == [says(f"word {i}", 4) for i in range(COUNT)]
    assert later.text == says_to("hi", 4)


async def test_calls_outlive_an_upstream_that_is_started_again(connect, upstream):
    upstream.embedded.stop()
    try:
        async with connect() as client:
            calls = asyncio.ensure_future(
                together(client.complete(f"word {i}", max_tokens=4, temperature=0) for i in range(20))
            )
            while not client.statistics().backing_off:
                await asyncio.sleep(0.01)
            upstream.embedded.start()
            answers = await calls
    finally:
        upstream.embedded.stop()
        upstream.embedded.start()
    assert [each.text for each in answers] == [says(f"word {i}", 4) for i in range(20)]


@pytest.mark.parametrize("fault", ["status=500", "status=503,retry_after=1", "status=429,retry_after=1", "disconnect"])
@pytest.mark.parametrize("call", ["complete", "chat"])
async def test_what_failed_once_upstream_is_answered_at_the_second_attempt(connect, upstream, fault, call):
    upstream.embedded.set_faults(f"{fault},count=1")
    async with connect() as client:
        if call == "chat":
            answer = await client.chat(user("hi"), max_tokens=4, temperature=0)
        else:
            answer = await client.complete("user: hi\nassistant:", max_tokens=4, temperature=0)
    assert (answer.text, answer.attempts) == (says_to("hi", 4), 2)


async def test_one_prompt_that_the_upstream_refuses_fails_alone(connect, upstream):
    async with connect() as client:
        outcomes = await together(
            client.complete(TOO_LONG if i == 7 else f"word {i}", max_tokens=4, temperature=0) for i in range(20)
        )
    culprit = outcomes.pop(7)
    assert (type(culprit), culprit.status) == (BadRequest, 400)
    assert "maximum context length is 32768 tokens" in culprit.message
    assert "x x" not in culprit.message
    assert [each.text for each in outcomes] == [says(f"word {i}", 4) for i in range(20) if i != 7]
    assert upstream.requests <= 12


async def test_a_limited_key_waits_as_long_as_litellm_says(connect, upstream):
    async with connect(api_key=LIMITED_KEY, retry=ONCE) as client:
        outcomes = await together(client.chat(user(f"word {i}"), max_tokens=4, temperature=0) for i in range(8))
    refused = [each for each in outcomes if isinstance(each, RateLimited)]
    assert len(outcomes) - len(refused) >= LIMITED_REQUESTS
    assert {(each.status, each.retry_after_s) for each in refused} == {(429, float(WINDOW_S))}
    async with connect(api_key=LIMITED_KEY) as client:
        answers = await together(client.chat(user(f"word {i}"), max_tokens=4, temperature=0) for i in range(5))
    assert [each.text for each in answers] == [says_to(f"word {i}", 4) for i in range(5)]


async def test_token_ids_which_litellm_cannot_send_on_fail_with_its_words(connect):
    async with connect(retry=ONCE) as client:
        with pytest.raises(ServerFault, match="Unmapped prompt format") as caught:
            await client.complete([301, 302], max_tokens=4)
    assert caught.value.status == 500
    assert "301" not in caught.value.message
