"""What the drop-in does beside giving openai's answers: it shares requests, retries once over, raises openai's errors, keeps callers apart."""

import asyncio
import inspect
import json
from functools import partial

import httpx
import openai
import pytest
from tests.drop_in.test_same_answers import HELLO
from tests.fakes.raw import RawServer, body_of, hang, nobody_listens, response, says, whole

from batchclient import Backoff, Batching, ConfigError, Http, Server
from batchclient import client as client_module
from batchclient.openai import AsyncOpenAI
from batchclient.openai._resources import CHAT_FIELDS, COMPLETION_FIELDS, plain_call
from batchclient.openai._sharing import Past

JSON = [("content-type", "application/json")]
HTTP = __import__("httpx2" if openai.__version__ >= "3" else "httpx")


def make(url, **arguments):
    return AsyncOpenAI(**{"base_url": url, "api_key": "key", "max_retries": 0, "dialect": "vllm", **arguments})


def complete(client, prompt="p", **arguments):
    return client.completions.create(**{"model": "m", "prompt": prompt, "max_tokens": 1, **arguments})


async def from_both(server):
    """What a call of ours gets, and one of openai's own: an answer, or an error."""
    got = []
    for client in (make(server.url), openai.AsyncOpenAI(base_url=server.url, api_key="key", max_retries=0)):
        async with client:
            got += await asyncio.gather(complete(client), return_exceptions=True)
    assert len(server.heard) == 2
    return got


async def test_the_environments_proxies_count_unless_trust_env_says_no(monkeypatch):
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", nobody_listens().removesuffix("/v1"))
    async with RawServer() as server:
        for http in (None, Http(read_timeout_s=9)):
            async with make(server.url, http=http) as client:
                with pytest.raises(openai.APIConnectionError):
                    await complete(client)
        async with make(server.url, http=Http(trust_env=False)) as client:
            assert (await complete(client)).choices[0].text


@pytest.mark.parametrize(("host", "end"), [("127.0.0.1", ""), ("LocalHost", ""), ("localhost", "/")])
async def test_of_several_servers_all_are_asked_however_the_first_is_written(host, end):
    async with RawServer() as one, RawServer() as other:
        async with make([one.url.replace("127.0.0.1", host) + end, other.url], batching=Batching(max_size=1)) as client:
            await asyncio.gather(*[complete(client, f"{n}") for n in range(20)])
            assert len(client.batch_client.statistics().endpoints) == 2
    assert one.heard and other.heard


async def test_a_server_with_a_query_keeps_its_rate():
    async with RawServer() as server:
        rated = Server(f"{server.url}?tenant=x", requests_per_minute=10)
        async with make(rated, max_retries=0) as client:
            await complete(client)
            with pytest.raises(openai.APITimeoutError):
                await complete(client, timeout=0.2)
    (heard,) = server.heard
    assert heard.path.endswith("/completions?tenant=x")


async def test_a_post_or_a_step_that_somebody_replaced_on_one_client_is_asked():
    async def answer(*_arguments, **_more):
        return "mocked"

    def refuse(*_arguments, **_more):
        raise RuntimeError("seen")

    async with RawServer() as server:
        async with make(server.url) as client:
            client.completions._post = answer
            assert await complete(client) == "mocked"
        for name in ("_build_headers", "_prepare_url", "_process_response_data"):
            async with make(server.url) as client:
                setattr(client, name, refuse)
                with pytest.raises(RuntimeError, match="seen"):
                    await complete(client)


async def test_calls_at_once_share_requests(server):
    async with make(server.base_url, preset="throughput") as client:
        before = server.statistics()["list_sizes"]
        made = [complete(client, f"p{n}", model=server.model) for n in range(200)]
        texts = [answer.choices[0].text for answer in await asyncio.gather(*made)]
        after = server.statistics()["list_sizes"]
    assert len(set(texts)) == 200
    assert sum(after.values()) - sum(before.values()) <= 10


async def test_chats_and_embeddings_at_once_share_requests(server):
    async with make(server.base_url, preset="throughput") as client:
        for make_call in (
            lambda n: client.chat.completions.create(
                model=server.model, messages=[{"role": "user", "content": f"{n}"}], max_tokens=1
            ),
            lambda n: client.embeddings.create(model=server.model, input=f"{n}"),
        ):
            before = client.batch_client.statistics().batches
            await asyncio.gather(*[make_call(n) for n in range(100)])
            assert client.batch_client.statistics().batches - before <= 6


