"""openai's own clients over ``BatchTransport``: whichever major is installed; ``make test-extra WHICH=openai2`` runs it on major 2."""

import asyncio
import importlib
import socket

import openai
import pytest
from pydantic import BaseModel

from batchclient.simulator import EmbeddedServer, expected_text

MAJOR = int(openai.__version__.partition(".")[0])
http = importlib.import_module("httpx2" if MAJOR >= 3 else "httpx")
BatchTransport = importlib.import_module(f"batchclient.integrations.{http.__name__}").BatchTransport


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer("instant", model="m") as embedded:
        yield embedded


class Both:
    """The same program with openai's own connections and over the transport.

    Args:
        server: which.
        settings: the transport's.
    """

    def __init__(self, server, **settings):
        self.transport = BatchTransport(**settings)
        self.over = http.AsyncClient(transport=self.transport, timeout=60)
        common = {"base_url": server.base_url, "api_key": "sk-1", "max_retries": 0}
        self.ours = openai.AsyncOpenAI(**common, http_client=self.over)
        self.plain = openai.AsyncOpenAI(**common)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.ours.close()
        await self.plain.close()


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


def told(answer):
    """What two replies to the same call have in common."""
    return {
        name: value
        for name, value in answer.model_dump(exclude_none=True).items()
        if name not in ("id", "created", "system_fingerprint", "usage")
    }


CALLS = {
    "completions": lambda client, i: client.completions.create(
        model="m", prompt=f"question {i}", max_tokens=4, temperature=0
    ),
    "chats": lambda client, i: client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": f"question {i}"}], max_tokens=4, temperature=0
    ),
    "embeddings": lambda client, i: client.embeddings.create(model="m", input=f"text {i}"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_200_calls_share_a_few_requests_and_are_answered_as_alone(server, name):
    call = CALLS[name]
    async with Both(server) as both:
        before = server.requests
        ours = await asyncio.gather(*[call(both.ours, i) for i in range(200)])
        requests = server.requests - before
        theirs = [await call(both.plain, i) for i in range(0, 200, 10)]
        assert both.transport.shared == 200
    assert requests <= 25
    assert [told(answer) for answer in ours[::10]] == [told(answer) for answer in theirs]
    assert len({repr(told(answer)) for answer in ours}) == 200
    for mine, plain in zip(ours[::10], theirs, strict=True):
        assert mine.usage.total_tokens == plain.usage.total_tokens
        assert mine._request_id == plain._request_id


async def test_answers_are_the_prompts_own(server):
    async with Both(server) as both:
        answers = await asyncio.gather(*[CALLS["completions"](both.ours, i) for i in range(50)])
    texts = [answer.choices[0].text for answer in answers]
    assert texts == [expected_text(f"question {i}", max_tokens=4, temperature=0) for i in range(50)]


async def test_what_is_not_shared_works_all_the_same(server):
    messages = [{"role": "user", "content": "hi"}]
    async with Both(server) as both:
        found = []
        for client in (both.plain, both.ours):
            pieces = []
            async for piece in await client.completions.create(
                model="m", prompt="once", max_tokens=5, temperature=0, stream=True
            ):
                pieces.append(piece.choices[0].text if piece.choices else "")
            models = [model.id async for model in client.models.list()]
            raw = await client.completions.with_raw_response.create(model="m", prompt="p", max_tokens=1, temperature=0)
            several = await client.completions.create(model="m", prompt=["a", "b"], n=2, max_tokens=2, seed=5)
            extra = await client.completions.create(
                model="m", prompt="p", max_tokens=1, temperature=0, extra_body={"top_k": 3, "of_tomorrow": {"a": 1}}
            )
            chat = await client.chat.completions.create(model="m", messages=messages, max_tokens=3, temperature=0)
            found.append(
                (
                    "".join(pieces),
                    models,
                    raw.status_code,
                    told(raw.parse()),
                    told(several),
                    told(extra),
                    told(chat),
                )
            )
            assert raw.elapsed.total_seconds() > 0
        # The stream and the list of models.
        assert both.transport.passed_on == 2
        plain, ours = found
    assert ours == plain


class Colour(BaseModel):
    name: str
    is_warm: bool


async def test_parse_gives_objects(server):
    async with Both(server) as both:
        parses = [
            both.ours.chat.completions.parse(
                model="m",
                messages=[{"role": "user", "content": f"colour {i}"}],
                response_format=Colour,
                max_tokens=200,
            )
            for i in range(20)
        ]
        answers = await asyncio.gather(*parses)
    for answer in answers:
        assert isinstance(answer.choices[0].message.parsed, Colour)


# Errors --------------------------------------------------------------------------------------------------------------


async def error_of(call):
    with pytest.raises(openai.OpenAIError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 503])
