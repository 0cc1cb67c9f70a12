"""The embedded server as other servers: its pages, limits and words, beside what real ones were recorded to say."""

import json
from pathlib import Path

import pytest

from batchclient.simulator import (
    SimulatedServer,
    expected_text,
)
from tests.guises import GUISES

WIRE = Path(__file__).parent.parent / "wire"
PAGES = ("/v1/models", "/version", "/info", "/props", "/server_info", "/metrics", "/nope")
THERE = {
    "vllm": {"/v1/models", "/version", "/metrics"},
    "sglang": {"/v1/models", "/server_info", "/metrics"},
    "tgi": {"/v1/models", "/info", "/metrics"},
    "llamacpp": {"/v1/models", "/props", "/metrics"},
    "trtllm": {"/v1/models", "/version", "/server_info", "/metrics"},
    "tei": {"/info", "/metrics"},
    "openai": {"/v1/models"},
    "strict": {"/v1/models"},
    "transformers": set(),
}


def server(guise, **options):
    return SimulatedServer("instant", guise=GUISES[guise], model="tiny", max_model_len_tokens=2048, **options)


def ask(one, method, path, body=None, number=[0]):
    """Status, headers and body of one reply."""
    number[0] += 1
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    one.receive(number[0], method, path, data, float(number[0]))
    parts = one.poll(float(number[0]) + 0.5)
    assert parts[-1].last
    return parts[0].status, dict(parts[0].headers), b"".join(part.body for part in parts)


def golden(folder, name):
    found = json.loads((WIRE / folder / f"{name}.json").read_text("utf-8"))
    return found["request"].get("json"), found["status"], found["body_text"]


@pytest.mark.parametrize("guise", GUISES)
def test_a_guise_has_its_servers_pages_and_no_others(guise):
    one = server(guise)
    assert {page for page in PAGES if ask(one, "GET", page)[0] == 200} == THERE[guise]


def test_a_guise_has_a_name_a_place_or_is_handed_over():
    for guise in ("vllm", "tgi"):
        assert SimulatedServer(guise=guise).guise is GUISES[guise]
    for guise in (GUISES["sglang"], "tests.guises:SGLANG"):
        assert SimulatedServer(guise=guise).guise is GUISES["sglang"]
    for unknown in ("nope", "sglang", "tests.guises:NOPE", "no.module:NOPE", "tests.guises:GUISES", ":"):
        with pytest.raises(ValueError, match=f"guise '{unknown}'"):
            SimulatedServer(guise=unknown)


@pytest.mark.parametrize("guise", [guise for guise in GUISES if guise != "tei"])
def test_the_same_call_has_the_same_answer_in_every_guise(guise):
    body = {"prompt": "a b c", "max_tokens": 5, "temperature": 0, "model": "tgi" if guise == "tgi" else "tiny"}
    status, _, reply = ask(server(guise), "POST", "/v1/completions", body)
    assert status == 200
    assert json.loads(reply)["choices"][0]["text"] == expected_text("a b c", max_tokens=5, temperature=0)


@pytest.mark.parametrize(
    "name", ["native_list", "native_single", "native_list_return_tokens", "native_list_n2", "native_list_n_probs"]
)
def test_llama_servers_results_have_the_recorded_fields(name):
    body, status, recorded = golden("llamacpp", name)
    assert status == 200
    ours, theirs = json.loads(ask(server("llamacpp"), "POST", "/completion", body)[2]), json.loads(recorded)
    assert isinstance(ours, list) == isinstance(theirs, list)
    for our, their in zip(*([x] if isinstance(x, dict) else x for x in (ours, theirs)), strict=True):
        assert set(their) - set(our) <= {"has_new_line", "timings"}
        assert set(our) <= set(their)
        assert (our["index"], our["tokens_predicted"], our["stop_type"]) == (their["index"], 6, "limit")
        assert len(our["tokens"]) == len(their["tokens"])
        if "completion_probabilities" in their:
            (a, *_), (b, *_) = our["completion_probabilities"], their["completion_probabilities"]
            assert set(a) == set(b)
            assert len(a["top_logprobs"]) == len(b["top_logprobs"])


