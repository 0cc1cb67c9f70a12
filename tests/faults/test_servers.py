"""Rows of the fault matrix about servers that are slow, silent, dying, coming back or several; and about calls that end meanwhile."""

import asyncio
import logging
import random

import httpx
import pytest

from batchclient import Backoff, Batching, DeadlineExceeded, Http, ReadTimedOut
from batchclient.errors import BatchClientError
from tests.fakes.raw import RawServer, chunked, cut, hang, make, says, whole
from tests.fakes.raw import events_of, response

NEVER = Backoff(max_attempts=1)
MANY = Backoff(max_attempts=9, base_s=0)
FAULT = response(b"", "500 Internal Server Error")


async def at_rest(client):
    """Wait until nothing of ours is at any server."""
    while client.statistics().in_flight:
        await asyncio.sleep(0)


async def test_a_question_of_the_clients_gets_404_from_a_server_of_these_tests():
    async with RawServer() as server, httpx.AsyncClient() as asking:
        assert (await asking.get(f"{server.url}/metrics")).status_code == 404


async def test_row_23_one_endpoint_of_two_answers_500():
    """It is ejected, the other does its work, a probe finds it well again."""
    ill = True

    def reply(heard):
        return FAULT if ill else whole(heard)

    async with RawServer(then=says(*[reply] * 999)) as bad, RawServer() as good:
        async with make(good, also=[bad.url], batching=Batching(max_size=1), limit=4) as client:
            done = await asyncio.gather(*(client.complete(f"{n}") for n in range(200)))
            assert [each.text for each in done] == [f"<{n}>" for n in range(200)]
            state = client.statistics().endpoints[0]
            assert state.state == "ejected"
            assert "the last: a server error" in state.reason
            # Five in a row, and what was in flight meanwhile.
            assert len(bad.heard) <= 5 + 4
            ill = False
            before = len(bad.heard)
            while client.statistics().endpoints[0].state == "ejected":
                await asyncio.sleep(0.05)
                await client.complete("p")
            assert len(bad.heard) > before


async def test_row_30_one_byte_at_a_time():
    """Each read is in time, and no event comes: that is silence. A deadline ends it as well."""

    async def drip(connection):
        heard = await connection.request()
        await connection.write(chunked(events_of(heard)[:1], end=False))
        while True:
            await asyncio.sleep(0.01)
            await connection.write(b"1\r\n:\r\n")

    async with RawServer(then=drip) as server:
        async with make(server, retry=NEVER, http=Http(read_timeout_s=0.1)) as client:
            with pytest.raises(ReadTimedOut, match="no event"):
                await client.complete("p", max_tokens=16)
        async with make(server, retry=NEVER) as client:
            with pytest.raises(DeadlineExceeded):
                await client.complete("p", max_tokens=16, timeout_s=0.1)
            await at_rest(client)
        for max_tokens in (1, 16):

            async def drip_headers(connection):
                await connection.request()
                while True:
                    await connection.write(b"H")
                    await asyncio.sleep(0.01)

            async with RawServer(drip_headers) as slow, make(slow, retry=NEVER) as client:
                with pytest.raises((DeadlineExceeded, BatchClientError)):
                    await client.complete("p", max_tokens=max_tokens, timeout_s=0.1)


async def test_row_30_slow_events_are_no_silence():
    async def slowly(connection):
        heard = await connection.request()
        await connection.write(chunked([], end=False))
        for piece in events_of(heard):
            # Later than the timeout in all, and no event later than it.
            await asyncio.sleep(0.06)
            await connection.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await connection.write(b"0\r\n\r\n")

    async with RawServer(slowly) as server, make(server, retry=NEVER, http=Http(read_timeout_s=0.1)) as client:
        done = await asyncio.gather(*(client.complete(p, max_tokens=16) for p in "ab"))
        assert [each.text for each in done] == ["<a>", "<b>"]


@pytest.mark.parametrize("fault", ["31: it never answers", "33: its engine is dead behind a living HTTP server"])
async def test_rows_31_and_33_silence(fault):
    """After three silences the endpoint is left alone; its calls are answered elsewhere."""

    async def dead(connection):
        while heard := await connection.request():
            if heard.method == "GET":
                await connection.write(response(b"", "200 OK"))
            elif fault.startswith("31"):
                await connection.gone()
            else:
                # The stream is opened and pinged, and no token ever comes.
                await connection.write(chunked([], end=False))
                while True:
                    await connection.write(b"8\r\n: ping\n\n\r\n")
                    await asyncio.sleep(0.01)

    async with RawServer(then=dead) as bad, RawServer() as good:
        async with make(
            good, also=[bad.url], http=Http(read_timeout_s=0.1), batching=Batching(max_size=1), limit=4
        ) as client:
            done = await asyncio.gather(*(client.complete(f"{n}", max_tokens=2000) for n in range(100)))
            assert [each.text for each in done] == [f"<{n}>" for n in range(100)]
            state = client.statistics().endpoints[0]
            assert state.state == "ejected"
            assert "silence" in state.reason
            # Four at once, a few more until the third silence, a probe or two.
            assert len(bad.heard) <= 12


async def test_row_32_server_that_is_started_anew():
    """What was in flight is sent again, and the limit is reached again step by step."""
    # It must have answered once: one that never did and refuses is a wrong address.
    server = RawServer(says(whole, close=True), *[hang()] * 8)
    async with server:
        client = make(
            server, batching=Batching(max_size=1), limit=8, retry=Backoff(max_attempts=20, base_s=0.05, cap_s=0.2)
        )
        await client.complete("first")
        calls = [asyncio.ensure_future(client.complete(f"{n}")) for n in range(8)]
        await server.arrived(9)
    # Its port is closed and its connections are cut: what comes now is refused.
    await asyncio.sleep(0.1)
    async with server:
        done = await asyncio.gather(*calls)
        assert [each.text for each in done] == [f"<{n}>" for n in range(8)]
        assert all(each.attempts >= 2 for each in done)
        await client.aclose()