STATUSES = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    418: openai.APIStatusError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}
BODIES = {
    "openai's": {"error": {"message": "no: p", "type": "Why", "param": "prompt", "code": "some_code"}},
    "flat": {"message": "no", "type": "Why", "param": None, "code": 7},
    "a detail": {"detail": "no"},
    "no JSON": "<html>bad gateway</html>",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("status", STATUSES)
async def test_an_error_is_openais_with_the_servers_own_body(status, body):
    kind, sent = ("text/html", body) if isinstance(body, str) else ("application/json", json.dumps(body))
    headers = [("content-type", kind), ("x-request-id", "7"), ("retry-after", "0")]
    async with RawServer(then=says(*[response(sent.encode(), f"{status} No", headers)] * 9)) as server:
        ours, theirs = await from_both(server)
    assert type(ours) is type(theirs) is STATUSES[status]
    for name in ("message", "status_code", "code", "param", "type", "body", "request_id"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert str(ours) == str(theirs)
    assert ours.response.text == theirs.response.text == sent
    assert ours.response.headers["retry-after"] == "0"


ODD = {
    "no choice": {"choices": []},
    "no index": {"choices": [{"text": "t", "finish_reason": "stop", "logprobs": None}]},
    "another index": {"choices": [{"index": 7, "text": "t", "finish_reason": "stop", "logprobs": None}]},
    "given up": {"choices": [{"index": 0, "text": "t", "finish_reason": "abort", "logprobs": None}]},
    "a text that is none": {"choices": [{"index": 0, "text": None, "finish_reason": "stop"}], "usage": "none"},
    "more than was asked": {"choices": [{"index": n, "text": "t", "finish_reason": "stop"} for n in range(3)]},
}


@pytest.mark.parametrize("reply", ODD.values(), ids=ODD)
async def test_what_openai_takes_from_a_lone_call_is_handed_on(reply):
    body = json.dumps({"id": "1", "object": "text_completion", "created": 1, "model": "m", **reply}).encode()
    async with RawServer(then=says(*[response(body, headers=JSON)] * 9)) as server:
        ours, theirs = await from_both(server)
    assert ours.model_dump(warnings=False) == theirs.model_dump(warnings=False)


async def test_one_bad_call_in_a_list_raises_for_its_caller_alone(server):
    async with make(server.base_url, preset="throughput") as client:
        prompts = [f"p{n}" for n in range(16)]
        prompts[5] = [2**40]  # no such token
        texts = [f"p{n}" if n != 5 else "x" * 200_000 for n in range(16)]
        made = [complete(client, text, model=server.model) for text in texts]
        got = await asyncio.gather(*made, return_exceptions=True)
    failed = [n for n, each in enumerate(got) if isinstance(each, Exception)]
    assert failed == [5]
    assert isinstance(got[5], openai.BadRequestError)
    assert "maximum context length" in str(got[5]) or "length" in str(got[5])
    assert got[5].body["code"] == 400


# Three failures at most: after those a server is left alone for a while.
@pytest.mark.parametrize(("retries", "a_copys"), [(0, 1), (1, 0)])
async def test_max_retries_bounds_the_requests_of_a_call(retries, a_copys, monkeypatch):
    monkeypatch.setattr(client_module, "Backoff", partial(Backoff, base_s=0))
    reply = response(b"{}", "500 No", [("content-type", "application/json")])
    async with RawServer(then=says(*[reply] * 20)) as server:
        async with make(server.url, max_retries=retries) as client:
            with pytest.raises(openai.InternalServerError):
                await complete(client)
            assert len(server.heard) == 1 + retries
            with pytest.raises(openai.InternalServerError):
                await complete(client.with_options(max_retries=a_copys))
            assert len(server.heard) == 1 + retries + 1 + a_copys


async def test_a_failure_that_passes_is_tried_again():
    reply = response(b"{}", "503 No", [("content-type", "application/json"), ("retry-after", "0")])
    async with RawServer(says(reply)) as server, make(server.url, max_retries=2) as client:
        assert (await complete(client)).choices[0].text
        assert len(server.heard) == 2


async def test_timeouts_and_broken_connections_are_openais_errors():
    async with RawServer(then=hang()) as server, make(server.url) as client:
        for late in (complete(client, timeout=0.05), complete(client.with_options(timeout=0.05))):
            with pytest.raises(openai.APITimeoutError) as caught:
                await late
            assert str(caught.value.request.url) == f"{server.url}/completions"
    async with make(nobody_listens()) as client:
        with pytest.raises(openai.APIConnectionError) as caught:
            await complete(client)
        assert not isinstance(caught.value, openai.APITimeoutError)


async def test_openais_default_timeout_bounds_silence_and_not_the_waiting_here(monkeypatch):
    timeouts = []

    async def answer(transport, request):
        timeouts.append(request.extensions["timeout"])
        choice = {"index": 0, "text": "t", "finish_reason": "length"}
        return HTTP.Response(200, json={"id": "1", "choices": [choice]})

    monkeypatch.setattr(HTTP.AsyncHTTPTransport, "handle_async_request", answer)
    async with make("http://127.0.0.1:9/v1") as client:
        await complete(client)
        assert [(each["read"], each["connect"]) for each in timeouts] == [(600, 5)]
        for bounded in (3, HTTP.Timeout(9, connect=1)):
            await complete(client, timeout=bounded)
        await complete(client.with_options(timeout=7))
        # More than the silence that is borne: openai's own way.
        for longer in (None, 601):
            await complete(client, timeout=longer)
        assert client.statistics().alone == {"no company": 4, Past.TIMEOUT: 2}


async def test_a_call_may_have_more_time_than_its_client():
    async def late(connection):
        heard = await connection.request()
        await asyncio.sleep(0.1)
        await connection.write(response(body_of(heard), headers=JSON))

    async with RawServer(then=late) as server, make(server.url, timeout=0.02) as client:
        with pytest.raises(openai.APITimeoutError):
            await complete(client)
        for call in (
            complete(client, timeout=9),
            complete(client, timeout=None),
            complete(client.with_options(timeout=9)),
        ):
            assert (await call).choices[0].text
        client.timeout = 9
        assert (await complete(client)).choices[0].text


async def test_credentials_by_the_dozen():
    """More than are kept: those that are idle make room, and nobody else notices."""
    async with RawServer() as server, make(server.url) as client:
        await complete(client)
        for n in range(80):
            other = client.with_options(api_key=f"key {n}")
            assert (await complete(other)).choices[0].text
        assert (await complete(client)).choices[0].text
        assert (await complete(other)).choices[0].text
        while server.open > 32:
            await asyncio.sleep(0)
        assert server.open == 32, "each has one connection"
    keys = [heard.header("authorization") for heard in server.heard]
    assert keys == ["Bearer key", *[f"Bearer key {n}" for n in range(80)], "Bearer key", "Bearer key 79"]


async def test_where_all_clients_are_at_work_a_call_goes_by_itself_and_the_next_one_finds_room():
    gate = asyncio.Event()

    async def held(connection):
        while (heard := await connection.request()) is not None:
            await gate.wait()
            await connection.answer(heard)

    async with RawServer(*[held] * 32) as server, make(server.url) as client:
        others = [client.with_options(api_key=f"key {n}") for n in range(33)]
        calls = [asyncio.ensure_future(complete(other)) for other in others[:32]]
        while len(server.heard) < 32:
            await asyncio.sleep(0.001)
        *_, last = others
        assert (await complete(last)).choices[0].text
        assert last.batch_client is None
        gate.set()
        await asyncio.gather(*calls)
        assert (await complete(last)).choices[0].text
        assert last.batch_client is not None


async def test_what_is_set_later_counts():
    async with RawServer() as one, RawServer() as two, make(one.url) as client:
        await complete(client)
        client.organization = "later"
        await complete(client)
        client.api_key = "later"
        await complete(client.with_options(default_headers={"Authorization": openai.Omit(), "x": "1"}))
        client.base_url = two.url
        await complete(client)
        client.base_url = one.url
        await complete(client.with_options(default_headers={"Authorization": "Basic own"}))
    seen = [(each.header("authorization"), each.header("openai-organization")) for each in (*one.heard, *two.heard)]
    assert seen == [
        ("Bearer key", None),
        ("Bearer key", "later"),
        (None, "later"),
        ("Basic own", "later"),
        ("Bearer later", "later"),
    ]


@pytest.mark.parametrize("owner", [openai.resources.completions.AsyncCompletions])
async def test_a_create_that_others_have_replaced_is_called(owner, monkeypatch, caplog):
    """Tracers wrap the class's method, and mocks stand for it."""
    before, calls = owner.create, []

    async def traced(self, *args, **kwargs):
        calls.append(kwargs["prompt"])
        return await before(self, *args, **kwargs)

    async with RawServer() as server, make(server.url) as client:
        await complete(client)
        monkeypatch.setattr(owner, "create", traced)
        await complete(client, "watched")
        monkeypatch.undo()
        await complete(client)
        assert client.batch_client.statistics().submitted == 3
    assert calls == ["watched"]
    assert "max_tokens" in inspect.signature(client.completions.create).parameters


async def test_a_subclass_that_prepares_requests_itself_is_asked(caplog):
    class Signing(AsyncOpenAI):
        async def _prepare_options(self, options):
            options.headers = {"x-signed": "yes"}
            return options

    class Counting(AsyncOpenAI):
        posts = 0

        async def post(self, path, **arguments):
            self.posts += 1
            return await super().post(path, **arguments)

    assert "Signing overrides _prepare_options" in caplog.text
    async with RawServer() as server:
        given = {"base_url": server.url, "api_key": "key"}
        async with (
            Signing(**given) as signing,
            Counting(**given, dialect="vllm", preset="throughput", batching=Batching(linger_s=0.01)) as counting,
        ):
            await complete(signing)
            # A client looks for its platform once, in a thread.
            await complete(counting)
            await asyncio.gather(*[complete(counting, f"{n}") for n in range(4)])
            assert counting.posts == 5
    signed, _, several = (heard for heard in server.heard if heard.method == "POST")
    assert signed.header("x-signed") == "yes"
    assert len(several.prompts) == 4


async def test_a_raw_response_tells_its_retries_and_its_time():
    reply = response(b"{}", "503 No", [("content-type", "application/json"), ("retry-after", "0")])
    async with RawServer(says(reply)) as server, make(server.url, max_retries=2) as client:
        raw = await client.completions.with_raw_response.create(model="m", prompt="p", max_tokens=1)
    assert raw.retries_taken == 1
    assert raw.elapsed.total_seconds() > 0


async def test_an_answer_has_its_requests_number():
    async def numbered(connection):
        heard = await connection.request()
        await connection.write(response(body_of(heard), headers=[*JSON, ("x-request-id", "77")]))

    async with RawServer(then=numbered) as server, make(server.url) as client:
        assert (await complete(client))._request_id == "77"
        raw = await client.completions.with_raw_response.create(model="m", prompt="p", max_tokens=1)
        assert (raw.request_id, raw.parse()._request_id) == ("77", "77")


async def test_copies_share_the_scheduler_and_other_keys_do_not_share_requests():
    async with RawServer() as server, make(server.url, preset="throughput") as client:
        with_time = client.with_options(timeout=30)
        other = client.with_options(api_key="other")
        third = client.copy(default_headers={"x-tenant": "t"})
        made = [complete(each, f"{n}") for n in range(8) for each in (client, with_time, other, third)]
        await asyncio.gather(*made)
        assert with_time.batch_client is client.batch_client
    heard = {(each.header("authorization"), each.header("x-tenant")): len(each.prompts) for each in server.heard}
    assert heard == {("Bearer key", None): 16, ("Bearer other", None): 8, ("Bearer key", "t"): 8}


async def test_a_key_that_is_asked_for_is_asked_for_each_time():
    keys = iter(["first", "second", "third"])

    async def key():
        return next(keys)

    async with RawServer() as server, make(server.url, api_key=key) as client:
        await complete(client)
        await complete(client)
    assert [each.header("authorization") for each in server.heard] == ["Bearer first", "Bearer second"]


async def test_what_the_server_sees_is_what_openai_sends():
    """Headers and fields of a call that goes alone."""
    async with RawServer() as server:
        for client in (
            make(server.url, organization="o", project="j", default_headers={"x-mine": "1"}, default_query={"a": "b"}),
            openai.AsyncOpenAI(
                base_url=server.url,
                api_key="key",
                organization="o",
                project="j",
                default_headers={"x-mine": "1"},
                default_query={"a": "b"},
            ),
        ):
            async with client:
                await complete(client, user="me", extra_body={"top_k": 3})
    ours, theirs = server.heard
    assert ours.json == theirs.json
    assert ours.path == theirs.path
    kept = {"authorization", "openai-organization", "openai-project", "x-mine"}
    for name in kept:
        assert ours.header(name) == theirs.header(name), name


async def test_what_has_headers_or_a_query_of_its_own_goes_through_untouched():
    reply = response(b"{}", headers=[("content-type", "application/json")])
    async with RawServer(then=says(*[reply] * 9)) as server, make(server.url) as client:
        await complete(client, extra_headers={"x-mine": "1"})
        await complete(client, extra_query={"a": "b"})
        await client.post("/anything", cast_to=object, body={"new": [1, {"x": None}]})
        await client.post("/completions", cast_to=object, body={"model": "m", "prompt": "p", "stream_interval": 3})
        assert client.batch_client.statistics().submitted == 0
    first, second, third, _ = server.heard
    assert first.header("x-mine") == "1"
    assert "a=b" in second.path
    assert third.json == {"new": [1, {"x": None}]}


async def test_what_batchclient_refuses_is_the_servers_to_judge():
    async with RawServer() as server, make(server.url) as client:
        await complete(client, n=0)
        with pytest.raises(UnicodeEncodeError):  # openai's own
            await complete(client, prompt="\ud800")
    assert [each.json["n"] for each in server.heard] == [0]


async def test_an_http_client_of_the_users_own_is_used():
    seen = []

    def answer(request):
        seen.append(json.loads(request.content)["prompt"])
        choices = [{"index": n, "text": f"<{p}>", "finish_reason": "stop"} for n, p in enumerate(seen[-1])]
        return HTTP.Response(200, json={"id": "1", "object": "text_completion", "choices": choices, "model": "m"})

    own = HTTP.AsyncClient(transport=HTTP.MockTransport(answer))
    async with make(
        "http://server.test/v1", http_client=own, preset="throughput", batching=Batching(linger_s=0.01)
    ) as client:
        made = [complete(client.with_options(timeout=9), f"p{n}") for n in range(8)]
        texts = [each.choices[0].text for each in await asyncio.gather(*made)]
    assert texts == [f"<p{n}>" for n in range(8)]
    assert seen == [[f"p{n}" for n in range(8)]]


PLAIN = {
    "best_of": 1, "echo": True, "frequency_penalty": 0.5, "logit_bias": {"5": 1}, "logprobs": 1, "max_tokens": 4, "n": 1, "presence_penalty": 0.5,
    "seed": 3, "stop": ["a", "b"], "suffix": "s", "temperature": 0.5, "top_p": 0.5, "user": "u", "max_completion_tokens": 4, "top_logprobs": 1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "a": [None, 1.5]}}},
    "messages": [{"role": "user", "content": [{"type": "text", "text": "t"}]}, {"role": "assistant", "content": None, "tool_calls": []}],
    "prompt": [[1, 2], [3]], "model": "m",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(COMPLETION_FIELDS | CHAT_FIELDS))