def test_llama_servers_stream_begins_and_ends_as_recorded():
    body, _, recorded = golden("llamacpp", "native_stream_list")
    ours = ask(server("llamacpp"), "POST", "/completion", body)[2].decode()
    for stream in (ours, recorded):
        assert stream.startswith("data: null\n\n")
        assert "[DONE]" not in stream
    last = [json.loads(stream.rstrip().rsplit("data: ", 1)[1]) for stream in (ours, recorded)]
    assert [(each["stop"], each["content"], each["stop_type"]) for each in last] == [(True, "", "limit")] * 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/completion", "native_error_too_long_in_list"),
        ("/completion", "native_error_empty_list"),
        ("/v1/completions", "error_too_long"),
    ],
)
def test_llama_servers_refusals_are_the_recorded_ones(path, name):
    body, status, recorded = golden("llamacpp", name)
    ours = ask(server("llamacpp"), "POST", path, body)
    assert ours[0] == status
    our, their = json.loads(ours[2])["error"], json.loads(recorded)["error"]
    assert (set(our), our["type"]) == (set(their), their["type"])


@pytest.mark.parametrize(
    "name",
    [
        "error_list",
        "error_token_ids",
        "error_unknown_field",
        "error_stream_interval",
        "error_wrong_model",
        "error_list_of_one",
    ],
)
def test_transformers_serves_refusals_are_the_recorded_ones(name):
    body, status, recorded = golden("transformers", name)
    body = {**body, "model": "tiny" if body["model"] == "tiny-model" else body["model"]}
    ours = ask(server("transformers"), "POST", "/v1/completions", body)
    assert (ours[0], json.loads(ours[2])["detail"].replace("'tiny'", "'tiny-model'")) == (
        status,
        json.loads(recorded)["detail"],
    )


@pytest.mark.parametrize("name", ["plain_single", "plain_single_n2", "plain_single_logprobs", "stream_single"])
def test_transformers_serves_replies_have_the_recorded_fields(name):
    body, status, recorded = golden("transformers", name)
    ours = ask(server("transformers"), "POST", "/v1/completions", {**body, "model": "tiny"})
    assert ours[0] == status
    if "stream" in name:
        events = [[json.loads(line[6:]) for line in text.splitlines() if line] for text in (ours[2].decode(), recorded)]
        ours, theirs = ([event["choices"][0].get("finish_reason") for event in each] for each in events)
        assert (ours[-1], theirs[-1]) == ("length", "length")
        assert "usage" in events[0][-1]
        assert "[DONE]" not in recorded
    else:
        our, their = json.loads(ours[2]), json.loads(recorded)
        assert set(our["choices"][0]) == set(their["choices"][0])
        assert len(our["choices"]) == len(their["choices"]) == 1
        assert set(our) == set(their)


def test_tgi_refuses_long_lists_and_more_than_it_runs_at_once():
    assert ask(server("tgi"), "POST", "/v1/completions", {"prompt": ["a"] * 4, "max_tokens": 2})[0] == 200
    body = {"prompt": ["a"] * 5, "max_tokens": 2}
    status, _, reply = ask(server("tgi"), "POST", "/v1/completions", body)
    assert (status, json.loads(reply)["error_type"]) == (422, "batch size exceeded")
    busy = SimulatedServer("gpu", guise="tgi", max_queued=3)
    busy.receive(1, "POST", "/v1/completions", b'{"prompt": ["a", "b"]}', 0.0)
    busy.receive(2, "POST", "/v1/completions", b'{"prompt": ["a", "b"]}', 0.0)
    (refusal,) = [part for part in busy.poll(0.001) if part.request_id == 2]
    assert (refusal.status, json.loads(refusal.body)["error_type"]) == (429, "overloaded")
    assert json.loads(ask(server("tgi"), "GET", "/info")[2])["max_concurrent_requests"] == 128


def test_tgis_choices_come_in_the_order_in_which_they_were_finished():
    one = SimulatedServer("gpu", guise="tgi", output_lengths="lognormal:20:1", seed=1)
    one.receive(
        1, "POST", "/v1/completions", json.dumps({"prompt": ["a", "b", "c", "d"], "temperature": 0}).encode(), 0.0
    )
    (part,) = one.poll(100.0)
    assert [choice["index"] for choice in json.loads(part.body)["choices"]] != [0, 1, 2, 3]


def test_llama_server_runs_as_many_as_it_has_slots():
    assert json.loads(ask(server("llamacpp"), "GET", "/props")[2])["total_slots"] == 4
    assert json.loads(ask(server("llamacpp", max_num_seqs=9), "GET", "/props")[2])["total_slots"] == 9
    one = SimulatedServer("gpu", guise=GUISES["llamacpp"])
    one.receive(1, "POST", "/completion", json.dumps({"prompt": ["a"] * 12, "n_predict": 50}).encode(), 0.0)
    one.poll(0.1)
    assert (one.engine.running, one.engine.waiting) == (4, 8)


