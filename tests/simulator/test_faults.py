"""Every fault, and the grammar in which they are asked for."""

import json

import pytest

from batchclient.simulator import Fault, Profile, SimulatedServer
from batchclient.simulator.faults import FaultInjector, KINDS
from tests.guises import GUISES

PROMPTS = ["one", "two", "three", "four"]


def play(faults, now=0.0, **fields):
    """The parts of one request to a server with these faults."""
    server = SimulatedServer("instant", faults=faults)
    return server, ask(server, now=now, **fields)


def ask(server, now=0.0, **fields):
    body = {"prompt": PROMPTS, "max_tokens": 6, "temperature": 0} | fields
    server.receive(1, "POST", "/v1/completions", json.dumps(body).encode(), now)
    return server.poll(now)


def joined(parts):
    return b"".join(part.body for part in parts)


TWO_EVENTS = {"stream": True, "stream_interval": 100_000}


def test_parsing():
    assert Fault.parse("status=429,retry_after=1.5,count=2") == Fault("status", 429, count=2, retry_after_s=1.5)
    assert Fault.parse("cut, rate=0.05, after=3") == Fault("cut", rate=0.05, after=3)
    assert Fault.parse("bad_prompt=a=b") == Fault("bad_prompt", text="a=b")
    assert Fault.parse("slow=0.5").value == 0.5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("explode", "no fault 'explode'; there are: status, refuse"),
        ("", "no fault ''"),
        ("status", "status takes an HTTP status"),
        ("status=x", "status takes a number, got 'x'"),
        ("status=5_03", "status takes a number, got '5_03'"),
        ("status=503,retry_after=inf", "retry_after takes a number, got 'inf'"),
        ("stall,count=inf", "count takes a whole number, got 'inf'"),
        ("stall,count=2.5", "count takes a whole number, got '2.5'"),
        ("status=42", "status takes an HTTP status"),
        ("slow=0", "above 0"),
        ("bad_prompt", "takes a text"),
        ("cut=1", "cut takes no value"),
        ("cut,rate=2", "between 0 and 1"),
        ("cut,often=2", "no key 'often'; there are: rate, count, after, retry_after"),
        ("cut,retry_after=2", "belongs to status"),
    ],
)
def test_wrong_specs_say_what_is_wrong(spec, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Fault.parse(spec)


def test_rate_count_and_after():
    server = SimulatedServer("instant", faults=["status=500,after=2,count=3"])
    assert [ask(server)[0].status for _ in range(7)] == [200, 200, 500, 500, 500, 200, 200]
    server = SimulatedServer("instant", faults=["status=500,rate=0.3"])
    hits = [ask(server)[0].status for _ in range(1000)].count(500)
    assert 250 < hits < 350
    assert server.statistics()["faults"] == [{"kind": "status", "hits": hits}]
    assert repr(FaultInjector(["cut"])) == "<FaultInjector ['cut'] hits=[0]>"


def test_status_with_retry_after():
    _, (part,) = play(["status=429,retry_after=2"])
    assert (part.status, dict(part.headers)["retry-after"], part.last) == (429, "2", True)
    assert json.loads(part.body)["error"]["code"] == 429
    assert "retry-after" not in dict(play(["status=503"])[1][0].headers)


@pytest.mark.parametrize(("kind", "refused"), [("refuse", True), ("disconnect", False)])
def test_no_reply_at_all(kind, refused):
    _, (part,) = play([kind])
    assert (part.status, part.body, part.broken, part.refused) == (0, b"", True, refused)


@pytest.mark.parametrize("stream", [{}, TWO_EVENTS])
def test_cut_and_stall_body(stream):
    whole = joined(play([], **stream)[1])
    server, parts = play(["cut"], **stream)
    assert parts[-1].broken
    assert 0 < len(joined(parts)) < len(whole)
    assert not joined(parts).endswith(b"\n\n")
    assert server.engine.running == 0
    server, parts = play(["stall_body"], **stream)
    assert not parts[-1].last
    assert 0 < len(joined(parts)) < len(whole)
    assert server.next_deadline() is None


def test_a_cut_plain_reply_promises_its_whole_length():
    part = play(["cut"])[1][0]
    assert int(dict(part.headers)["content-length"]) > len(part.body)


def test_stall_says_nothing():
    server, parts = play(["stall"])
    assert parts == []
    assert server.next_deadline() is None


def test_abort():
    choices = json.loads(joined(play(["abort"])[1]))["choices"]
    whole = json.loads(joined(play([])[1]))["choices"]
    for cut, full in zip(choices, whole, strict=True):
        assert cut["finish_reason"] == "abort"
        assert full["text"].startswith(cut["text"])
        assert len(cut["text"]) < len(full["text"])
    assert joined(play(["abort"], **TWO_EVENTS)[1]).count(b'"finish_reason":"abort"') == 4


def test_error_event():
    body = joined(play(["error_event"], **TWO_EVENTS)[1])
    assert body.endswith(b'"code":500}}\n\ndata: [DONE]\n\n')
    assert b'"finish_reason":"length"' not in body
    assert play(["error_event"])[1][0].status == 500


def test_an_error_event_takes_the_other_sequences_along():
    server = SimulatedServer(Profile("t", "", step_s=0.01), faults=["error_event,count=1"])
    ask(server, **TWO_EVENTS)
    assert server.poll(0.011)[-1].last
    assert server.engine.running == 0
    assert server.statistics()["open_requests"] == 0


def indices(parts):
    return [choice["index"] for choice in json.loads(joined(parts))["choices"]]


def test_drop_and_double_choice():
    assert indices(play(["drop_choice"])[1]) == [0, 1, 2]
    assert indices(play(["double_choice"])[1]) == [0, 0, 1, 2, 3]
    assert b'"index":3' not in joined(play(["drop_choice"], **TWO_EVENTS)[1])
    assert joined(play(["double_choice"], **TWO_EVENTS)[1]).count(b'"index":0') == 4


def test_servers_that_know_no_lists():
    assert indices(play(["first_only"])[1]) == [0]
    _, (part,) = play(["no_lists"])
    assert (part.status, json.loads(part.body)["error"]["message"]) == (400, "prompt must be a string.")
    assert play(["no_lists"], prompt="one")[1][0].status == 200
    assert play(["no_stream_lists"])[1][0].status == 200
    assert play(["no_stream_lists"], **TWO_EVENTS)[1][0].status == 400
    assert play(["no_stream_lists"], prompt="one", **TWO_EVENTS)[1][0].status == 200


def test_one_bad_prompt_fails_the_list():
    assert play(["bad_prompt=hre"])[1][0].status == 400
    assert play(["bad_prompt=hre"], prompt=["one", "two"])[1][0].status == 200


def test_what_is_not_json():
    part = play(["garbage"])[1][0]
    assert part.status == 200
    with pytest.raises(ValueError, match="Expecting|Unterminated"):
        json.loads(part.body)
    assert dict(play(["html"])[1][0].headers)["content-type"] == "text/html"


def test_slow_joins_another_fault():
    server = SimulatedServer("instant", faults=["status=503,count=1", "slow=0.5"])
    assert ask(server) == []
    assert server.next_deadline() == 0.5
    assert server.poll(0.5)[0].status == 503
    assert ask(server, now=1.0) == []
    assert server.poll(1.5)[0].status == 200


def test_a_slow_request_delays_nobody_else():
    server = SimulatedServer("instant", faults=["slow=0.5,count=1"])
    ask(server)
    assert ask(server, now=0.1)[0].status == 200


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("stream", [{}, TWO_EVENTS])
def test_every_kind_leaves_the_engine_empty_and_can_be_disconnected(kind, stream):
    value = {"status": "=503", "slow": "=1", "bad_prompt": "=one"}.get(kind, "")
    server, _ = play([kind + value], **stream)
    server.disconnect(1, 0.5)
    server.poll(9.0)
    assert (server.engine.running, server.engine.waiting) == (0, 0)
    assert server.statistics()["open_requests"] == 0


TOO_MANY = {
    "vllm": {"error": {"message": "Too many requests.", "type": "RateLimitError", "param": None, "code": 429}},
    "tgi": {"error": "Model is overloaded", "error_type": "overloaded"},
    "sglang": {
        "object": "error",
        "message": "The request failed by order.",
        "type": "BadRequestError",
        "param": None,
        "code": 429,
    },
}


@pytest.mark.parametrize("guise", TOO_MANY)
def test_a_fault_speaks_the_guises_words(guise):
    body = {"prompt": ["one", "two"], "max_tokens": 6, "model": "tgi" if guise == "tgi" else "simulated"}
    for fault, stream in (("status=429", False), ("no_lists", False), ("error_event", False), ("error_event", True)):
        server = SimulatedServer("instant", guise=GUISES[guise], faults=[fault])
        server.receive(1, "POST", "/v1/completions", json.dumps(body | {"stream": stream}).encode(), 0.0)
        parts = server.poll(0.0)
        said = json.loads(joined(parts).split(b"data: ")[-2]) if stream else json.loads(parts[0].body)
        assert said.keys() == TOO_MANY[guise].keys()
        if fault == "status=429":
            assert (parts[0].status, said) == (429, TOO_MANY[guise])
        elif fault == "no_lists":
            assert (parts[0].status, b"prompt must be a string." in parts[0].body) == (400, True)
        else:
            assert parts[0].status == (200 if stream else 500)


@pytest.mark.parametrize("guise", sorted(GUISES.keys() - {"tei"}))
def test_a_status_of_no_usual_words_keeps_its_number(guise):
    for status in (400, 404, 418, 422, 502, 529):
        server = SimulatedServer("instant", guise=GUISES[guise], model="tgi", faults=[f"status={status}"])
        server.receive(1, "POST", "/v1/completions", b'{"prompt":"one","model":"tgi"}', 0.0)
        (part,) = server.poll(0.0)
        assert (part.status, part.last, len(part.body) > 0) == (status, True, True)
