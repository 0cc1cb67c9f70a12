"""Real sockets: what goes over them, how many there are, and what happens when they break."""

import asyncio
import json

import httpx
import httpx2
import pytest
import trio
from tests.seams import connected
from tests.fakes.raw import (
    RawServer,
    answer,
    answers_in_a_thread,
    chunked,
    error,
    events_of,
    hang,
    response,
    says,
    whole,
)

from batchclient import (
    Batching,
    Http,
    Backoff,
    ConnectionLost,
    ReadTimedOut,
)
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport.http import HttpTransport

NEVER = Backoff(max_attempts=1)
AT_ONCE = Backoff(base_s=0)


def make(server, backend, **arguments):
    defaults = {"model": "m", "retry": NEVER, "probe": False}
    return connected(server.url, backend=backend, **{**defaults, **arguments})


async def test_sockets_are_used_again(backend):
    async with RawServer() as server, make(server, backend) as client:
        for number in range(10):
            await client.complete(f"{number}")
        assert server.connections == 1
    assert len(server.heard) == 10


async def test_sockets_are_closed_with_the_client(backend):
    async with RawServer() as server:
        async with make(server, backend, batching=Batching(max_size=1)) as client:
            await client.batch_map(["a", "b", "c"], "{}")
            assert server.open >= 1
        await asyncio.wait_for(server.closed_by_client.wait(), 5)
        while server.open:
            await asyncio.sleep(0)


async def test_a_socket_idle_for_three_seconds_is_closed_before_servers_close_theirs(monkeypatch):
    loop, later_s = asyncio.get_running_loop(), 0.0
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + later_s)
    async with RawServer() as server, make(server, None, probe=False) as client:
        await client.complete("p")
        later_s = 2.5
        await client.complete("q")
        assert server.connections == 1
        server.closed_by_client.clear()
        later_s = 5.6
        await client.complete("r")
        assert server.connections == 2
        await asyncio.wait_for(server.closed_by_client.wait(), 5)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_each_request_over_httpx_has_a_pool_of_one_whose_socket_is_idle_for_three_seconds(library, monkeypatch):
    asked = {}
    make_one = library.AsyncHTTPTransport.__init__

    def init(self, **arguments):
        asked.update(arguments)
        make_one(self, **arguments)

    monkeypatch.setattr(library.AsyncHTTPTransport, "__init__", init)
    async with RawServer() as server, make(server, library.__name__) as client:
        await client.complete("p")
    limits = asked["limits"]
    assert (limits.max_connections, limits.max_keepalive_connections, limits.keepalive_expiry) == (1, 1, 3.0)


@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
async def test_never_more_connections_than_the_limit(backend, max_tokens):
    most = working = 0

    async def slowly(heard, reader, writer, server):
        nonlocal most, working
        working += 1
        most = max(most, working)
        for _ in range(20):
            await asyncio.sleep(0)
        working -= 1
        await answer(heard, reader, writer, server)

    # On a slow machine this takes so long that the server would be asked for its load.
    quiet = {"limit": 16, "batching": Batching(max_size=1), "probe": False}
    made = []
    async with RawServer(on_request=slowly) as server, make(server, backend, made=made.append, **quiet) as client:
        answers = await asyncio.gather(*(client.complete(f"{n}", max_tokens=max_tokens) for n in range(500)))
        assert [each.text for each in answers] == [f"<{number}>" for number in range(500)]
        assert most == 16
        assert made[0].under_way == 0
        if max_tokens == 1:
            assert server.most_open == server.connections == 16
        else:
            # A streamed choice gives its permit back when it ends, a moment before its connection is free.
            assert server.most_open <= 24


