"""``stream()`` and ``stream_chat()``: pieces for their caller, in virtual time, on asyncio and trio."""

import gc
import json

import anyio
import pytest

from batchclient import (
    Batching,
    Http,
    BatchClient,
    AnswerInvalid,
    Backoff,
    ConfigError,
    ConnectionLost,
    Delta,
    ReadTimedOut,
    Usage,
)
from batchclient.simulator import (
    Profile,
    SimulatedServer,
    expected_text,
    render_messages,
)
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client, settle
from tests.shell.test_chat import Person, make, user

STEPS = Profile("t", "", step_s=0.010, max_num_seqs=256, kv_tokens=1_000_000)


def piece(text, finish_reason=None, tokens=1, index=0):
    usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
    choice = {"index": index, "text": text, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [choice], "usage": usage}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def reply(*chunks):
    return Reply(chunks=list(chunks))


async def texts(stream):
    return [delta.text async for delta in stream]


# Pieces ------------------------------------------------------------------------------------------------------------


async def test_each_token_comes_when_it_is_made_and_the_whole_answer_after():
    client, log = make()
    async with client:
        stream = client.stream("once", max_tokens=5, temperature=0)
        assert stream.completion is None
        seen = []
        async for delta in stream:
            seen.append((delta.text, anyio.current_time()))
    whole = expected_text("once", max_tokens=5, temperature=0)
    assert "".join(text for text, _ in seen) == whole
    assert len(seen) == 5
    gaps = [later - sooner for (_, sooner), (_, later) in zip(seen, seen[1:], strict=False)]
    assert gaps == pytest.approx([0.010] * 4, abs=0.002)
    assert (stream.completion.text, stream.completion.usage) == (whole, Usage(2, 5))
    assert stream.completion.time_to_first_token_s > 0
    assert "stream_interval" not in log.sent[0][1]


async def test_the_last_piece_comes_also_without_its_blank_line():
    """Some servers end a stream so."""
    async with make_client(ScriptedTransport(reply(piece("a"), piece("b", "stop", 2).rstrip(b"\n")))) as client:
        stream = client.stream("p")
        assert await texts(stream) == ["a", "b"]
    assert stream.completion.text == "ab"


async def test_a_chats_deltas_are_the_servers():
    client, log = make()
    async with client:
        stream = client.stream_chat(user("hi"), max_tokens=3, temperature=0, logprobs=True)
        deltas = [delta async for delta in stream]
    assert log.paths == ["/chat/completions"]
    assert deltas[0] == Delta("", message={"role": "assistant", "content": ""})
    assert [delta.finish_reason for delta in deltas] == [None, None, None, "length"]
    assert [delta.message["content"] for delta in deltas] == [delta.text for delta in deltas]
    assert all(len(delta.logprobs["content"]) == 1 for delta in deltas[1:])
    expected = expected_text(render_messages(user("hi")), max_tokens=3, temperature=0)
    assert stream.completion.message == {"role": "assistant", "content": expected}


async def test_several_choices_are_told_apart():
    client, _ = make()
    async with client:
        stream = client.stream("once", max_tokens=4, n=3, seed=1, return_token_ids=True)
        joined = {0: "", 1: "", 2: ""}
        ids = {0: (), 1: (), 2: ()}
        async for delta in stream:
            joined[delta.index] += delta.text
            ids[delta.index] += delta.token_ids
    assert joined == {choice.index: choice.text for choice in stream.completion.choices}
    assert ids == {choice.index: choice.token_ids for choice in stream.completion.choices}
    assert len(set(joined.values())) == 3


async def test_a_callers_own_interval_is_passed_on():
    client, log = make()
    async with client:
        pieces = await texts(client.stream("once", max_tokens=9, stream_interval=4))
    assert log.sent[0][1]["stream_interval"] == 4
    assert len(pieces) < 9


