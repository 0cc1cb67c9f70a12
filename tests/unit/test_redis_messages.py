"""Messages of a stream, judged errors and settings: what needs no Redis."""

from inspect import signature
import json
import math
import ssl

import pytest
import hypothesis
from hypothesis import strategies as st

redis = pytest.importorskip("redis", reason="needs the extra redis")

from batchclient.errors import (
    AuthenticationFailed,
    BadRequest,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    NotFound,
    RateLimited,
    ServerFault,
)
from batchclient.integrations.redis import Worker
from batchclient.integrations.redis._connection import is_gone, is_read_only
from batchclient.integrations.redis._failures import Action, Failures
from batchclient.integrations.redis._messages import BadMessage, identity_in, read_message, write_json, write_message
from batchclient.integrations.redis._options import Keys, WorkerOptions


def fields(**given):
    body = given.pop("body", {"prompt": "a"})
    return {b"body": json.dumps(body).encode()} | {name.encode(): value.encode() for name, value in given.items()}


def test_a_message_is_a_call():
    for body, given, call, item, model, params in [
        ({"prompt": "a", "max_tokens": 2}, {}, "complete", "a", None, {"max_tokens": 2}),
        ({"messages": [{"role": "user"}], "model": "x"}, {}, "chat", [{"role": "user"}], "x", {}),
        (
            {"url": "/v1/completions", "body": {"prompt": [1], "n": 2, "new": 1}},
            {},
            "complete",
            [1],
            None,
            {"n": 2, "extra_body": {"new": 1}},
        ),
        ({"input": "a"}, {"call": "embed"}, "embed", "a", None, {}),
        ({"input": "a"}, {"call": "classify"}, "classify", "a", None, {}),
        ({"url": "/v1/embeddings", "body": {"input": "a", "model": "x"}}, {}, "embed", "a", "x", {}),
        (
            {"prompt": "a", "params": {"max_tokens": 2, "new": 1, "model": "x"}},
            {},
            "complete",
            "a",
            "x",
            {"max_tokens": 2, "extra_body": {"new": 1}},
        ),
    ]:
        message = read_message("5-1", fields(body=body, **given))
        assert (message.call, message.item, message.model, message.params) == (call, item, model, params)


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
    except (BadMessage, ConfigError):
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


def test_what_is_written_is_json_whatever_a_server_sent():
    for value, written in [
        ({"a": "é"}, '{"a": "é"}'.encode()),
        ({"a": "\ud800"}, b'{"a": "\\ud800"}'),
        ({"a": [math.nan, -math.inf, 1.5]}, b'{"a": [null, null, 1.5]}'),
    ]:
        assert write_json(value) == written


def after(error, model=None, began_at=0.0, now=1.0, *, failures=None):
    return (failures or Failures()).take_error(error, model, began_at, now)


def passing(error, retryable=True):
    error.retryable = retryable
    return error


def test_what_becomes_of_a_message_after_an_error():
    for error, model, action in [
        (BadRequest("no"), None, Action.DEAD_LETTER),
        (ConfigError("no"), None, Action.DEAD_LETTER),
        # Handed back, such a message would come again and again.
        (passing(ConfigError("longer than the server's page allows")), None, Action.DEAD_LETTER),
        (ConfigError("the servers have several models", field="model"), None, Action.STOP),
        (ConfigError("model is a name", field="model"), "x", Action.DEAD_LETTER),
        (NotFound("no such model"), "other", Action.DEAD_LETTER),
        (ServerFault("500", status=500, attempt=1), None, Action.LEAVE),
        (ServerFault("503", status=503, attempt=1), None, Action.RELEASE),
        (ServerFault("529", status=529, attempt=1), None, Action.RELEASE),
        (RateLimited("429", status=429, attempt=1), None, Action.RELEASE),
        (ConnectFailed("away", attempt=2), None, Action.RELEASE),
        (ConnectionLost("an outage in which nothing was sent"), None, Action.RELEASE),
        (ConnectionLost("broken", attempt=1), None, Action.LEAVE),
        (DeadlineExceeded("the client's own, in the queue"), None, Action.RELEASE),
        (DeadlineExceeded("the client's own", attempt=1), None, Action.LEAVE),
        (passing(DeadlineExceeded("the message's"), retryable=False), None, Action.DEAD_LETTER),
        (ClientClosed("closed"), None, Action.STOP),
        (FileNotFoundError(2, "absent"), None, Action.DEAD_LETTER),
        (AuthenticationFailed("401"), None, Action.STOP),
        (NotFound("no such model"), None, Action.STOP),
    ]:
        assert after(error, model) is action, error


