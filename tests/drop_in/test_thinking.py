"""``thinking_tokens`` in ``extra_body``: a server's own field, or no request."""

import openai
import pytest

from batchclient.openai import AsyncOpenAI
from batchclient.simulator import EmbeddedServer

BUDGET = {"max_tokens": 12, "extra_body": {"thinking_tokens": 20}}
HI = [{"role": "user", "content": "hi"}]


async def test_the_drop_in_sends_it_by_the_servers_name():
    with EmbeddedServer(model="m", thinking_tokens=90, reasoning_parser=True, output_lengths="fixed") as server:
        async with AsyncOpenAI(base_url=server.base_url, api_key="x") as client:
            chat = await client.chat.completions.create(model="m", messages=HI, **BUDGET)
            text = await client.completions.create(model="m", prompt="hi", **BUDGET)
            assert chat.usage.completion_tokens_details.reasoning_tokens == 20
            assert (chat.usage.completion_tokens, text.usage.completion_tokens) == (34, 34)


@pytest.mark.parametrize("more", [{"stream": True}, {"extra_query": {"a": 1}}])
async def test_what_goes_past_the_client_is_refused_with_it(more):
    with EmbeddedServer(model="m", thinking_tokens=90, reasoning_parser=True) as server:
        async with AsyncOpenAI(base_url=server.base_url, api_key="x", max_retries=0) as client:
            with pytest.raises(openai.OpenAIError, match="thinking_tokens is batchclient's own"):
                await client.chat.completions.create(model="m", messages=HI, **BUDGET, **more)


FORM = {"name": "x", "schema": {"type": "object", "properties": {"thinking_tokens": {"type": "integer"}}}}


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True, "response_format": {"type": "json_schema", "json_schema": FORM}},
        {"stream": True, "metadata": {"thinking_tokens": "5"}},
        {"stream": True, "extra_body": {"thinking_tokens": None}},
        {"extra_body": {"thinking_tokens": None}},
    ],
    ids=["schema", "metadata", "none, streamed", "none"],
)
async def test_a_request_that_only_names_it_goes_as_it_is(more):
    with EmbeddedServer(model="m") as server:
        async with AsyncOpenAI(base_url=server.base_url, api_key="x", max_retries=0) as client:
            reply = await client.chat.completions.create(model="m", messages=HI, max_tokens=12, **more)
            assert [piece async for piece in reply] if more.get("stream") else reply.choices


@pytest.mark.parametrize(
    ("flag", "asked", "says"),
    [
        (True, {"extra_body": {"thinking_tokens": True}}, "thinking_tokens is a whole number of at least 0, not True"),
        (True, {"extra_body": {"thinking_tokens": -1}}, "thinking_tokens is a whole number of at least 0, not -1"),
        (True, {"prompt": "hi", "extra_body": {"thinking_tokens": 5}}, "needs max_tokens"),
        (True, {"prompt": ["a", "b"], "extra_body": {"thinking_tokens": 5}}, "needs max_tokens"),
        (False, BUDGET, "thinking_tokens goes without a drop-in on a vllm server"),
    ],
    ids=["type", "negative", "no max_tokens", "list", "no field"],
)
async def test_a_budget_that_is_refused_says_why(flag, asked, says):
    with EmbeddedServer(model="m", thinking_tokens=90, reasoning_parser=flag) as server:
        async with AsyncOpenAI(base_url=server.base_url, api_key="x", max_retries=0) as client:
            create = client.completions.create if "prompt" in asked else client.chat.completions.create
            given = {} if "prompt" in asked else {"messages": HI}
            with pytest.raises(openai.BadRequestError, match=says):
                await create(model="m", **given, **asked)
