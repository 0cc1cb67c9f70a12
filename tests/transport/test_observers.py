"""Whoever looks on at httpx's requests sees batchclient's, whenever he began; where nobody does, none goes over httpx."""

import asyncio
import logging
from functools import wraps

import httpcore
import httpx
import pytest
import trio

from batchclient import BatchClient
from tests.fakes.raw import RawServer, answers_in_a_thread
from tests.shell.test_loops import in_python

WAYS = {
    "httpx's transport": (httpx.AsyncHTTPTransport, "handle_async_request"),
    "httpcore's pool": (httpcore.AsyncConnectionPool, "handle_async_request"),
    "httpcore's connection": (httpcore.AsyncHTTPConnection, "handle_async_request"),
}


def client_of(server):
    return BatchClient(server.url, model="m", probe=False)


def passing_on(own, seen):
    async def looked_at(self, request):
        seen.append(request.method)
        return await own(self, request)

    return looked_at


class Wrapper:
    """As ``wrapt``'s, by which OpenTelemetry wraps functions: it shows the attributes of what it wraps, is equal to it, and is a descriptor."""

    def __init__(self, wrapped, seen):
        self.wrapped, self.seen = wrapped, seen

    def __getattr__(self, name):
        return getattr(self.wrapped, name)

    def __eq__(self, other):
        return self.wrapped == other

    def __hash__(self):
        return hash(self.wrapped)

    def __get__(self, owner, kind=None):
        return Wrapper(self.wrapped.__get__(owner, kind), self.seen) if owner is not None else self

    async def __call__(self, request):
        self.seen.append(request.method)
        return await self.wrapped(request)


HOW = {
    "a function": passing_on,
    "a function that says what it wraps": lambda own, seen: wraps(own)(passing_on(own, seen)),
    "a wrapper": Wrapper,
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("way", WAYS)
async def test_it_is_seen_from_the_moment_it_looks_on_to_the_moment_it_leaves(way, how, monkeypatch):
    owner, name = WAYS[way]
    seen = []
    async with RawServer() as server, client_of(server) as client:
        await client.complete("before")
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, HOW[how](getattr(owner, name), seen))
            await client.complete("while it looks on")
            assert seen.count("POST") + seen.count(b"POST") == 1
        await client.complete("after")
        assert len(seen) == 1
    assert [heard.prompts for heard in server.heard] == [["before"], ["while it looks on"], ["after"]]


@pytest.mark.parametrize("when", ["before the import", "before the first call", "after it"])
@pytest.mark.parametrize("who", ["respx", "a wrapper"])
def test_it_may_begin_before_the_import_before_the_first_call_or_after_it(who, when):
    status, out, err = in_python(
        f"WHO, WHEN = {who!r}, {when!r}"
        + """
import asyncio, json
import httpx, respx
from tests.fakes.raw import answers_in_a_thread

seen = []

def begin():
    if WHO == "respx":
        router = respx.mock(assert_all_called=False).__enter__()
        def answer(request):
            seen.append(request.method)
            return httpx.Response(200, json={"choices": [{"index": 0, "text": "mocked", "finish_reason": "stop"}]})
        router.post(url__regex=".*/completions").mock(side_effect=answer)
    else:
        own = httpx.AsyncHTTPTransport.handle_async_request
        async def looked_at(self, request):
            seen.append(request.method)
            return await own(self, request)
        httpx.AsyncHTTPTransport.handle_async_request = looked_at

if WHEN == "before the import":
    begin()
from batchclient import BatchClient

async def main(url):
    client = BatchClient(url, model="m", probe=False)
    if WHEN == "before the first call":
        begin()
    async with client:
        texts = [(await client.complete("p")).text]
        if WHEN == "after it":
            begin()
        texts.append((await client.complete("q")).text)
    print(texts, seen)

with answers_in_a_thread() as url:
    asyncio.run(main(url))
"""
    )
    mocked = ["mocked", "mocked"] if who == "respx" else ["<p>", "<q>"]
    texts = ["<p>", mocked[1]] if when == "after it" else mocked
    count = 1 if when == "after it" else 2
    assert (status, out.strip(), err) == (0, f"{texts} {['POST'] * count}", "")


@pytest.fixture
def over_httpx(monkeypatch):
    """Counts the requests that go over httpx, without standing in their way: one that looks on would be seen."""
    made = []
    own = httpx.AsyncHTTPTransport.__init__

    def counted(self, *args, **named):
        made.append(1)
        own(self, *args, **named)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "__init__", counted)
    return made


async def test_where_nobody_looks_on_no_request_goes_over_httpx(over_httpx):
    async with RawServer() as server, client_of(server) as client:
        await asyncio.gather(*(client.complete(f"{number}") for number in range(4)))
    assert not over_httpx


async def test_httpcores_debug_log_is_written_where_it_is_asked_for(over_httpx, caplog):
    caplog.set_level(logging.DEBUG, "httpcore")
    async with RawServer() as server, client_of(server) as client:
        await client.complete("p")
    assert over_httpx
    assert any(record.name == "httpcore.http11" for record in caplog.records)


def test_on_trio_requests_go_over_httpx(over_httpx):
    async def main(url):
        async with BatchClient(url, model="m", probe=False) as client:
            assert (await client.complete("p")).text == "<p>"

    with answers_in_a_thread() as url:
        trio.run(main, url)
    assert over_httpx


def test_without_httptools_httpx_carries_everything_and_the_log_says_so_once():
    status, out, err = in_python(
        """
import asyncio, logging, sys
sys.modules["httptools"] = None
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
from batchclient import BatchClient
from tests.fakes.raw import answers_in_a_thread

async def main(url):
    for _ in range(2):
        async with BatchClient(url, model="m", probe=False) as client:
            print((await client.complete("p")).text)

with answers_in_a_thread() as url:
    asyncio.run(main(url))
"""
    )
    assert (status, err) == (0, "")
    assert out.count("requests go over httpx") == 1
    assert out.count("<p>") == 2