async def test_row_34_metrics_page_that_is_none(caplog):
    """A server that says nonsense of itself, or nothing, costs no call anything, and is named once."""

    async def serve(connection):
        while heard := await connection.request():
            if heard.method == "GET":
                pages.append(heard.path)
                await connection.write(response(b"\xff\x00 garbage {{{ vllm:num_requests_running NaN\n" * 50))
                continue
            await asyncio.sleep(1.2 if len(server.heard) < 5 else 0)
            await connection.answer(heard)

    pages = []
    with caplog.at_level(logging.INFO, "batchclient"):
        async with (
            RawServer(then=serve) as server,
            make(server, batching=Batching(max_size=1), server_metrics=None) as client,
        ):
            done = await asyncio.gather(*(client.complete(f"{n}") for n in range(4)))
            assert [each.attempts for each in done] == [1] * 4
    assert pages == ["/metrics"]
    assert sum("metrics" in record.message for record in caplog.records) <= 1


async def test_row_35_answer_after_the_deadline(backend):
    """It is discarded with its connection; its permit comes back once, and nobody else gets it."""

    async def too_late(connection):
        heard = await connection.request()
        await connection.gone()
        await connection.answer(heard)

    async with RawServer(too_late) as server, make(server, backend, limit=1) as client:
        with pytest.raises(DeadlineExceeded):
            await client.complete("late", timeout_s=0.05)
        assert (await client.complete("next")).text == "<next>"
        statistics = client.statistics()
        assert (statistics.succeeded, statistics.failed, statistics.in_flight) == (1, 1, 0)
        assert statistics.endpoints[0].abandoned == 0


async def test_row_36_cancelled_in_the_queue():
    """Nothing is sent for it."""
    async with RawServer(hang()) as server, make(server, limit=1) as client:
        first = asyncio.ensure_future(client.complete("first"))
        await server.arrived(1)
        queued = asyncio.ensure_future(client.complete("queued"))
        await asyncio.sleep(0.01)
        queued.cancel()
        first.cancel()
        await asyncio.gather(first, queued, return_exceptions=True)
        await client.complete("next")
    assert server.prompts == [["first"], ["next"]]


async def test_row_37_cancelled_beside_others():
    """Its mates are answered; the connection is closed only when all have gone."""
    release = asyncio.Event()

    async def held(connection):
        heard = await connection.request()
        await release.wait()
        await connection.answer(heard)

    async with RawServer(held, hang()) as server, make(server) as client:
        calls = [asyncio.ensure_future(client.complete(p, max_tokens=16)) for p in "abc"]
        await server.arrived(1)
        calls[1].cancel()
        await asyncio.sleep(0.01)
        assert not server.closed_by_client.is_set()
        release.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(done[1], asyncio.CancelledError)
        assert [done[0].text, done[2].text] == ["<a>", "<c>"]
        await at_rest(client)
        await client.aclose()
    async with RawServer(hang()) as server, make(server) as client:
        calls = [asyncio.ensure_future(client.complete(p, max_tokens=16)) for p in "abc"]
        await server.arrived(1)
        for call in calls:
            call.cancel()
        await asyncio.wait_for(server.closed_by_client.wait(), 5)


@pytest.mark.parametrize("where", ["in the queue", "while waiting to be tried again", "while the server worked on it"])
async def test_row_39_deadline(where):
    """It ends the call wherever the call is; nothing is sent afterwards."""
    scripts = {
        "in the queue": [hang()],
        "while waiting to be tried again": [says(FAULT)],
        "while the server worked on it": [hang()],
    }[where]
    async with RawServer(*scripts) as server:
        async with make(server, limit=1, retry=_Waits(60.0)) as client:
            if where == "in the queue":
                other = asyncio.ensure_future(client.complete("other"))
                await server.arrived(1)
            began = asyncio.get_running_loop().time()
            with pytest.raises(DeadlineExceeded, match=where):
                await client.complete("p", timeout_s=0.2)
            assert (
                0.2 <= asyncio.get_running_loop().time() - began < 5
            )  # a busy machine; shell/test_deadlines has 50 ms
            if where == "in the queue":
                other.cancel()
        assert len(server.heard) == 1


class _Waits:
    def __init__(self, seconds):
        self.seconds = seconds

    def decide(self, failure, attempt, elapsed_s, rng):
        return self.seconds


async def test_row_71_one_of_four_replicas_behind_one_address_restarts(caplog):
    """One connection in four breaks: no call fails, and the address stays in use."""
    broken, replica = 0, random.Random(71)
    caplog.set_level(logging.INFO, "batchclient")

    async def one_in_four(connection):
        nonlocal broken
        if replica.randrange(4) == 3:
            broken += 1
            return await cut(0, how="reset")(connection)
        heard = await connection.request()
        if heard:
            # A balancer chooses anew for each request.
            await connection.write(
                whole(heard).replace(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n")
            )
        return None

    async with (
        RawServer(then=one_in_four) as server,
        make(server, batching=Batching(max_size=4), limit=16, retry=MANY) as client,
    ):
        done = await asyncio.gather(*(client.complete(f"{n}", max_tokens=1) for n in range(400)))
        assert [each.text for each in done] == [f"<{n}>" for n in range(400)]
        assert broken > 10
    assert "is ejected" not in caplog.text
