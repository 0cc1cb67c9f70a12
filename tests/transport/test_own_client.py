"""A user's own ``httpx.AsyncClient``: used as it is, never closed, never sharded, always with explicit timeouts."""

import json

import httpx
import pytest

from batchclient import Backoff, BatchClient, ClientClosed, ConnectFailed, ConnectionLost, DialectError, ReadTimedOut
from tests.transport.test_expected_requests import answer

URL = "http://server.test/v1"
NEVER = Backoff(max_attempts=1)


class Recorder(httpx.MockTransport):
    """Answers, and keeps what it was asked; knows whether it was closed."""

    def __init__(self, handler=answer):
        self.requests = []
        self.closed = False

        def keep(request):
            self.requests.append(request)
            return handler(request)

        super().__init__(keep)

    async def aclose(self):
        self.closed = True


async def test_it_is_used_and_not_closed():
    transport = Recorder()
    async with httpx.AsyncClient(transport=transport) as own:
        async with BatchClient(URL, model="m", http_client=own) as client:
            assert (await client.complete("p")).text == "<p>"
            assert client._runner._transports[0]._pools == []
        assert not own.is_closed
        assert not transport.closed
        async with BatchClient(URL, model="m", http_client=own) as client:
            await client.drain()
        assert not own.is_closed
    assert [(request.method, str(request.url)) for request in transport.requests] == [("POST", f"{URL}/completions")]


async def test_many_calls_go_through_the_one_client():
    transport = Recorder()
    async with (
        httpx.AsyncClient(transport=transport) as own,
        BatchClient(URL, model="m", http_client=own, max_list=1, limit=64) as client,
    ):
        answers = await client.batch_map([f"{number}" for number in range(200)], "{}")
        assert client._runner._transports[0]._pools == []
    assert [each.text for each in answers] == [f"<{number}>" for number in range(200)]
    assert len(transport.requests) == 200


async def test_explicit_timeouts_are_given():
    transport = Recorder()
    async with (
        httpx.AsyncClient(transport=transport, timeout=0.001) as own,
        BatchClient(URL, model="m", http_client=own, connect_timeout_s=3, read_timeout_s=77) as client,
    ):
        await client.complete("p")
    assert transport.requests[0].extensions["timeout"] == {"connect": 3, "read": 77, "write": 30, "pool": 3}


async def test_its_own_headers_cookies_and_auth_are_sent_and_ours_win():
    transport = Recorder()
    async with (
        httpx.AsyncClient(
            transport=transport,
            headers={"x-gateway": "g", "authorization": "Basic theirs", "accept-encoding": "br"},
            cookies={"session": "1"},
            params={"tenant": "t"},
        ) as own,
        BatchClient(URL, model="m", http_client=own, api_key="ours") as client,
    ):
        await client.complete("p")
    (request,) = transport.requests
    assert request.headers["x-gateway"] == "g"
    assert request.headers.get_list("authorization") == ["Bearer ours"]
    assert request.headers.get_list("accept-encoding") == ["identity"]
    assert request.headers["cookie"] == "session=1"
    assert str(request.url) == f"{URL}/completions?tenant=t"


async def test_its_auth_hook_is_used_where_there_is_no_key():
    transport = Recorder()
    async with (
        httpx.AsyncClient(transport=transport, auth=("me", "secret")) as own,
        BatchClient(URL, model="m", http_client=own) as client,
    ):
        await client.complete("p")
    assert transport.requests[0].headers["authorization"].startswith("Basic ")


async def test_redirects_stay_off_even_where_it_follows_them():
    def redirect(request):
        assert request.url.host == "server.test"
        return httpx.Response(307, headers={"location": "http://elsewhere.test/"})

    transport = Recorder(redirect)
    async with (
        httpx.AsyncClient(transport=transport, follow_redirects=True) as own,
        BatchClient(URL, model="m", http_client=own, api_key="secret", retry=NEVER) as client,
    ):
        with pytest.raises(DialectError):
            await client.complete("p")
    assert len(transport.requests) == 1


async def test_once_it_is_closed_calls_fail_at_once_and_say_so():
    own = httpx.AsyncClient(transport=Recorder())
    async with BatchClient(URL, model="m", http_client=own) as client:
        await client.complete("p")
        await own.aclose()
        with pytest.raises(ClientClosed, match="http_client"):
            await client.complete("p")


@pytest.mark.parametrize(
    ("raised", "expected", "says"),
    [
        (httpx.ConnectError("refused"), ConnectFailed, ": refused"),
        (httpx.ConnectTimeout("slow"), ConnectFailed, "connect timeout"),
        (httpx.PoolTimeout("full"), ConnectFailed, "pool"),
        (httpx.UnsupportedProtocol("gopher"), ConnectFailed, "gopher"),
        (httpx.ProxyError("proxy"), ConnectFailed, "proxy"),
        (httpx.ReadTimeout("silence"), ReadTimedOut, "read_timeout_s"),
        (httpx.WriteTimeout("slow"), ConnectionLost, "slow"),
        (httpx.ReadError("reset"), ConnectionLost, "reset"),
        (httpx.WriteError("reset"), ConnectionLost, "reset"),
        (httpx.CloseError("reset"), ConnectionLost, "reset"),
        (httpx.RemoteProtocolError("Server disconnected"), ConnectionLost, "Server disconnected"),
        (httpx.LocalProtocolError("bad"), ConnectionLost, "bad"),
        (httpx.DecodingError("zip"), ConnectionLost, "decompressed"),
        (httpx.ReadError(""), ConnectionLost, "ReadError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_its_errors_are_ours(raised, expected, says):
    def fail(request):
        raise raised

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(fail)) as own,
        BatchClient(URL, model="m", http_client=own, retry=NEVER) as client,
    ):
        with pytest.raises(expected, match=says) as caught:
            await client.complete("p")
    assert type(caught.value) is expected
    assert isinstance(caught.value.__cause__, httpx.HTTPError)


async def test_its_pool_may_be_smaller_than_the_limit():
    """Calls over its connections wait in its pool; the wait is bounded by the connect timeout."""
    transport = Recorder()
    async with (
        httpx.AsyncClient(transport=transport, limits=httpx.Limits(max_connections=1)) as own,
        BatchClient(URL, model="m", http_client=own, max_list=1) as client,
    ):
        answers = await client.batch_map(["a", "b", "c"], "{}")
    assert [json.loads(request.content)["prompt"] for request in transport.requests] == ["a", "b", "c"]
    assert len(answers) == 3
