"""The request behind a raw response and behind an error: the one that openai would have sent, headers and body."""

import asyncio
import json

import httpx
import openai
import pytest

from batchclient.openai import AsyncOpenAI, OpenAI
from tests.fakes.raw import RawServer, response, says

HTTP = __import__("httpx2" if openai.__version__ >= "3" else "httpx")
JSON = [("content-type", "application/json")]
ANSWER = {"id": "1", "object": "text_completion", "created": 1, "model": "m"}
CALLS = {
    "a completion": lambda client: client.completions.with_raw_response.create(
        model="m", prompt="p", max_tokens=1, extra_body={"top_k": 3}
    ),
    "several prompts": lambda client: client.completions.with_raw_response.create(
        model="m", prompt=["p", "q"], max_tokens=1, timeout=30
    ),
    "a chat": lambda client: client.chat.completions.with_raw_response.create(
        model="m", messages=[{"role": "user", "content": "h"}], max_tokens=1
    ),
    "an embedding": lambda client: client.embeddings.with_raw_response.create(model="m", input="p"),
}
SETTINGS = {
    "api_key": "key",
    "organization": "o",
    "project": "j",
    "default_headers": {"x-mine": "1"},
    "default_query": {"a": "b"},
    "max_retries": 0,
}


def shown(request):
    """All of a request that a program can see."""
    headers = dict(request.headers.items())
    return type(request), request.method, str(request.url), headers, json.loads(request.content)


def answer_anything(heard):
    body = json.loads(heard.body)
    if "messages" in body:
        choices = [{"index": 0, "message": {"role": "assistant", "content": "c"}, "finish_reason": "stop"}]
    else:
        prompts = body.get("prompt", "")
        count = len(prompts) if isinstance(prompts, list) else 1
        choices = [{"index": n, "text": "t", "finish_reason": "stop"} for n in range(count)]
    data = [{"index": 0, "object": "embedding", "embedding": [0.5]}]
    return response(json.dumps({**ANSWER, "choices": choices, "data": data}).encode(), headers=JSON)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_raw_response_shows_the_request(call):
    async with RawServer(then=says(*[answer_anything] * 9)) as server:
        seen = []
        for kind in (openai.AsyncOpenAI, AsyncOpenAI):
            async with kind(base_url=server.url, **SETTINGS) as client:
                raw = await call(client)
                seen.append((shown(raw.http_request), type(raw.http_response)))
                assert raw.http_response.request is raw.http_request
    assert seen[1] == seen[0]


async def test_a_raw_response_of_the_blocking_client_shows_it_too():
    def call(kind, url):
        with kind(base_url=url, **SETTINGS) as client:
            return shown(CALLS["a completion"](client).http_request)

    async with RawServer(then=says(*[answer_anything] * 9)) as server:
        theirs = await asyncio.to_thread(call, openai.OpenAI, server.url)
        assert await asyncio.to_thread(call, OpenAI, server.url) == theirs


async def test_it_is_of_the_library_of_the_users_own_client():
    async def answer(request):
        return httpx.Response(200, json={**ANSWER, "choices": [{"index": 0, "text": "t", "finish_reason": "stop"}]})

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with AsyncOpenAI(base_url="http://server.test/v1", http_client=http, **SETTINGS) as client:
        raw = await CALLS["a completion"](client)
    assert isinstance(raw.http_request, httpx.Request)
    assert isinstance(raw.http_response, httpx.Response)
    assert raw.parse().choices[0].text == "t"


@pytest.mark.parametrize("status", ["404 Not Found", "200 OK"])
async def test_an_error_shows_the_request_too(status):
    """Where the server refuses, and where no connection is left."""
    reply = response(b'{"error": {"message": "no"}}', status, JSON)

    async def refuse(connection):
        await connection.request()
        if status.startswith("200"):
            connection.reset()
        else:
            await connection.write(reply)

    async with RawServer(then=refuse) as server:
        seen = []
        for kind in (openai.AsyncOpenAI, AsyncOpenAI):
            async with kind(base_url=server.url, **SETTINGS) as client:
                with pytest.raises(openai.APIError) as caught:
                    await client.completions.create(model="m", prompt="p", max_tokens=1)
                seen.append((type(caught.value), shown(caught.value.request)))
    assert seen[1] == seen[0]


async def test_the_retry_that_was_answered_is_shown():
    refused = response(b"{}", "503 No", [*JSON, ("retry-after", "0")])
    settings = {**SETTINGS, "max_retries": 2}
    async with RawServer(says(refused), then=says(*[answer_anything] * 9)) as server:
        async with AsyncOpenAI(base_url=server.url, **settings) as client:
            raw = await CALLS["a completion"](client)
    assert raw.retries_taken == 1
    assert raw.http_request.headers["x-stainless-retry-count"] == "1"


async def test_a_response_to_be_read_in_pieces_is_unread():
    async with RawServer(then=says(*[answer_anything] * 9)) as server:
        for kind in (openai.AsyncOpenAI, AsyncOpenAI):
            async with kind(base_url=server.url, **SETTINGS) as client:
                resource = client.completions.with_streaming_response
                async with resource.create(model="m", prompt="p", max_tokens=1) as answer:
                    assert not answer.is_closed
                    assert (await answer.parse()).choices[0].text == "t"
                assert answer.is_closed
