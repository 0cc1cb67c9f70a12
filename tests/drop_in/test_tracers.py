"""Whoever has replaced a method of openai's classes, a tracer or a mock, sees each call and its answer; calls share all the same where it asks."""

import asyncio
import functools
import json
import threading
from functools import partial

import openai
import pytest
from openai._base_client import AsyncAPIClient, SyncAPIClient
from openai.resources.chat.completions import AsyncCompletions as AsyncChats
from openai.resources.completions import AsyncCompletions, Completions
from tests.drop_in.test_behaviour import JSON, complete, make
from tests.drop_in.test_sharing import TOGETHER
from tests.drop_in.test_sync import recorder  # noqa: F401
from tests.fakes.raw import RawServer, hang, response, says

from batchclient import Backoff, Batching
from batchclient import client as client_module
from batchclient.openai import AsyncOpenAI, OpenAI


class Proxy:
    """Hands out all that its function has, its code too, and is equal to it: as wrapt's wrappers."""

    def __init__(self, function, around):
        self.__dict__.update(function=function, around=around, __wrapped__=function)

    def __getattr__(self, name):
        return getattr(self.__dict__["function"], name)

    def __eq__(self, other):
        return other == self.function

    def __hash__(self):
        return hash(self.function)

    @property
    def __class__(self):
        return type(self.function)

    def __call__(self, *args, **kwargs):
        return self.around(self.function, *args, **kwargs)

    def __get__(self, instance, owner=None):
        return Proxy(self.function.__get__(instance, owner), self.around)


def by_wraps(function, around):
    @functools.wraps(function)
    def traced(*args, **kwargs):
        return around(function, *args, **kwargs)

    return traced


WRAPPERS = {"functools.wraps": by_wraps, "a transparent proxy": Proxy}
ALONE = "a replaced method that shared requests do not pass"
PLACES = {
    "create": (AsyncCompletions, "create"),
    "openai's request": (openai.AsyncOpenAI, "request"),
    "the base class's request": (AsyncAPIClient, "request"),
    "the base class's post": (AsyncAPIClient, "post"),
    "the drop-in's request": (AsyncOpenAI, "request"),
}
HOOKS = ["_prepare_options", "_build_request", "_prepare_request", "_process_response", "_send_request"]
OWNERS = {"openai's": openai.AsyncOpenAI, "the drop-in's": AsyncOpenAI, "the base class's": AsyncAPIClient}
HOOKS_OF_OWNERS = [(owner, name) for owner in ("openai's", "the drop-in's") for name in HOOKS]
HOOKS_OF_OWNERS += [("the base class's", name) for name in HOOKS if name != "_prepare_request"]
"""openai's own class overrides the last, and does not ask its base class."""


@pytest.fixture
def seen():
    return []


@pytest.fixture
def around(seen):
    async def around(function, *args, **kwargs):
        try:
            answer = await function(*args, **kwargs)
        except Exception as error:
            seen.append(error)
            raise
        seen.append(answer)
        return answer

    return around


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("place", PLACES)
async def test_it_sees_every_call_and_they_share(wrap, place, seen, around, monkeypatch):
    owner, name = PLACES[place]
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        await complete(client)
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name), around))
        # A resource of openai's keeps the ``post`` that it was made with.
        traced = client.with_options()
        answers = await asyncio.gather(*[complete(traced, f"p{n}", user=f"u{n}") for n in range(8)])
        monkeypatch.undo()
        await complete(client)
        alone = client.statistics().alone.get(ALONE, 0)
    sizes = [len(heard.prompts) for heard in server.heard]
    assert sum(sizes) == 10
    assert len(sizes) < 10
    assert alone == 0
    assert sorted(map(id, seen)) == sorted(map(id, answers))
    assert len({answer.choices[0].text for answer in answers}) == 8


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize(("owner", "name"), HOOKS_OF_OWNERS)
async def test_who_has_replaced_what_makes_requests_has_each_call_sent_as_openai_sends_it(
    owner, name, wrap, monkeypatch
):
    """As a subclass that overrides it: a shared request would not pass there."""
    seen = []

    def around(function, *args, **kwargs):
        seen.append(name)
        return function(*args, **kwargs)

    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        await complete(client)
        monkeypatch.setattr(OWNERS[owner], name, wrap(getattr(OWNERS[owner], name), around))
        await asyncio.gather(*[complete(client, f"p{n}") for n in range(4)])
        assert client.statistics().alone[ALONE] == 4
        monkeypatch.undo()
        await asyncio.gather(*[complete(client, f"p{n}") for n in range(4)])
        assert client.statistics().shared > 1
    assert len(seen) == 4
    assert len(server.heard) < 9


