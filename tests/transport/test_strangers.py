"""Over real sockets: who is a stranger, whose lists are proved by one list of eight beside singles, and who is not."""

import asyncio

import httpx
import httpx2
import pytest
from tests.fakes.raw import RawServer, whole
from tests.transport.test_expected_requests import answer

from batchclient import BatchClient, Http
from batchclient.testing import MockLLM

CALLS = 100
FIRST = 17
"""Requests before anything is known: 16 singles and the list."""


def sizes(server):
    """How many prompts each request had, in the order in which they came."""
    return [len(heard.prompts) for heard in server.heard if heard.method == "POST"]


def serial():
    """A server whose lists come to no end while their singles are answered."""

    async def respond(heard, reader, writer, server):
        if heard.method == "POST" and len(heard.prompts) > 1:
            while await reader.read(65536):
                pass
            server.closed_by_client.set()
            return True
        writer.write(whole(heard))
        await writer.drain()
        return False

    return RawServer(on_request=respond)


def at_once():
    """A server whose singles are answered once a second list has come: the first one was faster than they."""

    async def respond(heard, reader, writer, server):
        if heard.method == "POST" and len(heard.prompts) == 1:
            while sum(size > 1 for size in sizes(server)) < 2:
                await asyncio.sleep(0.001)
        writer.write(whole(heard))
        await writer.drain()

    return RawServer(on_request=respond)


async def answers(url, **arguments):
    async with BatchClient(url, model="m", **arguments) as client:
        made = await asyncio.gather(*[client.complete(str(number), max_tokens=8) for number in range(CALLS)])
    return [each.text for each in made]


EXPECTED = [f"<{number}>" for number in range(CALLS)]
OWN = {"httpx": httpx.AsyncClient, "httpx2": httpx2.AsyncClient}


@pytest.mark.parametrize("lib", OWN)
async def test_a_list_that_lags_behind_its_singles_is_ended_and_all_go_singly(lib):
    async with serial() as server, OWN[lib]() as own:
        assert await answers(server.url, http=own) == EXPECTED
        assert server.closed_by_client.is_set(), "the list's connection"
    assert sorted(sizes(server)) == [1] * CALLS + [8]
    assert 8 in sizes(server)[:FIRST]


@pytest.mark.parametrize("lib", OWN)
async def test_lists_follow_a_list_that_was_as_fast_as_its_singles(lib):
    async with at_once() as server, OWN[lib]() as own:
        assert await answers(server.url, http=own) == EXPECTED
    assert sorted(sizes(server)[:FIRST]) == [1] * 16 + [8]
    assert max(sizes(server)[FIRST:]) > 8


@pytest.mark.parametrize("arguments", [{}, {"probe": False}], ids=["says nothing", "is not asked"])
async def test_a_server_on_our_own_connections_is_a_stranger_unless_it_says_which_it_is(arguments, backend):
    async with serial() as server:
        assert await answers(server.url, http=Http(backend=backend), **arguments) == EXPECTED
    assert sorted(sizes(server)) == [1] * CALLS + [8]


async def test_a_given_dialect_says_that_lists_are_served_at_once():
    async with RawServer() as server, httpx.AsyncClient() as own:
        assert await answers(server.url, http=own, dialect="vllm") == EXPECTED
    assert sizes(server)[0] > 8


# Mocks get lists from the first on ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lib", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_a_handed_over_mock_is_no_stranger(lib):
    counts = []

    def count(request):
        made = answer(request)
        counts.append(made.content.count(b"finish_reason"))
        return lib.Response(made.status_code, headers=made.headers.multi_items(), content=made.content)

    class Wrapped(lib.AsyncBaseTransport):
        """As a transport that tries again."""

        def __init__(self, transport):
            self._transport = transport

        async def handle_async_request(self, request):
            return await self._transport.handle_async_request(request)

    for transport in (lib.MockTransport(count), Wrapped(lib.MockTransport(count))):
        counts.clear()
        async with lib.AsyncClient(transport=transport) as own:
            assert await answers("http://mock.test/v1", http=own) == EXPECTED
        assert counts[0] > 8, counts


async def test_a_scripted_server_is_no_stranger_whichever_way_it_is_reached():
    llm = MockLLM()
    llm.when().answer("fine")
    with llm:
        async with httpx.AsyncClient() as patched:
            for arguments in ({"http": patched}, {}, {"http": llm.transport}):
                before = len(llm.requests)
                assert set(await answers(llm.base_url, **arguments)) == {"fine"}
                assert len(llm.requests[before].calls) > 8
