"""Ids of requests: what goes out, and what a reply with another request's id is taken for."""

import json
import re

import httpx
import pytest

from batchclient import Backoff, BatchClient, ConnectionLost
from tests.fakes.raw import RawServer, body_of, events_of, response, says
from tests.transport.test_one_reply_per_request import SHAPES, anyones, make

__all__ = ["anyones"]

OURS = re.compile(r"bc-[0-9a-f]{12}-[0-9a-f]{8}")


def told(heard, how, own):
    """A request's right answer, with an id in its header, or in its body as vLLM has it."""
    if how == "header":
        return response(body_of(heard), headers=[("X-Request-Id", own)])
    if heard.json.get("stream"):
        return response(b"".join(events_of(heard)).replace(b'"id": "1"', b'"id": "cmpl-%s"' % own.encode()))
    return response(json.dumps({**json.loads(body_of(heard)), "id": f"cmpl-{own}"}).encode())


WHERE = pytest.mark.parametrize("how", ["header", "body"])


async def test_each_request_has_an_id_of_its_own(anyones):
    fault = response(b"{}", "500 Internal Server Error")
    async with RawServer(says(fault)) as server, make(server, anyones, retry=Backoff(base_s=0)) as client:
        assert (await client.complete("a")).attempts == 2
        await client.complete("b")
    ids = [heard.header("x-request-id") for heard in server.heard]
    assert all(OURS.fullmatch(each) for each in ids)
    assert len(set(ids)) == 3
    assert len({each[:15] for each in ids}) == 1


async def test_two_clients_have_nothing_in_common(backend):
    async with RawServer() as server:
        for _ in range(2):
            async with make(server, backend) as client:
                await client.complete("a")
    first, second = (heard.header("x-request-id") for heard in server.heard)
    assert first[:15] != second[:15]


async def test_an_id_that_was_given_stays(backend):
    async with RawServer() as server:
        async with make(server, backend, headers={"X-Request-ID": "mine"}) as client:
            await client.complete("a")
        async with httpx.AsyncClient(headers={"X-Request-Id": "theirs"}) as http_client:
            async with BatchClient(server.url, model="m", http=http_client) as client:
                await client.complete("a")
    assert [heard.header("x-request-id") for heard in server.heard] == ["mine", "theirs"]


@WHERE
@SHAPES
async def test_the_reply_to_another_request_closes_its_connection_and_the_call_goes_again(anyones, how, max_tokens):
    """A proxy that is one reply behind on each connection; no attempt is charged."""
    behind = {}

    async def on_request(heard, reader, writer, server):
        whose = behind.get(heard.connection, heard)
        behind[heard.connection] = heard
        writer.write(told(whose, how, whose.header("x-request-id")))

    async with RawServer(on_request=on_request) as server, make(server, anyones) as client:
        for number in range(4):
            completion = await client.complete(f"{number}", max_tokens=max_tokens)
            assert (completion.text, completion.attempts) == (f"<{number}>", 1)
        assert (len(server.heard), server.connections) == (7, 4)


async def test_a_second_reply_that_comes_after_the_next_request_is_known_by_its_id(anyones):
    async def on_request(heard, reader, writer, server):
        if server.heard[:-1] and server.heard[-2].connection == heard.connection:
            before = server.heard[-2]
            writer.write(told(before, "body", before.header("x-request-id")))
        writer.write(told(heard, "body", heard.header("x-request-id")))

    async with RawServer(on_request=on_request) as server, make(server, anyones) as client:
        for number in range(4):
            assert (await client.complete(f"{number}", max_tokens=1)).text == f"<{number}>"


@WHERE
async def test_what_is_anothers_twice_is_a_broken_connection(backend, how):
    async def on_request(heard, reader, writer, server):
        writer.write(told(server.heard[0], how, server.heard[0].header("x-request-id")))

    async with RawServer(on_request=on_request) as server, make(server, backend) as client:
        assert (await client.complete("a", max_tokens=1)).text == "<a>"
        with pytest.raises(ConnectionLost, match="another request's"):
            await client.complete("b", max_tokens=1)
        assert len(server.heard) == 3


async def test_an_id_that_we_never_gave_says_nothing(backend):
    strange = [(how, own) for how in ("header", "body") for own in ("req_123", "bc-000000000000-00000000", "bc-")]

    async def on_request(heard, reader, writer, server):
        writer.write(told(heard, *strange[len(server.heard) - 1]))

    async with RawServer(on_request=on_request) as server, make(server, backend) as client:
        for number in range(len(strange)):
            assert (await client.complete(f"{number}", max_tokens=1)).text == f"<{number}>"
        assert (len(server.heard), server.connections) == (len(strange), 1)


@WHERE
async def test_a_caches_reply_to_the_same_request_is_as_good(backend, how):
    async def on_request(heard, reader, writer, server):
        first = next(each for each in server.heard if each.body == heard.body)
        writer.write(told(first, how, first.header("x-request-id")))

    async with RawServer(on_request=on_request) as server, make(server, backend) as client:
        for _ in range(3):
            assert (await client.complete("a", max_tokens=1)).text == "<a>"
        assert (len(server.heard), server.connections) == (3, 1)


def test_the_ids_of_thousands_of_requests_ago_say_nothing():
    from batchclient.transport._ids import RequestIds

    ids = RequestIds()
    first = ids.mark(b"a")
    second = ids.mark(b"b")
    assert second.is_anothers(first.id)
    for _ in range(4094):
        last = ids.mark(b"c")
    assert last.is_anothers(first.id)
    last = ids.mark(b"c")
    assert not last.is_anothers(first.id)
    assert last.is_anothers(b'{"id":"cmpl-%s-0"' % second.id)
    # It was never given.
    assert not last.is_anothers(last.id[:-8] + b"0000ffff")
    assert not last.is_anothers(last.id[:-8] + b"zzzzzzzz")