@pytest.mark.parametrize("name", HOOKS)
async def test_and_of_one_client_alone(name):
    seen = []

    def around(function, *args, **kwargs):
        seen.append(name)
        return function(*args, **kwargs)

    async with RawServer() as server, make(server.url, **TOGETHER) as client, make(server.url) as other:
        setattr(client, name, by_wraps(getattr(client, name), around))
        await complete(client)
        await complete(other)
        assert client.statistics().alone == {ALONE: 1}
        assert other.statistics().alone == {"no company": 1}
    assert len(seen) == 1


async def test_what_it_writes_into_a_request_is_sent(monkeypatch):
    async def signed(client, request):
        request.headers["x-signed"] = "yes"

    monkeypatch.setattr(openai.AsyncOpenAI, "_prepare_request", signed)
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        await asyncio.gather(*[complete(client, f"p{n}") for n in range(4)])
    assert [heard.header("x-signed") for heard in server.heard] == ["yes"] * 4


@pytest.mark.parametrize("name", HOOKS)
def test_threads_are_sent_as_openai_sends_them_there_too(name, monkeypatch, recorder):  # noqa: F811
    seen = []

    def around(function, *args, **kwargs):
        seen.append(name)
        return function(*args, **kwargs)

    monkeypatch.setattr(openai.OpenAI, name, by_wraps(getattr(openai.OpenAI, name), around))
    with OpenAI(base_url=recorder.url, api_key="k", dialect="vllm", max_retries=0) as client:
        assert client.completions.create(model="m", prompt="p", max_tokens=1).choices
        assert client.statistics().alone == {ALONE: 1}
    assert len(seen) == 1


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
async def test_who_has_replaced_the_drop_ins_post_sees_every_call_and_they_share(wrap, seen, around, monkeypatch):
    monkeypatch.setattr(AsyncOpenAI, "post", wrap(AsyncOpenAI.post, around))
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        answers = await asyncio.gather(*[complete(client, f"p{n}") for n in range(8)])
        assert client.statistics().shared > 1
    assert sorted(map(id, seen)) == sorted(map(id, answers))


