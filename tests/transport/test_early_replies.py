"""A request that is refused before it was read: the reply is read wherever it can be, and what cannot be read is told."""

import asyncio
import contextlib
import socket
import struct
import threading
import time

import pytest
import trio

from batchclient import Backoff, BadRequest, BatchClient, Batching, ConnectionLost, Http, ServerFault
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport.connection import Connection
from batchclient.transport.http import HttpTransport
from tests.fakes.raw import RawServer, body_of, response

MOST_BYTES = 100_000
PROMPTS = [f"{number}" * 40_000 for number in range(8)]
REFUSAL = response(b'{"error": {"message": "too large"}}', "413 Payload Too Large")


class Refuser:
    """Refuses what is longer than it takes, without reading it.

    Args:
        how: what becomes of the connection then: ``close`` (which resets it, since there is something unread), ``end`` (an orderly end of
            the server's side, while it reads on), ``nothing`` (open and unread).
        reply: what it says; empty: nothing.
    """

    def __init__(self, how, reply=REFUSAL):
        self.how = how
        self.reply = reply
        self.lengths = []

    async def __call__(self, connection):
        while heard := await connection.head():
            length = int(heard.header("content-length"))
            self.lengths.append(length)
            if length > MOST_BYTES:
                await connection.write(self.reply)
                if self.how == "reset":
                    connection.reset()
                elif self.how == "end":
                    connection.writer.write_eof()
                    await connection.gone()
                elif self.how == "nothing":
                    await asyncio.sleep(3600)
                return
            heard.body = await connection.reader.readexactly(length)
            await connection.write(response(body_of(heard)))


