"""With ``respx`` on a default install: exactly the expected requests are made, with exactly the expected headers."""

import gzip
import json
from functools import partial

import httpx
import httpx2
import pytest
import respx

from batchclient._client import connections
from batchclient import Backoff, BadRequest, BatchClient, Batching, ConnectionLost, Http, ResponseTooLarge
from batchclient._client import maps as client_maps
from batchclient.maps import Map
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport.http import HttpTransport

URL = "http://server.test/v1"
NEVER = Backoff(max_attempts=1)


def answer(request):
    """A plain reply or a stream, as asked."""
    body = json.loads(request.content)
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    choices = [
        {"index": index, "text": f"<{prompt}>", "finish_reason": "stop", "token_ids": [1], "prompt_token_ids": [1]}
        for index, prompt in enumerate(prompts)
    ]
    if body.get("stream"):
        events = [b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in choices]
        return httpx.Response(200, content=b"".join(events) + b"data: [DONE]\n\n")
    return httpx.Response(200, json={"choices": choices})


def ask_of_transports(monkeypatch, lib):
    """What every transport of a library is made with, from now on."""
    asked, make = [], lib.AsyncHTTPTransport.__init__

    def init(self, **arguments):
        asked.append(arguments)
        make(self, **arguments)

    monkeypatch.setattr(lib.AsyncHTTPTransport, "__init__", init)
    return asked


@pytest.fixture
def server():
    """Any request that no route expects raises; a route that is not called fails."""
    with respx.mock(assert_all_called=True, assert_all_mocked=True) as router:
        yield router


async def test_one_call_is_one_post_and_nothing_else(server):
    route = server.post(f"{URL}/completions").mock(side_effect=answer)
    async with BatchClient(URL, model="m") as client:
        assert (await client.complete("p")).text == "<p>"
    assert [(call.request.method, str(call.request.url)) for call in server.calls] == [("POST", f"{URL}/completions")]
    assert route.call_count == 1


async def test_a_map_is_lists_and_nothing_else(server, monkeypatch):
    # A machine that stands still for a moment would end the reader's slice of time in the midst of them.
    monkeypatch.setattr(client_maps, "Map", partial(Map, slice_s=3600.0))
    server.post(f"{URL}/completions").mock(side_effect=answer)
    async with BatchClient(URL, model="m", limit=64, batching=Batching(max_size=32)) as client:
        answers = await client.batch_map([f"{number}" for number in range(64)], "{}")
    assert [each.text for each in answers] == [f"<{number}>" for number in range(64)]
    assert [len(json.loads(call.request.content)["prompt"]) for call in server.calls] == [32, 32]


async def test_every_header_is_sent_once_and_none_that_was_not_asked_for(server):
    route = server.post(f"{URL}/completions").mock(side_effect=answer)
    async with BatchClient(URL, model="m", api_key="secret", headers={"X-Tenant": "t"}) as client:
        await client.complete("p")
    headers = route.calls[0].request.headers
    assert sorted((name.lower(), value) for name, value in headers.raw) == sorted(
        [
            (b"host", b"server.test"),
            (b"content-type", b"application/json"),
            (b"accept", b"*/*"),
            (b"accept-encoding", b"identity"),
            (b"authorization", b"Bearer secret"),
            (b"x-tenant", b"t"),
            (b"content-length", str(len(route.calls[0].request.content)).encode()),
            (b"x-request-id", headers["x-request-id"].encode()),
            (b"user-agent", b"batchclient/0.1.0"),
        ]
    )


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
async def test_the_key_wins_over_a_header_of_the_same_name(server, name):
    route = server.post(f"{URL}/completions").mock(side_effect=answer)
    async with BatchClient(URL, model="m", api_key="secret", headers={name: "Basic other"}) as client:
        await client.complete("p")
    assert route.calls[0].request.headers.get_list("authorization") == ["Bearer secret"]


