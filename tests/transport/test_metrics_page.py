"""Metrics pages over real sockets, good and bad, and what somebody who mocks httpx sees of the questions. In real time, but shortened."""

import asyncio
import gzip
import json
from dataclasses import replace

import httpx
import pytest
import respx
from tests.seams import watch_cores, with_runners
from tests.fakes.raw import RawServer, answer, reset, response

from batchclient import BatchClient, Batching, Http
from batchclient._shell.pages import PageTimes
from tests.core import LoadReported

SOON = PageTimes(timeout_s=0.1, first_after_s=0.02, every_s=0.02, pause_ratio=0.0)
PAGE = b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 0\n'


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The first question after 20 ms, then every 20 ms."""
    with_runners(monkeypatch, page_times=SOON)


class Server:
    """Answers calls when ``asked`` questions for the page have come, and the page as ``on_page`` does."""

    def __init__(self, on_page, asked=1):
        self.on_page = on_page
        self.pages = []
        self.asked = asked
        self.enough = asyncio.Event()

    async def __call__(self, heard, reader, writer, server):
        if heard.method == "GET":
            self.pages.append(heard)
            if len(self.pages) >= self.asked:
                self.enough.set()
            return await self.on_page(heard, reader, writer)
        await self.enough.wait()
        return await answer(heard, reader, writer, server)


async def good(heard, reader, writer):
    writer.write(response(PAGE, headers=[("content-type", "text/plain; version=0.0.4")]))


async def zipped(heard, reader, writer):
    writer.write(response(gzip.compress(PAGE), headers=[("content-encoding", "gzip")]))


async def says_nothing(heard, reader, writer):
    await reader.read()
    return True


async def closes(heard, reader, writer):
    return True


async def resets(heard, reader, writer):
    reset(writer)
    return True


async def garbage(heard, reader, writer):
    writer.write(b"\0\xff garbage that is no HTTP\r\n\r\n")
    await writer.drain()
    return True


async def endless(heard, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n")
    for _ in range(100):
        writer.write(b"vllm:num_requests_running 3\n" * 4000)
        await writer.drain()
    return True


async def half(heard, reader, writer):
    writer.write(response(PAGE, length=99_999))
    await writer.drain()
    return True


async def bomb(heard, reader, writer):
    writer.write(response(gzip.compress(b"\n" * 50_000_000), headers=[("content-encoding", "gzip")]))


async def elsewhere(heard, reader, writer):
    writer.write(response(b"", "302 Found", [("location", f"http://{heard.header('host')}/other")]))


async def missing(heard, reader, writer):
    writer.write(response(b'{"detail":"Not Found"}', "404 Not Found"))


async def complete(client, calls=8):
    return await asyncio.gather(*[client.complete(f"p{number}", max_tokens=16) for number in range(calls)])


BAD = [says_nothing, closes, resets, garbage, endless, half, bomb, elsewhere, missing]


@pytest.mark.parametrize("on_page", [good, zipped, *BAD], ids=lambda each: each.__name__)
async def test_no_call_notices_what_becomes_of_a_question(on_page, backend):
    pages = Server(on_page)
    async with RawServer(on_request=pages) as server:
        async with BatchClient(
            server.url,
            model="m",
            dialect="vllm",
            probe=True,
            batching=Batching(max_size=4),
            http=Http(backend=backend),
            limit=16,
        ) as client:
            answers = await complete(client)
            statistics = client.statistics()
    assert [each.text for each in answers] == [f"<p{number}>" for number in range(8)]
    assert (statistics.failed, statistics.retries, statistics.endpoints[0].limit) == (0, 0, 16)
    assert {heard.path for heard in pages.pages} == {"/metrics"}


@pytest.mark.parametrize("on_page", [endless, bomb], ids=lambda each: each.__name__)
async def test_no_more_of_a_page_is_read_than_a_page_may_have(on_page, backend, monkeypatch, caplog):
    with_runners(monkeypatch, page_times=replace(SOON, timeout_s=10.0))
    caplog.set_level("INFO", "batchclient")

    async def hold(heard, reader, writer, server):
        if heard.method == "GET":
            return await on_page(heard, reader, writer)
        while not caplog.records:
            await asyncio.sleep(0.01)
        return await answer(heard, reader, writer, server)

    async with RawServer(on_request=hold) as server:
        async with BatchClient(server.url, model="m", dialect="vllm", probe=True, http=Http(backend=backend)) as client:
            await complete(client)
    assert [record.getMessage().partition("(")[2].partition(")")[0] for record in caplog.records] == [
        "it is over 2097152 bytes"
    ]


@pytest.mark.parametrize("on_page", [good, zipped], ids=["plain", "gzip"])
async def test_a_page_is_understood(on_page, backend, monkeypatch):
    reports = []

    def look(event):
        if isinstance(event, LoadReported):
            reports.append((event.endpoint, event.load.running, event.load.waiting))

    watch_cores(monkeypatch, told=look)
    async with RawServer(on_request=Server(on_page, asked=3)) as server:
        async with BatchClient(server.url, model="m", dialect="vllm", probe=True, http=Http(backend=backend)) as client:
            await complete(client)
    assert reports[:2] == [(0, 3, 0), (0, 3, 0)]


async def test_the_questions_use_one_connection_of_their_own_and_the_same_headers(backend):
    pages = Server(good, asked=5)
    async with RawServer(on_request=pages) as server:
        client = BatchClient(
            f"{server.url}?team=a",
            model="m",
            api_key="secret",
            http=Http(backend=backend),
            headers={"x-tenant": "t"},
            dialect="vllm",
            probe=True,
        )
        async with client:
            await complete(client)
    assert len({heard.connection for heard in pages.pages}) == 1
    posts = {heard.connection for heard in server.heard if heard.method == "POST"}
    assert posts.isdisjoint({heard.connection for heard in pages.pages})
    for heard in pages.pages:
        assert heard.path == "/metrics?team=a"
        assert (heard.header("authorization"), heard.header("x-tenant"), heard.body) == ("Bearer secret", "t", b"")


async def test_a_users_own_client_is_never_asked_with():
    asked = []

    async def handle(request):
        asked.append(request.method)
        await asyncio.sleep(0.3)
        body = json.loads(request.content)
        choices = [
            {"index": index, "text": "t", "finish_reason": "stop", "token_ids": [1], "prompt_token_ids": [1]}
            for index, _ in enumerate(body["prompt"])
        ]
        return httpx.Response(200, json={"choices": choices})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as own:
        async with BatchClient("http://server.test/v1", model="m", http=own) as client:
            await asyncio.gather(*[client.complete(f"p{number}", max_tokens=1) for number in range(4)])
    assert set(asked) == {"POST"}


async def slow(request):
    await asyncio.sleep(0.3)
    prompts = json.loads(request.content)["prompt"]
    choices = [
        {"index": index, "text": "t", "finish_reason": "stop", "token_ids": [1], "prompt_token_ids": [1]}
        for index, _ in enumerate(prompts)
    ]
    return httpx.Response(200, json={"choices": choices})


async def test_respx_neither_counts_nor_fails_a_question_it_does_not_know(caplog):
    caplog.set_level("DEBUG", "batchclient")
    with respx.mock(assert_all_called=True, assert_all_mocked=True) as router:
        route = router.post("http://server.test/v1/completions").mock(side_effect=slow)
        async with BatchClient("http://server.test/v1", model="m", dialect="vllm", probe=True) as client:
            await asyncio.gather(*[client.complete(f"p{number}", max_tokens=1) for number in range(4)])
        assert "asking for /metrics failed" in caplog.text, "a question was asked"
        assert [call.request.method for call in router.calls] == ["POST"]
        assert route.call_count == 1


async def test_without_a_probe_a_catch_all_route_sees_the_calls_alone():
    with respx.mock as router:
        route = router.route(host="server.test").mock(side_effect=slow)
        async with BatchClient("http://server.test/v1", model="m", probe=False) as client:
            await asyncio.gather(*[client.complete(f"p{number}", max_tokens=1) for number in range(4)])
        assert route.call_count == 1
