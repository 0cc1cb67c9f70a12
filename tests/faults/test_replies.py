"""Rows of the fault matrix about replies and servers: what a server says, byte by byte, and what it does to lists."""

import asyncio
import gzip
import json
import logging
import math
import random
import tracemalloc
import zlib

import anyio
import httpx
import pytest
from tests.fakes.raw import JSON, RawServer, chunked, cut, error, events_of, make, response, says, whole

from batchclient._client import connections
from batchclient import (
    Backoff, BadRequest, BatchClient, BatchClientError, Batching, ConnectionLost, DeadlineExceeded, DialectError, Http,
    NotFound, ReadTimedOut, ResponseTooLarge, ServerFault, Usage,
)  # fmt: skip
from batchclient.dialects._dialect import Dialect
from batchclient.simulator import EmbeddedServer

NEVER = Backoff(max_attempts=1)
MANY = Backoff(max_attempts=9, base_s=0)


def plain(*choices, **fields):
    """A plain reply of these choices."""
    return response(json.dumps({"id": "1", "choices": choices, **fields}).encode(), headers=JSON)


async def test_row_09_truncated_json_with_200():
    """Tried once more; then an error that shows how the reply begins, without the prompt and the key."""
    reply = response(b'{"choices": [{"text": "canary-prompt of mine, canary-key', headers=JSON)
    async with RawServer(says(*[reply] * 9)) as server:
        async with make(server, api_key="canary-key") as client:
            with pytest.raises(DialectError, match="it begins") as caught:
                await client.complete("canary-prompt of mine", max_tokens=1)
            assert caught.value.attempt == 2
            assert '{"choices": [{"text": "' in caught.value.message
            assert "canary" not in caught.value.message
    async with RawServer(says(reply)) as server, make(server) as client:
        assert (await client.complete("p", max_tokens=1)).attempts == 2


async def test_row_18_usage_that_is_none():
    odd = [None, {}, {"prompt_tokens": None}, {"prompt_tokens": -1, "completion_tokens": 1}, [], "much"]
    odd += [{"prompt_tokens": 1, "completion_tokens": 10**400}, {"prompt_tokens": 10**400, "completion_tokens": 1}]
    for fields in ({}, *({"usage": usage} for usage in odd)):
        choice = {"index": 0, "text": "x", "finish_reason": "length"}
        async with RawServer(says(plain(choice, **fields))) as server, make(server) as client:
            completion = await client.complete("p", max_tokens=1)
            assert (completion.text, completion.usage) == ("x", None), fields
            assert (await client.complete("q", max_tokens=16)).usage == Usage(1, 2)
            assert client.statistics().completion_tokens == 2


async def test_row_19_nan_among_the_logprobs():
    """NaN and Infinity are no JSON, and are read all the same."""
    reply = plain(
        {"index": 0, "text": "x", "finish_reason": "stop", "logprobs": {"token_logprobs": [math.nan, -math.inf]}}
    )
    assert b"NaN" in reply
    async with RawServer(says(reply)) as server, make(server, retry=NEVER) as client:
        completion = await client.complete("p", max_tokens=1, logprobs=1)
        first, second = completion.choices[0].logprobs["token_logprobs"]
        assert math.isnan(first)
        assert second == -math.inf


async def test_row_19_server_that_cannot_write_nan():
    """A 500 about NaN is tried once more, no oftener; in a list the guilty prompt alone has it."""
    nan = error("500 Internal Server Error", "Out of range float values are not JSON compliant")
    async with RawServer(says(*[nan] * 9)) as server, make(server) as client:
        with pytest.raises(ServerFault) as caught:
            await client.complete("p")
        assert (caught.value.attempt, len(server.heard)) == (2, 2)

    def spoilt(heard):
        return nan if "bad" in heard.prompts else whole(heard)

    async with RawServer(then=says(*[spoilt] * 99)) as server, make(server) as client:
        prompts = ["a", "b", "bad", "c"]
        answers = await asyncio.gather(*map(client.complete, prompts), return_exceptions=True)
        assert [isinstance(each, ServerFault) for each in answers] == [False, False, True, False]
        # The list, its halves, those of the spoilt one, and the guilty once more.
        assert len(server.heard) == 6


async def test_row_25_names_the_models_that_are_there():
    """Who mistyped a model's name sees which there are; nothing is asked for that, beyond what finding out the server reads."""
    with EmbeddedServer(model="llama") as server:
        async with BatchClient(server.base_url, model="lama") as client:
            with anyio.fail_after(5):
                while client.statistics().endpoints[0].server is None:
                    await client.complete("p", model="llama", max_tokens=1)
            with pytest.raises(NotFound, match=r"model='lama'; the server has 'llama'"):
                await client.complete("p")


