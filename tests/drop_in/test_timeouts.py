"""Timeouts: taken in every form that openai takes, and told as openai tells them, whichever phase ran out of time."""

import asyncio
import math

import httpx
import openai
import pytest

from batchclient import Http, ReadTimedOut
from batchclient.openai import AsyncOpenAI, OpenAI
from tests.fakes.raw import RawServer, hang, nobody_listens

HTTP = __import__("httpx2" if openai.__version__ >= "3" else "httpx")
ANSWER = {"id": "1", "object": "text_completion", "created": 1, "model": "m"}
LIBRARIES = list(dict.fromkeys((httpx, HTTP)))


def complete(client, **arguments):
    return client.completions.create(model="m", prompt="p", max_tokens=1, **arguments)


def over(lib, handler, **arguments):
    """openai's arguments for a client whose requests a function answers."""
    given = {"base_url": "http://server.test/v1", "api_key": "key", "max_retries": 0}
    return {**given, "http_client": lib.AsyncClient(transport=lib.MockTransport(handler)), **arguments}


@pytest.mark.parametrize("lib", LIBRARIES, ids=lambda lib: lib.__name__)
@pytest.mark.parametrize("phase", ["ConnectTimeout", "PoolTimeout", "WriteTimeout", "ReadTimeout"])
async def test_a_timeout_of_any_phase_is_openais(phase, lib):
    sent = []

    def late(request):
        sent.append(request)
        raise getattr(lib, phase)("late")

    for kind in (openai.AsyncOpenAI, AsyncOpenAI):
        async with kind(**over(lib, late)) as client:
            with pytest.raises(openai.APITimeoutError):
                await complete(client)
    assert len(sent) == 2


async def test_a_refused_connection_is_no_timeout():
    arguments = {"base_url": nobody_listens(), "api_key": "key", "max_retries": 0}
    async with AsyncOpenAI(**arguments) as client:
        with pytest.raises(openai.APIConnectionError) as caught:
            await complete(client)
    assert not isinstance(caught.value, openai.APITimeoutError)


T = openai.Timeout
FORMS = {
    "zero": 0,
    "no time to connect": T(5, connect=0),
    "no time to write": T(5, write=0),
    "no time in the pool": T(5, pool=0),
    "negative": -1,
    "not a number": math.nan,
    "infinite": math.inf,
    "more than a clock counts": 1e300,
    "none": None,
    "no bound in any part": T(None),
    "no bound on silence": T(5, read=None),
    "no bound on connecting": T(5, connect=None),
    "not given": openai.NOT_GIVEN,
    "a whole number": 7,
    "a boolean": True,
    "a tuple": (5, 5, 5, 5),
    "another library's": httpx.Timeout(5),
    "a string": "5",
}
OF_CALLS = ["zero", "no time to connect", "no time to write", "infinite", "a tuple", "a string"]
OF_BLOCKING_CLIENTS = ["zero", "no time to connect", "none", "a boolean", "a tuple"]
"""openai's blocking client fails with ``OverflowError`` over infinity, which the drop-in takes for no bound."""
PLACES = [*[(form, "client") for form in FORMS], *[(form, "call") for form in OF_CALLS]]


@pytest.mark.parametrize(("form", "place"), PLACES)
async def test_every_form_is_taken_as_openai_takes_it(form, place):
    async def call(kind, url):
        to_client, to_call = ({"timeout": FORMS[form]}, {}) if place == "client" else ({}, {"timeout": FORMS[form]})
        try:
            async with kind(base_url=url, api_key="key", max_retries=0, **to_client) as client:
                answer = await complete(client, **to_call)
                return answer.choices[0].text
        except Exception as error:
            return type(error).__name__

    async with RawServer() as server:
        theirs = await call(openai.AsyncOpenAI, server.url)
        ours = await call(AsyncOpenAI, server.url)
    assert ours == theirs


@pytest.mark.parametrize("form", OF_BLOCKING_CLIENTS)
async def test_every_form_is_taken_by_the_blocking_client_too(form):
    def call(kind, url):
        try:
            with kind(base_url=url, api_key="key", max_retries=0, timeout=FORMS[form]) as client:
                return complete(client).choices[0].text
        except Exception as error:
            return type(error).__name__

    async with RawServer() as server:
        # A socket that may take no time is connected or not by chance, where anybody listens.
        url = nobody_listens() if form in ("zero", "no time to connect") else server.url
        theirs = await asyncio.to_thread(call, openai.OpenAI, url)
        ours = await asyncio.to_thread(call, OpenAI, url)
    assert ours == theirs


@pytest.mark.parametrize("unbounded", [None, math.inf, T(None)], ids=["none", "infinite", "none in each part"])
async def test_no_timeout_is_none(unbounded):
    """And the calls share requests all the same."""
    seen = []

    def answer(request):
        seen.append(request.extensions["timeout"])
        choices = [{"index": 0, "text": "t", "finish_reason": "stop", "logprobs": None}]
        return HTTP.Response(200, json={**ANSWER, "choices": choices})

    for given in ({"timeout": unbounded}, {"timeout": 5, "http": Http(read_timeout_s=None, connect_timeout_s=None)}):
        async with AsyncOpenAI(**over(HTTP, answer, **given)) as client:
            await complete(client)
            assert client.batch_client.statistics().submitted == 1
        assert (seen[-1]["read"], seen[-1]["connect"]) == (None, None)


async def test_silence_has_a_bound_of_its_own_however_long_a_call_may_take():
    """Calls share as before, and the queue does not count."""
    async with RawServer(hang()) as server:
        given = {"base_url": server.url, "api_key": "key", "max_retries": 0}
        async with AsyncOpenAI(**given, http=Http(read_timeout_s=0.05), timeout=3600) as client:
            with pytest.raises(openai.APITimeoutError) as caught:
                await complete(client, timeout=5000)
            assert isinstance(caught.value.__cause__, ReadTimedOut)
            assert (await complete(client)).choices[0].text
            assert client.batch_client.statistics().submitted == 2


async def test_a_client_whose_timeout_nothing_can_keep_has_copies_that_share_requests():
    async with RawServer() as server:
        async with AsyncOpenAI(base_url=server.url, api_key="key", max_retries=0, timeout=0) as client:
            assert (await complete(client.with_options(timeout=5))).choices[0].text
            assert client.batch_client.statistics().submitted == 1