async def test_openai_would_not_have_changed_a_plain_parameter(name):
    """Those that skip openai's walk through its types: the walk's result is what went in."""
    for resource, fields, needed in (
        ("completions", COMPLETION_FIELDS, "prompt"),
        ("chat.completions", CHAT_FIELDS, "messages"),
    ):
        if name not in fields:
            continue
        given = {"model": "m", needed: PLAIN[needed], name: PLAIN[name]}
        posted = []

        class Posts(openai.AsyncOpenAI):
            async def post(self, path, *, body, options, posted=posted, **more):
                posted.append((body, options))

        client = Posts(base_url="http://server.test/v1", api_key="key")
        target = client
        for part in resource.split("."):
            target = getattr(target, part)
        await target.create(**given, timeout=3, extra_body={"x": 1})
        ((body, options),) = posted
        ours, our_options = plain_call({**given, "timeout": 3, "extra_body": {"x": 1}}, fields)
        kept = {field: value for field, value in body.items() if not isinstance(value, (openai.NotGiven, openai.Omit))}
        assert ours == kept
        assert our_options == {field: value for field, value in options.items() if field != "security"}


async def test_a_caller_that_leaves_takes_nobody_along():
    gate = asyncio.Event()

    async def late(connection):
        heard = await connection.request()
        await gate.wait()
        await connection.write(whole(heard))

    async with (
        RawServer(then=late) as server,
        make(server.url, preset="throughput", batching=Batching(linger_s=0.01)) as client,
    ):
        tasks = [asyncio.create_task(complete(client, f"{n}")) for n in range(3)]
        await server.arrived(1)
        tasks[1].cancel()
        gate.set()
        first, gone, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(gone, asyncio.CancelledError)
    assert (first.choices[0].index, third.choices[0].index) == (0, 0)
    assert first.choices[0].text != third.choices[0].text