async def test_row_29_one_prompt_of_ten_megabytes():
    """The others do not wait for it, and a server that does not take it refuses it alone."""
    huge = "x" * 10_000_000

    release = asyncio.Event()

    async def serve(connection):
        while heard := await connection.request():
            if huge in heard.prompts:
                await release.wait()
                await connection.write(error("413 Content Too Large"))
            else:
                await connection.answer(heard)

    async with RawServer(then=serve) as server, make(server) as client:
        big = asyncio.ensure_future(client.complete(huge, max_tokens=2))
        small = await asyncio.gather(*(client.complete(f"{n}", max_tokens=1) for n in range(50)))
        assert [each.text for each in small] == [f"<{n}>" for n in range(50)]
        assert not big.done()
        release.set()
        with pytest.raises(BadRequest, match="413"):
            await big


def test_rows_13_and_56_a_long_line_costs_its_length_not_its_square():
    """Counted in bytes copied, not in seconds."""
    from batchclient.dialects._sse import EventStream

    stream = EventStream()
    piece = b"x" * 1000
    stream.feed(b"data: ")
    for _ in range(100):
        assert stream.feed(piece) == []
    assert max(map(len, stream.rest)) == 1000
    assert stream.feed(b"\n\n") == [piece * 100]
    stream.feed(b"data: y\n" * 1000)
    assert max(map(len, stream.data)) == 1
    assert stream.feed(b"\n") == [b"\n".join([b"y"] * 1000)]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, gzip"])
@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_row_55_decompression_bomb(backend, encoding, status, monkeypatch):
    """Decoded bytes are what is counted; we never asked for compression."""
    monkeypatch.setattr(connections, "LARGEST_RESPONSE_BYTES", 1_000_000)
    body = b'{"x": "' + b"\0" * 20_000_000
    body = zlib.compress(body) if encoding == "deflate" else gzip.compress(body)
    body = gzip.compress(body) if encoding == "gzip, gzip" else body
    bomb = response(body, status, [("content-encoding", encoding), ("content-type", "application/json")])
    async with RawServer(says(bomb)) as server:
        async with make(server, backend, retry=NEVER) as client:
            tracemalloc.start()
            with pytest.raises(BatchClientError) as caught:
                await client.complete("p", max_tokens=1)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert server.heard[0].header("accept-encoding") == "identity"
    # httpx would unpack the whole of it before the cap is looked at.
    assert most < 8_000_000
    if status.startswith("200"):
        assert isinstance(caught.value, ResponseTooLarge)
        assert not caught.value.retryable
    else:
        # The status says enough.
        assert caught.value.status == 500


ENDLESS = {
    "header lines": (b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 1000 + b"\r\n", ConnectionLost),
    "one header": (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000, ConnectionLost),
    "a body": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"2710\r\n" + b"x" * 10_000 + b"\r\n", ResponseTooLarge,
    ),
    "events": (b"HTTP/1.1 200 OK\r\n\r\n", b'data: {"choices":[]}\n\n' * 500, ResponseTooLarge),
    "one line of an event": (b"HTTP/1.1 200 OK\r\n\r\n", b"data: " + b"x" * 10_000, BatchClientError),
    "lines of one event": (b"HTTP/1.1 200 OK\r\n\r\n", b"data: x\n" * 1000, BatchClientError),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDLESS)
async def test_row_56_endless(backend, what, monkeypatch):
    """Everything ends somewhere: headers, lines, events, bodies."""
    monkeypatch.setattr(connections, "LARGEST_RESPONSE_BYTES", 1_000_000)
    first, more, expected = ENDLESS[what]

    async def endless(connection):
        await connection.request()
        await connection.write(first)
        while True:
            await connection.write(more)

    async with RawServer(then=endless) as server:
        async with make(server, backend, retry=NEVER) as client:
            with pytest.raises(expected):
                await client.complete("p", max_tokens=16)
            assert client.statistics().in_flight == 0


async def test_a_fault_of_ours_is_not_tried_again(monkeypatch):
    """What the policy says of it does not matter: it would be the same fault."""

    class Always:
        def decide(self, failure, attempt, elapsed_s, rng):
            return 0.0 if attempt < 10 else None

    async with RawServer() as server, make(server, retry=Always()) as client:
        await client.complete("p")

        def fail(*arguments):
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(Dialect, "decoder", fail)
        with pytest.raises(BatchClientError, match="internal error") as caught:
            await client.complete("a canary")
        assert (caught.value.attempt, caught.value.retryable) == (1, False)
        assert "canary" not in f"{caught.value!r}"


# Servers ------------------------------------------------------------------------------------------------------------


