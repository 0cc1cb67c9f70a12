"""pydantic-ai over the drop-in: the real package (``make test-extra WHICH=integrations``)."""

import asyncio
import warnings

import pytest
from batchclient import Batching

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pydantic_ai = pytest.importorskip(
        "pydantic_ai", reason="pydantic-ai is not installed here: make test-extra WHICH=integrations"
    )
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

from pydantic import BaseModel

from batchclient.openai import AsyncOpenAI

pytestmark = pytest.mark.filterwarnings("default")
COUNT = 100


class Person(BaseModel):
    name: str
    age: int


def agent_over(client, **arguments):
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
    return pydantic_ai.Agent(model, **arguments)


async def test_runs_share_requests(counted):
    """Each of its calls has a ``User-Agent`` of its own."""
    async with AsyncOpenAI(base_url=counted.base_url, api_key="k") as client:
        agent = agent_over(client, model_settings={"max_tokens": 16})
        results = await asyncio.gather(*[agent.run(f"question {i}") for i in range(COUNT)])
        statistics = client.statistics()
    assert statistics.calls == COUNT
    assert statistics.shared >= COUNT - 5
    assert counted.requests <= 30
    assert len({result.output for result in results}) == COUNT
    assert {result.usage.output_tokens for result in results} == {16}


async def test_structured_answers_share_requests_where_lists_may_be_longer(counted):
    async with AsyncOpenAI(base_url=counted.base_url, api_key="k", batching=Batching(chat_list_tokens=64)) as client:
        agent = agent_over(client, output_type=pydantic_ai.NativeOutput(Person), model_settings={"max_tokens": 60})
        results = await asyncio.gather(*[agent.run(f"Who is number {i}?") for i in range(COUNT)])
        statistics = client.statistics()
    assert statistics.shared >= COUNT - 5
    assert all(isinstance(result.output, Person) for result in results)


async def test_without_a_bound_on_the_answers_the_reason_is_told(counted):
    async with AsyncOpenAI(base_url=counted.base_url, api_key="k") as client:
        await asyncio.gather(*[agent_over(client).run(f"question {i}") for i in range(8)])
        result = client.statistics()
    assert result.alone == {"long output expected, and the list cannot stream": 8}
