"""``BatchTransport`` under plain ``httpx`` and ``httpx2`` clients: what it shares, what it hands on, and what its callers see."""

import asyncio
import importlib
import json
import pickle
import socket

import httpx
import pytest

from batchclient._client import connections
from batchclient import Queue, Backoff, ConfigError
from batchclient.dialects._dialect import Dialect
from batchclient.simulator import EmbeddedServer, expected_text
from tests.guises import GUISES

LIBRARIES = ("httpx", "httpx2")
MOST_CLIENTS = 32


@pytest.fixture(params=LIBRARIES)
def library(request):
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed here")


@pytest.fixture
def made(library):
    """Makes a transport of the library."""
    return importlib.import_module(f"batchclient.integrations.{library.__name__}").BatchTransport


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer("instant", model="m") as embedded:
        yield embedded


class Handler:
    """Answers as a server does that takes lists, and keeps what it was asked."""

    def __init__(self, library):
        self.library = library
        self.requests = []
        self.go_on = None

    async def __call__(self, request):
        await request.aread()
        self.requests.append(request)
        if self.go_on is not None:
            await self.go_on.wait()
        path = request.url.path
        if request.method != "POST" or not path.endswith("/completions"):
            return self.library.Response(200, content=b"past", headers={"x-path": path})
        try:
            body = json.loads(request.content)
        except ValueError:
            return self.library.Response(400, content=b"no JSON")
        if body.get("stream") and body.get("stream_interval") is None:
            return self.library.Response(
                200, content=b"data: [DONE]\n\n", headers={"content-type": "text/event-stream"}
            )
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices = [
            {"index": i, "text": str(p).upper(), "finish_reason": "length", "token_ids": [1], "prompt_token_ids": [1]}
            for i, p in enumerate(prompts)
        ]
        usage = {"prompt_tokens": len(prompts), "completion_tokens": len(prompts), "total_tokens": 2 * len(prompts)}
        reply = {"id": "1", "model": "m", "choices": choices, "usage": usage}
        return self.library.Response(200, json=reply, headers={"x-request-number": str(len(self.requests))})

    @property
    def prompts(self):
        """By request."""
        read = [json.loads(each.content)["prompt"] for each in self.requests]
        return [each if isinstance(each, list) else [each] for each in read]


@pytest.fixture
def handler(library):
    return Handler(library)


@pytest.fixture
def over(library, made, handler):
    """Makes (transport, client) over the handler."""

    def make(headers=None, client=None, **settings):
        transport = made(library.MockTransport(handler), **settings)
        return transport, library.AsyncClient(
            transport=transport, base_url="http://llm.test/v1/", headers=headers, **client or {}
        )

    return make


def body(prompt, **fields):
    return {"model": "m", "prompt": prompt, "max_tokens": 1, **fields}


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 20))


# What is shared ------------------------------------------------------------------------------------------------------


async def test_200_completions_share_a_few_requests(library, made, server):
    prompts = [f"question {i}" for i in range(200)]
    before = server.requests
    transport = made()
    async with library.AsyncClient(transport=transport, timeout=30) as client:
        posts = [client.post(f"{server.base_url}/completions", json=body(p, temperature=0)) for p in prompts]
        responses = await asyncio.gather(*posts)
    assert server.requests - before <= 20
    assert transport.shared == 200 and transport.passed_on == 0
    for prompt, response in zip(prompts, responses, strict=True):
        assert response.status_code == 200
        (choice,) = response.json()["choices"]
        assert choice["text"] == expected_text(prompt, max_tokens=1, temperature=0)
        assert choice["index"] == 0


CALLS = {
    "completion": ("completions", body("once upon", temperature=0, max_tokens=8)),
    "several prompts": ("completions", body(["once", "upon"], temperature=0)),
    "token ids": ("completions", body([5, 6, 7], temperature=0)),
    "chat": (
        "chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0},
    ),
    "embedding": ("embeddings", {"model": "m", "input": "a text"}),
    "embeddings as numbers": ("embeddings", {"model": "m", "input": ["a", "b"], "encoding_format": "float"}),
    "embeddings as base64": ("embeddings", {"model": "m", "input": ["a", "b"], "encoding_format": "base64"}),
}
OF_ONE_REPLY = {"id", "created", "system_fingerprint", "prompt_tokens_estimated"}