async def test_once_closed_calls_fail_as_openais_do(server):
    client = make(server.base_url)
    copy = client.with_options(timeout=3)
    await complete(client, model=server.model)
    await client.close()
    for each in (client, copy):
        with pytest.raises(openai.APIConnectionError):
            await complete(each, model=server.model)


def test_one_client_in_one_event_loop_after_the_other(server):
    client = make(server.base_url)

    async def several():
        return len(await asyncio.gather(*[complete(client, f"{n}", model=server.model) for n in range(8)]))

    assert [asyncio.run(several()) for _ in range(3)] == [8, 8, 8]
    asyncio.run(client.close())


async def test_a_call_that_shares_a_generation_with_a_direct_one_has_its_own_reply(server):
    async with make(server.base_url, batching=Batching(single_flight=True)) as client:
        direct = client.batch_client.complete("p", model=server.model, max_tokens=4, temperature=0)
        through = [complete(client, model=server.model, max_tokens=4, temperature=0) for _ in range(3)]
        answer, *answers = await asyncio.gather(direct, *through)
        assert client.batch_client.statistics().shared == 2
    assert [each.choices[0].text for each in answers] == [answer.text] * 3


def test_on_trio_calls_are_openais_own(server):
    trio = pytest.importorskip("trio")

    async def story():
        async with make(server.base_url) as client:
            answer = await complete(client, model=server.model)
            assert client.batch_client.statistics().submitted == 0
            return answer.choices[0].text

    assert trio.run(story)