async def test_a_users_header_wins_over_ours(server):
    route = server.post(f"{URL}/completions").mock(side_effect=answer)
    async with BatchClient(URL, model="m", headers={"Accept-Encoding": "gzip", "Content-Type": "x/y"}) as client:
        await client.complete("p")
    assert route.calls[0].request.headers.get_list("accept-encoding") == ["gzip"]
    assert route.calls[0].request.headers.get_list("content-type") == ["x/y"]


async def test_without_a_key_there_is_no_authorization(server):
    route = server.post(f"{URL}/completions").mock(side_effect=answer)
    async with BatchClient(URL, model="m") as client:
        await client.complete("p")
    assert "authorization" not in route.calls[0].request.headers


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        (URL + "/", f"{URL}/completions"),
        ("http://server.test", "http://server.test/completions"),
        (f"{URL}?tenant=a&b=c", f"{URL}/completions?tenant=a&b=c"),
        (f"{URL}/?tenant=a", f"{URL}/completions?tenant=a"),
        ("http://server.test:8000/a/b", "http://server.test:8000/a/b/completions"),
    ],
)
async def test_the_path_goes_between_base_url_and_query(server, base_url, expected):
    server.post(expected).mock(side_effect=answer)
    async with BatchClient(base_url, model="m") as client:
        assert (await client.complete("p")).text == "<p>"
    assert [str(call.request.url) for call in server.calls] == [expected]


async def test_cookies_are_not_kept(server):
    server.post(f"{URL}/completions").mock(
        side_effect=lambda request: httpx.Response(
            200, headers={"set-cookie": "session=1; Path=/"}, content=answer(request).content
        )
    )
    async with BatchClient(URL, model="m") as client:
        await client.complete("p")
        await client.complete("p")
    assert all("cookie" not in call.request.headers for call in server.calls)


async def test_the_environment_is_not_asked(server, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine server.test login me password secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:1")
    monkeypatch.setenv("ALL_PROXY", "http://proxy.test:1")
    route = server.post(f"{URL}/completions").mock(side_effect=answer)
    asked = ask_of_transports(monkeypatch, httpx)
    async with BatchClient(URL, model="m") as client:
        await client.complete("p")
    assert [(each["trust_env"], each["proxy"]) for each in asked] == [(False, None)]
    assert "authorization" not in route.calls[0].request.headers


@pytest.mark.parametrize("backend", ["httpx", "httpx2"])
async def test_the_environments_proxy_is_used_where_that_was_asked_for(monkeypatch, backend):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    lib = {"httpx": httpx, "httpx2": httpx2}[backend]

    async def handle(transport, request):
        await request.aread()
        return lib.Response(200, content=answer(request).content)

    monkeypatch.setattr(lib.AsyncHTTPTransport, "handle_async_request", handle)
    for not_through, expected in (("", "http://127.0.0.1:9"), ("server.test", "None")):
        monkeypatch.setenv("NO_PROXY", not_through)
        asked = ask_of_transports(monkeypatch, lib)
        async with BatchClient(URL, model="m", http=Http(trust_env=True, backend=backend)) as client:
            await client.complete("p")
        assert [str(each["proxy"] and getattr(each["proxy"], "url", each["proxy"])) for each in asked] == [expected]


# The size of a body -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
async def test_a_body_over_the_cap_is_refused_and_not_asked_for_again(server, max_tokens, monkeypatch):
    monkeypatch.setattr(connections, "LARGEST_RESPONSE_BYTES", 1000)
    server.post(f"{URL}/completions").respond(200, content=b"x" * 2000)
    async with BatchClient(URL, model="m") as client:
        with pytest.raises(ResponseTooLarge, match="over 1000 bytes") as caught:
            await client.complete("p", max_tokens=max_tokens)
    assert not caught.value.retryable
    assert len(server.calls) == 1


async def test_a_body_of_exactly_the_cap_is_taken(server, monkeypatch):
    body = answer(httpx.Request("POST", URL, json={"prompt": "p"})).content
    monkeypatch.setattr(connections, "LARGEST_RESPONSE_BYTES", len(body))
    server.post(f"{URL}/completions").respond(200, content=body)
    async with BatchClient(URL, model="m") as client:
        assert (await client.complete("p", max_tokens=1)).text == "<p>"


@pytest.mark.parametrize("more", [0, 1])
async def test_a_body_has_64_mib_at_most(server, more):
    """The rest of it are comments, which are kept nowhere."""
    said = answer(httpx.Request("POST", URL, json={"prompt": "p"})).content
    last = b"data: " + said + b"\n\ndata: [DONE]\n\n"

    class Long(httpx.AsyncByteStream):
        async def __aiter__(self):
            for _ in range(63):
                yield b":" + b"x" * (2**20 - 2) + b"\n"
            yield b":" + b"x" * (2**20 - 3 - len(last) + more) + b"\n\n"
            yield last

    reply = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Long())
    server.post(f"{URL}/completions").mock(return_value=reply)
    async with BatchClient(URL, model="m") as client:
        if more:
            with pytest.raises(ResponseTooLarge, match="over 67108864 bytes"):
                await client.complete("p", max_tokens=16)
        else:
            assert (await client.complete("p", max_tokens=16)).text == "<p>"