def told(value):
    """Without nulls and a fingerprint, which a streamed reply lacks, and without what no two replies share."""
    if isinstance(value, dict):
        return {k: told(v) for k, v in value.items() if v is not None and k not in OF_ONE_REPLY}
    return [told(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", CALLS)
async def test_a_response_is_what_the_server_alone_would_have_sent(library, made, server, name):
    path, sent = CALLS[name]
    url = f"{server.base_url}/{path}"
    transport = made()
    async with (
        library.AsyncClient(timeout=30) as plain,
        library.AsyncClient(transport=transport, timeout=30) as ours,
    ):
        # Three at once, so that the answer is cut out of a shared one.
        plain = await plain.post(url, json=sent)
        responses = await asyncio.gather(*[ours.post(url, json=sent) for _ in range(3)])
    assert transport.shared == 3
    for response in responses:
        assert response.status_code == plain.status_code == 200
        assert dict(response.headers).keys() >= {"content-type", "content-length"}
        assert response.headers["content-type"] == plain.headers["content-type"]
        assert int(response.headers["content-length"]) == len(response.content)
        assert response.http_version == plain.http_version
        assert response.elapsed.total_seconds() > 0
        assert told(response.json()) == told(plain.json())


async def read_whole(response):
    return await response.aread()


async def read_pieces(response):
    return b"".join([piece async for piece in response.aiter_bytes()])


async def read_raw(response):
    return b"".join([piece async for piece in response.aiter_raw()])


async def read_twice(response):
    await response.aread()
    return b"".join([piece async for piece in response.aiter_bytes(5)])


@pytest.mark.parametrize("read", [read_whole, read_pieces, read_raw, read_twice])
async def test_a_response_may_be_read_in_any_way(library, over, read):
    transport, client = over()
    async with client, client.stream("POST", "completions", json=body("p")) as response:
        with pytest.raises(library.ResponseNotRead):
            response.content
        content = await read(response)
        assert json.loads(content)["choices"][0]["text"] == "P"
        assert response.num_bytes_downloaded == len(content) == int(response.headers["content-length"])
        if read in (read_whole, read_twice):
            assert pickle.loads(pickle.dumps(response)).json() == response.json()
        else:
            with pytest.raises(library.StreamConsumed):
                await response.aread()
    assert response.is_closed
    assert response.elapsed.total_seconds() > 0
    assert transport.shared == 1
    assert isinstance(response, library.Response)


async def test_the_headers_of_its_own_request_reach_every_caller(over, handler):
    _, client = over()
    async with client:
        first = [await client.post("completions", json=body("p0"))]
        responses = first + await asyncio.gather(*[client.post("completions", json=body(f"p{i}")) for i in range(1, 6)])
    for i, response in enumerate(responses):
        assert f"p{i}" in handler.prompts[int(response.headers["x-request-number"]) - 1]
    assert len(handler.requests) < 6


async def test_a_transport_that_was_given_carries_the_shared_requests_too(over, handler):
    transport, client = over()
    async with client:
        responses = await asyncio.gather(*[client.post("completions", json=body(f"p{i}")) for i in range(20)])
    assert transport.shared == 20
    assert [response.json()["choices"][0]["text"] for response in responses] == [f"P{i}" for i in range(20)]
    assert len(handler.requests) <= 3


# With whom -----------------------------------------------------------------------------------------------------------


def asked_with(handler, name):
    """{header's value: prompts that travelled with it}."""
    found = {}
    for request, prompts in zip(handler.requests, handler.prompts, strict=True):
        found.setdefault(request.headers.get(name), set()).update(prompts)
    return found


@pytest.mark.parametrize(
    "name", ["Authorization", "OpenAI-Organization", "OpenAI-Project", "Cookie", "X-Api-Key", "X-Of-My-Own"]
)
async def test_requests_that_differ_in_a_header_that_counts_never_share(over, handler, name):
    transport, client = over()
    async with client:
        posts = [
            client.post("completions", json=body(f"{who}{i}"), headers={name: who})
            for i in range(10)
            for who in ("ann", "bob")
        ]
        await asyncio.gather(*posts)
    assert transport.shared == 20
    assert asked_with(handler, name) == {who: {f"{who}{i}" for i in range(10)} for who in ("ann", "bob")}
    assert len(handler.requests) <= 6


async def test_queries_and_servers_are_apart(over, handler):
    urls = [
        "http://llm.test/v1/completions?v=1",
        "http://llm.test/v1/completions?v=2",
        "http://other.test/v1/completions",
    ]
    transport, client = over()
    async with client:
        await asyncio.gather(*[client.post(url, json=body(f"{url}{i}")) for i in range(5) for url in urls])
    assert transport.shared == 15
    for request, prompts in zip(handler.requests, handler.prompts, strict=True):
        assert all(prompt.startswith(str(request.url)) for prompt in prompts)
    assert {str(request.url) for request in handler.requests} == set(urls)


@pytest.mark.parametrize(
    "name", ["User-Agent", "x-stainless-retry-count", "traceparent", "X-Request-ID", "x-b3-spanid", "X-Mine"]
)
async def test_ignored_headers_keep_nobody_apart_and_are_not_sent(over, handler, name):
    _, client = over(ignored_headers=("x-mine",))
    async with client:
        posts = [client.post("completions", json=body(f"p{i}"), headers={name: f"ignored {i}"}) for i in range(20)]
        await asyncio.gather(*posts)
    assert len(handler.requests) <= 3
    assert not any("ignored" in value for request in handler.requests for value in request.headers.values())


async def test_clients_are_few_and_nothing_is_lost(over, handler):
    transport, client = over()
    async with client:
        for i in range(MOST_CLIENTS + 8):
            response = await client.post("completions", json=body(f"p{i}"), headers={"x-who": str(i)})
            assert response.json()["choices"][0]["text"] == f"P{i}"
        assert len(transport.clients) == MOST_CLIENTS
        assert transport.passed_on == 0
        # All are busy: the next goes around them.
        handler.go_on = asyncio.Event()
        numbers = range(100, 100 + MOST_CLIENTS + 8)
        tasks = [
            asyncio.ensure_future(client.post("completions", json=body(f"p{i}"), headers={"x-who": str(i)}))
            for i in numbers
        ]
        while len(handler.requests) < MOST_CLIENTS + 8 + len(numbers):
            await asyncio.sleep(0)
        handler.go_on.set()
        responses = await asyncio.gather(*tasks)
        assert transport.passed_on == 8
        assert [each.json()["choices"][0]["text"] for each in responses] == [f"P{i}" for i in numbers]
        assert len(transport.clients) == MOST_CLIENTS


# What goes past ------------------------------------------------------------------------------------------------------


async def pieces():
    yield b'{"model": "m",'
    yield b' "prompt": "in pieces", "max_tokens": 1}'


PAST = {
    "a stream": {"json": body("p", stream=True)},
    "no JSON": {"content": b'{"model": "m"', "headers": {"content-type": "application/json"}},
    "another content type": {"content": json.dumps(body("p")).encode(), "headers": {"content-type": "text/plain"}},
    "no content type": {"content": json.dumps(body("p")).encode()},
    "no model": {"json": {"prompt": "p", "max_tokens": 1}},
    "a prompt of another kind": {"json": body(["a", [1, 2]])},
    "compressed": {
        "content": json.dumps(body("p")).encode(),
        "headers": {"content-type": "application/json", "content-encoding": "identity"},
    },
    "in pieces": {"content": pieces, "headers": {"content-type": "application/json"}},
    "for events": {"json": body("p"), "headers": {"accept": "text/event-stream"}},
    "for another host": {"json": body("p"), "headers": {"host": "elsewhere.test"}},
    "a header twice": {
        "content": json.dumps(body("p")).encode(),
        "headers": [("content-type", "application/json"), ("x-two", "1"), ("x-two", "2")],
    },
    "a header that is no ASCII": {
        "content": json.dumps(body("p")).encode(),
        "headers": [(b"content-type", b"application/json"), (b"x-name", "Zoë".encode("latin-1"))],
    },
    "a header that ends in a space": {
        "content": json.dumps(body("p")).encode(),
        "headers": [(b"content-type", b"application/json"), (b"x-name", b"ann ")],
    },
    "a field of ours": {"json": body("p", priority=3)},
    "NaN": {"content": b'{"model":"m","prompt":"p","x":NaN}', "headers": {"content-type": "application/json"}},
    "a timeout of nothing": {"json": body("p"), "timeout": 0},
}


@pytest.mark.parametrize("name", PAST)
async def test_what_cannot_be_shared_goes_past_byte_for_byte(library, over, handler, name):
    def arguments():
        sent = PAST[name]
        return {**sent, "content": pieces()} if sent.get("content") is pieces else sent

    plain_handler = Handler(library)
    plain = library.AsyncClient(transport=library.MockTransport(plain_handler), base_url="http://llm.test/v1/")
    transport, client = over()
    async with plain, client:
        theirs = await plain.post("completions", **arguments())
        ours = await client.post("completions", **arguments())
    assert (transport.shared, transport.passed_on) == (0, 1)
    assert (ours.status_code, ours.headers, ours.content) == (theirs.status_code, theirs.headers, theirs.content)
    (theirs,), (ours,) = plain_handler.requests, handler.requests
    assert (ours.method, ours.url, ours.headers.raw, ours.content) == (
        theirs.method,
        theirs.url,
        theirs.headers.raw,
        theirs.content,
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "models"),
        ("POST", "responses"),
        ("GET", "completions"),
        ("POST", "completions/x"),
        ("PUT", "completions"),
    ],
)
async def test_other_routes_go_past(over, handler, method, path):
    transport, client = over()
    async with client:
        response = await client.request(method, path, json=body("p"))
    assert response.content == b"past"
    assert (transport.shared, transport.passed_on) == (0, 1)
    assert handler.requests[0].method == method