async def test_equal_streams_share_no_generation():
    client, log = make(batching=Batching(single_flight=True))
    seen = []

    async def take():
        seen.append("".join(await texts(client.stream("once", max_tokens=3, temperature=0))))

    async with client, anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(take)
    assert seen == [expected_text("once", max_tokens=3, temperature=0)] * 2
    assert len(log.sent) == 2


async def test_a_server_that_answers_whole_gives_one_piece_per_choice():
    body = {"id": "x", "choices": [{"index": i, "text": f"t{i}", "finish_reason": "stop"} for i in (0, 1)]}
    whole = Reply(headers={"content-type": "application/json"}, chunks=[json.dumps(body).encode()])
    transport = ScriptedTransport(whole)
    async with make_client(transport) as client:
        stream = client.stream("a", n=2, max_tokens=9)
        deltas = [delta async for delta in stream]
    assert deltas == [Delta("t0", 0, "stop"), Delta("t1", 1, "stop")]
    assert stream.completion.text == "t0"


async def test_it_ends_once():
    client, _ = make()
    async with client:
        stream = client.stream("once", max_tokens=2)
        assert len(await texts(stream)) == 2
        assert await texts(stream) == []
        await stream.aclose()


# Leaving -----------------------------------------------------------------------------------------------------------


async def _break(client, transport):
    async for _ in client.stream("a", max_tokens=9):
        break


async def _close(client, transport):
    stream = client.stream("a", max_tokens=9)
    await stream.__anext__()
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()


async def _leave_with(client, transport):
    async with client.stream("a", max_tokens=9) as stream:
        await stream.__anext__()


async def _raise(client, transport):
    with pytest.raises(KeyError):
        async with client.stream("a", max_tokens=9) as stream:
            async for _ in stream:
                raise KeyError


async def _cancel(client, transport):
    stream = client.stream("a", max_tokens=9)
    with anyio.move_on_after(1.0):
        async for _ in stream:
            pass


@pytest.mark.parametrize("leave", [_break, _close, _leave_with, _raise, _cancel])
async def test_leaving_closes_the_connection_and_returns_the_permit(leave):
    transport = ScriptedTransport(reply(piece("a"), 5.0, piece("b"), 1e5, DONE))
    async with make_client(transport) as client:
        await leave(client, transport)
        gc.collect()
        await settle()
        assert transport.states == ["closed"]
        statistics = client.statistics()
        assert (statistics.in_flight, statistics.cancelled) == (0, 1)
        # The permit serves others.
        assert (await client.complete("b", max_tokens=2)).text


async def test_one_that_is_never_begun_sends_nothing():
    transport = ScriptedTransport()
    async with make_client(transport) as client:
        stream = client.stream("a", max_tokens=9, stream=True)
        async with stream:
            pass
        del stream
        await settle()
    assert transport.sent == []


async def test_the_client_may_be_closed_under_it():
    transport = ScriptedTransport(reply(piece("a"), 1e5, DONE))
    client = make_client(transport)
    async with client:
        stream = client.stream("a", max_tokens=9)
        assert (await stream.__anext__()).text == "a"
    from batchclient import ClientClosed

    with pytest.raises(ClientClosed):
        await stream.__anext__()


# Failures ----------------------------------------------------------------------------------------------------------


async def test_what_fails_before_the_first_piece_is_tried_again():
    transport = ScriptedTransport(error(503), ConnectionLost("broke"), reply(piece("a"), piece("b", "stop", 2), DONE))
    async with make_client(transport, retry=Backoff(base_s=0.1)) as client:
        stream = client.stream("a", max_tokens=9)
        assert await texts(stream) == ["a", "b"]
    assert stream.completion.attempts == 3


async def test_a_break_after_a_piece_was_taken_raises():
    transport = ScriptedTransport(reply(piece("a"), 1.0, ConnectionLost("broke")))
    async with make_client(transport, retry=Backoff(base_s=0.1)) as client:
        stream = client.stream("a", max_tokens=9)
        assert (await stream.__anext__()).text == "a"
        with pytest.raises(ConnectionLost):
            await stream.__anext__()
        assert stream.completion is None
        assert client.statistics().in_flight == 0
    assert len(transport.sent) == 1