def test_threads_pass_the_drop_ins_post_too(monkeypatch, recorder):  # noqa: F811
    seen = []

    def around(function, *args, **kwargs):
        seen.append(function(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(OpenAI, "post", by_wraps(OpenAI.post, around))
    with OpenAI(base_url=recorder.url, api_key="k", dialect="vllm", max_retries=0) as client:
        answer = client.completions.create(model="m", prompt="p", max_tokens=1)
        assert client.statistics().alone == {"no company": 1}
    assert seen == [answer]


@pytest.mark.parametrize("name", ["request", "post"])
async def test_one_client_alone_may_be_watched(name, seen, around):
    async with RawServer() as server, make(server.url, **TOGETHER) as client, make(server.url) as other:
        # Its resources keep the ``post`` that they find when they are first used.
        setattr(client, name, by_wraps(getattr(client, name), around))
        await asyncio.gather(*[complete(client, f"p{n}") for n in range(4)])
        await complete(other)
    assert len(seen) == 4
    assert len(server.heard) < 5


@pytest.fixture
def watched(around, monkeypatch):
    monkeypatch.setattr(openai.AsyncOpenAI, "request", Proxy(openai.AsyncOpenAI.request, around))


async def test_errors_pass_it_and_are_not_tried_again_by_openai(watched, seen, monkeypatch):
    monkeypatch.setattr(client_module, "Backoff", partial(Backoff, base_s=0))
    reply = response(b'{"error": {"message": "no", "code": "c"}}', "500 No", [*JSON, ("retry-after", "0")])
    async with RawServer(then=says(*[reply] * 9)) as server, make(server.url, max_retries=1) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await complete(client)
        assert len(server.heard) == 2
    async with RawServer(then=hang()) as server, make(server.url, max_retries=1) as client:
        with pytest.raises(openai.APITimeoutError):
            await complete(client, timeout=0.05)
        assert len(server.heard) == 1
    assert seen[0] is caught.value
    assert caught.value.code == "c"


def redact(function, *args, **kwargs):
    """Hand on another prompt and the tenant's header, as ``post`` and as ``request`` take them."""
    if "body" in kwargs:
        headers = {**kwargs["options"].get("headers", {}), "X-T": "tenant"}
        body = {**kwargs["body"], "prompt": "REDACTED"}
        return function(*args, **{**kwargs, "body": body, "options": {**kwargs["options"], "headers": headers}})
    options = args[-1]
    options.json_data = {**options.json_data, "prompt": "REDACTED"}
    options.headers = {"X-T": "tenant"}
    return function(*args, **kwargs)


@pytest.mark.parametrize("name", ["post", "request"])
async def test_what_it_passes_on_is_sent(name, monkeypatch):
    monkeypatch.setattr(openai.AsyncOpenAI, name, by_wraps(getattr(openai.AsyncOpenAI, name), redact))
    async with RawServer() as server:
        for kind in (openai.AsyncOpenAI, AsyncOpenAI):
            async with kind(base_url=server.url, api_key="key", max_retries=0) as client:
                await complete(client, "secret")
        assert client.statistics().alone == {"extra_headers that count": 1}
        async with make(
            server.url, ignored_headers=["x-t"], **{**TOGETHER, "batching": Batching(linger_s=0.1)}
        ) as client:
            await asyncio.gather(*[complete(client, f"secret {n}") for n in range(4)])
            assert client.statistics().shared > 1
    assert sum(server.prompts, []) == ["REDACTED"] * 6
    assert {heard.header("x-t") for heard in server.heard[:2]} == {"tenant"}
    assert {heard.header("x-t") for heard in server.heard[2:]} == {None}


def test_what_it_passes_on_is_sent_by_threads_too(monkeypatch, recorder):  # noqa: F811
    monkeypatch.setattr(openai.OpenAI, "post", by_wraps(openai.OpenAI.post, redact))
    with OpenAI(base_url=recorder.url, api_key="k", ignored_headers=["x-t"], dialect="vllm", max_retries=0) as client:
        raw = client.completions.with_raw_response.create(model="m", prompt="secret", max_tokens=1)
        assert client.statistics().alone == {"no company": 1}
    assert recorder.seen == [("Bearer k", "REDACTED")]
    assert raw.http_request.headers["x-t"] == "tenant"
    assert json.loads(raw.http_request.content)["prompt"] == "REDACTED"


@pytest.mark.parametrize("name", ["post", "request"])
async def test_it_may_ask_something_else_meanwhile(name, monkeypatch):
    asked = []

    async def around(function, client, *args, **kwargs):
        if not asked:
            asked.append(None)
            asked[0] = await client.models.list()
        return await function(client, *args, **kwargs)

    models = response(b'{"object": "list", "data": []}', headers=JSON)
    async with RawServer(says(models)) as server, make(server.url, **TOGETHER) as client:
        monkeypatch.setattr(openai.AsyncOpenAI, name, by_wraps(getattr(openai.AsyncOpenAI, name), around))
        answer = await complete(client)
        assert client.statistics().calls == 1
    assert (asked[0].object, asked[0].data, answer.choices[0].text) == ("list", [], "<p>")
    assert [heard.method for heard in server.heard] == ["GET", "POST"]


@pytest.mark.parametrize("name", ["post", "request"])
async def test_a_call_that_it_makes_twice_is_two_calls(name, monkeypatch):
    async def around(function, *args, **kwargs):
        await function(*args, **kwargs)
        return await function(*args, **kwargs)

    monkeypatch.setattr(openai.AsyncOpenAI, name, by_wraps(getattr(openai.AsyncOpenAI, name), around))
    async with RawServer() as server, make(server.url, **TOGETHER) as client:
        await complete(client)
        assert (client.statistics().calls, client.batch_client.statistics().submitted) == (2, 2)
    assert sum(server.prompts, []) == ["p", "p"]


async def test_raw_responses_keys_and_streams_pass_it(watched, seen):
    keys = iter(["first", "second", "third", "fourth"])

    async def key():
        return next(keys)

    async with RawServer() as server, make(server.url, api_key=key) as client:
        raw = await client.completions.with_raw_response.create(model="m", prompt="p", max_tokens=1)
        assert raw.parse().choices[0].text
        assert json.loads(raw.content)["choices"]
        async with client.completions.with_streaming_response.create(model="m", prompt="p", max_tokens=1) as streaming:
            assert (await streaming.json())["choices"]
        await complete(client, extra_headers={"x-mine": "1"})
        assert client.statistics().alone == {"no company": 2, "extra_headers that count": 1}
    assert [heard.header("authorization") for heard in server.heard] == [
        "Bearer first",
        "Bearer second",
        "Bearer third",
    ]
    assert len(seen) == 3


async def test_chats_pass_it(seen, around, monkeypatch, server):
    monkeypatch.setattr(AsyncChats, "create", Proxy(AsyncChats.create, around))
    async with make(server.base_url, **TOGETHER) as client:
        messages = [{"role": "user", "content": "p"}]
        await asyncio.gather(
            *[client.chat.completions.create(model=server.model, messages=messages, max_tokens=n + 1) for n in range(4)]
        )
    assert {answer.object for answer in seen} == {"chat.completion"}
    assert len(seen) == 4


@pytest.mark.parametrize("place", [(Completions, "create"), (openai.OpenAI, "request"), (SyncAPIClient, "post")])
def test_threads_are_seen(place, monkeypatch, server):
    owner, name = place
    seen, ready = [], threading.Barrier(8)

    def around(function, *args, **kwargs):
        seen.append(function(*args, **kwargs))
        return seen[-1]

    def ask(n):
        ready.wait()
        return client.completions.create(model=server.model, prompt=f"p{n}", max_tokens=1)

    monkeypatch.setattr(owner, name, Proxy(getattr(owner, name), around))
    with OpenAI(base_url=server.base_url, api_key="k", preset="throughput", batching=Batching(linger_s=0.1)) as client:
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.statistics().shared > 0
    assert len(seen) == 8
