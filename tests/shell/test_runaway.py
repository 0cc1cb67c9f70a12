"""The guard against loops, on by choice: a stream of its own is closed, and vLLM is asked to end the answer itself."""

import json

import anyio
import pytest

from batchclient import Batching, ConfigError
from batchclient.health import is_runaway

from .scripted import Reply, ScriptedTransport, error, make_client

FIELD = {"max_pattern_size": 32, "min_count": 32}


def endless(delta, said="again and ", pieces=60):
    """A stream that goes round, and does not end before it is closed."""

    def events():
        for place in range(pieces):
            piece = f"beginning {place} " if place < 3 else said
            choice = {"index": 0, "finish_reason": None, **delta(piece)}
            usage = {"prompt_tokens": 3, "completion_tokens": place + 1, "total_tokens": place + 4}
            yield b"data: " + json.dumps({"choices": [choice], "usage": usage}).encode() + b"\n\n"

    return Reply(headers={"content-type": "text/event-stream"}, chunks=[*events(), anyio.Event()])


@pytest.mark.parametrize(
    ("call", "delta"),
    [
        ("complete", lambda text: {"text": text}),
        ("chat", lambda text: {"delta": {"content": text}}),
        ("chat", lambda text: {"delta": {"reasoning": text}}),
    ],
)
async def test_a_stream_of_its_own_that_goes_round_is_closed(call, delta):
    server = ScriptedTransport(endless(delta))
    async with make_client(server) as client:
        arguments = {"runaway": True, "max_tokens": 5000}
        if call == "chat":
            answer = await client.chat([{"role": "user", "content": "x"}], **arguments)
        else:
            answer = await client.complete("x", **arguments)
        assert (answer.health, answer.finish_reason) == ("runaway", None)
        text = answer.text or answer.message["reasoning"]
        assert text.startswith("beginning 0") and is_runaway(text) and not is_runaway(text[:-11])
        assert answer.usage.completion_tokens == 3 + 26
        assert server.sent[0].state == "closed" and client.statistics().health["runaway"] == 1
        assert "runaway" not in server.sent[0].body


async def test_a_caller_s_stream_ends_there_too_and_without_the_guard_none_does():
    server = ScriptedTransport(endless(lambda text: {"text": text}))
    async with make_client(server) as client:
        stream = client.stream("x", runaway=True, max_tokens=5000)
        pieces = [piece.text async for piece in stream]
        assert len(pieces) == 29 and stream.completion.health == "runaway"
        reply = endless(lambda text: {"text": text})
        reply.chunks[-1:] = [
            b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\n',
            b"data: [DONE]\n\n",
        ]
        server.script = [reply]
        answer = await client.complete("x", max_tokens=5000)
        assert (answer.health, answer.finish_reason) == ("ok", "stop")
        assert "repetition_detection" not in server.sent[1].body


@pytest.mark.parametrize("dialect", [None, "vllm", "sglang", "openai", "llamacpp"])
async def test_a_server_that_ends_loops_itself_is_asked_to(dialect):
    async with make_client(server := ScriptedTransport(), dialect=dialect) as client:
        arguments = {"max_tokens": 50, "runaway": True}
        if dialect in (None, "vllm"):
            await client.batch_map(["a", "b"], "{}", **arguments)
            await client.batch_map(["a", "b"], "{}", **arguments, repetition_detection={"max_pattern_size": 9})
            fields = [sent.body["repetition_detection"] for sent in server.sent]
            assert fields == [FIELD, {"max_pattern_size": 9}], "the caller's own stands before ours"
        else:
            with anyio.move_on_after(0.1):
                await client.complete("a", **arguments)
            assert not any("repetition_detection" in sent.body for sent in server.sent)


async def test_a_server_that_refuses_the_field_is_asked_once():
    refusal = error(400, "Extra inputs are not permitted: repetition_detection")
    server = ScriptedTransport(refusal)
    async with make_client(server, batching=Batching(max_size=1), limit=1) as client:
        await client.batch_map(["a", "b", "c"], "{}", max_tokens=50, runaway=True)
    assert ["repetition_detection" in sent.body for sent in server.sent] == [True, False, False, False]


async def test_it_changes_no_call_s_identity_and_a_wrong_value_is_refused():
    async with make_client(ScriptedTransport()) as client:
        ids = [
            [row.id async for row in client.stream_map(["a"], "{}", max_tokens=50, runaway=on)] for on in (False, True)
        ]
        assert ids[0] == ids[1]
        with pytest.raises(ConfigError) as caught:
            await client.complete("a", runaway=1)
        assert caught.value.field == "runaway"