async def test_a_break_before_any_piece_was_taken_is_tried_again_from_the_beginning():
    # Two pieces come and the stream breaks, before their caller has another turn.
    broken = reply(piece("old"), piece("old"), ConnectionLost("broke"))
    transport = ScriptedTransport(broken, reply(piece("new"), piece("er", "stop", 2), DONE))
    async with make_client(transport, retry=Backoff(base_s=0.1)) as client:
        stream = client.stream("a", max_tokens=9)
        assert await texts(stream) == ["new", "er"]
    assert stream.completion.text == "newer"
    assert len(transport.sent) == 2


@pytest.mark.parametrize("then", [ConnectionLost("it broke"), b"data: [[DONE]\n\n"], ids=["a break", "nonsense"])
async def test_what_follows_a_whole_answer_takes_no_piece_of_it(then):
    # In one read: the caller has no turn between its pieces and what follows.
    broken = reply(piece("one ") + piece("two", "stop", 2) + (then if type(then) is bytes else b""), then)
    transport = ScriptedTransport(broken)
    async with make_client(transport) as client:
        stream = client.stream("p", max_tokens=9)
        assert await texts(stream) == ["one ", "two"]
    assert stream.completion.text == "one two"
    assert len(transport.sent) == 1


async def test_pieces_that_came_before_a_break_are_handed_out_before_it_is_told():
    transport = ScriptedTransport(reply(piece("a"), 1.0, piece("b"), piece("c"), ConnectionLost("broke")))
    async with make_client(transport) as client:
        stream = client.stream("a", max_tokens=9)
        assert (await stream.__anext__()).text == "a"
        await anyio.sleep(5.0)
        assert [(await stream.__anext__()).text for _ in range(2)] == ["b", "c"]
        with pytest.raises(ConnectionLost):
            await stream.__anext__()


async def test_silence_raises():
    transport = ScriptedTransport(reply(piece("a"), 1.0, b": ping\n\n", 30.0, b": ping\n\n", 1e5, DONE))
    async with make_client(transport, http=Http(read_timeout_s=20.0)) as client:
        stream = client.stream("a", max_tokens=9)
        await stream.__anext__()
        with pytest.raises(ReadTimedOut):
            await stream.__anext__()


async def test_an_endpoint_that_is_removed_does_not_begin_it_anew():
    one, other = ScriptedTransport(reply(piece("a"), 1e5, DONE)), ScriptedTransport()
    servers = {"http://scripted/v1": one, "http://other/v1": other}
    client = BatchClient("http://scripted/v1", model="m", http=lambda url, headers: servers[url])
    async with client:
        stream = client.stream("a", max_tokens=9)
        assert (await stream.__anext__()).text == "a"
        client.add_endpoint("http://other/v1")
        await client.remove_endpoint("http://scripted/v1", drain=False)
        with pytest.raises(Exception) as caught:
            await stream.__anext__()
        assert not isinstance(caught.value, StopAsyncIteration)
    assert other.sent == []


# Slow callers ------------------------------------------------------------------------------------------------------


async def test_a_caller_who_takes_nothing_stops_the_reading_and_nobody_else():
    read = []

    def counted():
        for i in range(2000):
            read.append(i)
            yield piece(f"{i} ", tokens=i + 1)
        yield piece("end", "stop", 2001)

    transport = ScriptedTransport(lambda sent: Reply(chunks=counted()))
    async with make_client(transport) as client:
        stream = client.stream("slow", max_tokens=3000)
        assert (await stream.__anext__()).text == "0 "
        await anyio.sleep(1.0)
        assert 256 <= len(read) < 300
        # Others have their answers meanwhile.
        assert (await client.complete("quick", max_tokens=9)).text
        await anyio.sleep(100.0)
        assert len(read) < 300
        rest = await texts(stream)
    assert rest == [f"{i} " for i in range(1, 2000)] + ["end"]