def test_wrong_settings_are_refused_where_they_are_given():
    for wrong, field in (({"limit": 0}, "limit"), ({"timeout_s": 3}, "timeout_s"), ({"headers": {}}, "headers")):
        with pytest.raises(ConfigError) as caught:
            make("http://server.test/v1", **wrong)
        assert caught.value.field == field
    with pytest.raises(TypeError, match="nonsense"):
        make("http://server.test/v1", nonsense=1)
    with pytest.raises(openai.OpenAIError, match="api_key"):
        AsyncOpenAI(base_url="http://server.test/v1", api_key=None, limit=4)


async def test_several_servers():
    async with RawServer() as one, RawServer() as two:
        async with make([one.url, two.url], batching=Batching(max_size=1), limit=8) as client:
            await asyncio.gather(*[complete(client, f"{n}") for n in range(40)])
        assert one.heard
        assert two.heard


async def test_messages_of_openais_own_types_and_unknown_parameters_arrive():
    async with RawServer() as server, make(server.url) as client:
        with pytest.raises((openai.APIError, KeyError)):
            await client.chat.completions.create(
                model="m",
                messages=(each for each in HELLO),
                extra_body={"guided_choice": ["a"], "chat_template_kwargs": {"x": 1}},
            )
    sent = server.heard[0].json
    assert sent["messages"] == HELLO
    assert (sent["guided_choice"], sent["chat_template_kwargs"]) == (["a"], {"x": 1})


