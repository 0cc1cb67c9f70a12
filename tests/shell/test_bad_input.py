"""Bad input is refused where it is given, with an error that names the argument; nothing is queued or sent."""

from array import array
import re
from collections import deque
from datetime import date

import httpx
import pytest
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client

from batchclient import (
    Backoff,
    BadRequest,
    BatchClient,
    Batching,
    ConfigError,
    DialectError,
    Http,
    RemoteError,
    Schedule,
    ServerFault,
    SyncBatchClient,
)
from batchclient.integrations.httpx import BatchTransport
from batchclient.openai import AsyncOpenAI, OpenAI
from batchclient.retry import TenacityRetry

URL = "http://localhost:8000/v1"
NAN = float("nan")


async def refusal(client, prompt="p", **params):
    """The error of a call that must not get as far as the queue."""
    with pytest.raises(ConfigError) as caught:
        await client.complete(prompt, **params)
    assert client.statistics().submitted == 0
    return caught.value


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"temperature": NAN}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"guided_json": {"minimum": NAN}}, "guided_json"),
        ({"stop": b"x"}, "stop"),
        ({"seed": object()}, "seed"),
        ({"since": date(2026, 1, 1)}, "since"),
        ({"stop": {"a", "b"}}, "stop"),
        ({"stop": "\ud800"}, "stop"),
        ({"stop": ["fine", "\udfff"]}, "stop"),
        ({"stream": True}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"prompt_": NAN}, "prompt_"),
        ({"messages": []}, "messages"),
        ({"timeout": 5}, "timeout"),
        ({"extra_headers": {}}, "extra_headers"),
        ({"extra_query": {}}, "extra_query"),
        ({"extra_body": [1]}, "extra_body"),
        ({"extra_body": {"stream": True}}, "stream"),
        ({"extra_body": {"top_p": NAN}}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": "2"}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": "\ud800"}, "model"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"timeout_s": NAN}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_name(params, field):
    server = ScriptedTransport()
    async with make_client(server) as client:
        assert (await refusal(client, **params)).field == field
        with pytest.raises(ConfigError) as caught:
            client.stream_map([], "{}", **params)
        assert caught.value.field == field
        # Nothing of it stays behind.
        assert (await client.complete("p")).text
    assert len(server.sent) == 1


def nested(depth):
    inner = []
    for _ in range(depth):
        inner = [inner]
    return inner


async def test_what_refers_to_itself_or_goes_too_deep_is_refused():
    around = {}
    around["again"] = around
    async with make_client(ScriptedTransport()) as client:
        assert (await refusal(client, schema=around)).field == "schema"
        assert (await refusal(client, schema=nested(100_000))).field == "schema"


@pytest.mark.parametrize(
    "prompt",
    [
        "\ud800",
        "fine until here: \udc00, and on",
        [],
        (),
        array("i"),
        ["two", "texts"],
        [[1, 2], [3]],
        [1, "two"],
        ["one", 2],
        [1, [2]],
        [-1],
        [1, -1],
        [2**64],
        [10**30],
        [True],
        [1, False],
        [1.0],
        [1, None],
        [None],
        b"bytes",
        bytearray(b"12345678"),
        memoryview(b"12345678"),
        {"text": "p"},
        {1, 2},
        None,
        7,
        7.5,
        True,
        object(),
        iter([1, 2]),
        deque(["a", "b"]),
        array("d", [1.0]),
    ],
)
async def test_a_wrong_prompt_is_refused_by_name(prompt):
    async with make_client(ScriptedTransport()) as client:
        assert (await refusal(client, prompt)).field == "prompt"


@pytest.mark.parametrize(
    ("prompt", "wire"),
    [
        ("", ""),
        ('\x00\ufeff\u2028😀\\"\n', '\x00\ufeff\u2028😀\\"\n'),
        ([0, 1, 2**31], [0, 1, 2**31]),
        ((1,), [1]),
        (range(3), [0, 1, 2]),
        (array("i", [5, 6]), [5, 6]),
        (deque([1, 2]), [1, 2]),
    ],
    ids=lambda value: ascii(value)[:30],
)
async def test_unusual_prompts_arrive_as_they_are(prompt, wire):
    server = ScriptedTransport()
    async with make_client(server) as client:
        await client.complete(prompt)
    assert server.sent[0].body["prompt"] == wire


TOO_LONG = "This model's maximum context length is 8 tokens. However, your request has 10 input tokens."


