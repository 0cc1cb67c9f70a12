"""No key and no prompt in a log, a repr or an exception, whatever the server says back."""

import json
import logging
import traceback

import pytest
from tests.seams import watch_cores
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client, settle

from batchclient import Backoff, BatchClient, BatchClientError, ConfigError, ConnectionLost
from tests.core import SendBatch
from batchclient._client.settings import make_settings
from batchclient.dialects import make_dialect
from batchclient.dialects.vllm import VllmDialect

KEY = "canary-key-6f1d"
HEADER_KEY = "canary-header-0b77"
PROMPT = "canary-prompt: naïve “quotes”\nand\tlines, 9z2q, that go on for more than thirty-two characters"
CANARIES = ("canary-key", "canary-header", "canary-prompt", "9z2q", "naïve", "na\\u00efve")


def every_word_of(caught):
    """What a log of the exception would show: it, its causes, its notes, its pickle; locals are not ours to hide."""
    words = [str(caught), repr(caught), repr(caught.__reduce__())]
    seen = caught
    while seen is not None:
        words += [str(seen), repr(seen), *getattr(seen, "__notes__", ())]
        seen = seen.__cause__ or seen.__context__
    words += [line for line in traceback.format_exception(caught) if not line.startswith("  File")]
    words.append(repr({name: value for name, value in vars(caught).items()}))
    return "\n".join(words)


def make(server, **arguments):
    return make_client(server, api_key=KEY, headers={"x-api-key": HEADER_KEY, "X-Trace": "fine"}, **arguments)


def echoes(words):
    """Bodies in which servers say back what they heard."""
    as_json, as_ascii = json.dumps(words, ensure_ascii=False), json.dumps(words)
    return {
        "message": error(400, f"cannot do {words}"),
        "python repr": error(400, f"[{{'type': 'x', 'input': {words!r}}}]"),
        "JSON in a message": error(400, f"cannot do {as_json}"),
        "ASCII JSON in a message": error(400, f"cannot do {as_ascii}"),
        "cut off": error(400, f"cannot do {words[:50]}…"),
        "text": Reply(500, {}, [f"cannot do {words}".encode()]),
        "text that is cut by us": Reply(500, {}, [b"x" * 380 + words.encode()]),
        "FastAPI": Reply(422, {}, [json.dumps({"detail": [{"loc": ["body"], "msg": "no", "input": words}]}).encode()]),
        "HTML": Reply(502, {}, [f"<html>{words}</html>".encode()]),
        "flat": Reply(400, {}, [json.dumps({"message": words, "type": "x"}).encode()]),
        "code": Reply(400, {}, [json.dumps({"error": {"message": "no", "type": words, "code": words}}).encode()]),
        "event": Reply(200, {}, [b"data: " + json.dumps({"error": {"message": words}}).encode() + b"\n\n"]),
        "no JSON": Reply(200, {}, [words.encode()]),
        "no event": Reply(200, {}, [b"data: " + words.encode() + b"\n\n"]),
        "an index": Reply(
            200, {}, [b"data: " + json.dumps({"choices": [{"index": words, "text": ""}]}).encode() + b"\n\n"]
        ),
        "401": Reply(401, {}, [json.dumps({"error": f"Unauthorized: {words}"}).encode()]),
    }


class Logged:
    """All records as text, and the fields of our own."""

    def __init__(self, caplog):
        self._caplog = caplog

    @property
    def text(self):
        ours = [vars(record) for record in self._caplog.records if record.name == "batchclient"]
        assert all("event" in each for each in ours), "each record is an event"
        return self._caplog.text + repr(ours)


