"""A user's own client, of httpx or of its fork httpx2: used as it is, never closed, never sharded, always with explicit timeouts."""

import json

import httpx
import httpx2
import pytest
from tests.transport.test_expected_requests import answer

from batchclient import (
    Backoff,
    BatchClient,
    Batching,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    DialectError,
    ReadTimedOut,
)

URL = "http://server.test/v1"
NEVER = Backoff(max_attempts=1)


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def lib(request):
    """The library of the user's client."""
    return request.param


def make_recorder(lib, handler=answer):
    """A transport of that library that answers, and keeps what it was asked; it knows whether it was closed."""

    class Recorder(lib.MockTransport):
        def __init__(self):
            self.requests = []
            self.closed = False

            def keep(request):
                self.requests.append(request)
                made = handler(request)
                return lib.Response(made.status_code, headers=made.headers.multi_items(), content=made.content)

            super().__init__(keep)

        async def aclose(self):
            self.closed = True

    return Recorder()


async def test_it_is_used_and_not_closed(lib):
    transport = make_recorder(lib)
    async with lib.AsyncClient(transport=transport) as own:
        async with BatchClient(URL, model="m", http=own) as client:
            assert (await client.complete("p")).text == "<p>"
        assert not own.is_closed
        assert not transport.closed
        async with BatchClient(URL, model="m", http=own) as client:
            await client.drain()
        assert not own.is_closed
    assert [(request.method, str(request.url)) for request in transport.requests] == [("POST", f"{URL}/completions")]


async def test_many_calls_go_through_the_one_client(lib):
    transport = make_recorder(lib)
    async with (
        lib.AsyncClient(transport=transport) as own,
        BatchClient(URL, model="m", http=own, batching=Batching(max_size=1), limit=64) as client,
    ):
        answers = await client.batch_map([f"{number}" for number in range(200)], "{}")
    assert [each.text for each in answers] == [f"<{number}>" for number in range(200)]
    assert len(transport.requests) == 200


async def test_explicit_timeouts_are_given(lib):
    transport = make_recorder(lib)
    async with (
        lib.AsyncClient(transport=transport, timeout=0.001) as own,
        BatchClient(URL, model="m", http=own) as client,
    ):
        await client.complete("p")
    assert transport.requests[0].extensions["timeout"] == {"connect": 5, "read": 600, "write": 30, "pool": 5}


async def test_its_own_headers_cookies_and_auth_are_sent_and_ours_win(lib):
    transport = make_recorder(lib)
    async with (
        lib.AsyncClient(
            transport=transport,
            headers={"x-gateway": "g", "authorization": "Basic theirs", "accept-encoding": "br"},
            cookies={"session": "1"},
            params={"tenant": "t"},
        ) as own,
        BatchClient(URL, model="m", http=own, api_key="ours") as client,
    ):
        await client.complete("p")
    (request,) = transport.requests
    assert request.headers["x-gateway"] == "g"
    assert request.headers.get_list("authorization") == ["Bearer ours"]
    assert request.headers.get_list("accept-encoding") == ["identity"]
    assert request.headers["cookie"] == "session=1"
    assert str(request.url) == f"{URL}/completions?tenant=t"


async def test_its_auth_hook_is_used_where_there_is_no_key(lib):
    transport = make_recorder(lib)
    async with (
        lib.AsyncClient(transport=transport, auth=("me", "secret")) as own,
        BatchClient(URL, model="m", http=own) as client,
    ):
        await client.complete("p")
    assert transport.requests[0].headers["authorization"].startswith("Basic ")


async def test_redirects_stay_off_even_where_it_follows_them(lib):
    def redirect(request):
        assert request.url.host == "server.test"
        return httpx.Response(307, headers={"location": "http://elsewhere.test/"})

    transport = make_recorder(lib, redirect)
    async with (
        lib.AsyncClient(transport=transport, follow_redirects=True) as own,
        BatchClient(URL, model="m", http=own, api_key="secret", retry=NEVER) as client,
    ):
        with pytest.raises(DialectError):
            await client.complete("p")
    assert len(transport.requests) == 1


async def test_once_it_is_closed_calls_fail_at_once_and_say_so(lib):
    own = lib.AsyncClient(transport=make_recorder(lib))
    async with BatchClient(URL, model="m", http=own) as client:
        await client.complete("p")
        await own.aclose()
        with pytest.raises(ClientClosed, match="HTTP client"):
            await client.complete("p")


@pytest.mark.parametrize(
    ("raised", "words", "expected", "says"),
    [
        ("ConnectError", "refused", ConnectFailed, ": refused"),
        ("ConnectTimeout", "slow", ConnectFailed, "connect timeout"),
        ("PoolTimeout", "full", ConnectFailed, "pool"),
        ("UnsupportedProtocol", "gopher", ConnectFailed, "gopher"),
        ("ProxyError", "proxy", ConnectFailed, "proxy"),
        ("ReadTimeout", "silence", ReadTimedOut, "read_timeout_s"),
        ("WriteTimeout", "slow", ConnectionLost, "slow"),
        ("ReadError", "reset", ConnectionLost, "reset"),
        ("WriteError", "reset", ConnectionLost, "reset"),
        ("CloseError", "reset", ConnectionLost, "reset"),
        ("RemoteProtocolError", "Server disconnected", ConnectionLost, "Server disconnected"),
        ("LocalProtocolError", "bad", ConnectionLost, "bad"),
        ("DecodingError", "zip", ConnectionLost, "decompressed"),
        ("ReadError", "", ConnectionLost, "ReadError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_its_errors_are_ours(lib, raised, words, expected, says):
    def fail(request):
        raise getattr(lib, raised)(words)

    async with (
        lib.AsyncClient(transport=lib.MockTransport(fail)) as own,
        BatchClient(URL, model="m", http=own, retry=NEVER) as client,
    ):
        with pytest.raises(expected, match=says) as caught:
            await client.complete("p")
    assert type(caught.value) is expected
    assert isinstance(caught.value.__cause__, lib.HTTPError)


async def test_its_pool_may_be_smaller_than_the_limit(lib):
    """Calls over its connections wait in its pool; the wait is bounded by the connect timeout."""
    transport = make_recorder(lib)
    async with (
        lib.AsyncClient(transport=transport, limits=lib.Limits(max_connections=1)) as own,
        BatchClient(URL, model="m", http=own, batching=Batching(max_size=1)) as client,
    ):
        answers = await client.batch_map(["a", "b", "c"], "{}")
    assert [json.loads(request.content)["prompt"] for request in transport.requests] == ["a", "b", "c"]
    assert len(answers) == 3