def test_httpx_is_not_what_openai_uses_here():
    """So that the test of a user's own client is one of openai's library."""
    assert HTTP is not httpx or openai.__version__ < "3"


async def test_the_body_of_a_lists_error_shows_nobody_anothers_prompt():
    def echo(heard):
        body = {"error": {"message": f"not yours: {heard.prompts}", "type": "t", "code": 401}}
        return response(json.dumps(body).encode(), "401 No", [("content-type", "application/json")])

    prompts = [f"the secret of caller number {n}" for n in range(4)]
    async with RawServer(then=says(*[echo] * 9)) as server:
        async with make(server.url, preset="throughput", batching=Batching(linger_s=0.01)) as client:
            got = await asyncio.gather(*[complete(client, prompt) for prompt in prompts], return_exceptions=True)
        assert max(len(heard.prompts) for heard in server.heard) == 4
    for error in got:
        assert isinstance(error, openai.AuthenticationError)
        assert "secret" not in str(error) + error.response.text + repr(error.__cause__)


async def test_it_may_be_put_in_the_place_of_openais_class(monkeypatch):
    monkeypatch.setattr(openai, "AsyncOpenAI", AsyncOpenAI)
    async with RawServer() as server, make(server.url) as client:
        assert (await complete(client)).choices[0].text
        assert client.statistics().alone == {"no company": 1}
