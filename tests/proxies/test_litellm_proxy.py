"""LiteLLM's real proxy before a server whose answers show whose they are (``make test-extra WHICH=proxies``)."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace

import openai
import pytest

from batchclient import BatchClient, Usage
from batchclient.errors import AuthenticationFailed, BadRequest, RateLimited, ServerFault
from batchclient.openai import AsyncOpenAI
from batchclient.retry import Backoff
from batchclient.simulator import expected_text
from tests.proxies.litellm_proxy import LIMITED_KEY, LIMITED_REQUESTS, MASTER_KEY, REVOKED_KEY, WINDOW_S

LONGEST_S = 60.0
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
    # A list's usage is a sum: each one's share of the prompts is an estimate.
    assert [(each.usage.prompt_tokens, each.usage.completion_tokens) for each in answers] == [(3, 4)] * COUNT
    assert upstream.requests <= 10


@pytest.mark.parametrize("model", ["m", "through-openai", "through-text"])
async def test_longer_completions_are_each_callers_own(connect, upstream, model):
    """The proxy numbers every piece of a streamed list 0: whoever believed that would hand out all texts mixed."""
    async with connect(model=model) as client:
        answers = await together(client.complete(f"word {i}", max_tokens=12, temperature=0) for i in range(COUNT))
        assert client.statistics().endpoints[0].streams_refused
    assert answers[7].text == "a8adf24d fit joy lap pen and pen rim air low and bud"
    assert [each.text for each in answers] == [says(f"word {i}", 12) for i in range(COUNT)]
    # One streamed list, and what came with it, went twice.
    assert upstream.requests <= 16


async def test_a_lone_completion_of_several_tokens_is_streamed(connect, upstream):
    async with connect() as client:
        answer = await client.complete("word 7", max_tokens=12, temperature=0)
    assert (answer.text, answer.finish_reason, answer.attempts) == (says("word 7", 12), "length", 1)
    assert answer.time_to_first_token_s is not None
    assert upstream.requests == 1


async def test_several_choices_of_one_prompt(connect, upstream):
    """In streams the proxy numbers completions' choices 0 and ends one of a chat's: they are asked for plain."""
    sampled = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "n": 2}
    async with connect() as client:
        answers = await together(client.complete(f"word {i}", **sampled) for i in range(5))
        chatted = await client.chat(user("hi"), **sampled)
    async with connect() as client:
        deltas, streamed = await collect(client.stream("word 0", **sampled))
    expected = [
        [expected_text(f"word {i}", choice=k, max_tokens=12, temperature=1.0, seed=3) for k in (0, 1)] for i in range(5)
    ]
    assert [[one.text for one in each.choices] for each in answers] == expected
    assert [one.text[:8] for one in chatted.choices] == [says_to("hi", 1)] * 2
    assert [one.text for one in streamed.choices] == expected[0]
    assert sorted((delta.index, delta.text) for delta in deltas) == list(enumerate(expected[0]))


async def test_a_stream_piece_by_piece(connect, upstream):
    async with connect() as client:
        made = await together(collect(client.stream(f"word {i}", max_tokens=12, temperature=0)) for i in range(20))
    for i, (deltas, answer) in enumerate(made):
        assert "".join(delta.text for delta in deltas) == answer.text == says(f"word {i}", 12)
        assert (len(deltas), deltas[-1].finish_reason) == (13, "length")
    assert upstream.requests == 20


# Chats ---------------------------------------------------------------------------------------------------------------


async def test_a_hundred_chats_at_once(connect, upstream):
    async with connect() as client:
        answers = await together(client.chat(user(f"word {i}"), max_tokens=4, temperature=0) for i in range(COUNT))
    assert [each.text for each in answers] == [says_to(f"word {i}", 4) for i in range(COUNT)]
    assert [each.usage for each in answers] == [Usage(10, 4)] * COUNT
    assert upstream.requests == COUNT


async def test_a_hundred_chats_streamed_at_once(connect, upstream):
    async with connect() as client:
        made = await together(
            collect(client.stream_chat(user(f"word {i}"), max_tokens=12, temperature=0)) for i in range(COUNT)
        )
    for i, (deltas, answer) in enumerate(made):
        assert "".join(delta.text for delta in deltas) == answer.text == says_to(f"word {i}", 12)
        assert answer.finish_reason == "length"
        assert sum(bool(delta.text) for delta in deltas) == 12
    assert upstream.requests == COUNT


async def test_tools_are_passed_through(connect, tool_upstream):
    before = len(tool_upstream.asked)
    async with connect(model="tools") as client:
        answers = await together(client.chat(user(name), tools=TOOLS, max_tokens=64) for name in ("Ada", "Grace"))
    assert [[each["function"] for each in answer.message["tool_calls"]] for answer in answers] == [
        [{"arguments": '{"of": "Ada"}', "name": "look_up"}, {"arguments": '{"of": "adA"}', "name": "look_up"}],
        [{"arguments": '{"of": "Grace"}', "name": "look_up"}, {"arguments": '{"of": "ecarG"}', "name": "look_up"}],
    ]
    assert [answer.finish_reason for answer in answers] == ["tool_calls"] * 2
    assert [asked.json["tools"] for asked in tool_upstream.asked[before:]] == [TOOLS] * 2


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


async def test_maps_over_documents(connect, upstream):
    rows = [{"text": f"word {i}"} for i in range(300)]
    async with connect() as client:
        answers = await client.batch_map(rows, "{text}", max_tokens=12, temperature=0)
        came = {}
        async for result in client.stream_map(rows, "{text}", max_tokens=4, temperature=0):
            came[result.index] = result.completion.text
    assert [each.text for each in answers] == [says(f"word {i}", 12) for i in range(300)]
    assert came == {i: says(f"word {i}", 4) for i in range(300)}
    assert upstream.requests <= 60


@pytest.mark.parametrize("call", ["complete", "chat"])
async def test_map_from_the_command_line(proxy, upstream, tmp_path, call):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": f"word {i}"}) + "\n" for i in range(50)), "utf-8")
    command = [sys.executable, "-m", "batchclient", "map", source, "-o", out, "--base-url", proxy.base_url]
    command += ["--model", "m", "--prompt", "{text}", "--max-tokens", "12", "--temperature", "0", "--call", call]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"BATCHCLIENT_API_KEY": MASTER_KEY})
    assert done.returncode == 0, done.stderr
    assert MASTER_KEY not in done.stderr
    written = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    expected = says if call == "complete" else says_to
    assert [row["completion"] for row in written] == [expected(f"word {i}", 12) for i in range(50)]


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
    assert {(type(each), each.status) for each in [*outcomes[:20], *failed]} == {(ServerFault, 500)}
    # Twice as a list; one member once more by itself, which showed that it is not the list.
    assert sorted(each.attempt for each in outcomes[:20]) == [2] * 19 + [3]
    assert failed[0].attempt == 2
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


# The drop-in ---------------------------------------------------------------------------------------------------------


async def test_the_drop_in(proxy, upstream):
    async with AsyncOpenAI(base_url=proxy.base_url, api_key=MASTER_KEY, dialect="openai") as client:
        short = {"model": "m", "max_tokens": 4, "temperature": 0}
        texts = await together(client.completions.create(prompt=f"word {i}", **short) for i in range(COUNT))
        lists = upstream.requests
        chats = await together(client.chat.completions.create(messages=user(f"word {i}"), **short) for i in range(20))
        stream = await client.chat.completions.create(messages=user("hi"), stream=True, **short)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        vectors = await together(client.embeddings.create(model="m", input=f"word {i}") for i in range(20))
        called = await client.chat.completions.create(model="tools", messages=user("Ada"), tools=TOOLS, max_tokens=64)
        with pytest.raises(openai.BadRequestError, match="Invalid model name passed in model=nope"):
            await client.chat.completions.create(model="nope", messages=user("hi"))
    assert [each.choices[0].text for each in texts] == [says(f"word {i}", 4) for i in range(COUNT)]
    assert [(each.usage.prompt_tokens, each.usage.completion_tokens) for each in texts] == [(3, 4)] * COUNT
    assert lists <= 10
    assert [each.choices[0].message.content for each in chats] == [says_to(f"word {i}", 4) for i in range(20)]
    assert [each.usage.total_tokens for each in chats] == [14] * 20
    assert "".join(pieces) == says_to("hi", 4)
    assert len({tuple(each.data[0].embedding) for each in vectors}) == 20
    assert [each.function.arguments for each in called.choices[0].message.tool_calls] == [
        '{"of": "Ada"}',
        '{"of": "adA"}',
    ]


async def test_the_drop_in_says_what_a_wrong_key_is(proxy):
    async with AsyncOpenAI(base_url=proxy.base_url, api_key=REVOKED_KEY, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="Invalid proxy server token passed"):
            await client.completions.create(model="m", prompt="hi", max_tokens=4)


async def test_usage_is_told_for_what_was_streamed(connect, upstream):
    """The proxy tells it in an event of its own after the end, beside a choice that has nothing."""
    async with connect() as client:
        alone = await client.complete("word 7", max_tokens=12, temperature=0)
        chatted = await client.chat(user("word 7"), max_tokens=12, temperature=0)
        _, pieces = await collect(client.stream("word 7", max_tokens=12, temperature=0))
        _, chat_pieces = await collect(client.stream_chat(user("word 7"), max_tokens=12, temperature=0))
    # With some of them, and not with others, it says that no token was of reasoning.
    usages = [replace(each.usage, reasoning_tokens=None) for each in (alone, chatted, pieces, chat_pieces)]
    assert usages == [
        Usage(3, 12), Usage(10, 12), Usage(3, 12), Usage(10, 12),
    ]  # fmt: skip