def test_tei_takes_32_inputs():
    assert ask(server("tei"), "POST", "/v1/embeddings", {"input": ["a"] * 32})[0] == 200
    status, _, reply = ask(server("tei"), "POST", "/v1/embeddings", {"input": ["a"] * 33})
    assert status == 422
    assert "maximum allowed batch size 32" in json.loads(reply)["message"]


@pytest.mark.parametrize("guise", ["strict", "trtllm"])
def test_strict_servers_name_what_they_do_not_know(guise):
    status, _, reply = ask(
        server(guise), "POST", "/v1/completions", {"prompt": "a", "model": "tiny", "stream_interval": 5}
    )
    assert status == 400
    assert b"stream_interval" in reply


def test_a_serial_server_serves_one_prompt_of_a_list_after_the_other():
    one = SimulatedServer("gpu", faults=["serial"])
    one.receive(1, "POST", "/v1/completions", json.dumps({"prompt": ["a"] * 3, "max_tokens": 20}).encode(), 0.0)
    most = 0
    while not (parts := one.poll(one.next_deadline())):
        most = max(most, one.engine.running + one.engine.waiting)
    assert (most, parts[-1].last) == (1, True)
    assert len(json.loads(parts[-1].body)["choices"]) == 3


@pytest.mark.parametrize("guise", GUISES)
def test_the_bound_on_bodies_is_the_real_servers_where_it_has_one(guise):
    assert server(guise).max_body_bytes == (2_000_000 if guise in ("tgi", "tei") else 64 << 20)
    small = server(guise, max_body_bytes=9)
    path = next(iter(small.guise.routes))
    status, headers, words = ask(small, "POST", path, b" " * 10)
    assert (status, headers["connection"]) == (413, "close")
    assert json.loads(words)
    assert ask(small, "POST", path, b" " * 9)[0] != 413


UNREADABLE = [
    b"[" * 3000,
    b'{"a":' * 3000,
    b'{"prompt":' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"prompt": "\\ud800"}',
    b"\xff",
    b"",
]
ODD = [
    b'{"prompt": [true]}',
    b'{"prompt": ["a", 1]}',
    b'{"prompt": [{"a": 1}]}',
    b'{"prompt": "a", "max_tokens": "x", "n_predict": "x"}',
    b'{"prompt": "a", "max_tokens": true, "n_predict": true}',
    b'{"prompt": "a", "temperature": {}}',
    b'{"prompt": "a", "stop": NaN}',
    b'{"prompt": "a", "stop": ["a", 1]}',
    b'{"prompt": "a", "n": [1]}',
    b'{"prompt": "a", "n": 99999999999999999999, "temperature": 1}',
    b'{"prompt": "a", "stream": true, "stream_options": 2.5}',
    b'{"prompt": "a", "stream": true, "stream_options": [1]}',
    b'{"text": 5}',
    b'{"input_ids": 5}',
    b'{"input_ids": [[true]]}',
    b'{"messages": [[{"role": "user", "content": "a"}]], "n": [1]}',
    b'{"messages": "a", "max_tokens": null}',
    b'{"input": [{}]}',
]


@pytest.mark.parametrize("guise", GUISES)
def test_no_body_makes_a_server_fail(guise):
    """What is no JSON, or is nested too deeply, is refused; so are odd fields, where the server looks at them."""
    one = server(guise)
    paths = [*one.guise.routes, *(path for method, path in one.guise.handlers if method == "POST")]
    for path in paths:
        for body in (*UNREADABLE, *ODD):
            status, _, words = ask(one, "POST", path, body)
            # What llama-server cannot parse is a 500 there: its own words, not ours.
            own = guise == "llamacpp" and b"json.exception" in words
            assert own or 400 <= status < 500 or (status == 200 and body in ODD), (path, body[:60], words[:200])


def test_a_request_for_more_sequences_than_memory_holds_is_refused():
    body = {"prompt": ["a"] * 1024, "n": 129, "temperature": 1, "max_tokens": 1}
    status, _, words = ask(server("vllm"), "POST", "/v1/completions", body)
    assert status == 400
    assert b"132096 sequences" in words