async def test_ids_over_the_models_length_are_refused_once_it_is_known():
    server = ScriptedTransport(error(400, TOO_LONG))
    async with make_client(server) as client:
        with pytest.raises(BadRequest):
            await client.complete([1] * 10)
        for length in (8, 9, 1000):
            with pytest.raises(ConfigError, match="the model's length is 8") as caught:
                await client.complete([1] * length)
            assert caught.value.field == "prompt"
        assert (await client.complete([1] * 7)).text
        # Texts are not counted without a tokenizer, and another model has a length of its own.
        assert (await client.complete("x" * 1000)).text
        assert (await client.complete([1] * 1000, model="longer")).text
    assert len(server.sent) == 4


async def test_texts_are_counted_where_that_was_asked_for():
    counted = []

    def count_tokens(text):
        counted.append(text)
        return len(text.split())

    async with make_client(ScriptedTransport(), max_model_len=5, count_tokens=count_tokens) as client:
        assert (await refusal(client, "one two three four five")).field == "prompt"
        assert (await client.complete("a b c d")).text
        assert (await client.complete("abc")).text
    # A text of fewer bytes than tokens allowed needs no counting.
    assert counted == ["one two three four five", "a b c d"]


@pytest.mark.parametrize(
    "template",
    [
        "{",
        "}",
        "a {",
        "} b",
        "{a b}",
        "{0}",
        "{a.b}",
        "{a[0]}",
        "{!r}",
        "{a!r}",
        "{:>3}",
        '{"key": {}}',
        "no field",
        "",
        "{} {a}",
    ],
)
async def test_a_wrong_template_is_refused_by_name(template):
    async with make_client(ScriptedTransport()) as client:
        with pytest.raises(ConfigError) as caught:
            client.stream_map(["a"], template)
        assert caught.value.field == "prompt"


async def test_a_single_brace_is_told_to_double_it():
    async with make_client(ScriptedTransport()) as client:
        with pytest.raises(ConfigError, match="double it"):
            client.stream_map(["a"], 'Answer as {"text": {}}')
        answers = await client.batch_map(["a"], 'Answer as {{"text": {}}}')
        assert answers[0].text.startswith('<Answer as {"text": a}')