async def test_only_the_server_that_is_named_is_batched(over, handler):
    transport, client = over(base_url="http://LLM.test:80/v1/")
    async with client:
        await client.post("completions", json=body("a"))
        await client.post("http://llm.test/v2/completions", json=body("b"))
        await client.post("http://other.test/v1/completions", json=body("c"))
    assert (transport.shared, transport.passed_on) == (1, 2)


async def test_a_stream_is_handed_out_as_it_comes(library, made, server):
    transport = made()
    async with library.AsyncClient(transport=transport, timeout=30) as client:
        sent = body("once", max_tokens=5, stream=True)
        async with client.stream("POST", f"{server.base_url}/completions", json=sent) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in response.aiter_lines() if line]
    assert transport.passed_on == 1
    assert lines[-1] == "data: [DONE]"
    assert len(lines) >= 5


# Errors --------------------------------------------------------------------------------------------------------------


async def post_all(library, made, server, prompts, client=None, **settings):
    transport = made(**settings)
    async with library.AsyncClient(transport=transport, **client or {"timeout": 30}) as http:
        url = f"{server.base_url}/completions"
        posts = [http.post(url, json=body(prompt)) for prompt in prompts]
        return await asyncio.gather(*posts, return_exceptions=True)


async def test_every_response_tells_its_tokens_where_the_server_tells_a_sum(library, made):
    with EmbeddedServer("instant", model="m", guise=GUISES["openai"]) as server:
        prompts = [f"p {i}" for i in range(6)]
        responses = await post_all(library, made, server, prompts, dialect="openai", preset="throughput")
        usages = [response.json()["usage"] for response in responses]
        assert server.requests == 1
        alone = httpx.post(f"{server.base_url}/completions", json=body("p 0")).json()["usage"]
    assert usages == [alone | {"prompt_tokens_estimated": True}] * 6
    assert alone["completion_tokens"] > 0


