"""Messages of a stream, judged errors and settings: what needs no Redis."""

from inspect import signature
import json
import math
import ssl

import pytest
import hypothesis
from hypothesis import strategies as st

redis = pytest.importorskip("redis", reason="needs the extra redis")

from tests.core import Kind
from batchclient.errors import (
    AuthenticationFailed,
    BadRequest,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    NotFound,
    ServerFault,
)
from batchclient.integrations.redis import Worker
from batchclient.integrations.redis._library import is_gone, is_read_only
from batchclient.integrations.redis._messages import BadMessage, identity_in, read_message, write_message
from batchclient.integrations.redis._names import Names
from batchclient.integrations.redis._outcomes import Judge, Verdict
from batchclient.integrations.redis._settings import make_settings


def fields(**given):
    body = given.pop("body", {"prompt": "a"})
    return {b"body": json.dumps(body).encode()} | {name.encode(): value.encode() for name, value in given.items()}


def test_a_message_is_a_call():
    for body, given, call, kind, item, model, params in [
        ({"prompt": "a", "max_tokens": 2}, {}, "complete", Kind.COMPLETION, "a", None, {"max_tokens": 2}),
        ({"messages": [{"role": "user"}], "model": "x"}, {}, "chat", Kind.CHAT, [{"role": "user"}], "x", {}),
        (
            {"url": "/v1/completions", "body": {"prompt": [1], "n": 2, "new": 1}},
            {},
            "complete",
            Kind.COMPLETION,
            [1],
            None,
            {"n": 2, "extra_body": {"new": 1}},
        ),
        ({"input": "a"}, {"call": "embed"}, "embed", Kind.EMBEDDING, "a", None, {}),
        ({"input": "a"}, {"call": "classify"}, "classify", Kind.CLASSIFICATION, "a", None, {}),
        ({"url": "/v1/embeddings", "body": {"input": "a", "model": "x"}}, {}, "embed", Kind.EMBEDDING, "a", "x", {}),
    ]:
        message = read_message("5-1", fields(body=body, **given))
        assert (message.call, message.kind, message.item, message.model, message.params) == (
            call,
            kind,
            item,
            model,
            params,
        )


def test_whose_result_it_is():
    for body, given, identity in [
        ({"prompt": "a"}, {}, "5-1"),
        ({"prompt": "a", "id": 7}, {}, "7"),
        ({"prompt": "a", "id": "in"}, {"id": "beside"}, "beside"),
        ({"prompt": "a", "id": [1]}, {}, "5-1"),
        ({"custom_id": "line", "url": "/v1/completions", "body": {"prompt": "a"}}, {}, "line"),
    ]:
        assert read_message("5-1", fields(body=body, **given)).id == identity
        assert identity_in(fields(body=body, **given), "5-1") == identity


def test_what_is_beside_the_body():
    message = read_message("1-1", fields(deadline="17.5", priority="-3", tenant="t"))
    assert (message.deadline, message.priority, message.tenant) == (17.5, -3, "t")
    assert read_message("1-1", fields(deadline="", priority="", tenant="")).tenant is None


def test_what_no_worker_can_use():
    for given, said in [
        ({"deadline": "nan"}, "deadline is a time"),
        ({"deadline": "inf"}, "deadline is a time"),
        ({"priority": "1.5"}, "priority is a whole number"),
        ({"priority": "1000"}, "priority is a whole number"),
        ({"call": "complete", "body": {"url": "/v1/embeddings", "body": {"input": "a"}}}, "the body asks for 'embed'"),
        ({"body": {"url": "/v1/completions", "method": "GET", "body": {}}}, "method is POST"),
        ({"id": "x" * 1025}, "id has 1025 characters"),
        ({"body": {"prompt": "a", "id": "\ud800"}}, "id has half of a surrogate pair"),
        ({"body": {"url": "/v1/completions", "body": {"prompt": "a", "timeout_s": 3}}}, "a message has a deadline"),
        ({"body": {"url": "/v1/completions", "body": {"prompt": ["a", "b"]}}}, "several inputs is several rows"),
        ({"body": {"url": "/v1/rerank", "body": {"query": "q", "documents": ["d"]}}}, "call is one of"),
    ]:
        with pytest.raises(BadMessage, match=said):
            read_message("1-1", fields(**given))


@hypothesis.given(
    st.dictionaries(
        st.sampled_from([b"id", b"call", b"body", b"deadline", b"priority", b"tenant", b"x"]), st.binary(max_size=40)
    )
)
def test_any_fields_are_a_message_or_unusable(given):
    try:
        message = read_message("1-1", given)
    except BadMessage:
        return
    assert message.id and (message.deadline is None or math.isfinite(message.deadline))