@pytest.mark.parametrize(
    ("document", "field"),
    [({"other": "a"}, "text"), ({"text": None}, "text"), ("a text", "prompt"), (None, "prompt"), ({}, "text")],
)
async def test_a_document_without_the_column_is_a_row_with_an_error_that_names_it(document, field):
    server = ScriptedTransport()
    async with make_client(server) as client:
        rows = [row async for row in client.stream_map([{"text": "fine"}, document], "Say {text}", ordered=True)]
    assert rows[0].completion is not None
    assert isinstance(rows[1].error, ConfigError)
    assert rows[1].error.field == field
    assert "document 1" in str(rows[1].error)
    assert server.prompts == [["Say fine"]]


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ({"docs": "one text"}, "docs"),
        ({"docs": b"bytes"}, "docs"),
        ({"docs": {"a": 1}}, "docs"),
        ({"docs": 7}, "docs"),
        ({"docs": None}, "docs"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"look_ahead": 0}, "look_ahead"),
        ({"look_ahead": -1}, "look_ahead"),
        ({"look_ahead": 1.5}, "look_ahead"),
        ({"look_ahead": True}, "look_ahead"),
        ({"look_ahead": "8"}, "look_ahead"),
    ],
)
async def test_a_wrong_argument_of_a_map_is_refused_by_name(named, field):
    async with make_client(ScriptedTransport()) as client:
        with pytest.raises(ConfigError) as caught:
            client.stream_map(**{"docs": ["a"], "prompt": "{}", **named})
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"base_url": ""}, "base_url"),
        ({"base_url": []}, "base_url"),
        ({"base_url": None}, "base_url"),
        ({"base_url": 7}, "base_url"),
        ({"base_url": [URL, 7]}, "base_url"),
        ({"base_url": "localhost:8000/v1"}, "base_url"),
        ({"base_url": "//localhost/v1"}, "base_url"),
        ({"base_url": "ftp://localhost/v1"}, "base_url"),
        ({"base_url": "http://"}, "base_url"),
        ({"base_url": "http://user:secret@localhost/v1"}, "base_url"),
        ({"base_url": "http://secret@localhost/v1"}, "base_url"),
        ({"base_url": "ftp://user:secret@localhost/v1"}, "base_url"),
        ({"base_url": "http://local host/v1"}, "base_url"),
        ({"base_url": "http://localhost/v1\r\nx: y"}, "base_url"),
        ({"base_url": "http://localhost:port/v1"}, "base_url"),
        ({"base_url": "http://localhost:99999/v1"}, "base_url"),
        ({"base_url": "http://[::1/v1"}, "base_url"),
        ({"base_url": "http://localhost/v1#part"}, "base_url"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": "secret\n"}, "api_key"),
        ({"api_key": "sec ret"}, "api_key"),
        ({"api_key": "secrét"}, "api_key"),
        ({"api_key": b"secret"}, "api_key"),
        ({"preset": "fast"}, "preset"),
        ({"preset": None}, "preset"),
        ({"preset": ["latency"]}, "preset"),
        ({"dialect": "nope"}, "dialect"),
        ({"dialect": 7}, "dialect"),
        ({"dialect": ["vllm"]}, "dialect"),
        ({"http_client": object()}, "http_client"),
        ({"http_client": httpx.Client}, "http_client"),
        ({"retry": 3}, "retry"),
        ({"retry": Backoff}, "retry"),
        ({"headers": {"x": "a\r\nb: c"}}, "headers"),
        ({"headers": {"x\r\ny": "a"}}, "headers"),
        ({"headers": {"x": "a\nb"}}, "headers"),
        ({"headers": {"x": "a\0b"}}, "headers"),
        ({"headers": {"x": "grüße"}}, "headers"),
        ({"headers": {"": "a"}}, "headers"),
        ({"headers": {"x y": "a"}}, "headers"),
        ({"headers": {"x:": "a"}}, "headers"),
        ({"headers": {"x": 1}}, "headers"),
        ({"headers": [("x", "a")]}, "headers"),
        ({"limit": 0}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"limit": "8"}, "limit"),
        ({"limit": True}, "limit"),
        (lambda: {"batching": Batching(max_size=0)}, "batching.max_size"),
        (lambda: {"batching": Batching(max_size="8")}, "batching.max_size"),
        (lambda: {"batching": Batching(linger_s=-1)}, "batching.linger_s"),
        (lambda: {"batching": Batching(linger_s=NAN)}, "batching.linger_s"),
        (lambda: {"batching": Batching(linger_s=float("inf"))}, "batching.linger_s"),
        (lambda: {"batching": Batching(linger_s="soon")}, "batching.linger_s"),
        (lambda: {"batching": Batching(refill_s=-1)}, "batching.refill_s"),
        (lambda: {"batching": Batching(refill_ratio=1.1)}, "batching.refill_ratio"),
        (lambda: {"batching": Batching(refill_ratio=-0.1)}, "batching.refill_ratio"),
        (lambda: {"batching": Batching(refill_ratio=NAN)}, "batching.refill_ratio"),
        (lambda: {"schedule": Schedule(starvation_s=-1)}, "schedule.starvation_s"),
        ({"max_queued": 0}, "max_queued"),
        ({"when_full": "drop"}, "when_full"),
        (lambda: {"batching": Batching(alone_above_tokens=0)}, "batching.alone_above_tokens"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": NAN}, "timeout_s"),
        (lambda: {"http": Http(connect_timeout_s=0)}, "http.connect_timeout_s"),
        (lambda: {"http": Http(read_timeout_s=-1)}, "http.read_timeout_s"),
        (lambda: {"http": Http(max_response_bytes=0)}, "http.max_response_bytes"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"count_tokens": 7}, "count_tokens"),
        (lambda: {"http": Http(backend="curl")}, "http.backend"),
        (lambda: {"http": Http(trust_env="maybe")}, "http.trust_env"),
    ],
)
def test_a_wrong_argument_of_the_client_is_refused_by_name(arguments, field):
    with pytest.raises(ConfigError) as caught:
        BatchClient(**{"base_url": URL, "model": "m", **(arguments() if callable(arguments) else arguments)})
    assert caught.value.field == field
    assert field in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temperature", "; there are: "),
        ("limits", "did you mean limit?"),
        ("max_list", "given as batching=Batching(max_size=…)"),
        ("http_backend", "given as http=Http(backend=…)"),
        ("initial_limit", "given as limit=AdaptiveLimit(start=…)"),
        ("starvation_s", "given as schedule=Schedule(starvation_s=…)"),
        ("retries", "given as retry=Backoff(max_attempts=…), where the first attempt counts"),
        ("concurrency", "given as limit=…"),
        ("max_concurrency", "given as limit=…"),
        ("max_connections", "given as limit=…"),
        ("n_jobs", "given as limit=…"),
        ("token", "given as api_key=…"),
        ("key", "given as api_key=…"),
    ],
)
@pytest.mark.parametrize("make", [BatchClient, SyncBatchClient, AsyncOpenAI, OpenAI, BatchTransport])
def test_an_unknown_argument_is_refused_with_the_right_one(make, name, hint):
    given = {} if make is BatchTransport else {"base_url": URL}
    if hint.endswith("api_key=…") and make is BatchTransport:
        hint = "there is no argument"  # each request brings its own key
    if name in ("temperature", "limits", "retries", "key", "token") and "OpenAI" in make.__name__:
        # Openai's own word for it.
        with pytest.raises(TypeError, match=name):
            make(api_key="k", **given, **{name: 1})
        return
    given |= {"api_key": "k"} if "OpenAI" in make.__name__ else {}
    with pytest.raises(ConfigError, match=re.escape(hint)) as caught:
        make(**given, **{name: 1})
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [({"batching": {"max_size": 3}}, "Batching"), ({"http": 5}, "Http"), ({"schedule": "fcfs"}, "Schedule")],
)
def test_a_group_of_another_type_is_refused(arguments, kind):
    with pytest.raises(ConfigError, match=rf"a {kind}\(…\), not a") as caught:
        BatchClient(URL, **arguments)
    assert caught.value.field in arguments