def as_sent(body, encoding):
    """A response that is decoded as it is read, as one from a socket is."""

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self):
            for start in range(0, len(body), 1000):
                yield body[start : start + 1000]

    return httpx.Response(200, stream=Pieces(), headers={"content-encoding": encoding})


async def test_a_server_that_compresses_all_the_same_is_understood(server):
    server.post(f"{URL}/completions").mock(
        side_effect=lambda request: as_sent(gzip.compress(answer(request).content), "gzip")
    )
    async with BatchClient(URL, model="m") as client:
        assert (await client.complete("p")).text == "<p>"


async def test_a_compressed_body_is_undone_in_pieces_of_64_kib(server):
    server.post(f"{URL}/completions").mock(return_value=as_sent(gzip.compress(b"\0" * 1_000_000), "gzip"))
    transport = HttpTransport(URL, {}, max_response_bytes=1_000_000)
    response = await transport.send(WireRequest("POST", "/completions", body=b"{}"), Timeouts())
    sizes = [len(chunk) async for chunk in response.chunks()]
    await response.aclose()
    await transport.aclose()
    assert (max(sizes), sum(sizes)) == (65_536, 1_000_000)


async def test_a_body_that_is_not_what_its_encoding_says_is_a_broken_connection(server):
    server.post(f"{URL}/completions").mock(return_value=as_sent(b"no gzip", "gzip"))
    async with BatchClient(URL, model="m", retry=NEVER) as client:
        with pytest.raises(ConnectionLost, match="decompressed"):
            await client.complete("p")


async def test_a_list_whose_answer_is_too_large_is_halved(server, monkeypatch):
    monkeypatch.setattr(connections, "LARGEST_RESPONSE_BYTES", 1000)

    def answer_long(request):
        reply = answer(request)
        return httpx.Response(200, content=reply.content + b" " * (100 * reply.text.count("index")))

    server.post(f"{URL}/completions").mock(side_effect=answer_long)
    async with BatchClient(URL, model="m") as client:
        answers = await client.batch_map([f"{number}" for number in range(16)], "{}", max_tokens=1)
    assert [each.text for each in answers] == [f"<{number}>" for number in range(16)]


# Error statuses ---------------------------------------------------------------------------------------------------


async def test_an_endless_error_body_is_not_read_to_its_end(server):
    read = 0

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self):
            nonlocal read
            while True:
                read += 1
                yield b"x" * 10_000

    server.post(f"{URL}/completions").mock(side_effect=lambda request: httpx.Response(400, stream=Endless()))
    async with BatchClient(URL, model="m") as client:
        with pytest.raises(BadRequest) as caught:
            await client.complete("p")
    assert read == 7, "64 KiB"
    assert len(str(caught.value)) < 1000


async def test_retry_after_is_read_from_real_headers(server):
    server.post(f"{URL}/completions").respond(429, headers={"Retry-After": "3600"})
    async with BatchClient(URL, model="m") as client:
        with pytest.raises(Exception) as caught:
            await client.complete("p")
    assert caught.value.retry_after_s == 3600
