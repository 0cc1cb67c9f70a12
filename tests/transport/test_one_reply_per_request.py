"""A reply ends where it ends: whatever else comes on its socket is nobody's answer."""

import asyncio
import contextlib
import select
import socket

import httpx
import pytest
import trio

from batchclient._settings import sending_of
from batchclient import Backoff, BatchClient, ConnectionLost
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport.http import HttpTransport
from tests.seams import connected
from tests.fakes.raw import RawServer, answer, answers_in_a_thread, body_of, response

NEVER = Backoff(max_attempts=1)
SHAPES = pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])


@contextlib.asynccontextmanager
async def make(server, backend, **arguments):
    arguments = {"model": "m", "dialect": "vllm", "retry": NEVER, "probe": False, "limit": 2, **arguments}
    if backend == "own client":
        async with httpx.AsyncClient() as own:
            arguments["http"] = sending_of(arguments.get("http"), client=own)
            async with BatchClient(server.url, **arguments) as client:
                yield client
    else:
        async with connected(server.url, backend=backend, **arguments) as client:
            yield client


@pytest.fixture(params=[None, "httpx", "own client"], ids=["direct", "httpx", "own client"])
def anyones(request):
    """Whose connections carry the calls."""
    return request.param


async def ask(client, rounds=6, max_tokens=1):
    """Lists of equal length, one after the other; return every text."""
    texts = []
    for number in range(rounds):
        calls = [client.complete(f"{number}{letter}", max_tokens=max_tokens) for letter in "ab"]
        texts += [each.text for each in await asyncio.gather(*calls)]
    return texts


def right(rounds=6):
    return [f"<{number}{letter}>" for number in range(rounds) for letter in "ab"]


def saying(*, before=b"", after=b""):
    async def on_request(heard, reader, writer, server):
        writer.write(before + response(body_of(heard)) + (after(heard) if callable(after) else after))
        await writer.drain()

    return on_request


def doubled(heard):
    return response(body_of(heard))


@SHAPES
async def test_a_second_reply_in_the_same_write_is_nobodys(anyones, max_tokens):
    async with RawServer(on_request=saying(after=doubled)) as server, make(server, anyones) as client:
        assert await ask(client, max_tokens=max_tokens) == right()
        # Each reply costs its connection, and no call is sent twice.
        assert (len(server.heard), server.connections) == (6, 6)


async def test_a_second_reply_of_many_reads_is_nobodys(backend):
    def long(heard):
        return response(body_of(heard) + b" " * 300_000)

    async with RawServer(on_request=saying(after=long)) as server, make(server, backend) as client:
        assert await ask(client) == right()


async def test_half_a_second_reply_is_nobodys(anyones):
    async with (
        RawServer(on_request=saying(after=lambda heard: doubled(heard)[:20])) as server,
        make(server, anyones) as client,
    ):
        assert await ask(client) == right()
        assert (len(server.heard), server.connections) == (6, 6)


@pytest.mark.parametrize("more", [b"\r\n", b"garbage"])
async def test_any_byte_after_a_reply_closes_its_connection(anyones, more):
    async with RawServer(on_request=saying(after=more)) as server, make(server, anyones) as client:
        assert await ask(client) == right()
        # llhttp drops a blank line, which is no reply.
        assert server.connections == (1 if anyones is None and more == b"\r\n" else 6)


async def test_what_comes_while_a_socket_is_idle_closes_it(anyones):
    """A 408 of a proxy that waited long enough, or another's answer."""
    writers = []

    async def on_request(heard, reader, writer, server):
        writers.append(writer)
        await answer(heard, reader, writer, server)

    async with RawServer(on_request=on_request) as server, make(server, anyones) as client:
        assert (await client.complete("a", max_tokens=1)).text == "<a>"
        writers[0].write(response(b"", "408 Request Timeout"))
        await writers[0].drain()
        assert (await client.complete("b", max_tokens=1)).text == "<b>"
        assert (len(server.heard), server.connections) == (2, 2)


async def test_an_idle_socket_is_closed_by_what_comes():
    """At once, on the direct way."""
    writers = []

    async def on_request(heard, reader, writer, server):
        writers.append(writer)
        await answer(heard, reader, writer, server)

    async with RawServer(on_request=on_request) as server, make(server, None) as client:
        await client.complete("a", max_tokens=1)
        writers[0].write(response(body_of(server.heard[0])))
        # Before any other request, and before its three seconds are over.
        await asyncio.wait_for(server.closed_by_client.wait(), 2)