def narrow():
    """A listening socket whose connections hold little that was not read: a long request cannot be written to its end."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    return listener


def narrowly(script):
    """A server with a narrow socket whose every connection runs a script."""
    return RawServer(then=script, listener=narrow())


@contextlib.asynccontextmanager
async def refusing(how, reply=REFUSAL):
    refuser = Refuser(how, reply)
    async with narrowly(refuser) as server:
        refuser.url = server.url
        yield refuser


HOW = pytest.mark.parametrize("how", ["close", "end", "nothing"])
ARGUMENTS = {
    "model": "m",
    "dialect": "vllm",
    "probe": False,
    "batching": Batching(max_size=8),
    "probe": False,
}


@HOW
async def test_a_413_before_the_body_was_read_halves_the_list(backend, how):
    async with refusing(how) as server:
        async with BatchClient(
            server.url, http=Http(backend=backend), retry=Backoff(max_attempts=1), **ARGUMENTS
        ) as client:
            answers = await asyncio.gather(*(client.complete(prompt, max_tokens=1) for prompt in PROMPTS))
    assert [each.text for each in answers] == [f"<{prompt}>" for prompt in PROMPTS]
    # Eight, two fours, four twos.
    assert len(server.lengths) == 7


@pytest.mark.parametrize("how", ["close", "end"])
def test_on_trio_a_413_before_the_body_was_read_halves_the_list(how):
    texts, urls, over = {}, [], threading.Event()
    ready = threading.Event()

    async def serve():
        async with refusing(how) as server:
            urls.append(server)
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.01)

    async def main():
        async with BatchClient(urls[0].url, retry=Backoff(max_attempts=1), **ARGUMENTS) as client:

            async def call(prompt):
                texts[prompt] = (await client.complete(prompt, max_tokens=1)).text

            async with trio.open_nursery() as nursery:
                for prompt in PROMPTS:
                    nursery.start_soon(call, prompt)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        trio.run(main)
    finally:
        over.set()
        thread.join()
    assert texts == {prompt: f"<{prompt}>" for prompt in PROMPTS}
    assert len(urls[0].lengths) == 7


async def test_an_interim_reply_does_not_end_the_writing(backend):
    """103 comes while the body is still written: the request is read, and answered."""

    async def serve(connection):
        heard = await connection.head()
        await connection.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        heard.body = await connection.reader.readexactly(int(heard.header("content-length")))
        await connection.write(response(body_of(heard)))

    async with narrowly(serve) as server:
        async with BatchClient(
            server.url, http=Http(backend=backend), retry=Backoff(max_attempts=1), **ARGUMENTS
        ) as client:
            assert (await client.complete("p" * 500_000, max_tokens=1)).text == f"<{'p' * 500_000}>"


@pytest.mark.parametrize(("size", "told"), [(500_000, True), (70_000, True), (60_000, False)])
async def test_a_reset_while_a_long_body_is_written_says_so(backend, size, told):
    async def serve(connection):
        await connection.head()
        connection.reset()

    async with narrowly(serve) as server:
        transport = HttpTransport(server.url, {}, max_response_bytes=1000, backend=backend)
        with pytest.raises(ConnectionLost) as caught:
            await transport.send(WireRequest("POST", "/completions", body=b"x" * size), Timeouts())
        assert caught.value.while_sending is told
        await transport.aclose()


@pytest.mark.parametrize(("after_s", "told"), [(0.6, True), (1.0, False)])
async def test_a_reset_within_a_second_of_a_long_body_says_so(backend, after_s, told, monkeypatch):
    clock, late = time.monotonic, []
    monkeypatch.setattr(time, "monotonic", lambda: clock() + sum(late))

    async def serve(connection):
        await connection.request()
        late.append(after_s)
        connection.reset()

    async with narrowly(serve) as server:
        transport = HttpTransport(server.url, {}, max_response_bytes=1000, backend=backend)
        with pytest.raises(ConnectionLost) as caught:
            await transport.send(WireRequest("POST", "/completions", body=b"x" * 70_000), Timeouts())
        assert caught.value.while_sending is told
        await transport.aclose()


async def test_a_break_within_the_reply_is_not_the_requests_length(backend):
    async def serve(connection):
        await connection.request()
        await connection.write(response(b"{", length=100))

    async with narrowly(serve) as server:
        transport = HttpTransport(server.url, {}, max_response_bytes=1000, backend=backend)
        reply = await transport.send(WireRequest("POST", "/completions", body=b"x" * 70_000), Timeouts())
        with pytest.raises(ConnectionLost) as caught:
            [_ async for _ in reply.chunks()]
        assert caught.value.while_sending is False
        await reply.aclose()
        await transport.aclose()


async def test_what_a_server_says_at_once_and_then_resets_is_read():
    """A server at its limit answers each connection with 503 and closes it, before any request was written."""
    said = threading.Event()

    async def serve(connection):
        await connection.write(response(b"full", "503 Service Unavailable"))
        connection.reset()
        said.set()

    async with narrowly(serve) as server:
        async with BatchClient(server.url, retry=Backoff(max_attempts=1), **ARGUMENTS) as client:
            with pytest.raises((ServerFault, ConnectionLost)):
                await client.complete("p", max_tokens=1)
            assert said.is_set()


@contextlib.asynccontextmanager
async def over(listener):
    """A connection to a listening socket with small buffers, and the server's end of it."""
    ours = socket.socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    ours.connect(listener.getsockname())
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(loop, is_tls=False), sock=ours)
    peer, _ = listener.accept()
    with peer:
        yield connection, peer
    await connection.aclose()
    await asyncio.sleep(0)


async def test_what_the_kernel_holds_is_read_though_the_write_failed():
    """The reply and the reset have come, and the event loop has looked at neither when the write fails."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with over(listener) as (connection, peer):
            peer.sendall(REFUSAL)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            connection.start(b"x" * 100, b"", Timeouts(5.0, 5.0, 5.0))
            await connection.wait_for_head()
            assert connection.status == 413
            assert REFUSAL.endswith(await connection.next_piece())


async def test_a_refusal_is_told_while_the_server_reads_no_more():
    """The write timeout here is 600 s."""
    with narrow() as listener:
        listener.listen()
        async with over(listener) as (connection, peer):
            connection.start(b"x" * 1_000_000, b"", Timeouts(5.0, 600.0, 600.0))
            peer.sendall(REFUSAL)
            await connection.wait_for_head()
            assert connection.status == 413
            assert REFUSAL.endswith(await connection.next_piece())
            assert not await connection.finish(reuse=True), "the server has read a part of the request"


def test_a_413_to_a_lone_long_prompt_is_its_callers(backend):
    async def main():
        async with refusing("close") as server:
            async with BatchClient(
                server.url, http=Http(backend=backend), retry=Backoff(base_s=0), **ARGUMENTS
            ) as client:
                with pytest.raises(BadRequest, match="413"):
                    await client.complete("x" * 500_000, max_tokens=1)
            assert len(server.lengths) == 1

    asyncio.run(main())