async def test_one_bad_prompt_fails_with_the_servers_own_words_and_alone(library, made):
    prompts = [f"p{i}" for i in range(20)] + ["poison"]
    with EmbeddedServer("instant", model="m", faults=["bad_prompt=poison"]) as server:
        *good, bad = await post_all(library, made, server, prompts)
        plain = httpx.post(f"{server.base_url}/completions", json=body("poison"))
    assert [response.status_code for response in good] == [200] * 20
    assert bad.status_code == plain.status_code == 400
    assert bad.content == plain.content
    assert bad.headers["content-type"] == plain.headers["content-type"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 503])
async def test_a_lone_calls_error_is_the_servers_own(library, made, status):
    with EmbeddedServer("instant", model="m", faults=[f"status={status},retry_after=7"]) as server:
        (ours,) = await post_all(library, made, server, ["p"])
        plain = httpx.post(f"{server.base_url}/completions", json=body("p"))
        assert server.requests == 2
    assert ours.status_code == plain.status_code == status
    assert ours.content == plain.content
    assert ours.headers.get("retry-after") == plain.headers.get("retry-after") == "7"


async def test_an_error_that_concerned_many_has_openais_form(library, made):
    with EmbeddedServer("instant", model="m", faults=["status=503,retry_after=7"]) as server:
        responses = await post_all(library, made, server, [f"p{i}" for i in range(40)])
        assert server.requests < 40
    for response in responses:
        assert response.status_code == 503
        assert response.headers["retry-after"] == "7"
        assert response.headers["content-type"] == "application/json"
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert "503" in error["message"]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_calls_that_were_not_sent_after_a_refusal_of_their_model_have_its_status(library, made, status):
    with EmbeddedServer("instant", model="m", faults=[f"status={status}"]) as server:
        responses = [
            each for _ in range(2) for each in await post_all(library, made, server, [f"p{i}" for i in range(40)])
        ]
        assert server.requests < 80
    assert {response.status_code for response in responses} == {status}