def test_what_is_written_is_read_as_it_was():
    given = {
        "id": 5,
        "call": "chat",
        "priority": 2,
        "deadline": 1.5,
        "tenant": "t",
        "messages": [{"role": "user", "content": "é\ud800"}],
    }
    written = write_message(given | {"messages": [{"role": "user", "content": "é"}]})
    message = read_message("1-1", {name.encode(): value for name, value in written.items()})
    assert (message.id, message.call, message.priority, message.deadline, message.tenant) == ("5", "chat", 2, 1.5, "t")
    assert message.item == [{"role": "user", "content": "é"}]
    for unusable in (given, {"prompt": math.nan}, {"prompt": object()}, {"call": "complete"}, ["prompt"]):
        with pytest.raises(BadMessage):
            write_message(unusable)


PLAIN = read_message("1-1", fields())
NAMED = read_message("1-1", fields(body={"prompt": "a", "model": "other"}))
DUE = read_message("1-1", fields(deadline="100"))


def test_errors_are_judged():
    # Handed back, such a message would come again and again.
    too_long = ConfigError("longer than the server's page allows")
    too_long.retryable = True
    for error, message, verdict in [
        (BadRequest("no"), PLAIN, Verdict.DEAD),
        (ConfigError("no"), PLAIN, Verdict.DEAD),
        (too_long, PLAIN, Verdict.DEAD),
        (NotFound("no such model"), NAMED, Verdict.DEAD),
        (ServerFault("500"), PLAIN, Verdict.LEFT),
        (ServerFault("503", status=503), PLAIN, Verdict.LEFT),
        (ConnectFailed("away", attempt=2), PLAIN, Verdict.BACK),
        (ConnectionLost("an outage in which nothing was sent"), PLAIN, Verdict.BACK),
        (ConnectionLost("broken", attempt=1), PLAIN, Verdict.LEFT),
        (DeadlineExceeded("the client's own, in the queue"), PLAIN, Verdict.BACK),
        (DeadlineExceeded("the client's own", attempt=1), PLAIN, Verdict.LEFT),
        (DeadlineExceeded("the message's"), DUE, Verdict.DEAD),
        (ClientClosed("closed"), PLAIN, Verdict.STOP),
        (FileNotFoundError(2, "absent"), PLAIN, Verdict.DEAD),
        (AuthenticationFailed("401"), PLAIN, Verdict.STOP),
        (NotFound("no such model"), PLAIN, Verdict.STOP),
    ]:
        assert Judge().verdict(error, message, 100.0) is verdict


def test_a_refused_key_is_the_messages_fault_where_others_succeed():
    judge = Judge()
    judge.succeed()
    verdicts = [judge.verdict(AuthenticationFailed("401"), PLAIN, 0.0) for _ in range(20)]
    assert verdicts == [Verdict.DEAD] * 19 + [Verdict.STOP]
    judge.succeed()
    assert judge.verdict(AuthenticationFailed("401"), PLAIN, 0.0) is Verdict.DEAD


def test_a_key_or_model_that_was_good_and_is_refused_for_too_long_costs_no_message():
    for error, verdict in ((AuthenticationFailed("401"), Verdict.STOP), (NotFound("404", attempt=3), Verdict.BACK)):
        error.retryable = True
        for message in (PLAIN, NAMED):
            judge = Judge()
            judge.succeed()
            assert [judge.verdict(error, message, 0.0) for _ in range(30)] == [verdict] * 30


@pytest.mark.parametrize("status", [503, 529])
def test_in_a_row_of_errors_that_may_pass_refused_work_is_no_delivery(status):
    judge, loaded = Judge(), ServerFault(str(status), status=status, attempt=1)

    def verdict(error, clock):
        judged = judge.verdict(error, PLAIN, 0.0)
        judge.note_error(error, judged, clock)
        return judged

    assert [verdict(loaded, 0.0) for _ in range(10)] == [Verdict.LEFT] * 8 + [Verdict.BACK] * 2
    # Work that broke off may be the message's fault all the same.
    assert verdict(ServerFault("500", status=500, attempt=1), 0.0) is Verdict.LEFT
    assert judge.is_ill and judge.rest_until == 0.5
    rests = []
    for clock in (10.0, 10.5, 20.0, 30.0, 40.0, 50.0):
        verdict(loaded, clock)
        rests.append(judge.rest_until - clock)
    assert rests == [1.0, 0.5, 2.0, 4.0, 8.0, 8.0]
    assert verdict(BadRequest("a bad prompt"), 100.0) is Verdict.DEAD and not judge.is_ill
    for _ in range(9):
        verdict(loaded, 100.0)
    judge.succeed()
    assert not judge.is_ill and verdict(loaded, 0.0) is Verdict.LEFT


