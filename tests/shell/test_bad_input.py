"""Bad input is refused where it is given, with an error that names the argument; nothing is queued or sent."""

from array import array
import re
from collections import deque
from datetime import date
from functools import reduce
from inspect import signature

import httpx
import pytest
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client

from batchclient import (
    AdaptiveLimit, Backoff, BadRequest, BatchClient, Batching, ConfigError, DialectError, Http, Queue, Server, ServerFault,
    SyncBatchClient, Telemetry,
)  # fmt: skip
from batchclient.integrations.httpx import BatchTransport
from batchclient.openai import AsyncOpenAI, OpenAI
from batchclient.retry import TenacityRetry
from batchclient.transport._libraries import library

URL = "http://localhost:8000/v1"
NAN = float("nan")


def refused(made, *given, **named):
    """The error of something that must not be made."""
    with pytest.raises(ConfigError) as caught:
        made(*given, **named)
        pytest.fail(f"{given!r} {named!r} was taken")
    return caught.value


WRONG_PARAMETERS = {
    "temperature": [NAN, float("inf")],
    "guided_json": [{"minimum": NAN}],
    "stop": [b"x", {"a", "b"}, "\ud800", ["fine", "\udfff"]],
    "seed": [object()],
    "since": [date(2026, 1, 1)],
    "stream": [True, 1],
    "stream_options": [{}],
    "prompt_": [NAN],
    "messages": [[]],
    "timeout": [5],
    "extra_headers": [{}],
    "extra_query": [{}],
    "extra_body": [[1]],
    "n": [0, -1, True, 1.0, "2"],
    "max_tokens": [-1, True, "16", 1.5],
    "model": ["", 7, "\ud800"],
    "timeout_s": [0, -1, NAN, float("inf"), "5", True],
    "priority": [True, False, 1.0, 0.0, "1", None, 101, -101],
    "tenant": ["", 1, b"a", "x" * 257],
}


WRONG_PROMPTS = [
    *("\ud800", "fine until here: \udc00, and on"),
    *([], (), array("i"), ["two", "texts"], [[1, 2], [3]], [1, "two"], ["one", 2], [1, [2]]),
    *([-1], [1, -1], [2**64], [10**30], [True], [1, False], [1.0], [1, None], [None]),
    *(b"bytes", bytearray(b"12345678"), memoryview(b"12345678"), {"text": "p"}, {1, 2}),
    *(None, 7, 7.5, True, object(), iter([1, 2]), deque(["a", "b"]), array("d", [1.0])),
]
WRONG_TEMPLATES = [
    "{",
    "}",
    "a {",
    "} b",
    "{ }",
    '{"a"}',
    "{!r}",
    "{a!r}",
    "{:>3}",
    '{"key": {}}',
    "no field",
    "",
    "{} {a}",
    7,
]
WRONG_DOCUMENTS = ["one text", b"bytes", {"a": 1}, 7, None]
CALLS = {
    "complete": (
        lambda client, **named: client.complete(**{"prompt": "p", **named}),
        {**WRONG_PARAMETERS, "prompt": WRONG_PROMPTS},
    ),
    "stream_map": (
        lambda client, **named: client.stream_map(**{"docs": ["a"], "prompt": "{}", **named}),
        {
            **WRONG_PARAMETERS, "prompt": WRONG_TEMPLATES, "docs": WRONG_DOCUMENTS, "look_ahead": [0, -1, 1.5, True, "8"],
            "call": ["embedding", "", None, 5],
        },
    ),
    "stream": (
        lambda client, **named: anext(client.stream(**{"prompt": "p", **named})),
        {
            "prompt": [[]], "timeout": [1], "stream_options": [{}], "n": [0], "stream": [False],
            "timeout_s": [-1],
        },
    ),
    "embed": (
        lambda client, **named: client.embed(**{"text": "a", **named}),
        {
            "text": [5, ["a", "b"], [], [-1], "\ud800"], "encoding_format": ["bytes"], "embed_dtype": ["float16"],
            "endianness": ["big"], "dimensions": [0], "input": ["b"], "priority": [1000],
        },
    ),
    "classify": (lambda client, **named: client.classify(**{"text": "a", **named}), {"text": [None]}),
    "score": (
        lambda client, **named: client.score(**{"query": "a", "document": "b", **named}),
        {"query": [None], "document": [5], "text_1": ["c"]},
    ),
    "rerank": (
        lambda client, **named: client.rerank(**{"query": "a", "documents": ["b"], **named}),
        {"query": [5], "documents": ["one text", 5, ["b", 5]], "top_n": [0], "timeout_s": [-1]},
    ),
    "tokenize": (lambda client, **named: client.tokenize(**{"text": "a", **named}), {"text": [[1, 2]]}),
    "log_likelihood": (
        lambda client, **named: client.log_likelihood(**{"continuation": "a", **named}),
        {"continuation": ["", []], "given": [[1]], "echo": [False], "max_tokens": [3]},
    ),
}  # fmt: skip


