"""A user's own code below the client raises anything: to the caller it is the network's failure, and is tried again."""

import ssl

import anyio
import httpx
import openai
import pytest

from batchclient import Backoff, BatchClient, ConnectionLost, ReadTimedOut
from batchclient.integrations.httpx import BatchTransport as HttpxBatchTransport
from batchclient.openai import AsyncOpenAI
from tests.shell.scripted import ScriptedTransport

HTTP = __import__("httpx2" if openai.__version__ >= "3" else "httpx")
LIBRARIES = list(dict.fromkeys((httpx, HTTP)))
URL = "http://server.test/v1"
AT_ONCE = Backoff(max_attempts=100, base_s=1e-4, cap_s=1e-4)
ERRORS = {
    "an OSError": OSError(5, "the canary"),
    "TLS": ssl.SSLError(1, "the canary"),
    "a RuntimeError": RuntimeError("the canary"),
    "a refused connection": ConnectionRefusedError(111, "the canary"),
    "what anyio raises": anyio.EndOfStream("the canary"),
    "a bug": KeyError("the canary"),
    "a class of its own": type("Odd", (Exception,), {})("the canary"),
}


def complete(client):
    return client.completions.create(model="m", prompt="p", max_tokens=1)


def raising(lib, error, where, sent):
    """A client of a library whose transport, authentication or reply raises."""

    class Transport(lib.AsyncBaseTransport):
        async def handle_async_request(self, request):
            sent.append(request)
            if where == "the transport":
                raise error
            return lib.Response(200, headers={"content-type": "application/json"}, stream=Body())

    class Body(lib.AsyncByteStream):
        async def __aiter__(self):
            yield b'{"id"'
            raise error

    class Auth(lib.Auth):
        def auth_flow(self, request):
            sent.append(request)
            raise error
            yield

    return lib.AsyncClient(transport=Transport(), auth=Auth() if where == "the authentication" else None)


@pytest.mark.parametrize("lib", LIBRARIES, ids=lambda lib: lib.__name__)
@pytest.mark.parametrize(
    ("name", "where"),
    [
        *[(name, "the transport") for name in ERRORS],
        ("a RuntimeError", "the authentication"),
        ("a RuntimeError", "the body"),
    ],
)
async def test_whatever_a_users_client_raises_is_a_connection_error(name, where, lib, caplog):
    error, sent = ERRORS[name], []
    async with AsyncOpenAI(
        base_url=URL, api_key="key", http_client=raising(lib, error, where, sent), max_retries=2, retry=AT_ONCE
    ) as client:
        with pytest.raises(openai.APIConnectionError) as caught:
            await complete(client)
    assert not isinstance(caught.value, openai.APITimeoutError)
    assert caught.value.__cause__.__cause__ is error
    assert type(error).__name__ in str(caught.value)
    assert "canary" not in str(caught.value)
    assert len(sent) == 3
    assert [record for record in caplog.records if record.exc_info] == []


async def test_one_that_passes_is_no_failure():
    sent = []

    async def answer(request):
        sent.append(request)
        if len(sent) == 1:
            raise RuntimeError("once")
        choices = [{"index": 0, "text": "t", "finish_reason": "stop", "logprobs": None}]
        body = {"id": "1", "object": "text_completion", "created": 1, "model": "m", "choices": choices}
        return HTTP.Response(200, json=body)

    http = HTTP.AsyncClient(transport=HTTP.MockTransport(answer))
    async with AsyncOpenAI(base_url=URL, api_key="key", http_client=http, retry=AT_ONCE) as client:
        assert (await complete(client)).choices[0].text == "t"


class Raises(ScriptedTransport):
    """Breaks its contract: it raises another's error, at once or in the body."""

    def __init__(self, error, where):
        super().__init__()
        self._error = error
        self._where = where

    async def send(self, request, timeouts):
        response = await super().send(request, timeouts)
        if self._where == "send":
            raise self._error
        chunks = response.chunks

        async def broken():
            async for chunk in chunks():
                yield chunk[:1]
                raise self._error

        response.chunks = broken
        return response


@pytest.mark.parametrize("where", ["send", "chunks"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [(RuntimeError("the canary"), ConnectionLost), (TimeoutError("the canary"), ReadTimedOut)],
    ids=["RuntimeError", "TimeoutError"],
)
async def test_a_transport_of_ones_own_may_raise_anything(error, expected, where, caplog):
    transport = Raises(error, where)
    retry = Backoff(max_attempts=3, base_s=1e-4, cap_s=1e-4)
    async with BatchClient(URL, model="m", http=lambda url, headers: transport, retry=retry) as client:
        with pytest.raises(expected, match=type(error).__name__) as caught:
            await client.complete("p", max_tokens=1)
    assert caught.value.__cause__ is error
    assert len(transport.sent) == 3
    assert "canary" not in str(caught.value)
    assert [record for record in caplog.records if record.exc_info] == []


async def test_what_a_transport_below_batch_transport_raises_is_the_librarys():
    async def fail(request):
        raise RuntimeError("the canary")

    async with httpx.AsyncClient(transport=HttpxBatchTransport(httpx.MockTransport(fail))) as client:
        with pytest.raises(httpx.ReadError, match="RuntimeError") as caught:
            await client.post(f"{URL}/completions", json={"model": "m", "prompt": "p", "max_tokens": 1})
    assert isinstance(caught.value.__cause__.__cause__, RuntimeError)