async def test_waiting_for_a_slow_caller_is_no_silence_of_the_server():
    chunks = [piece(f"{i} ", tokens=i + 1) for i in range(600)] + [piece("end", "stop", 601), DONE]
    transport = ScriptedTransport(reply(*chunks))
    async with make_client(transport, http=Http(read_timeout_s=5.0)) as client:
        stream = client.stream("slow", max_tokens=3000)
        count = 0
        async for _ in stream:
            count += 1
            if count in (1, 300):
                await anyio.sleep(60.0)
    assert count == 601


async def test_a_caller_who_leaves_while_the_reading_waits_frees_it():
    chunks = [piece(f"{i} ", tokens=i + 1) for i in range(600)] + [piece("end", "stop", 601), DONE]
    transport = ScriptedTransport(reply(*chunks))
    async with make_client(transport) as client:
        stream = client.stream("slow", max_tokens=3000)
        await stream.__anext__()
        await anyio.sleep(1.0)
        await stream.aclose()
        await settle()
        assert (transport.states, client.statistics().in_flight) == (["closed"], 0)


async def test_a_stream_that_is_dropped_when_all_was_read_leaves_nothing():
    transport = ScriptedTransport(reply(piece("a"), piece("b", "stop", 2), DONE))
    async with make_client(transport) as client:
        stream = client.stream("a", max_tokens=9)
        await stream.__anext__()
        await settle()
        del stream
        gc.collect()
        await settle()
        assert client.statistics().in_flight == 0
        await client.drain()


async def test_its_repr_shows_no_text():
    client, _ = make(SimulatedServer(STEPS, model="m"))
    async with client:
        stream = client.stream("a secret prompt", max_tokens=2)
        assert repr(stream) == "<Stream: not begun, 0 pieces taken>"
        await texts(stream)
        assert repr(stream) == "<Stream: over, 2 pieces taken>"


# Forms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["stream", "stream_chat"])
async def test_the_whole_answer_is_an_instance_of_the_model_given(way):
    client, log = make()
    async with client:
        given = "who" if way == "stream" else user("who")
        stream = getattr(client, way)(given, max_tokens=30, temperature=0, response_model=Person)
        pieces = [delta.text async for delta in stream]
    assert len(pieces) > 2
    assert type(stream.completion.parsed) is Person
    assert stream.completion.parsed == Person.model_validate_json("".join(pieces))
    assert log.sent[0][1]["response_format"]["json_schema"]["schema"] == Person.model_json_schema()


async def test_an_answer_that_does_not_fit_raises_after_its_last_piece():
    client, _ = make()
    async with client:
        stream = client.stream("who", max_tokens=3, response_model=Person)
        pieces = []
        with pytest.raises(AnswerInvalid) as caught:
            async for delta in stream:
                pieces.append(delta.text)
        assert len(pieces) == 3
        assert caught.value.completion is stream.completion
        assert (stream.completion.text, stream.completion.parsed) == ("".join(pieces), None)
        assert caught.value.retryable is False
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        assert (await client.complete("on it goes", max_tokens=2)).text
    assert client.statistics().in_flight == 0


async def test_a_model_that_is_none_is_refused_before_anything_is_sent():
    client, log = make()
    async with client:
        for wrong in (dict, "Person", 5):
            with pytest.raises(ConfigError, match="response_model"):
                client.stream("who", response_model=wrong)
        with pytest.raises(ConfigError, match="both demand a form"):
            client.stream_chat(user("who"), response_model=Person, response_format={"type": "text"})
    assert log.sent == []


async def test_a_stream_with_a_model_that_is_left_says_nothing():
    client, _ = make()
    async with client:
        async with client.stream("who", max_tokens=30, response_model=Person) as stream:
            await stream.__anext__()
        assert stream.completion is None
