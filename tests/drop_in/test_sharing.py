"""Which headers of a call keep it from sharing, and what the drop-in says about calls that went alone."""

import asyncio
import logging
import threading
from contextvars import ContextVar
from pathlib import Path

import httpx
import openai
import pytest

from batchclient import Batching, ConfigError
from batchclient.openai import AsyncOpenAI, OpenAI, SharingStatistics
from batchclient.simulator import EmbeddedServer
from tests.drop_in.test_behaviour import JSON, complete, make
from tests.fakes.raw import RawServer, hang, response, says

ROOT = Path(__file__).parents[2]
TOGETHER = {"preset": "throughput", "batching": Batching(linger_s=0.01)}
HEADERS = {
    "a trace": lambda n: {"traceparent": f"00-{n:032x}-{n:016x}-01", "tracestate": f"a={n}"},
    "a request's number": lambda n: {"X-Request-ID": f"{n}", "x-b3-traceid": f"{n}"},
    "inspect-ai's number": lambda n: {"x-irid": f"{n}"},
    "the program": lambda n: {"User-Agent": f"framework/{n}", "x-stainless-lang": f"{n}"},
    "the form that it has anyway": lambda n: {"Accept": "application/json", "content-type": "application/json"},
    "a removed one": lambda n: {"User-Agent": openai.Omit()},
}


def give(client, n, headers):
    return complete(client, f"p{n}", extra_headers=headers)


def give_by_a_copy(client, n, headers):
    return complete(client.with_options(default_headers=headers), f"p{n}")


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
async def test_headers_that_do_not_count_keep_nobody_apart(headers):
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        # openai's own way, which a call with a removed header takes, looks once for the platform, in a thread.
        await give(client, 8, headers(8))
        await asyncio.gather(*[give(client, n, headers(n)) for n in range(8)])
        assert client.statistics().shared == 8
    _, heard = server.heard
    assert len(heard.prompts) == 8
    assert heard.header("traceparent") is heard.header("x-b3-traceid") is None


async def test_ignored_headers_of_a_copy_keep_nobody_apart():
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        await asyncio.gather(*[give_by_a_copy(client, n, {"X-Request-ID": f"{n}"}) for n in range(8)])
    assert [len(heard.prompts) for heard in server.heard] == [8]


async def test_a_header_that_counts_keeps_its_call_apart_unless_it_is_ignored():
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        await asyncio.gather(*[give(client, n, {"X-Job-ID": "1"}) for n in range(3)])
        assert client.statistics().alone == {"extra_headers that count": 3}
    assert [heard.header("x-job-id") for heard in server.heard] == ["1"] * 3
    async with RawServer() as server, make(server.url, ignored_headers=["x-job-id"], **TOGETHER) as client:
        await asyncio.gather(*[give(client, n, {"X-Job-ID": f"{n}"}) for n in range(3)])
    assert [heard.header("x-job-id") for heard in server.heard] == [None]
    with pytest.raises(ConfigError) as caught:
        AsyncOpenAI(base_url="http://server.test/v1", api_key="k", ignored_headers="x-job-id")
    assert caught.value.field == "ignored_headers"


async def test_defaults_that_are_changed_later_are_sent():
    async with RawServer() as server:
        for kind in (openai.AsyncOpenAI, AsyncOpenAI):
            headers, query = {"X-T": "before"}, {"q": {"deep": "before"}}
            given = {"base_url": server.url, "api_key": "key", "max_retries": 0}
            async with kind(**given, default_headers=headers, default_query=query) as client:
                await complete(client)
                headers["X-T"], query["q"]["deep"] = "after", "after"
                await complete(client)
    heard = [(heard.header("x-t"), heard.path) for heard in server.heard if heard.method == "POST"]
    assert heard[2:] == heard[:2]
    assert heard[3][0] == "after"


def test_the_former_name_of_ignored_headers_is_refused_with_the_new_one():
    with pytest.raises(ConfigError, match="ignored_headers") as caught:
        AsyncOpenAI(base_url="http://server.test/v1", api_key="k", labels=["x-job-id"])
    assert caught.value.field == "labels"