async def test_a_question_of_the_clients_gets_404_from_a_server_of_these_tests():
    async with RawServer() as server, httpx.AsyncClient() as asking:
        assert (await asking.get(f"{server.url}/metrics")).status_code == 404


async def test_row_30_one_byte_at_a_time():
    """Each read is in time, and no event comes: that is silence. A deadline ends it as well."""

    async def drip(connection):
        heard = await connection.request()
        await connection.write(chunked(events_of(heard)[:1], end=False))
        while True:
            await asyncio.sleep(0.01)
            await connection.write(b"1\r\n:\r\n")

    async with RawServer(then=drip) as server:
        # A busy machine may be late with a byte by a tenth of a second.
        async with make(server, retry=NEVER, http=Http(read_timeout_s=0.4)) as client:
            with pytest.raises(ReadTimedOut, match="no event"):
                await client.complete("p", max_tokens=16, timeout_s=5.0)
        async with make(server, retry=NEVER) as client:
            with pytest.raises(DeadlineExceeded):
                await client.complete("p", max_tokens=16, timeout_s=0.1)


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


# Lists --------------------------------------------------------------------------------------------------------------


INSIDE_200 = response(json.dumps({"error": "Unexpected endpoint or method. (POST)"}).encode(), headers=JSON)
A_PAGE = response(b"<html><body>Welcome</body></html>", headers=[("content-type", "text/html")])
CLOSES = b"closes"
A_500 = error("500 Internal Server Error", "Internal Server Error")

UNLIKE_LISTS = [error(f"{status} No") for status in (404, 405, 412, 415)]


def serves(fails):
    """A script: say what ``fails`` says of a request, and answer where it says nothing."""

    async def script(connection):
        while heard := await connection.request():
            said = fails(heard)
            if said == CLOSES:
                return
            await connection.write(said or whole(heard))

    return script


def is_list(heard):
    return isinstance(heard.json["prompt"], list)


@pytest.mark.parametrize("said", [A_500, A_PAGE, INSIDE_200, CLOSES, *UNLIKE_LISTS], ids=range(8))
@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
async def test_a_server_that_takes_no_lists_answers_all_prompts(said, max_tokens):
    async with (
        RawServer(then=serves(lambda heard: said if is_list(heard) else None)) as server,
        make(server) as client,
    ):
        answers = await asyncio.gather(*(client.complete(f"p{i}", max_tokens=max_tokens) for i in range(8)))
        assert [each.text for each in answers] == [f"<p{i}>" for i in range(8)]
        # The list, again, one member, the rest without our fields, and the rest one by one.
        # (A refusal says as much at once; what breaks on a used socket is sent once more for free.)
        assert len(server.heard) == 9 if said in UNLIKE_LISTS else 12 if said == CLOSES else 11
        assert client.statistics().endpoints[0].lists_refused


@pytest.mark.parametrize("calls", [1, 8])
async def test_a_server_that_fails_over_our_fields_answers_all_prompts(calls):
    def fails(heard):
        ours = {"stream_interval", "stream_options", "return_token_ids"} & set(heard.json)
        return A_500 if ours else None

    async with RawServer(then=serves(fails)) as server, make(server) as client:
        answers = await asyncio.gather(*(client.complete(f"p{i}", max_tokens=16) for i in range(calls)))
        assert [each.text for each in answers] == [f"<p{i}>" for i in range(calls)]
        assert len(server.heard) == (3 if calls == 1 else 4)
        # The next try is the control; from then on they are left out.
        for _ in range(2):
            await asyncio.gather(*(client.complete(f"q{i}", max_tokens=16) for i in range(calls)))
        assert len(server.heard) == (6 if calls == 1 else 7)


async def test_long_lists_over_which_connections_break_become_shorter(backend):
    """A server that resets what is too long for it says no status; that one member is answered shows that it was the length."""

    async def script(connection):
        while heard := await connection.head():
            length = int(heard.header("content-length"))
            lengths.append(length)
            if length > 100_000:
                return connection.reset()
            heard.body = await connection.reader.readexactly(length)
            choices = [{"index": i, "text": p[:4], "finish_reason": "length"} for i, p in enumerate(heard.prompts)]
            await connection.write(plain(*choices))

    lengths = []
    async with RawServer(then=script) as server, make(server, backend, limit=16) as client:
        names = [f"{i:04d}" for i in range(16)]
        answers = await asyncio.gather(*(client.complete(name + "x" * 20_000, max_tokens=1) for name in names))
    assert [each.text for each in answers] == names
    # 16 twice, one alone, then 8 and 7, and their halves; one more where a socket that was used before breaks (row 5).
    sizes = [length // 20_000 for length in lengths]
    assert (sizes[:3], sorted(sizes[-4:])) == ([16, 16, 1], [3, 4, 4, 4])
    assert len(sizes) <= 10
