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
