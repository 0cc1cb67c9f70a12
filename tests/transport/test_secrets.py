"""Over real sockets: whatever a server does with what it heard, no key and no prompt comes out on our side.

Looked at: our log at every level, the error with its causes and contexts, their attributes, the local variables of every frame they
keep, pickles, statistics, reprs.
"""

import asyncio
import gzip
import logging
import pickle
import traceback

import pytest
from tests.seams import connected
from tests.transport.conftest import two_backends
from tests.fakes.raw import RawServer, answer, body_of, response

from batchclient import Backoff, BatchClient, BatchClientError, ConfigError, DialectError, Http
from batchclient._client.settings import make_settings

KEY = "canary-key-51c0"
HEADER_KEY = "canary-header-9ad2"
QUERY_KEY = "canary-query-77e1"
PROMPT = "canary-prompt with some more words in it"
NEVER = Backoff(max_attempts=1)


def make(server, backend, **arguments):
    given = {"api_key": KEY, "headers": {"x-api-key": HEADER_KEY}, "retry": NEVER, "server_metrics": False, **arguments}
    return connected(f"{server.url}?k={QUERY_KEY}", model="m", backend=backend, **given)


def words_of(error):
    """Everything that hangs on an error, but for what the test's own frames hold."""
    words, left, seen = [], [error], set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        words += [str(one), repr(one), repr(vars(one)), *getattr(one, "__notes__", ())]
        for frame, _ in traceback.walk_tb(one.__traceback__):
            ours = "/batchclient/" in frame.f_code.co_filename
            # The caller gave these, and has them in frames of its own.
            given = ("prompt", "item", "params", "docs") if ours else ()
            if "/tests/" not in frame.f_code.co_filename:
                words += [repr(value) for name, value in frame.f_locals.items() if name not in given]
        left += [one.__cause__, one.__context__]
    words.append(repr(pickle.dumps(error)))
    return "\n".join(words)


@pytest.fixture
def log(caplog):
    caplog.set_level(1)
    caplog.set_level(1, "batchclient")
    # Their own debug logs show the headers of replies; they are no part of ours, and said in the docs.
    others = [logging.getLogger(name) for name in ("httpcore", "httpcore2")]
    for other in others:
        other.setLevel(logging.INFO)
    yield caplog
    for other in others:
        other.setLevel(logging.NOTSET)


def heard_back(heard):
    """All that came, in one line."""
    return " ".join([heard.path, *(f"{name}={value}" for name, value in heard.headers), heard.body.decode()])


def raw(line):
    return lambda heard: (line % heard_back(heard)).encode()