async def test_a_reply_that_is_none_is_a_bad_gateway(library, made):
    with EmbeddedServer("instant", model="m", faults=["garbage"]) as server:
        (response,) = await post_all(library, made, server, ["p"])
    assert response.status_code == 502
    assert response.json()["error"]["type"] == "DialectError"


@pytest.mark.parametrize("prompts", ["p", ["p", "q"]])
async def test_what_the_client_itself_refuses_is_a_bad_request(library, made, prompts):
    with EmbeddedServer("instant", model="m") as server:
        async with library.AsyncClient(transport=made()) as client:
            asked = {"model": "m", "prompt": prompts, "max_tokens": 4, "thinking_tokens": -1}
            response = await client.post(f"{server.base_url}/completions", json=asked)
    assert response.status_code == 400 and "x-should-retry" not in response.headers
    told = "thinking_tokens is a whole number of at least 0, not -1"
    assert response.json()["error"] == {"message": told, "type": "BadRequest", "param": None, "code": None}


@pytest.mark.parametrize("count", [1, 3])
async def test_another_2xx_is_an_answer_and_stays_what_it_is(library, made, handler, count):
    async def created(request):
        response = await handler(request)
        response.status_code = 201
        return response

    async with library.AsyncClient(transport=made(library.MockTransport(created))) as client:
        calls = (client.post("http://llm.test/v1/completions", json=body(f"p{n}")) for n in range(count))
        responses = await asyncio.gather(*calls)
    assert [each.status_code for each in responses] == [201] * count
    assert [each.json()["choices"][0]["text"] for each in responses] == [f"P{n}" for n in range(count)]


async def test_what_would_fail_again_asks_not_to_be_sent_again(library, over, handler, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("a fault of ours")

    _, client = over()
    async with client:
        await client.post("completions", json=body("p"))
        monkeypatch.setattr(Dialect, "decoder", fail)
        response = await client.post("completions", json=body("p"))
    assert response.status_code == 502
    assert response.headers["x-should-retry"] == "false"


async def test_a_reply_over_the_cap_is_broken_off(library, over, monkeypatch):
    monkeypatch.setattr(connections, "LARGEST_RESPONSE_BYTES", 10)
    _, client = over()
    async with client:
        with pytest.raises(library.ReadError, match="over 10 bytes"):
            await client.post("completions", json=body("p"))


async def test_a_full_queue_is_a_429(library, made, over, handler):
    handler.go_on = asyncio.Event()
    _, client = over(limit=1, queue=Queue(max_calls=1, when_full="raise"))
    async with client:
        tasks = [asyncio.ensure_future(client.post("completions", json=body(f"p{i}"))) for i in range(4)]
        refused, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        handler.go_on.set()
        await asyncio.gather(*tasks)
    for response in [task.result() for task in refused]:
        assert response.status_code == 429
        assert response.json()["error"]["type"] == "QueueFull"


async def test_nobody_listens(library, made):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1/completions"
        async with library.AsyncClient(transport=made()) as client:
            with pytest.raises(library.ConnectError) as caught:
                await client.post(url, json=body("a secret prompt"), headers={"authorization": "Bearer sk-1"})
    assert str(caught.value.request.url) == url
    assert "secret" not in repr(caught.value) and "sk-1" not in repr(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "ConnectError",
        "ConnectTimeout",
        "PoolTimeout",
        "ReadTimeout",
        "WriteTimeout",
        "ReadError",
        "WriteError",
        "RemoteProtocolError",
    ],
)
async def test_the_networks_failures_are_the_librarys_own(library, made, name):
    kind = getattr(library, name)

    def fail(request):
        raise kind("it broke")

    async with library.AsyncClient(transport=made(library.MockTransport(fail))) as client:
        with pytest.raises(kind) as caught:
            await client.post("http://llm.test/v1/completions", json=body("p"))
        assert type(caught.value) is kind
        assert caught.value.request.method == "POST"