OTHER_FIELDS = {
    "stream": [({"prompt_logprobs": 1}, "stream")],
    "log_likelihood": [({"continuation": [1], "given": "a"}, "given")],
}
"""What is refused by another name than its own."""


@pytest.mark.parametrize("call", CALLS)
async def test_a_wrong_argument_of_a_call_is_refused_by_name(call):
    ask, wrong = CALLS[call]
    server, around = ScriptedTransport(), {}
    around["again"] = around
    cells = [({field: value}, field) for field, values in wrong.items() for value in values]
    if call in ("complete", "stream_map"):
        cells += [
            ({"schema": around}, "schema"),
            ({"schema": reduce(lambda inner, _: [inner], range(100_000), [])}, "schema"),
        ]
        cells += [
            ({"extra_body": {name: value}}, name) for name, value in (("stream", True), ("top_p", NAN), ("tenant", 1))
        ]
        cells += [({"extra_body": extra}, "extra_body") for extra in ("x", 5, [("a", 1)])]
    cells += OTHER_FIELDS.get(call, [])
    async with make_client(server) as client:
        for named, field in cells:
            with pytest.raises(ConfigError) as caught:
                await ask(client, **named)
                pytest.fail(f"{field}={named!r:.100} was taken")
            assert caught.value.field == field, f"{named!r:.100}"
        assert client.statistics().submitted == 0
        # Nothing of it stays behind.
        assert (await client.complete("p")).text
    assert len(server.sent) == 1


async def test_unusual_prompts_arrive_as_they_are():
    odd = '\x00\ufeff\u2028😀\\"\n'
    texts = [("", ""), (odd, odd)]
    ids = [([0, 1, 2**31], [0, 1, 2**31]), ((1,), [1]), (range(3), [0, 1, 2])]
    ids += [(array("i", [5, 6]), [5, 6]), (deque([1, 2]), [1, 2])]
    for prompt, wire in texts + ids:
        server = ScriptedTransport()
        async with make_client(server) as client:
            await client.complete(prompt)
        assert server.sent[0].body["prompt"] == wire


TOO_LONG = (
    "This model's maximum context length is 3 tokens. However, you requested 2045 output tokens and your prompt has 8."
)


async def test_a_length_that_a_refusal_tells_is_about_the_refused_call_alone():
    # vLLM 0.15 tells what ``max_tokens`` left. Of two servers behind one address each has a length of its own.
    server = ScriptedTransport(error(400, TOO_LONG))
    async with make_client(server) as client:
        with pytest.raises(BadRequest, match="maximum context length is 3 tokens"):
            await client.complete([1] * 8, max_tokens=2045)
        for prompt in ([1] * 8, "x" * 8, [1] * 1000):
            assert (await client.complete(prompt)).text
    assert len(server.sent) == 4


async def test_a_single_brace_is_told_to_double_it():
    async with make_client(ScriptedTransport()) as client:
        with pytest.raises(ConfigError, match="double it"):
            client.stream_map(["a"], 'Answer as {"text": {}}')
        answers = await client.batch_map(["a"], 'Answer as {{"text": {}}}')
        assert answers[0].text.startswith('<Answer as {"text": a}')


async def test_a_document_without_the_column_is_a_row_with_an_error_that_names_it():
    documents = [
        ({"other": "a"}, "text"),
        ({"text": None}, "text"),
        ("a text", "prompt"),
        (None, "prompt"),
        ({}, "text"),
    ]
    for document, field in documents:
        server = ScriptedTransport()
        async with make_client(server) as client:
            rows = [row async for row in client.stream_map([{"text": "fine"}, document], "Say {text}", ordered=True)]
        assert rows[0].completion is not None
        assert isinstance(rows[1].error, ConfigError), document
        assert rows[1].error.field == field
        assert "document 1" in str(rows[1].error)
        assert server.prompts == [["Say fine"]]