async def until_readable(sock):
    while not select.select([sock], [], [], 0)[0]:
        await asyncio.sleep(0)


async def test_what_waits_in_the_kernel_closes_an_idle_connection():
    """The loop has not read it yet when the next request is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        transport, peers = HttpTransport(url, {}, max_response_bytes=1000), []
        for number in range(2):
            sending = asyncio.ensure_future(transport.send(WireRequest("GET", "/x"), Timeouts()))
            await until_readable(listener)
            peers.append(listener.accept()[0])
            await until_readable(peers[-1])
            assert peers[-1].recv(65_536).startswith(b"GET")
            peers[-1].sendall(response(b"%d" % number))
            reply = await sending
            assert [chunk async for chunk in reply.chunks()] == [b"%d" % number]
            await reply.aclose()
            peers[-1].sendall(response(b"late"))
        await transport.aclose()
        for peer in peers:
            # What came late was thrown away unread: a reset, and no second request.
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(65_536) == b""
            peer.close()


@SHAPES
def test_on_trio_a_second_reply_is_nobodys(max_tokens):
    async def main(url):
        async with BatchClient(url, model="m", retry=NEVER, probe=False) as client:
            for number in range(6):
                texts = {}

                async def call(prompt, texts=texts):
                    texts[prompt] = (await client.complete(prompt, max_tokens=max_tokens)).text

                async with trio.open_nursery() as nursery:
                    for letter in "ab":
                        nursery.start_soon(call, f"{number}{letter}")
                assert texts == {f"{number}{letter}": f"<{number}{letter}>" for letter in "ab"}

    with answers_in_a_thread(on_request=saying(after=doubled)) as url:
        trio.run(main, url)


CONTINUE, EARLY = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"


async def test_interim_replies_are_no_reply(anyones):
    async with RawServer(on_request=saying(before=CONTINUE + EARLY * 3)) as server, make(server, anyones) as client:
        assert await ask(client, rounds=2) == right(2)
        assert server.connections == 1


def in_chunks(heard, *, extension=b"", trailer=b""):
    body = body_of(heard)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    pieces = [body[:7], body[7:]]
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    return head + chunks + b"0\r\n" + trailer + b"\r\n"


async def test_chunk_extensions_and_trailers_are_part_of_a_reply(anyones):
    async def on_request(heard, reader, writer, server):
        writer.write(in_chunks(heard, extension=b';a="b"', trailer=b"x-checksum: 1\r\nx-more: 2\r\n"))

    async with RawServer(on_request=on_request) as server, make(server, anyones) as client:
        assert await ask(client, rounds=2) == right(2)
        assert server.connections == 1


async def test_a_content_length_that_is_too_short_is_no_answer_and_ends_its_connection(anyones):
    async def on_request(heard, reader, writer, server):
        body = body_of(heard)
        writer.write(response(body, length=len(body) - 2 if len(server.heard) == 1 else len(body)))

    async with RawServer(on_request=on_request) as server, make(server, anyones, retry=Backoff(base_s=0)) as client:
        completion = await client.complete("a", max_tokens=1)
        assert (completion.text, completion.attempts, server.connections) == ("<a>", 2, 2)


async def test_a_content_length_that_is_too_long_is_a_broken_connection(anyones):
    async def on_request(heard, reader, writer, server):
        body = body_of(heard)
        writer.write(response(body, length=len(body) + 2))
        return True

    async with RawServer(on_request=on_request) as server, make(server, anyones) as client:
        with pytest.raises(ConnectionLost):
            await client.complete("a", max_tokens=1)


@pytest.mark.parametrize("extra", [0, 1])
async def test_a_content_length_twice(backend, extra):
    """Two different ones are no HTTP (RFC 9112, section 6.3); h11 takes the same twice for one, llhttp does not."""

    async def on_request(heard, reader, writer, server):
        body = body_of(heard)
        writer.write(response(body, headers=[("content-length", len(body) + extra)]))

    async with RawServer(on_request=on_request) as server, make(server, backend) as client:
        if extra or backend is None:
            with pytest.raises(ConnectionLost):
                await client.complete("a", max_tokens=1)
        else:
            assert (await client.complete("a", max_tokens=1)).text == "<a>"