async def test_the_read_timeout_bounds_the_call(library, made):
    with EmbeddedServer("instant", model="m", faults=["stall"]) as server:
        (error,) = await post_all(library, made, server, ["p"], {"timeout": library.Timeout(30, read=0.2)})
    assert type(error) is library.ReadTimeout


async def test_no_timeout_is_none(library, over, handler):
    _, client = over(client={"timeout": None})
    async with client:
        assert (await client.post("completions", json=body("p"))).status_code == 200


async def test_a_redirect_is_followed_by_the_client(library, made, handler):
    async def move(request):
        if request.url.host == "old.test":
            return library.Response(307, headers={"location": "http://llm.test/v1/completions"})
        return await handler(request)

    transport = made(library.MockTransport(move))
    async with library.AsyncClient(transport=transport, follow_redirects=True) as client:
        response = await client.post("http://old.test/v1/completions", json=body("p"))
    assert response.json()["choices"][0]["text"] == "P"
    assert [each.status_code for each in response.history] == [307]


# Retries -------------------------------------------------------------------------------------------------------------


async def test_a_call_is_one_attempt_unless_told_otherwise(library, made):
    with EmbeddedServer("instant", model="m", faults=["status=500,count=1"]) as server:
        (first,) = await post_all(library, made, server, ["p"])
        assert (first.status_code, server.requests) == (500, 1)
    with EmbeddedServer("instant", model="m", faults=["status=500,count=1"]) as server:
        retry = Backoff(base_s=0.001)
        (second,) = await post_all(library, made, server, ["p"], max_attempts=None, retry=retry)
        assert (second.status_code, server.requests) == (200, 2)


# Life ----------------------------------------------------------------------------------------------------------------


async def test_a_cancelled_request_leaves_its_mates_alone(over, handler):
    handler.go_on = asyncio.Event()
    transport, client = over(limit=64)
    async with client:
        tasks = [asyncio.ensure_future(client.post("completions", json=body(f"p{i}"))) for i in range(10)]
        while sum(map(len, handler.prompts)) < 10:
            await asyncio.sleep(0)
        tasks[3].cancel()
        handler.go_on.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results.pop(3), asyncio.CancelledError)
    assert [result.json()["choices"][0]["text"] for result in results] == [f"P{i}" for i in range(10) if i != 3]
    assert max(map(len, handler.prompts)) > 1


def test_it_serves_one_event_loop_after_the_other(library, made, server):
    transport = made()
    client = library.AsyncClient(transport=transport, timeout=30)

    async def main():
        posts = [client.post(f"{server.base_url}/completions", json=body(f"p{i}")) for i in range(10)]
        responses = await asyncio.gather(*posts)
        models = await client.get(f"{server.base_url}/models")
        return [each.status_code for each in (*responses, models)]

    for _ in range(3):
        assert run(main) == [200] * 11
    run(client.aclose)


async def test_closing_ends_calls_and_is_final(library, over, handler):
    handler.go_on = asyncio.Event()
    transport, client = over()
    tasks = [asyncio.ensure_future(client.post("completions", json=body(f"p{i}"))) for i in range(5)]
    while not handler.requests:
        await asyncio.sleep(0)
    await client.aclose()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in results] == [library.ReadError] * 5
    with pytest.raises(RuntimeError, match="closed"):
        await transport.handle_async_request(library.Request("POST", "http://llm.test/v1/completions", json=body("p")))
    assert transport.clients == ()