def request_of(heard):
    """As a port that only echoes has it."""
    lines = [f"{heard.method} {heard.path} HTTP/1.1", *(f"{name}: {value}" for name, value in heard.headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + heard.body


ECHOES = {
    "the request itself": request_of,
    "the request's body": lambda heard: heard.body + b"\r\n\r\n",
    "the status line": raw("HTTP/1.1 200 %s\r\ncontent-length: 0\r\n\r\n"),
    "a status line that is none": raw("HTTP/9 %s\r\n\r\n"),
    "a header": raw("HTTP/1.1 500 no\r\nx-echo: %s\r\ncontent-length: 0\r\n\r\n"),
    "a header's name": raw("HTTP/1.1 200 OK\r\n%s: 1\r\n\r\n"),
    "content-type": raw("HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: 2\r\n\r\n[]"),
    "content-type, no JSON": raw("HTTP/1.1 200 OK\r\ncontent-type: text/%s\r\ncontent-length: 2\r\n\r\nno"),
    "content-type, the key first": lambda heard: (
        f"HTTP/1.1 200 OK\r\ncontent-type: text/{KEY}\r\ncontent-length: 2\r\n\r\nno".encode()
    ),
    "content-length": raw("HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\n"),
    "transfer-encoding": raw("HTTP/1.1 200 OK\r\ntransfer-encoding: %s\r\n\r\n"),
    "content-encoding": raw("HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-length: 2\r\n\r\n[]"),
    "a chunk's length": raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%s\r\n"),
    "retry-after": raw("HTTP/1.1 503 no\r\nretry-after: %s\r\ncontent-length: 0\r\n\r\n"),
    "rate limits": raw("HTTP/1.1 429 no\r\nx-ratelimit-limit-requests: %s\r\ncontent-length: 0\r\n\r\n"),
    "location": raw("HTTP/1.1 307 no\r\nlocation: http://127.0.0.1:1/%s\r\ncontent-length: 0\r\n\r\n"),
    "set-cookie": raw("HTTP/1.1 401 no\r\nset-cookie: %s\r\ncontent-length: 0\r\n\r\n"),
    "the body": lambda heard: response(heard_back(heard).encode()),
    "the body of a 400": lambda heard: response(heard_back(heard).encode(), "400 no"),
    "the body of a 500": lambda heard: response(heard_back(heard).encode(), "500 no"),
    "a body cut off": lambda heard: response(heard_back(heard).encode(), length=100_000),
    "a body that is not what its encoding says": lambda heard: response(
        heard_back(heard).encode(), headers=[("content-encoding", "gzip")]
    ),
    "an event": lambda heard: response(
        b"data: " + heard_back(heard).encode() + b"\n\n", headers=[("content-type", "text/event-stream")]
    ),
}


@pytest.mark.parametrize("where", ECHOES)
async def test_what_a_server_says_back_comes_out_nowhere(backend, where, log):
    async def say_it_back(heard, reader, writer, server):
        writer.write(ECHOES[where](heard))
        return True

    made = []
    async with RawServer(on_request=say_it_back) as server, make(server, backend, made=made.append) as client:
        said = []
        for max_tokens in (1, 16):
            with pytest.raises(BatchClientError) as caught:
                await client.complete(PROMPT, max_tokens=max_tokens)
            said.append(words_of(caught.value))
        said += [repr(client), repr(client.statistics()), repr(made)]
    said.append(log.text)
    found = "\n".join(said)
    assert server.heard, "it must have heard them to say them back"
    for canary in ("canary-key", "canary-header", "canary-query", "canary-prompt", "51c0", "9ad2"):
        assert canary not in found, found[max(0, found.find(canary) - 300) :][:600]


def test_settings_are_shown_without_keys():
    settings = make_settings(
        "balanced", {"base_url": f"http://host/v1?k={QUERY_KEY}", "headers": {"x-api-key": HEADER_KEY}}
    )
    assert "canary" not in repr(settings)


async def test_the_key_of_a_server_that_joined_later_is_cut_out_too(log):
    async def say_it_back(heard, reader, writer, server):
        writer.write(response(heard.path.encode(), "400 no"))

    async with (
        RawServer(on_request=say_it_back) as first,
        RawServer(on_request=say_it_back) as later,
        make(first, "httpx") as client,
    ):
        client.add_endpoint(f"{later.url}?k=canary-joined")
        await client.remove_endpoint(f"{first.url}?k={QUERY_KEY}")
        with pytest.raises(BatchClientError) as caught:
            await client.complete(PROMPT)
    assert "[key]" in str(caught.value)
    assert "canary" not in words_of(caught.value) + log.text


async def test_the_first_servers_dialect_cuts_the_key_of_a_later_one_out_too():
    async def say_it(heard, reader, writer, server):
        writer.write(response(b"canary-joined", "400 no"))

    async with RawServer(on_request=say_it) as first, make(first, "httpx") as client:
        with pytest.raises(BatchClientError):
            await client.complete("before")
        client.add_endpoint("http://127.0.0.1:9/v1?k=canary-joined")
        await client.remove_endpoint("http://127.0.0.1:9/v1?k=canary-joined")
        with pytest.raises(BatchClientError, match=r"400: \[key\]"):
            await client.complete("after")


def test_the_search_itself_finds_what_is_there():
    """The net has holes of the right size: a key in a cause's frame, in a context and in an attribute is seen."""

    def of_a_library(headers):
        raise ValueError("no")

    # A file name outside the tests, as a library's.
    source = compile("def fail(headers):\n    raise ValueError('no')\n", "/lib/x.py", "exec")
    space = {}
    exec(source, space)
    try:
        try:
            space["fail"]([KEY])
        except ValueError as error:
            raise BatchClientError("x") from error
    except BatchClientError as error:
        assert KEY in words_of(error)
    error = BatchClientError("x")
    error.extra = KEY
    assert KEY in words_of(error)


@pytest.mark.parametrize(
    "arguments",
    [
        {"headers": {"x-api-key": HEADER_KEY + "\n"}},
        {"limit": -1},
        {"headers": {"x-api-key": HEADER_KEY}, "timeout_s": "x"},
    ],
)
def test_a_refused_setting_brings_no_key_along_in_its_context(arguments):
    with pytest.raises(ConfigError) as caught:
        BatchClient("http://host/v1", **{"api_key": KEY, **arguments})
    # pydantic's error shows what was given.
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_a_refused_prompt_is_not_brought_along():
    async def story():
        async with BatchClient("http://127.0.0.1:1/v1", model="m") as client:
            for refused in (client.complete(PROMPT + "\ud800"), client.complete("p", suffix=PROMPT + "\ud800")):
                with pytest.raises(ConfigError) as caught:
                    await refused
                chain = [caught.value, caught.value.__cause__, caught.value.__context__]
                assert PROMPT not in repr(chain)

    asyncio.run(story())


def test_a_row_does_not_show_its_document():
    from batchclient import MapResult

    assert PROMPT not in repr(MapResult("id", 0, PROMPT))


# Where credentials go -------------------------------------------------------------------------------------------------


# Sizes ----------------------------------------------------------------------------------------------------------------


def peak_of(bomb):
    import tracemalloc

    tracemalloc.start()
    try:
        bomb()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@two_backends
@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip"])
def test_a_bomb_does_not_go_off_in_memory(backend, encoding):
    body = b"\0" * 50_000_000
    for _ in encoding.split(","):
        body = gzip.compress(body, 9)

    async def send_it(heard, reader, writer, server):
        writer.write(response(body, headers=[("content-encoding", encoding)]))
        return True

    async def story():
        async with (
            RawServer(on_request=send_it) as server,
            make(server, backend, http=Http(max_response_bytes=1_000_000)) as client,
        ):
            with pytest.raises(BatchClientError, match="max_response_bytes"):
                await client.complete("p")

    # httpx would unpack the whole of it, 50 MB, before the cap is looked at.
    assert peak_of(lambda: asyncio.run(story())) < 8_000_000


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, br"])
async def test_other_encodings_are_refused(backend, encoding):
    async def send_it(heard, reader, writer, server):
        writer.write(response(gzip.compress(body_of(heard)), headers=[("content-encoding", encoding)]))

    async with RawServer(on_request=send_it) as server, make(server, backend) as client:
        with pytest.raises(BatchClientError, match="encoded in a way"):
            await client.complete("p")


async def test_what_comes_after_a_failure_is_not_waited_for(backend):
    async def fail_and_ping(heard, reader, writer, server):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        writer.write(b'data: {"error": {"message": "no", "code": 400}}\n\n')
        while True:
            writer.write(b": ping\n\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with RawServer(on_request=fail_and_ping) as server, make(server, backend) as client:
        async with asyncio.timeout(5):
            with pytest.raises(BatchClientError, match="no"):
                await client.complete("p", max_tokens=16)
