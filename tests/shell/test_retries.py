"""What is sent again, when, and who decides; in virtual time."""

import json
import logging

import anyio
import pytest
from tests.shell.clocks import count_alive
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, error, make_client, plain, settle, stream
from tests.shell.test_complete import call_all

from batchclient import (
    AuthenticationFailed,
    Backoff,
    BadRequest,
    BatchClientError,
    Completion,
    ConnectFailed,
    ConnectionLost,
    DemuxError,
    DialectError,
    NotFound,
    RateLimited,
    ReadTimedOut,
    ResponseTooLarge,
    ServerFault,
    TenacityRetry,
)
from batchclient.dialects._dialect import Dialect

NEVER = Backoff(max_attempts=1)


@pytest.mark.parametrize("header", [{"retry-after": "7"}, {"retry-after-ms": "7000"}])
async def test_a_429_is_sent_again_after_what_the_server_said(header):
    server = ScriptedTransport(error(429, headers=header))
    async with make_client(server, retry=Backoff(base_s=0)) as client:
        before = anyio.current_time()
        completion = await client.complete("p")
        assert anyio.current_time() - before == pytest.approx(7, abs=0.05)
    assert completion.attempts == 2


async def test_a_wish_for_more_than_a_minute_is_the_callers_to_wait_for():
    server = ScriptedTransport(error(429, headers={"retry-after": "3600"}))
    async with make_client(server) as client:
        with pytest.raises(RateLimited) as caught:
            await client.complete("p")
    assert caught.value.retry_after_s == 3600
    assert caught.value.status == 429
    assert len(server.sent) == 1


