"""What is answered is over, whatever becomes of its body; and which statuses are answers."""

import asyncio

import pytest
import trio
from tests.seams import with_runners
from tests.fakes.raw import RawServer, answers_in_a_thread, body_of, chunked, events_of, response
from tests.transport.test_one_reply_per_request import NEVER, make

from batchclient import BatchClient, Batching, DialectError, Http
from batchclient._shell.exchange import BodyTimeouts

QUIET = {"probe": False}


def endless(*, done=True):
    """Every answer, and no end."""

    async def on_request(heard, reader, writer, server):
        events = events_of(heard)
        writer.write(chunked(events if done else events[:-1], end=False))
        await writer.drain()
        await reader.read()
        return True

    return on_request


@pytest.mark.parametrize("done", [True, False], ids=["DONE", "no DONE"])
async def test_a_body_that_does_not_end_keeps_its_connection_for_half_a_second(backend, done, monkeypatch):
    assert BodyTimeouts().end_s == 0.5
    with_runners(monkeypatch, body_timeouts=BodyTimeouts(end_s=0.02, usage_s=3600.0))
    async with RawServer(on_request=endless(done=done)) as server, make(server, backend, limit=8, **QUIET) as client:
        answers = await asyncio.gather(*(client.complete(p, max_tokens=16) for p in "abc"))
        assert [each.text for each in answers] == ["<a>", "<b>", "<c>"]
        assert client.statistics().in_flight == 0
        while server.open:
            await asyncio.sleep(0.001)
        assert len(server.heard) == 1


async def test_bodies_that_do_not_end_are_no_more_than_requests_at_once(backend, monkeypatch):
    with_runners(monkeypatch, body_timeouts=BodyTimeouts(end_s=60.0))
    async with (
        RawServer(on_request=endless()) as server,
        make(server, backend, limit=4, batching=Batching(max_size=1), **QUIET) as client,
    ):
        answers = await asyncio.gather(*(client.complete(f"{n}", max_tokens=2000) for n in range(24)))
        assert [each.text for each in answers] == [f"<{n}>" for n in range(24)]
        # httpx takes some turns of the loop to close a socket.
        assert server.most_open <= (8 + 1 if backend is None else 16)


@pytest.mark.parametrize("how", ["aclose", "drain", "map"])
async def test_closing_waits_for_no_body(backend, how, monkeypatch):
    with_runners(monkeypatch, body_timeouts=BodyTimeouts(end_s=3600.0))
    async with RawServer(on_request=endless()) as server:
        client = BatchClient(server.url, model="m", http=Http(backend=backend), retry=NEVER, **QUIET)
        if how == "map":
            answers = await client.batch_map(["p"], "{}", max_tokens=16)
            assert [each.text for each in answers] == ["<p>"]
        else:
            assert (await client.complete("p", max_tokens=16)).text == "<p>"
        assert server.open == 1
        await (client.drain() if how == "drain" else client.aclose())
        while server.open:
            await asyncio.sleep(0)


def test_on_trio_closing_waits_for_no_body(monkeypatch):
    with_runners(monkeypatch, body_timeouts=BodyTimeouts(end_s=3600.0))

    async def main(url):
        async with BatchClient(url, model="m", retry=NEVER, **QUIET) as client:
            assert (await client.complete("p", max_tokens=16)).text == "<p>"

    with answers_in_a_thread(on_request=endless()) as url:
        trio.run(main, url)


async def test_every_2xx_is_an_answer(backend):
    statuses = ["200 OK", "201 Created", "202 Accepted", "203 Non-Authoritative Information"]

    async def on_request(heard, reader, writer, server):
        writer.write(response(body_of(heard), statuses[len(server.heard) // 2 % 4]))

    async with RawServer(on_request=on_request) as server, make(server, backend) as client:
        for number in range(8):
            assert (await client.complete("p", max_tokens=1 + number % 2 * 15)).text == "<p>"
        assert server.connections == 1


async def test_a_2xx_that_says_nothing_is_no_answer(backend):
    statuses = ["200 OK", "204 No Content", "205 Reset Content"]

    async def on_request(heard, reader, writer, server):
        status = statuses[(len(server.heard) - 1) // 2]
        length = [] if status.startswith("204") else ["content-length: 0"]
        writer.write("\r\n".join([f"HTTP/1.1 {status}", *length, "", ""]).encode())

    async with RawServer(on_request=on_request) as server, make(server, backend) as client:
        for number in range(6):
            with pytest.raises(DialectError):
                await client.complete("p", max_tokens=1 + number % 2 * 15)
        assert len(server.heard) == 6


async def test_a_list_of_models_with_another_2xx_is_one(backend):
    async def on_request(heard, reader, writer, server):
        if heard.method == "GET":
            writer.write(response(b'{"data": [{"id": "m"}]}', "203 Non-Authoritative Information"))
        else:
            writer.write(response(body_of(heard)))

    async with RawServer(on_request=on_request) as server, make(server, backend, model=None, **QUIET) as client:
        assert (await client.complete("p", max_tokens=1)).text == "<p>"
        assert server.heard[-1].json["model"] == "m"