@pytest.fixture
def everything_logged(caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("batchclient", "httpx", "httpcore", "asyncio"):
        caplog.set_level(logging.DEBUG, name)
    return Logged(caplog)


ECHOED = {"prompt": PROMPT, "key": KEY, "header": HEADER_KEY, "bearer": f"Bearer {KEY}"}


@pytest.mark.parametrize("what", ECHOED)
async def test_what_a_server_says_back_is_cut_out(what, everything_logged):
    for kind, echo in echoes(ECHOED[what]).items():
        for max_tokens in (1, 16):
            server = ScriptedTransport(*[echo] * 10)
            async with make(server, retry=Backoff(max_attempts=2, base_s=0)) as client:
                with pytest.raises(BatchClientError) as caught:
                    await client.complete(PROMPT, max_tokens=max_tokens)
                said = every_word_of(caught.value) + everything_logged.text + repr(client)
            assert [canary for canary in CANARIES if canary in said] == [], (kind, max_tokens)


async def test_a_list_is_as_discreet_as_a_single(everything_logged):
    others = [PROMPT.replace("canary-prompt", f"canary-prompt {number}") for number in range(4)]
    server = ScriptedTransport(*[lambda sent: error(400, f"cannot do {sent.prompts!r}")] * 10)
    async with make(server) as client:
        outcomes = await client.batch_map(others, "{}", return_exceptions=True)
    said = "\n".join(map(every_word_of, outcomes)) + everything_logged.text
    for canary in CANARIES:
        assert canary not in said


async def test_nothing_of_ours_shows_a_prompt_or_a_key(everything_logged, monkeypatch):
    server, objects = ScriptedTransport(held=True), []

    def collect(commands):
        for command in commands:
            objects.append(command)
            if isinstance(command, SendBatch):
                for request in command.batch.requests:
                    objects.extend([command.batch, request, request.group])

    watch_cores(monkeypatch, told=objects.append, commanded=collect)
    async with make(server, limit=2) as client:
        rows = client.stream_map([PROMPT] * 3, "{}")
        import anyio

        async with anyio.create_task_group() as group:
            group.start_soon(anext, rows)
            await server.arrived(1)
            assert any(isinstance(each, SendBatch) for each in objects)
            settings = make_settings("balanced", {"base_url": "http://host/v1", "headers": {"x-api-key": HEADER_KEY}})
            objects += [client, rows, server.sent[0].request, client.statistics(), settings]
            objects.append(make_dialect(None, (KEY, HEADER_KEY)))
            shown = "\n".join(map(repr, objects))
            server.release()
        await rows.aclose()
        await settle()
    said = shown + everything_logged.text
    for canary in CANARIES:
        assert canary not in said


async def test_a_fault_of_ours_does_not_show_what_it_was_about(everything_logged, monkeypatch):
    def break_it(dialect, batch):
        raise ValueError("an unexpected thing")

    server = ScriptedTransport()
    monkeypatch.setattr(VllmDialect, "encode", break_it)
    async with make(server) as client:
        with pytest.raises(BatchClientError) as caught:
            await client.complete(PROMPT)
    said = every_word_of(caught.value) + everything_logged.text
    for canary in CANARIES:
        assert canary not in said


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.complete(PROMPT + "\ud800"),
        lambda client: client.complete([PROMPT]),
        lambda client: client.complete([1, PROMPT]),
        lambda client: client.complete(PROMPT.encode()),
        lambda client: client.complete({"text": PROMPT}),
        lambda client: client.complete(PROMPT, temperature=float("nan")),
        lambda client: client.complete(PROMPT, stream=True),
        lambda client: client.batch_map([{"text": PROMPT}], "{other}"),
        lambda client: client.batch_map([{"text": PROMPT}], "{}"),
        lambda client: client.batch_map([PROMPT], "{text}"),
    ],
)
async def test_a_refusal_does_not_show_the_prompt(call, everything_logged):
    async with make(ScriptedTransport()) as client:
        with pytest.raises(ConfigError) as caught:
            await call(client)
    said = str(caught.value) + repr(caught.value) + everything_logged.text
    for canary in CANARIES:
        assert canary not in said


def test_a_refused_client_does_not_show_its_key():
    for arguments in (
        {"api_key": KEY + "\n"},
        {"headers": {"x-api-key": HEADER_KEY + "\n"}},
        {"api_key": KEY, "limit": -1},
    ):
        with pytest.raises(ConfigError) as caught:
            make_client(ScriptedTransport(), **arguments)
        assert "canary" not in str(caught.value) + repr(caught.value)


async def test_a_key_in_a_query_is_not_shown():
    server = ScriptedTransport(ConnectionLost("broke"))
    client = BatchClient(f"http://host/v1?key={KEY}", model="m", transport=lambda url, headers: server)
    assert KEY not in repr(client)
    async with client:
        await client.complete("p")
        assert KEY not in repr(client)