def test_credentials_are_not_ignored():
    for name in ("Authorization", "cookie", "X-API-Key"):
        with pytest.raises(ConfigError) as caught:
            AsyncOpenAI(base_url="http://server.test/v1", api_key="k", ignored_headers=["x-job-id", name])
        assert caught.value.field == "ignored_headers"
        assert name.lower() in caught.value.message


tenant = ContextVar("tenant", default="nobody")
AUTH = "_auth_headers" if hasattr(openai.AsyncOpenAI, "_auth_headers") else "auth_headers"
SAYS_WHO = {
    "default_headers": property(lambda self: {**openai.AsyncOpenAI.default_headers.fget(self), "x-t": tenant.get()}),
    "default_query": property(lambda self: {"t": tenant.get()}),
    AUTH: lambda self, security=None: {"Authorization": f"Bearer {tenant.get()}"},
}


@pytest.mark.parametrize("name", SAYS_WHO)
async def test_a_subclass_that_says_who_asks_is_asked_for_each_call(name, caplog):
    member = SAYS_WHO[name]
    kind = type("Tenants", (AsyncOpenAI,), {name: property(member) if name == "auth_headers" else member})
    assert f"Tenants overrides {name}" in caplog.text

    async def work(who):
        tenant.set(who)
        await complete(client, who)

    async with RawServer() as server:
        async with kind(base_url=server.url, api_key="k", max_retries=0, **TOGETHER) as client:
            await asyncio.gather(*[asyncio.create_task(work(who)) for who in ("alice", "bob")])
            assert client.statistics().alone == {"a subclass that overrides how requests are sent": 2}
    for heard in server.heard:
        said = {
            heard.header("x-t"),
            heard.header("authorization").removeprefix("Bearer "),
            heard.path.partition("=")[2],
        }
        assert heard.prompts[0] in said
    assert len(server.heard) == 2


class Signing(AsyncOpenAI):
    async def _prepare_options(self, options):
        return options


REASONS = {
    "stream=True": lambda client: complete(client, stream=True),
    "extra_headers that count": lambda client: complete(client, extra_headers={"authorization": "other"}),
    "extra_query": lambda client: complete(client, extra_query={"a": "b"}),
    "a request option that is not known": lambda client: client.post(
        "/completions", cast_to=object, body={"model": "m", "prompt": "p"}, options={"follow_redirects": False}
    ),
    "a body that batchclient does not read": lambda client: complete(client, ["a", [1]]),
    "an argument that batchclient refuses": lambda client: complete(client, n=0),
    "a timeout beyond the client's": lambda client: complete(client, timeout=601),
    "a timeout with a part that is no positive number": lambda client: complete(client, timeout=0),
    "the Responses API": lambda client: client.responses.create(model="m", input="p"),
    "no company": complete,
}


@pytest.mark.parametrize("reason", REASONS)
async def test_the_reason_of_a_call_that_went_alone_is_counted(reason):
    async with RawServer() as server, make(server.url) as client:
        try:
            await REASONS[reason](client)
        except openai.OpenAIError:
            pass  # this server knows no responses
        assert dict(client.statistics().alone) == {reason: 1}
        assert (client.statistics().calls, client.statistics().shared) == (1, 0)


async def test_reasons_that_are_the_clients():
    reply = response(b"{}", headers=JSON)
    async with RawServer(then=says(*[reply] * 9)) as server:
        async with Signing(base_url=server.url, api_key="k") as signing:
            await complete(signing)
            assert signing.statistics().alone == {"a subclass that overrides how requests are sent": 1}
        async with make(server.url) as client:
            client.base_url = "http://user:password@127.0.0.1:9/v1"
            with pytest.raises(openai.APIConnectionError):
                await complete(client)
            assert client.statistics().alone == {"no batch client for these credentials and headers": 1}
    transport = HTTP.MockTransport(lambda request: HTTP.Response(200, json={"choices": []}))
    with OpenAI(base_url="http://server.test/v1", api_key="k", http_client=HTTP.Client(transport=transport)) as client:
        client.completions.create(model="m", prompt="p")
        assert client.statistics().alone == {"a blocking http_client": 1}