async def test_a_cancelled_call_closes_its_socket_and_frees_its_place(backend):
    made = []
    async with (
        RawServer(then=hang()) as server,
        make(server, backend, limit=4, batching=Batching(max_size=1), made=made.append) as client,
    ):
        for _ in range(12):
            server.closed_by_client.clear()
            before = len(server.heard)
            call = asyncio.ensure_future(client.complete("p"))
            await server.arrived(before + 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(server.closed_by_client.wait(), 5)
        while client.statistics().in_flight:
            await asyncio.sleep(0)
        assert made[0].under_way == 0


# Faults -----------------------------------------------------------------------------------------------------------


FAULTS = {
    "cut within the headers": b"HTTP/1.1 200 OK\r\ncontent-le",
    "closed without a word": b"",
    "cut mid-body, by length": response(b'{"choices": [', length=1000),
    "chunks without their end": chunked([b"data: {"], end=False),
    "a chunk cut in two": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nhalf",
    "no HTTP at all": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("end", ["closed", "reset"])
async def test_a_connection_that_breaks_is_lost_and_the_call_is_sent_again(backend, fault, end):
    async def breaks(connection):
        await connection.request()
        await connection.write(FAULTS[fault])
        if end == "reset":
            connection.reset()

    async with RawServer(breaks) as server, make(server, backend, retry=AT_ONCE) as client:
        completion = await client.complete("p")
    assert completion.text == "<p>"
    assert completion.attempts == 2


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_connection_that_breaks_is_our_error(backend, fault):
    async with RawServer(then=says(FAULTS[fault], close=True)) as server, make(server, backend) as client:
        with pytest.raises(ConnectionLost) as caught:
            await client.complete("p")
        # Errors that quote what came, or hold what was sent, are not chained.
        is_librarys = isinstance(caught.value.__cause__, (httpx.HTTPError, httpx2.HTTPError))
        assert is_librarys is (backend is not None and fault != "no HTTP at all")
        assert client.statistics().in_flight == 0


async def test_a_stream_cut_off_keeps_what_was_finished(backend):
    def half(heard):
        events = events_of(heard)
        return chunked(events[: len(events) // 2 + 1], end=False)

    async with RawServer(says(half, close=True)) as server, make(server, backend, retry=AT_ONCE) as client:
        answers = await asyncio.gather(*(client.complete(p) for p in ("a", "b", "c", "d")))
    assert [each.text for each in answers] == ["<a>", "<b>", "<c>", "<d>"]
    assert sorted(each.attempts for each in answers) == [1, 2, 2, 2] or sorted(each.attempts for each in answers) == [
        1,
        1,
        2,
        2,
    ]
    assert len(server.heard[1].prompts) < 4


async def test_a_server_that_never_answers_is_given_up(backend):
    async with RawServer(hang()) as server, make(server, backend, http=Http(read_timeout_s=0.05)) as client:
        with pytest.raises(ReadTimedOut, match="read_timeout_s"):
            await client.complete("p")
        assert client.statistics().in_flight == 0


async def test_a_server_that_falls_silent_mid_stream_is_given_up(backend):
    async def falls_silent(connection):
        heard = await connection.request()
        await connection.write(chunked(events_of(heard)[:1], end=False))
        await connection.gone()

    async with RawServer(falls_silent) as server, make(server, backend, http=Http(read_timeout_s=0.05)) as client:
        with pytest.raises(ReadTimedOut):
            await client.complete("p")


async def test_the_socket_a_server_closed_while_idle_is_not_used(backend):
    async with RawServer(then=says(whole, close=True)) as server, make(server, backend, retry=AT_ONCE) as client:
        for number in range(5):
            assert (await client.complete(f"{number}")).text == f"<{number}>"
            while server.open:
                await asyncio.sleep(0)
        assert server.connections == 5


async def test_an_error_status_leaves_a_socket_that_can_be_used(backend):
    refusal = error("503 Service Unavailable")
    async with RawServer(says(refusal)) as server, make(server, backend, retry=AT_ONCE) as client:
        assert (await client.complete("p")).attempts == 2
        assert server.connections == 1


@pytest.mark.parametrize(
    ("backend", "max_tokens"), [("httpx", 1), ("httpx", 16), ("httpx2", 16)], ids=["plain", "streamed", "httpx2"]
)
def test_the_same_on_trio(backend, max_tokens):
    texts, closed, made = [], [], []

    async def main(url):
        arguments = {
            "model": "m",
            "probe": False,
            "limit": 16,
            "batching": Batching(max_size=4),
            "http": Http(backend=backend),
        }
        async with connected(url, made=made.append, **arguments) as client:

            async def call(prompt):
                texts.append((prompt, (await client.complete(prompt, max_tokens=max_tokens)).text))

            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(call, f"p{number}")
            with trio.move_on_after(0):
                await client.complete("given up", max_tokens=max_tokens)
            assert (await client.complete("after")).text == "<after>"
            # The task of what was given up ends in its own time.
            while made[0].under_way:
                await trio.lowlevel.checkpoint()
        closed.append(client)

    with answers_in_a_thread() as url:
        trio.run(main, url)
    assert sorted(texts) == sorted((f"p{number}", f"<p{number}>") for number in range(100))
    assert closed


async def test_a_big_prompt_arrives_whole(backend):
    async with RawServer() as server, make(server, backend) as client:
        prompt = "ü" * 2_000_000
        assert (await client.complete(prompt)).text == f"<{prompt}>"
    assert server.heard[0].json["prompt"] == prompt


async def test_a_body_that_is_not_read_costs_the_connection(backend):
    """The transport alone: what ``aclose`` of a half-read response does."""

    async def long(connection):
        await connection.request()
        await connection.write(chunked([b"first"], end=False))
        await connection.gone()

    async with RawServer(long) as server:
        transport = HttpTransport(server.url, {}, max_response_bytes=1000, backend=backend)
        response_ = await transport.send(WireRequest("GET", "/x"), Timeouts())
        chunks = response_.chunks()
        assert await anext(chunks) == b"first"
        await chunks.aclose()
        await response_.aclose()
        await response_.aclose()
        await asyncio.wait_for(server.closed_by_client.wait(), 5)
        assert transport.under_way == 0
        await transport.aclose()
        await transport.aclose()
    assert json.dumps(repr(transport))