CANARY = "canary-value"
NUMBER = [NAN, float("inf"), CANARY, "5", True, [1.0]]
WRONG_OF_KIND = {
    "seconds": [*NUMBER, -0.1, -1],
    "patience": [NAN, *NUMBER[2:], -0.1, -float("inf")],
    "positive": [*NUMBER, -1, 0, 10**400],
    "share": [*NUMBER, -0.1, 1.1],
    "count": [*NUMBER, 0, -1, 1.5, 2.0],
    "flag": [CANARY, "yes", 1, 0, [True]],
    "one of": [CANARY, "curl", "drop", 7, ["vllm"]],
    "name": ["", 7, [CANARY]],
    "function": [CANARY, 7],
    "object": [CANARY, 7, True, {"max_size": 3, "client_name": 1}, object()],
    "weights": [CANARY, [1], {"a": True}, {"a": "2"}, {"a": 0}, {"a": -1}, {"a": NAN}, {1: 2.0}],
    "key": ["", f"{CANARY}\n", f" {CANARY}", f"{CANARY}é", CANARY.encode()],
    "headers": [
        *({"x": "a\r\nb: c"}, {"x\r\ny": "a"}, {"x": "a\nb"}, {"x": "a\0b"}, {"x": "grüße"}, {"x": CANARY + "\n"}),
        *({"": "a"}, {"x y": "a"}, {"x:": "a"}, {"x": 1}, [("x", "a")], CANARY, 5),
    ],
    "header": ["", "x y", "x:", "x\r\ny", f"{CANARY}\n", b"x", 7],
    "url": ["", "http://", "http://localhost/v1\r\nx: y", 7, b"http://localhost/v1", f"{CANARY}/v1"],
}
KINDS = {
    BatchClient: {
        "base_url": "url", "model": "name", "api_key": "key", "headers": "headers", "timeout_s": "positive",
        "retry": "object", "limit": "count", "preset": "one of", "batching": "object", "queue": "object",
        "http": "object", "dialect": "one of", "probe": "flag", "wait_for_server_s": "patience",
        "outage_patience_s": "patience", "telemetry": "object", "from_environment": "flag",
    },
    AdaptiveLimit: {
        "start": "count", "max": "count", "p95_latency_s": "positive", "time_to_first_token_s": "positive",
        "guest": "flag",
    },
    Batching: {
        "max_size": "count", "linger_s": "seconds", "list_tokens": "count", "chat_list_tokens": "count",
        "single_flight": "flag",
    },
    Queue: {
        "order": "one of", "aging_s": "positive", "tenant_weights": "weights",
        "group_prefixes": "flag", "tell_server": "flag", "max_calls": "count", "when_full": "one of",
        "max_wait_s": "patience",
    },
    Http: {
        "connect_timeout_s": "positive", "read_timeout_s": "positive",
        "backend": "one of", "trust_env": "flag",
    },
    Telemetry: {"tracer_provider": "object", "client_name": "name"},
    Server: {
        "url": "url", "api_key": "key", "headers": "headers", "session_header": "header",
        "requests_per_minute": "positive", "tokens_per_minute": "positive", "model": "name", "price": "object",
        "one_model_at_a_time": "flag", "model_wait_s": "seconds",
    },
    Backoff: {"max_attempts": "count", "base_s": "seconds", "cap_s": "seconds"},
    TenacityRetry: {"stop": "object", "wait": "object", "retry": "object"},
}  # fmt: skip
"""Of every setting: what it takes."""
PATHS = {AdaptiveLimit: "limit.", Batching: "batching.", Queue: "queue.", Http: "http.", Telemetry: "telemetry."}
NAMED_OTHERWISE = {(Server, "url"): "base_url", (Telemetry, "tracer_provider"): "telemetry"}
MORE_WRONG = {
    (BatchClient, "base_url"): [[], [7], [URL, 7], None], (BatchClient, "limit"): ["aimd"],
    (BatchClient, "http"): [httpx.Client, httpx.Client()], (BatchClient, "retry"): [Backoff], (BatchClient, "preset"): [None],
    (Telemetry, "client_name"): ["x" * 257],
}  # fmt: skip
SHOWN = {(BatchClient, "preset"), (BatchClient, "dialect"), *((TenacityRetry, name) for name in KINDS[TenacityRetry])}
"""Their values are names, or tenacity's objects."""