@pytest.mark.parametrize(
    ("fault", "expected", "times"),
    [
        (error(429), RateLimited, 5),
        (error(500), ServerFault, 5),
        (error(502), ServerFault, 5),
        (error(503), ServerFault, 5),
        (error(424), ServerFault, 5),
        (error(400, "bad"), BadRequest, 1),
        (error(401), AuthenticationFailed, 1),
        (error(403), AuthenticationFailed, 1),
        (error(404), NotFound, 1),
        (error(307), DialectError, 1),
        (ConnectFailed("no connection"), ConnectFailed, 3),
        (ConnectionLost("broke"), ConnectionLost, 5),
        (ReadTimedOut("silence"), ReadTimedOut, 5),
        (ResponseTooLarge("too large"), ResponseTooLarge, 1),
        # Twice as a stream, then plain, which is tried once more.
        (Reply(200, {}, [b"<html>"]), DialectError, 4),
        (Reply(200, {}, []), DialectError, 4),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_what_is_sent_again(fault, expected, times):
    server = ScriptedTransport(*[fault] * 10)
    async with make_client(server) as client:
        with pytest.raises(expected) as caught:
            await client.complete("p")
    assert type(caught.value) is expected
    assert caught.value.attempt == times
    assert len(server.sent) == times


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (error(503, "busy with 'my prompt'"), "failed: rejected (ServerFault, status 503); next attempt in 0"),
        (error(500, "my prompt"), "failed: maybe processed (ServerFault, status 500); next attempt in 0"),
        (ConnectFailed("no connection"), "failed: not sent (ConnectFailed); next attempt in 0"),
        (error(401, "my prompt"), "failed: refused (AuthenticationFailed, status 401); next attempt in None"),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_the_record_of_a_failed_attempt_has_class_and_status_and_no_words_of_the_servers(caplog, fault, told):
    caplog.set_level(logging.DEBUG, "batchclient")
    async with make_client(ScriptedTransport(fault), retry=Backoff(base_s=0.0)) as client:
        await call_all(client, ["my prompt"])
    (record,) = [each.message for each in caplog.records if " failed: " in each.message]
    assert told in record
    assert "my prompt" not in record


@pytest.mark.parametrize("fault", [ConnectionLost("broke"), ReadTimedOut("silence")])
async def test_a_stream_that_breaks_keeps_what_was_finished_and_only_the_rest_is_sent_again(fault):
    def break_off(sent):
        return Reply(chunks=[*stream(sent, positions=[0, 2]), *stream(sent, positions=[1], last=False), fault])

    server = ScriptedTransport(break_off)
    async with make_client(server) as client:
        outcomes = await call_all(client, ["a", "b", "c", "d"])
    sent = server.prompts[0]
    assert sorted(server.prompts[1]) == sorted([sent[1], sent[3]])
    assert {prompt: done.text for prompt, done in outcomes.items()} == {p: answer_to(p) for p in "abcd"}
    assert {prompt: done.attempts for prompt, done in outcomes.items()} == {
        sent[0]: 1, sent[2]: 1, sent[1]: 2, sent[3]: 2,
    }  # fmt: skip


async def test_the_tokens_of_a_broken_stream_are_lost_if_its_calls_go_again():
    def break_off(sent):
        return Reply(
            chunks=[*stream(sent, positions=[0]), *stream(sent, positions=[1], last=False), ConnectionLost("")]
        )

    server = ScriptedTransport(break_off)
    async with make_client(server) as client:
        await call_all(client, ["aa", "bb", "cc"])
        now = client.statistics()
        assert now.succeeded == 3
    # An event had come of the second answer, and none of the third. The first is whole.
    assert (now.lost_tokens, now.wasted_tokens) == (1, 0)

    server = ScriptedTransport(break_off)
    async with make_client(server, retry=NEVER) as client:
        outcomes = await call_all(client, ["aa", "bb", "cc"])
        assert sum(isinstance(each, ConnectionLost) for each in outcomes.values()) == 2
        assert client.statistics().lost_tokens == 0


async def test_the_usage_of_a_lone_broken_stream_tells_what_is_lost():
    server = ScriptedTransport(lambda sent: Reply(chunks=[*stream(sent, last=False), ConnectionLost("")]))
    async with make_client(server) as client:
        assert (await client.complete("p")).attempts == 2
        assert client.statistics().lost_tokens == 2


async def test_the_tokens_of_a_whole_reply_that_cannot_be_used_are_lost():
    def doubled(sent):
        reply = json.loads(plain(sent))
        reply["choices"][1]["index"] = reply["choices"][0]["index"]
        return Reply(chunks=[json.dumps(reply).encode()])

    server = ScriptedTransport(doubled)
    async with make_client(server) as client:
        outcomes = await call_all(client, ["aa", "bb"], max_tokens=1)
        now = client.statistics()
    assert {prompt: done.text for prompt, done in outcomes.items()} == {p: answer_to(p) for p in ("aa", "bb")}
    # Two prompts of two tokens, and two answers of two.
    assert (now.lost_tokens, now.prompt_tokens + now.completion_tokens) == (8, 8)


async def test_a_stream_without_its_end_is_no_answer():
    server = ScriptedTransport(lambda sent: Reply(chunks=stream(sent, last=False)))
    async with make_client(server) as client:
        completion = await client.complete("p")
    assert completion.text == answer_to("p")
    assert completion.attempts == 2


async def test_an_answer_with_a_foreign_index_reaches_nobody():
    def shifted(sent):
        return Reply(chunks=[chunk.replace(b'"index": 1', b'"index": 7') for chunk in echo(sent).chunks])

    server = ScriptedTransport(*[shifted] * 50)
    async with make_client(server) as client:
        outcomes = await call_all(client, ["a", "b"])
    for prompt, outcome in outcomes.items():
        assert isinstance(outcome, DemuxError) or outcome.text == answer_to(prompt)


async def test_after_all_attempts_the_last_error_has_its_cause():
    cause = OSError("the cable")
    fault = ConnectionLost("broke")
    fault.__cause__ = cause
    server = ScriptedTransport(*[fault] * 5)
    async with make_client(server) as client:
        with pytest.raises(ConnectionLost) as caught:
            await client.complete("p")
    assert caught.value.__cause__ is cause
    assert caught.value is not fault


def test_tenacity_gives_up_too_where_the_servers_wish_is_too_long():
    failure = RateLimited("429", retry_after_s=61.0)
    assert TenacityRetry().decide(failure, 1, 0.0, None) is None
    failure.retry_after_s = 60.0
    assert TenacityRetry().decide(failure, 1, 0.0, None) == 60.0


class Says:
    """A user's policy that answers what it is told to, and keeps what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def decide(self, failure, attempt, elapsed_s, rng):
        self.asked.append((type(failure), attempt, elapsed_s))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_users_policy_is_asked_once_per_failed_batch():
    policy = Says(2.0, 3.0)
    server = ScriptedTransport(error(502), ReadTimedOut("broke"), error(502))
    async with make_client(server, retry=policy) as client:
        outcomes = await call_all(client, ["a", "b"])
    assert {type(each) for each in outcomes.values()} == {ServerFault}
    assert [(kind, attempt) for kind, attempt, _ in policy.asked] == [
        (ServerFault, 1),
        (ReadTimedOut, 2),
        (ServerFault, 3),
    ]
    assert [elapsed_s for _, _, elapsed_s in policy.asked] == pytest.approx([0, 2, 5], abs=0.1)


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("a bug of the user's"), "soon", float("nan"), float("inf")],
    ids=["raises", "text", "nan", "inf"],
)
async def test_a_policy_that_fails_leaves_no_caller_hanging(answer, caplog):
    server = ScriptedTransport(error(500))
    async with make_client(server, retry=Says(answer)) as client:
        outcomes = await call_all(client, ["a", "b"])
        assert {type(each) for each in outcomes.values()} == {ServerFault}
        assert client.statistics().in_flight == 0
        assert (await client.complete("after")).text == answer_to("after")
    assert "retry policy" in caplog.text


async def test_a_split_is_no_retry_and_asks_nobody():
    def refuse_the_bad(sent):
        return error(400, "this prompt is bad") if "bad" in sent.prompts else echo(sent)

    policy = Says()
    server = ScriptedTransport(*[refuse_the_bad] * 20)
    async with make_client(server, retry=policy) as client:
        outcomes = await call_all(client, ["a", "b", "bad", "c"])
    assert isinstance(outcomes.pop("bad"), BadRequest)
    assert {type(each) for each in outcomes.values()} == {Completion}
    assert policy.asked == [(BadRequest, 1, 0.0)]


@pytest.mark.parametrize("where", ["feed", "end", "encode", "failure"])
async def test_a_fault_of_ours_in_the_dialect_resolves_every_caller(where, caplog, monkeypatch):
    before = count_alive()

    def break_it(*arguments, **named):
        raise ZeroDivisionError("a bug of ours")

    server = ScriptedTransport(*[error(500)] * (where == "failure"))
    async with make_client(server, retry=NEVER) as client:
        with monkeypatch.context() as broken:
            if where in ("encode", "failure"):
                broken.setattr(Dialect, where, break_it)
            else:
                original = Dialect.decoder
                broken.setattr(Dialect, "decoder", lambda *args: _with(original(*args), where, break_it))
            # A streamed reply's answers are out before its end.
            outcomes = await call_all(client, ["a", "b"], max_tokens=1)
        assert {type(each) for each in outcomes.values()} == {BatchClientError}
        assert {str(each) for each in outcomes.values()} == {"internal error: ZeroDivisionError"}
        assert all(isinstance(each.__cause__, ZeroDivisionError) for each in outcomes.values())
        await settle()
        assert client.statistics().in_flight == 0
        assert count_alive() == before
        assert (await client.complete("after")).text == answer_to("after")
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR]


def _with(decoder, name, function):
    setattr(decoder, name, function)
    return decoder


async def test_a_connection_that_fails_to_close_costs_nobody_the_answer():
    server = ScriptedTransport()
    async with make_client(server, retry=NEVER) as client:
        send = server.send

        async def send_badly_closed(request, timeouts):
            response = await send(request, timeouts)

            async def aclose():
                raise OSError("the socket was gone already")

            response.aclose = aclose
            return response

        server.send = send_badly_closed
        outcomes = await call_all(client, ["a", "b"])
        await settle()
        assert client.statistics().in_flight == 0
    assert {type(each) for each in outcomes.values()} == {Completion}