def test_a_status_raises_the_same_class_with_the_same_attributes(status):
    with EmbeddedServer("instant", model="m", faults=[f"status={status},retry_after=7"]) as server:

        async def main():
            async with Both(server) as both:
                return [await error_of(CALLS["completions"](client, 1)) for client in (both.ours, both.plain)]

        ours, plain = run(main)
        assert server.requests == 2
    assert type(ours) is type(plain)
    for name in ("message", "body", "code", "param", "type", "status_code", "request_id"):
        assert getattr(ours, name) == getattr(plain, name), name
    assert ours.response.headers["retry-after"] == "7"
    assert ours.response.request.url == ours.request.url


def test_one_bad_call_raises_for_its_caller_alone():
    with EmbeddedServer("instant", model="m", faults=["bad_prompt=question 7"]) as server:

        async def main():
            async with Both(server) as both:
                calls = [CALLS["completions"](both.ours, i) for i in range(10)]
                return await asyncio.gather(*calls, return_exceptions=True), await error_of(
                    CALLS["completions"](both.plain, 7)
                )

        results, plain = run(main)
    bad = results.pop(7)
    assert type(bad) is openai.BadRequestError
    assert (bad.message, bad.body) == (plain.message, plain.body)
    assert all(result.choices[0].text for result in results)


async def test_a_timeout_and_a_connection_error_are_openais():
    async def main(server):
        async with Both(server) as both:
            for client in (both.ours, both.plain):
                assert type(await error_of(CALLS["completions"](client.with_options(timeout=0.2), 1))) is (
                    openai.APITimeoutError
                )

    with EmbeddedServer("instant", model="m", faults=["stall"]) as server:
        await main(server)

    async def refused(base_url):
        client = openai.AsyncOpenAI(
            base_url=base_url, api_key="k", max_retries=0, http_client=http.AsyncClient(transport=BatchTransport())
        )
        async with client:
            return await error_of(CALLS["completions"](client, 1))

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = await refused(f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
    assert type(error) is openai.APIConnectionError
    assert type(error.__cause__) is http.ConnectError


# Retries -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_retries", "settings", "requests"),
    [(0, {}, 1), (2, {}, 3), (0, {"max_attempts": 3}, 3), (1, {"max_attempts": 2}, 4)],
)
def test_attempts_are_openais_times_ours(max_retries, settings, requests, monkeypatch):
    from batchclient import Backoff

    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_: 0.0)
    with EmbeddedServer("instant", model="m", faults=["status=500"]) as server:

        async def main():
            async with Both(server, retry=Backoff(base_s=0.001), **settings) as both:
                await error_of(CALLS["completions"](both.ours.with_options(max_retries=max_retries), 1))

        run(main)
        assert server.requests == requests


def test_openais_own_retry_succeeds(monkeypatch):
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_: 0.0)
    with EmbeddedServer("instant", model="m", faults=["status=503,count=3"]) as server:

        async def main():
            async with Both(server) as both:
                client = both.ours.with_options(max_retries=4)
                return await asyncio.gather(*[CALLS["completions"](client, i) for i in range(30)])

        answers = run(main)
    texts = [answer.choices[0].text for answer in answers]
    assert texts == [expected_text(f"question {i}", max_tokens=4, temperature=0) for i in range(30)]


# Credentials ---------------------------------------------------------------------------------------------------------


def test_clients_with_different_keys_never_share():
    with EmbeddedServer("instant", model="m", api_key="sk-right") as server:

        async def main():
            async with Both(server) as both:
                right, wrong = both.ours.with_options(api_key="sk-right"), both.ours.with_options(api_key="sk-wrong")
                calls = [CALLS["completions"](client, i) for i in range(20) for client in (right, wrong)]
                return await asyncio.gather(*calls, return_exceptions=True)

        results = run(main)
    assert all(result.choices[0].text for result in results[::2])
    assert {type(result) for result in results[1::2]} == {openai.AuthenticationError}
    assert all("sk-" not in str(result) for result in results[1::2])