@pytest.mark.parametrize("made", KINDS)
def test_a_wrong_argument_is_refused_by_name_and_not_shown(made):
    assert KINDS[made].keys() == signature(made).parameters.keys() - {"unknown"}, "each setting has a kind"
    needed = {BatchClient: {"base_url": URL}, Server: {"url": URL}}.get(made, {})
    for name, kind in KINDS[made].items():
        for value in WRONG_OF_KIND[kind] + MORE_WRONG.get((made, name), []):
            error = refused(made, **{**needed, name: value})
            field = NAMED_OTHERWISE.get((made, name), PATHS.get(made, "") + name)
            assert error.field == field, (name, value)
            assert field in str(error), (name, value)
            assert CANARY not in str(error) or (made, name) in SHOWN, (name, value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temperature", "; there are: "),
        ("limits", "did you mean limit?"),
        ("starvation_s", "starvation_s is the preset's now: preset=…"),
        ("schedule", "schedule is given as queue=Queue(…)"),
        ("max_queued", "max_queued is given as queue=Queue(max_calls=…)"),
        ("server_metrics", "server_metrics is given as probe=…"),
        ("guest", "guest is given as limit=AdaptiveLimit(guest=True)"),
        ("on_adjustment", "on_adjustment is gone: story() and statistics().adjustments tell every change"),
    ],
)
@pytest.mark.parametrize("make", [BatchClient, SyncBatchClient, AsyncOpenAI, OpenAI, BatchTransport])
def test_an_unknown_argument_is_refused_with_the_right_one(make, name, hint):
    given = {} if make is BatchTransport else {"base_url": URL}
    if name in ("temperature", "limits") and "OpenAI" in make.__name__:
        # Openai's own word for it.
        with pytest.raises(TypeError, match=name):
            make(api_key="k", **given, **{name: 1})
        return
    given |= {"api_key": "k"} if "OpenAI" in make.__name__ else {}
    with pytest.raises(ConfigError, match=re.escape(hint)) as caught:
        make(**given, **{name: 1})
    assert caught.value.field == name


@pytest.mark.parametrize("group", [Batching, Queue, Telemetry])
def test_a_group_of_another_type_is_refused_with_its_own(group):
    with pytest.raises(ConfigError, match=rf"a {group.__name__}\(…\), not a") as caught:
        BatchClient(URL, **{group.__name__.lower(): {"max_size": 3}})
    assert caught.value.field == group.__name__.lower()


def test_a_groups_unknown_field_is_refused_with_the_right_name():
    assert (error := refused(Batching, max_sizes=3)).field == "max_sizes"
    assert str(error) == "there is no argument max_sizes; did you mean max_size?"


def test_what_a_caller_changes_later_is_not_in_a_group():
    weights = {"a": 2.0}
    queue = Queue(tenant_weights=weights)
    weights["a"] = -5
    assert queue.tenant_weights == {"a": 2.0}


async def test_a_closed_client_is_refused():
    closed = httpx.AsyncClient()
    await closed.aclose()
    with pytest.raises(ConfigError, match="closed") as caught:
        BatchClient(URL, model="m", http=closed)
    assert caught.value.field == "http"


def test_the_extra_that_is_missing_is_named(monkeypatch):
    import sys

    # The library is kept once it is found.
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ConfigError, match=r"batchclient\[httpx2\]") as caught:
        BatchClient(URL, model="m", http=Http(backend="httpx2"))
    assert caught.value.field == "http.backend"


PAGE = b"<!DOCTYPE html><html>Unsupported method"
QUESTION = r" \(is base_url right, and an LLM server's\?\)"


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        *((status, BadRequest, f"{status}: an HTML page from URL{QUESTION}") for status in (400, 404, 405, 501)),
        (500, ServerFault, f"500: an HTML page from URL{QUESTION}"),
        *((status, ServerFault, f"{status}: an HTML page from URL") for status in (502, 503, 504)),
        (200, DialectError, f"it came from URL{QUESTION}"),
    ],
)
@pytest.mark.parametrize("max_tokens", [1, 100])
async def test_a_page_for_people_names_the_url(status, kind, told, max_tokens):
    server = ScriptedTransport(Reply(status, {"content-type": "text/html"}, [PAGE]))
    async with make_client(server, retry=Backoff(max_attempts=1)) as client:
        url = re.escape(client.statistics().endpoints[0].base_url)
        with pytest.raises(kind, match=told.replace("URL", url) + "$"):
            await client.complete("p", max_tokens=max_tokens)