async def test_a_closed_http_client_is_refused():
    closed = httpx.AsyncClient()
    await closed.aclose()
    with pytest.raises(ConfigError, match="closed") as caught:
        BatchClient(URL, model="m", http_client=closed)
    assert caught.value.field == "http_client"


@pytest.mark.parametrize(("backend", "package"), [("aiohttp", "httpx_aiohttp"), ("httpx2", "httpx2")])
def test_the_extra_that_is_missing_is_named(monkeypatch, backend, package):
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"batchclient\[{backend}\]") as caught:
        BatchClient(URL, model="m", http=Http(backend=backend))
    assert caught.value.field == "http.backend"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Backoff(max_attempts=0), "max_attempts"),
        (lambda: Backoff(base_s=-1), "base_s"),
        (lambda: Backoff(cap_s=-1), "cap_s"),
        (lambda: TenacityRetry(stop=5), "stop"),
        (lambda: TenacityRetry(wait=5), "wait"),
        (lambda: TenacityRetry(retry=True), "retry"),
    ],
    ids=["max_attempts", "base_s", "cap_s", "stop", "wait", "retry"],
)
def test_a_wrong_argument_of_a_policy_is_refused_by_name(make, field):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize(
    "url",
    [URL, URL + "/", "https://example.org", "http://[::1]:8000/v1", " " + URL + " ", [URL, "http://other:8000/v1"]],
)
def test_a_right_url_is_taken(url):
    assert BatchClient(url, model="m").statistics().endpoints


async def test_aiohttp_is_refused_on_trio():
    import sniffio

    client = BatchClient(URL, model="m", http=Http(backend="aiohttp"))
    if sniffio.current_async_library() == "asyncio":
        async with client:
            return
    with pytest.raises(ConfigError) as caught:
        async with client:
            pass
    assert caught.value.field == "http.backend"


PAGE = b"<!DOCTYPE html><html>Unsupported method"
QUESTION = r" \(is base_url right, and an LLM server's\?\)"


@pytest.mark.parametrize("status", [400, 404, 405, 500, 501])
async def test_a_page_for_people_names_the_url_and_asks_about_it(status):
    server = ScriptedTransport(Reply(status, {"content-type": "text/html"}, [PAGE]))
    async with make_client(server, retry=Backoff(max_attempts=1)) as client:
        url = client.statistics().endpoints[0].base_url
        with pytest.raises(RemoteError, match=f"{status}: an HTML page from {re.escape(url)}{QUESTION}$") as caught:
            await client.complete("p")
    assert isinstance(caught.value, ServerFault if status == 500 else BadRequest)


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_page_of_a_gateway_names_the_url_alone(status):
    server = ScriptedTransport(Reply(status, {"content-type": "text/html"}, [PAGE]))
    async with make_client(server, retry=Backoff(max_attempts=1)) as client:
        with pytest.raises(ServerFault, match=f"{status}: an HTML page from http://[^ ]*$"):
            await client.complete("p")


@pytest.mark.parametrize("max_tokens", [1, 100])
async def test_a_page_for_people_instead_of_an_answer_names_the_url(max_tokens):
    server = ScriptedTransport(Reply(200, {"content-type": "text/html"}, [PAGE]))
    async with make_client(server, retry=Backoff(max_attempts=1)) as client:
        with pytest.raises(DialectError, match=f"it came from http://[^ ]*{QUESTION}$"):
            await client.complete("p", max_tokens=max_tokens)
