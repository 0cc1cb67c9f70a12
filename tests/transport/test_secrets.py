"""Over real sockets: whatever a server does with what it heard, no key and no prompt comes out on our side.

A table of echoes, which are ways to say it back, by outlets, which are places where it could come out.
"""

import asyncio
import gzip
import json

import pytest
from tests.core import SendBatch
from tests.fakes.raw import JSON, RawServer, answers_in_a_thread, body_of, response
from tests.integrations.test_prometheus import scraped
from tests.outlets import LogOutlet, frames_of, of_error, records_of, shown_in
from tests.seams import connected, watch_cores
from tests.telemetry.conftest import seen  # a fixture
from typer.testing import CliRunner

from batchclient import Backoff, BatchClient, BatchClientError, Server, read_call
from batchclient.cli.app import make_app
from batchclient.integrations.prometheus import Collector

# Hexadecimal digits would be in the spans' ids by chance.
KEY = "canary-key-qz51"
HEADER_KEY = "canary-header-wx9h"
QUERY_KEY = "canary-query-yv7j"
PROMPT = "canary-prompt: naïve “quotes”\nand\tlines, 9z2q, that go on for more than thirty-two characters"
CANARIES = ("canary-", "qz51", "wx9h", "yv7j", "9z2q", "naïve", "na\\u00efve", "na\\xefve")
WORDS = {"prompt": PROMPT, "key": KEY, "header": HEADER_KEY, "bearer": f"Bearer {KEY}", "query": f"?k={QUERY_KEY}"}
NEVER = Backoff(max_attempts=1)


def make(server, backend, **arguments):
    given = {"api_key": KEY, "headers": {"x-api-key": HEADER_KEY}, "retry": NEVER, "probe": False, **arguments}
    return connected(f"{server.url}?k={QUERY_KEY}", model="m", backend=backend, **given)


# Echoes ---------------------------------------------------------------------------------------------------------------


def heard_back(heard):
    """All that came, in one line."""
    return " ".join([heard.path, *(f"{name}={value}" for name, value in heard.headers), heard.body.decode()])


def raw(line):
    return lambda heard: (line % heard_back(heard)).encode()


def as_body(status="200 OK", before="", **given):
    return lambda heard: response(f"{before}{heard_back(heard)}\n\n".encode(), status, **given)