HTTP = __import__("httpx2") if openai.__version__ >= "3" else httpx


async def test_several_prompts_in_a_body_are_a_call_each_and_copies_are_counted_together():
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        await asyncio.gather(complete(client, ["a", "b", "c"]), complete(client.with_options(timeout=9), "d"))
        statistics = client.statistics()
        assert (statistics.calls, statistics.shared, dict(statistics.alone)) == (4, 4, {})


async def test_a_call_without_an_answer_is_counted_as_one_that_failed(caplog):
    caplog.set_level(logging.WARNING, "batchclient")
    with (
        EmbeddedServer("instant", model="m", faults=["status=400"]) as server,
        OpenAI(base_url=server.base_url, api_key="key", max_retries=0, dialect="vllm") as blocking,
    ):
        async with make(server.base_url) as client:
            raw = client.completions.with_raw_response
            asked = [complete(client, f"p{n}") for n in range(98)]
            asked += [complete(client, ["a", "b"]), raw.create(model="m", prompt="r", max_tokens=1)]
            errors = await asyncio.gather(*asked, return_exceptions=True)
            assert {*map(type, errors)} == {openai.BadRequestError}
            told = client.statistics()
        with pytest.raises(openai.BadRequestError):
            await asyncio.to_thread(complete, blocking)
    assert (told.calls, told.failed, told.shared, told.alone) == (101, 101, 0, {})
    assert (blocking.statistics().calls, blocking.statistics().failed) == (1, 1)
    assert "none of the first" not in caplog.text


async def test_a_call_that_times_out_or_is_left_has_failed():
    async with RawServer(hang(), hang(), hang()) as server, make(server.url, limit=1) as client:
        for left in (complete(client, timeout=0.05), asyncio.wait_for(complete(client), 0.05)):
            with pytest.raises((openai.APITimeoutError, TimeoutError)):
                await left
        assert client.statistics() == SharingStatistics(calls=2, shared=0, alone={}, failed=2)


async def test_a_copy_with_an_http_client_of_its_own_is_counted_with_the_client(caplog):
    transport = HTTP.MockTransport(lambda request: HTTP.Response(200, json={"choices": []}))
    with OpenAI(base_url="http://server.test/v1", api_key="k") as client:
        copy = client.with_options(http_client=HTTP.Client(transport=transport))
        copy.with_options(timeout=9).completions.create(model="m", prompt="p")
        assert client.statistics().alone == {"a blocking http_client": 1}
    assert caplog.text.count("share no requests") == 1


async def test_a_hundred_calls_of_which_none_shared_are_told_once(caplog):
    caplog.set_level(logging.WARNING, "batchclient")
    async with RawServer() as server, make(server.url) as client:
        for n in range(99):
            await complete(client, f"p{n}", extra_headers={"x-secret-name": "secret"} if n < 5 else None)
        assert caplog.messages == []
        for n in range(105):
            await complete(client, f"q{n}")
    assert caplog.messages == [
        "none of the first 100 calls shared a request; 95 of them: no company (make calls at the same time, with equal "
        'parameters, through one client); see "Why calls go alone" in the documentation'
    ]


async def test_nothing_is_told_where_some_shared(caplog):
    caplog.set_level(logging.WARNING, "batchclient")
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        await asyncio.gather(complete(client, "a"), complete(client, "b"))
        for n in range(105):
            await complete(client, f"p{n}")
    assert caplog.messages == []


def test_threads_are_counted(server):
    ready = threading.Barrier(8)

    def ask(n):
        ready.wait()
        client.completions.create(model=server.model, prompt=f"p{n}", max_tokens=1, extra_headers={"b3": f"{n}"})

    with OpenAI(base_url=server.base_url, api_key="k", **{**TOGETHER, "batching": Batching(linger_s=0.1)}) as client:
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.statistics().calls == 8
        assert client.statistics().shared > 0