async def test_closing_closes_what_was_given(library, made):
    class Given(library.AsyncBaseTransport):
        closed = False

        async def handle_async_request(self, request):
            return library.Response(200)

        async def aclose(self):
            self.closed = True

    given = Given()
    await made(given).aclose()
    assert given.closed


def test_what_goes_past_keeps_its_connections_until_the_end(library, made, server, monkeypatch):
    alive, made_so_far = [], []

    class Own(library.AsyncHTTPTransport):
        def __init__(self, *args, **arguments):
            super().__init__(*args, **arguments)
            alive.append(self)
            made_so_far.append(1)

        async def aclose(self):
            if self in alive:
                alive.remove(self)
            await super().aclose()

    monkeypatch.setattr(library, "AsyncHTTPTransport", Own)

    async def main():
        async with library.AsyncClient(transport=made(), timeout=30) as client:
            for _ in range(3):
                await client.get(f"{server.base_url}/models")
            assert len(alive) == len(made_so_far) == 1
        assert alive == []

    run(main)
    # A client that nobody closes lets go with its event loop.
    forgotten = library.AsyncClient(transport=made(), timeout=30)

    async def forget():
        await forgotten.get(f"{server.base_url}/models")
        assert len(alive) == 1

    run(forget)
    assert alive == []


async def test_nothing_is_left_in_the_loop(library, made, server):
    async with library.AsyncClient(transport=made(), timeout=30) as client:
        await client.post(f"{server.base_url}/completions", json=body("p"))
        await client.get(f"{server.base_url}/models")
    await asyncio.sleep(0)
    assert (asyncio.all_tasks() - {asyncio.current_task()}) == set()


def test_on_trio_it_is_refused(library, made):
    trio = pytest.importorskip("trio", reason="trio is not installed here")

    async def main():
        async with library.AsyncClient(transport=made()) as client:
            with pytest.raises(ConfigError, match="the transport is for asyncio"):
                await client.get("http://llm.test/v1/models")

    trio.run(main)


# Wrong arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"preset": "fast"}, "preset"),
        ({"limit": 0}, "limit"),
        ({"dialect": "no such"}, "dialect"),
        ({"model": "m"}, "model"),
        ({"api_key": "k"}, "api_key"),
        ({"headers": {}}, "headers"),
        ({"http_client": 1}, "http_client"),
        ({"refill_s": 1}, "refill_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"ignored_headers": "x-mine"}, "ignored_headers"),
        ({"ignored_headers": [1]}, "ignored_headers"),
        ({"ignored_headers": None}, "ignored_headers"),
        ({"labels": ["x-mine"]}, "labels"),
        ({"ignored_headers": ["x-mine", "Authorization"]}, "ignored_headers"),
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"transport": object()}, "transport"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(made, arguments, field):
    with pytest.raises(ConfigError) as caught:
        made(**arguments)
    assert caught.value.field == field


def test_what_needs_connections_of_ours_is_refused_with_a_transport(library, made):
    with pytest.raises(ConfigError) as caught:
        made(library.MockTransport(lambda request: None), probe=True)
    assert caught.value.field == "probe"


def test_a_transport_of_the_other_library_is_refused(library, made):
    other = pytest.importorskip("httpx" if library.__name__ == "httpx2" else "httpx2")
    with pytest.raises(ConfigError, match=f"transport of {library.__name__}'s"):
        made(other.MockTransport(lambda request: None))


async def test_a_client_of_the_other_library_is_told_so(library, made):
    other = pytest.importorskip("httpx" if library.__name__ == "httpx2" else "httpx2")
    client = other.AsyncClient(transport=made())
    with pytest.raises(ConfigError, match=f"for {library.__name__}; a client of {other.__name__} takes"):
        await client.get("http://llm.test/v1/models")


async def test_keys_are_not_shown(over):
    transport, client = over(headers={"authorization": "Bearer sk-1"})
    async with client:
        await client.post("completions?key=sk-2", json=body("a secret prompt"))
        shown = repr(transport)
    assert "1 shared" in shown
    assert "sk-" not in shown and "secret" not in shown
