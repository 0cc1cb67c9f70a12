"""instructor over ``BatchTransport``: the real package (``make test-extra WHICH=integrations``)."""

import asyncio
import warnings

import pytest
from batchclient import Batching

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    instructor = pytest.importorskip(
        "instructor", reason="instructor is not installed here: make test-extra WHICH=integrations"
    )
    import httpx2

import openai
from pydantic import BaseModel, field_validator

from batchclient.integrations.httpx2 import BatchTransport

pytestmark = pytest.mark.filterwarnings("default")
COUNT = 200


class Person(BaseModel):
    name: str
    age: int


def client_over(transport, server, **arguments):
    http = httpx2.AsyncClient(transport=transport, timeout=60)
    client = openai.AsyncOpenAI(base_url=server.base_url, api_key="k", http_client=http)
    return http, instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA, **arguments)


def extraction(client, i, model=Person, **arguments):
    messages = [{"role": "user", "content": f"Who is number {i}?"}]
    return client.chat.completions.create(
        model="m", messages=messages, response_model=model, max_tokens=60, temperature=0, **arguments
    )


async def test_extractions_share_requests(counted):
    # Answers of more than 32 tokens go alone unless told.
    transport = BatchTransport(batching=Batching(chat_list_tokens=64))
    http, client = client_over(transport, counted)
    async with http:
        people = await asyncio.gather(*[extraction(client, i) for i in range(COUNT)])
        assert transport.shared == COUNT
        requests = counted.requests
        plain = instructor.from_openai(
            openai.AsyncOpenAI(base_url=counted.base_url, api_key="k"), mode=instructor.Mode.JSON_SCHEMA
        )
        plain = [await extraction(plain, i) for i in range(3)]
    assert requests <= 30
    assert [each.model_dump() for each in people[:3]] == [each.model_dump() for each in plain]
    assert len({person.name for person in people}) == COUNT
    # instructor keeps the reply, and counts its tokens.
    assert people[0]._raw_response.usage.completion_tokens > 0


class Picky(Person):
    @field_validator("age")
    @classmethod
    def _no_baby(cls, age):
        raise ValueError("too young")


async def test_its_own_retries_are_calls_of_their_own(counted):
    transport = BatchTransport()
    http, client = client_over(transport, counted)
    async with http:
        with pytest.raises(Exception) as caught:
            await extraction(client, 1, Picky, max_retries=3)
        shared = transport.shared
        error = caught.value
    assert type(error).__name__ == "InstructorRetryException"
    # It asks again with the complaint in the conversation: each time another chat.
    assert shared == counted.requests == 4