def test_a_refusal_is_the_messages_own_where_others_of_its_model_were_answered_meanwhile():
    failures, refused = Failures(), RateLimited("429", status=429, attempt=5)
    failures.take_answer(None, 5.0)
    assert after(refused, began_at=4.0, now=6.0, failures=failures) is Action.LEAVE
    assert after(refused, began_at=5.5, now=6.0, failures=failures) is Action.RELEASE
    assert after(refused, "other", began_at=4.0, now=6.0, failures=failures) is Action.RELEASE
    # No connection is never a message's own.
    assert after(ConnectFailed("away", attempt=2), began_at=4.0, failures=failures) is Action.RELEASE


def test_a_refused_key_is_the_messages_fault_where_others_succeed():
    failures = Failures()
    failures.take_answer(None, 0.0)
    actions = [after(AuthenticationFailed("403", status=403), failures=failures) for _ in range(20)]
    assert actions == [Action.DEAD_LETTER] * 19 + [Action.STOP]
    failures.take_answer(None, 0.0)
    assert after(AuthenticationFailed("403", status=403), failures=failures) is Action.DEAD_LETTER


def test_messages_wait_for_a_model_that_was_answered():
    for model in (None, "named"):
        failures = Failures()
        failures.take_answer(model, 1.0)
        gone, route = NotFound("404: no such model", attempt=1), NotFound("404: Not Found", attempt=1)
        sleeping = BadRequest("400: Model m not found or vLLM engine is sleeping", status=400)
        too_long = BadRequest("400: This model's maximum context length is 4096 tokens", status=400)
        for _ in range(30):
            assert after(gone, model, 1.0, 2.0, failures=failures) is Action.RELEASE
            assert after(sleeping, model, 1.0, 2.0, failures=failures) is Action.RELEASE
        assert after(route, model, 1.0, 2.0, failures=failures) is Action.DEAD_LETTER
        assert after(too_long, model, 1.0, 2.0, failures=failures) is Action.DEAD_LETTER
        failures.take_answer(model, 3.0)
        assert after(gone, model, 2.5, 4.0, failures=failures) is Action.DEAD_LETTER


def test_a_key_that_is_withdrawn_costs_no_message_and_stops_the_worker():
    failures, withdrawn = Failures(), AuthenticationFailed("401", status=401)
    failures.take_answer(None, 1.0)
    actions = [after(withdrawn, None, 1.0, 2.0, failures=failures) for _ in range(20)]
    assert actions == [Action.RELEASE] * 19 + [Action.STOP]


def test_a_key_that_was_good_and_is_refused_for_too_long_stops_the_worker():
    assert after(passing(AuthenticationFailed("401"))) is Action.STOP
    assert after(passing(NotFound("404", attempt=3))) is Action.RELEASE


def test_after_errors_in_a_row_the_servers_rest():
    failures, broken = Failures(), ConnectionLost("broken", attempt=1)
    for number in range(8):
        assert not failures.are_all
        after(broken, now=0.0, failures=failures)
    assert failures.are_all and failures.rest_until == 0.5
    rests = []
    for now in (0.0, 10.0, 10.5, 20.0, 30.0, 40.0, 50.0):
        after(broken, now=now, failures=failures)
        rests.append(failures.rest_until - now)
    assert rests == [0.5, 1.0, 0.5, 2.0, 4.0, 8.0, 8.0]
    # The server has answered, and said no.
    after(BadRequest("a bad prompt"), failures=failures)
    assert not failures.are_all
    for _ in range(8):
        after(broken, now=100.0, failures=failures)
    assert failures.are_all and failures.rest_until == 100.5
    failures.take_answer(None, 101.0)
    assert not failures.are_all


def settings(**given):
    names = {"stream": "s", "group": "g", "dead": None, "results": "keys"}
    numbers = {"consumer": None, "result_ttl_s": 1, "lease_s": 60.0, "renew_s": None, "max_deliveries": 5}
    numbers |= {"grace_s": 25.0, "look_ahead": None}
    keys = Keys.of(**{name: given.get(name, default) for name, default in names.items()})
    return WorkerOptions(keys, **{name: given.get(name, default) for name, default in numbers.items()})


def test_settings_by_default():
    made = settings()
    assert (made.keys.dead, made.every_s, made.keys.form, made.keys.results) == ("s:dead", 20.0, "key", None)
    out = settings(results="stream:out").keys
    assert (out.form, out.results, settings(results="none").keys.form) == ("stream", "out", "none")


def test_a_worker_has_the_settings_of_the_page_where_none_is_given():
    given = {name: each.default for name, each in signature(Worker).parameters.items()}
    assert (given["result_ttl_s"], given["lease_s"], given["renew_s"]) == (86_400, 60, None)
    assert (given["max_deliveries"], given["grace_s"], given["look_ahead"]) == (5, 25, None)
    assert settings(lease_s=60).every_s == 20


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
    assert Keys.of("{q}").result_prefix == "result:{q}:"
    assert (Keys.of("q").result_prefix, Keys.of("{}q").result_prefix) == ("result:", "result:")


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