def settings(**given):
    defaults = dict(
        stream="s", group="g", consumer=None, results="keys", result_ttl_s=1, dead=None, lease_s=60.0, renew_s=None,
        max_deliveries=5, grace_s=25.0, look_ahead=None,
    )  # fmt: skip
    return make_settings(**(defaults | given))


def test_settings_by_default():
    made = settings()
    assert (made.names.dead, made.renew_s, made.form, made.results) == ("s:dead", 20.0, "key", None)
    assert (settings(results="stream:out").form, settings(results="stream:out").results) == ("stream", "out")


def test_a_worker_has_the_settings_of_the_page_where_none_is_given():
    given = {name: each.default for name, each in signature(Worker).parameters.items()}
    assert (given["result_ttl_s"], given["lease_s"], given["renew_s"]) == (86_400, 60, None)
    assert (given["max_deliveries"], given["grace_s"], given["look_ahead"]) == (5, 25, None)
    assert settings(lease_s=60).renew_s == 20


def test_a_body_of_16_mib_is_read_and_a_longer_one_is_not():
    longest = {b"body": b'{"prompt": "%b"}' % (b"x" * ((16 << 20) - 14))}
    assert len(longest[b"body"]) == 16 << 20 and len(read_message("1-1", longest).item) == (16 << 20) - 14
    with pytest.raises(BadMessage, match="body has 16,777,217 bytes; 16 MiB is the most"):
        read_message("1-1", {b"body": longest[b"body"] + b" "})


def test_wrong_settings_are_refused_by_name():
    for given in [
        {"lease_s": 3.0, "renew_s": 1.1},
        {"lease_s": 0.0},
        {"renew_s": 0.0},
        {"lease_s": math.inf},
        {"lease_s": True},
        {"grace_s": -1.0},
        {"max_deliveries": 0},
        {"max_deliveries": None},
        {"look_ahead": 0},
        {"result_ttl_s": -1},
        {"results": "stream:"},
        {"results": "stream:s"},
        {"results": "stream:s:dead"},
        {"results": None},
        {"dead": "s"},
        {"stream": ""},
        {"group": ""},
        {"consumer": ""},
        {"stream": "result:s"},
        {"dead": "result:dead"},
    ]:
        with pytest.raises(ConfigError) as refused:
            settings(**given)
        assert refused.value.field in {*given, "lease_s"}


def test_keys_of_a_stream_with_a_tag_share_it():
    assert Names.of("{q}").result_prefix == "result:{q}:"
    assert (Names.of("q").result_prefix, Names.of("{}q").result_prefix) == ("result:", "result:")


def test_a_refused_certificate_password_or_right_is_not_waited_for():
    def wrapped(cause):
        try:
            try:
                raise cause
            except OSError as error:
                raise redis.exceptions.ConnectionError(str(error))  # noqa: B904  # as redis-py does
        except redis.exceptions.ConnectionError as error:
            return error

    assert is_gone(wrapped(ConnectionRefusedError(111, "refused")))
    assert not is_gone(wrapped(ssl.SSLCertVerificationError("self-signed")))
    assert not is_gone(redis.exceptions.AuthenticationError("WRONGPASS"))
    assert not is_gone(redis.exceptions.NoPermissionError("no permissions to run xadd"))


def test_replies_that_may_pass():
    for reply in [
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "BUSY Redis is busy running a script.",
        "NOREPLICAS Not enough good replicas to write.",
        # Of a script on Redis 6.2.
        "Error running script (call to f_0a): @user_script:20: -READONLY You can't write against a read only replica.",
        "Error running script (call to f_0a): @user_script:20: -OOM command not allowed when used memory > 'maxmemory'.",
    ]:
        assert is_gone(redis.exceptions.ResponseError(reply))
        assert is_read_only(redis.exceptions.ResponseError(reply)) is ("READONLY" in reply)


@pytest.mark.parametrize("reply", ["WRONGTYPE Operation against a key holding the wrong kind of value", "BUSYGROUP x"])
def test_replies_that_will_not_pass(reply):
    assert not is_gone(redis.exceptions.ResponseError(reply))
