"""``read_timeout_s`` is bounded by the clock, on every step. The loop's clock is set forward with each byte, so that no test waits."""

import asyncio
import contextlib

import pytest

from batchclient import Backoff, BatchClient, ConnectFailed, Http, ReadTimedOut
from tests.fakes.raw import RawServer, answer, body_of, chunked, response
from tests.transport.test_one_reply_per_request import NEVER, anyones, make

__all__ = ["anyones"]

HEADERS = b"HTTP/1.1 200 OK\r\nx-one: 1\r\nx-two: 2\r\n"
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"


@contextlib.contextmanager
def clock():
    """Sets this loop's clock forward."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0

    def forward(seconds):
        nonlocal ahead
        ahead += seconds

    loop.time = lambda: real() + ahead
    try:
        yield forward
    finally:
        loop.time = real


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def trickle(forward, pieces, *, first=b"", written=None, gap_s=1.0):
    """Write pieces a second apart, as the loop's clock goes, then say nothing."""

    async def on_request(heard, reader, writer, server):
        writer.write(first(heard) if callable(first) else first)
        for piece in pieces(heard) if callable(pieces) else pieces:
            await turns()
            if reader.at_eof():
                break
            forward(gap_s)
            writer.write(piece)
            if written is not None:
                written.append(piece)
        await reader.read()
        server.closed_by_client.set()
        return True

    return on_request


def bytes_of(data):
    return [data[at : at + 1] for at in range(len(data))]


TRICKLES = {
    "headers": (b"", bytes_of(HEADERS)),
    "interim replies": (b"", [INTERIM] * 40),
    "a chunk's length": (HEADERS + b"transfer-encoding: chunked\r\n\r\n", bytes_of(b"0" * 10)),
    "a chunk's extension": (HEADERS + b"transfer-encoding: chunked\r\n\r\n5;", bytes_of(b"a" * 40)),
    "trailers": (
        lambda heard: chunked([body_of(heard)], end=False) + b"0\r\nx: ",
        bytes_of(b"1" * 40),
    ),
}


@pytest.mark.parametrize("step", TRICKLES)
async def test_what_comes_byte_by_byte_is_silence(step):
    first, pieces = TRICKLES[step]
    written = []
    with clock() as forward:
        async with (
            RawServer(on_request=trickle(forward, pieces, first=first, written=written)) as server,
            make(server, None, http=Http(read_timeout_s=5.0), probe=False) as client,
        ):
            with pytest.raises(ReadTimedOut):
                await client.complete("p", max_tokens=1)
            await asyncio.wait_for(server.closed_by_client.wait(), 600)
            assert 5 <= len(written) <= 7


async def test_a_body_that_comes_piece_by_piece_is_not_silent(anyones):
    """Ten pieces, four seconds apart: each is something."""

    def pieces(heard):
        body = body_of(heard)
        size = len(body) // 9
        return [b"%x\r\n%s\r\n" % (len(each), each) for each in (body[at : at + size] for at in range(0, len(body), size))] + [b"0\r\n\r\n"]  # fmt: skip

    head = HEADERS + b"transfer-encoding: chunked\r\n\r\n"
    with clock() as forward:
        async with (
            RawServer(on_request=trickle(forward, pieces, first=head, gap_s=4.0)) as server,
            make(server, anyones, http=Http(read_timeout_s=5.0), probe=False) as client,
        ):
            assert (await client.complete("p", max_tokens=1)).text == "<p>"


async def test_a_caller_who_takes_his_time_is_not_the_servers_silence(backend):
    with clock() as forward:
        async with (
            RawServer() as server,
            make(server, backend, http=Http(read_timeout_s=5.0), probe=False) as client,
        ):
            texts = []
            async for delta in client.stream("p", max_tokens=16):
                texts.append(delta.text)
                forward(100.0)
                await turns()
            assert "".join(texts) == "<p>"


async def test_the_time_between_two_calls_is_nobodys_silence(backend):
    with clock() as forward:
        async with (
            RawServer() as server,
            make(server, backend, http=Http(read_timeout_s=5.0), probe=False) as client,
        ):
            for number in range(3):
                assert (await client.complete(f"{number}")).text == f"<{number}>"
                forward(2.9)
                await turns()
            assert server.connections == 1


@pytest.mark.parametrize("where", ["headers", "body"])
async def test_a_page_of_models_that_trickles_holds_no_call_for_long(backend, where):
    page = response(b'{"data": [{"id": "m"}]}')
    head = page.index(b"\r\n\r\n") + 4
    written = []
    with clock() as forward:
        first = b"" if where == "headers" else page[:head]
        slow = trickle(forward, bytes_of(page[len(first) :] + b" " * 40), first=first, written=written)
        async with (
            RawServer(on_request=slow) as server,
            make(
                server,
                backend,
                model=None,
                http=Http(read_timeout_s=None if where == "body" else 5.0),
                probe=False,
            ) as client,  # fmt: skip
        ):
            with pytest.raises(ReadTimedOut, match="which model it serves"):
                await client.complete("p")
            assert 5 <= len(written) <= 8


async def test_a_list_of_models_that_trickles_is_asked_for_twice_at_most(backend):
    page = response(b'{"data": [{"id": "m"}]}' + b" " * 40)
    head = page.index(b"\r\n\r\n") + 4
    with clock() as forward:
        async with (
            RawServer(on_request=trickle(forward, bytes_of(page[head:]), first=page[:head])) as server,
            make(server, backend, model=None, retry=Backoff(max_attempts=5, base_s=0), probe=False) as client,
        ):
            with pytest.raises(ReadTimedOut, match="had not ended 5 s later"):
                await client.complete("p")
            assert server.connections == 2


async def test_an_answer_that_takes_its_time_is_waited_for_from_when_the_request_was_sent(anyones):
    with clock() as forward:

        async def later(heard, reader, writer, server):
            await turns()
            forward(4.9)
            await turns()
            await answer(heard, reader, writer, server)

        async with (
            RawServer(on_request=later) as server,
            make(server, anyones, http=Http(read_timeout_s=5.0), probe=False) as client,
        ):
            for number in range(3):
                assert (await client.complete(f"{number}")).text == f"<{number}>"


async def test_a_proxy_that_opens_no_tunnel_is_not_waited_for_longer_than_a_connection(backend, monkeypatch):
    """``CONNECT`` is part of the connecting; the read timeout here is 600 s."""

    async def say_nothing(heard, reader, writer, server):
        await reader.read()
        return True

    async with RawServer(on_request=say_nothing) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        client = BatchClient(
            "https://server.test/v1", model="m", http=Http(backend=backend, trust_env=True, connect_timeout_s=0.1), retry=NEVER, probe=False,
        )  # fmt: skip
        async with client:
            with pytest.raises(ConnectFailed, match="connect timeout"):
                await client.complete("p")
        assert [heard.method for heard in proxy.heard] == ["CONNECT"]