def request_of(heard):
    """As a port that only echoes has it."""
    lines = [f"{heard.method} {heard.path} HTTP/1.1", *(f"{name}: {value}" for name, value in heard.headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + heard.body


OF_HTTP = {
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
    "the body": as_body(),
    "the body of a 400": as_body("400 no"),
    "the body of a 500": as_body("500 no"),
    "its values' repr": lambda heard: response(f"cannot do {list(heard.json.values())!r}".encode(), "400 no"),
    "a body cut off": as_body(length=100_000),
    "a body that is not what its encoding says": as_body(headers=[("content-encoding", "gzip")]),
    "an event": as_body(before="data: ", headers=[("content-type", "text/event-stream")]),
}


def refused(message, **fields):
    return response(json.dumps({"error": {"message": message, "code": 400, **fields}}).encode(), "400 no", JSON)


def text(words, status="200 OK"):
    return response(words.encode(), status)


OF_BODIES = {
    "message": lambda words: refused(f"cannot do {words}"),
    "python repr": lambda words: refused(f"[{{'type': 'x', 'input': {words!r}}}]"),
    "JSON in a message": lambda words: refused(f"cannot do {json.dumps(words, ensure_ascii=False)}"),
    "ASCII JSON in a message": lambda words: refused(f"cannot do {json.dumps(words)}"),
    "cut off": lambda words: refused(f"cannot do {words[:50]}…"),
    "code": lambda words: refused("no", type=words, code=words),
    "text": lambda words: text(f"cannot do {words}", "500 no"),
    "text that is cut by us": lambda words: text("x" * 380 + words, "500 no"),
    "FastAPI": lambda words: text(json.dumps({"detail": [{"loc": ["body"], "msg": "no", "input": words}]}), "422 no"),
    "HTML": lambda words: text(f"<html>{words}</html>", "502 no"),
    "flat": lambda words: text(json.dumps({"message": words, "type": "x"}), "400 no"),
    "401": lambda words: text(json.dumps({"error": f"Unauthorized: {words}"}), "401 no"),
    "an event of an error": lambda words: text(f"data: {json.dumps({'error': {'message': words}})}\n\n"),
    "no JSON": text,
    "no event": lambda words: text(f"data: {words}\n\n"),
    "an index": lambda words: text(f"data: {json.dumps({'choices': [{'index': words, 'text': ''}]})}\n\n"),
}


# Outlets --------------------------------------------------------------------------------------------------------------


class Left:
    """What a client leaves behind: errors, a journal, and every object that it made or was told of."""

    def __init__(self, folder):
        self.folder, self.errors, self.objects = folder, [], []

    def commanded(self, commands):
        for command in commands:
            self.objects.append(command)
            if isinstance(command, SendBatch):
                self.objects += [command.batch, *command.batch.requests, command.batch.requests[0].group]

    async def gather(self, client):
        """Make all sorts of calls, each of which fails; and look at the client while it has them."""
        for call in (
            client.complete(PROMPT, max_tokens=1),
            client.complete(PROMPT, max_tokens=16),
            client.chat([{"role": "user", "content": PROMPT}]),
            client.embed(PROMPT),
            client.score("a question", PROMPT),
        ):
            with pytest.raises(BatchClientError) as caught:
                await call
            self.errors.append(caught.value)
        documents = [PROMPT.replace("canary-prompt", f"canary-prompt {number}") for number in range(2)]
        async with client.stream_map(documents, "{}", journal=self.folder / f"{len(self.errors)}.journal") as rows:
            found = [row async for row in rows]
        self.errors += [row.error for row in found]
        self.objects += [client, rows, *found, client.statistics()]
        self.page = scraped(Collector(client))

    def outlets(self, log, seen):
        outlets = {
            "log": log.text,
            "repr": "\n".join(map(repr, self.objects)),
            "spans": "\n".join(span.to_json() for span in seen.all),
            "metrics": self.page,
            "journal": "".join(path.read_bytes().decode() for path in self.folder.iterdir()),
        }
        assert all(outlets.values()), "each has something in it"
        for number, error in enumerate(self.errors):
            said = {**of_error(error), "frames": frames_of(error)}
            outlets |= {f"{outlet} of call {number}": words for outlet, words in said.items()}
        return outlets


CELLS = [(echo, backend) for echo in OF_HTTP for backend in (None, "httpx", "httpx2")]
CELLS += [(echo, "httpx") for echo in OF_BODIES]


@pytest.mark.parametrize(("echo", "backend"), CELLS)
async def test_what_a_server_says_back_comes_out_nowhere(echo, backend, caplog, seen, tmp_path, monkeypatch):
    log, left = LogOutlet(caplog), Left(tmp_path)
    watch_cores(monkeypatch, told=left.objects.append, commanded=left.commanded)

    async def say_it_back(heard, reader, writer, server):
        body = OF_BODIES.get(echo)
        prompt = heard.prompts[0] if b'"prompt"' in heard.body else PROMPT
        writer.write(body(words.replace(PROMPT, prompt)) if body else OF_HTTP[echo](heard))
        return True

    for what, words in WORDS.items() if echo in OF_BODIES else [("all that came", "")]:
        async with (
            RawServer(on_request=say_it_back) as server,
            make(server, backend, made=left.objects.append, telemetry=seen.telemetry()) as client,
        ):
            await left.gather(client)
        assert len({heard.path for heard in server.heard}) == 4, "it heard each kind of call, to say it back"
        assert not (shown := shown_in(left.outlets(log, seen), CANARIES)), (echo, what, shown)


TERMINALS = {
    "doctor": (["doctor", "URL"], ("the request itself", "the body of a 400", "401")),
    "doctor --json": (["doctor", "URL", "--json"], ("401",)),
    "map": (
        [*("map", "in.jsonl", "-o", "out.jsonl", "--base-url", "URL", "--model", "m"), "--prompt", "{text}"],
        ("the body of a 400", "message", "code", "flat", "401", "set-cookie"),
    ),
    "bench": (["bench", "--base-url", "URL", "--model", "m", "--quick"], ("the body of a 400", "message", "401")),
}


@pytest.mark.parametrize("command", TERMINALS)
def test_what_a_server_says_back_is_on_no_terminal(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": 1, "text": PROMPT}) + "\n")
    words = " ".join(words for what, words in WORDS.items() if what != "prompt")

    async def say_it_back(heard, reader, writer, server):
        writer.write(OF_BODIES[echo](words) if echo in OF_BODIES else OF_HTTP[echo](heard))
        return True

    arguments, echoes = TERMINALS[command]
    with answers_in_a_thread(on_request=say_it_back) as url:
        for number, echo in enumerate(echoes):
            given = [each.replace("URL", f"{url}?k={QUERY_KEY}").replace("out", f"out{number}") for each in arguments]
            given += ["--api-key", KEY, "--header", f"x-api-key: {HEADER_KEY}"]
            done = CliRunner().invoke(make_app(given[:1]), given)
            assert done.exit_code and not done.output.startswith("Usage"), (echo, done.output)
            written = {path.name: path.read_bytes().decode() for path in tmp_path.glob(f"out{number}*")}
            # A row in the output has its text, as it is meant to.
            shown = shown_in({"terminal": done.output}, CANARIES) + shown_in(written, CANARIES[1:4])
            assert not shown, (echo, shown)


async def test_the_key_of_a_server_that_joined_later_is_cut_out_of_every_servers_messages(caplog):
    log = LogOutlet(caplog)

    async def say_it(heard, reader, writer, server):
        writer.write(response(f"{heard.path} canary-own canary-joined canary-later".encode(), "400 no"))

    async with RawServer(on_request=say_it) as first, RawServer(on_request=say_it) as later:
        known, joined = f"{first.url}?k={QUERY_KEY}", f"{later.url}?k=canary-joined"
        server = Server(known, api_key="canary-own")
        async with BatchClient(server, model="m", retry=NEVER, probe=False) as client:
            # Nothing of the second is known yet; then one of both is left.
            for leaves in (None, joined, known):
                if leaves:
                    client.add_endpoint(Server(joined, api_key="canary-later"))
                    await client.remove_endpoint(leaves)
                said = "[key] [key] [key]" if leaves else "[key] canary-joined canary-later"
                with pytest.raises(BatchClientError) as caught:
                    await client.complete(PROMPT)
                assert str(caught.value) == f"400: /v1/completions?k=[key] {said}"
                outlets = {**of_error(caught.value), "frames": frames_of(caught.value), "repr": repr(client)}
                assert not leaves or not shown_in(outlets, ["canary"])
    assert (len(first.heard), len(later.heard)) == (2, 1)
    assert not shown_in({"log": log.text}, ["canary-own", "canary-query"])


async def test_no_record_of_a_map_or_a_row_shows_a_prompt_or_a_field_in_a_traceback_with_values():
    async def refuse(heard, reader, writer, server):
        writer.write(refused("no"))

    async def ask(row, client):
        return await client.complete(row, user="canary-user")

    async with RawServer(on_request=refuse) as server, make(server, None) as client:
        given = {"user": "canary-user", "tenant": "canary-tenant"}
        rows = [{"prompt": PROMPT, "params": {"runaway": 5}}]
        for call in (
            client.batch_map([PROMPT], "{}", **given),
            client.batch_map([PROMPT], "{}", fail_if=["canary"], **given),
            client.batch_map([PROMPT, None], **given),
            client.batch_map([PROMPT], "{}", call="canary"),
            client.rerank("a question", [PROMPT], **given),
        ):
            with pytest.raises(BatchClientError) as caught:
                await call
            records = [words for words in records_of(caught.value) if "canary-" in words]
            assert not records
        async with client.stream_map(rows) as mapped, client.run(ask, [PROMPT]) as ran:
            for result in [row async for row in mapped] + [row async for row in ran]:
                assert not [words for words in records_of(result.error) if "canary-" in words]
    assert "canary-" not in repr(read_call({"prompt": PROMPT, "params": {"user": "canary-user"}}))


def test_the_search_itself_finds_what_is_there():
    """The net has holes of the right size: a key in a cause's frame, in a context and in an attribute is seen."""
    # A file name outside the tests, as a library's.
    exec(compile("def fail(headers):\n    raise ValueError('no')\n", "/lib/x.py", "exec"), space := {})
    try:
        try:
            space["fail"]([KEY])
        except ValueError as error:
            error.extra = HEADER_KEY
            raise BatchClientError("x") from error
    except BatchClientError as error:
        error.extra = QUERY_KEY
        assert KEY in frames_of(error)
        assert [outlet for outlet, _, _ in shown_in(of_error(error), [QUERY_KEY])] == ["error", "pickle"]
        assert [outlet for outlet, _, _ in shown_in(of_error(error), [HEADER_KEY])] == ["error"]


# Replies that are not read to their end -------------------------------------------------------------------------------


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
