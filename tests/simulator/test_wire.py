"""The embedded server's bodies beside those of a real vLLM 0.32."""

import json
from pathlib import Path

import pytest

from batchclient.simulator import OutputLengths, SimulatedServer, expected_text

GOLDEN = Path(__file__).parent.parent / "wire" / "vllm"
# The embedded server has no tokenizer route.
NOT_SERVED = ("tokenize",)
# Where these differ between two texts of one server, shapes cannot be compared.
BY_CONTENT = {"bytes", "top_logprobs", "prompt_logprobs", "stop_reason", "finish_reason"}


def ask(server, body, path="/v1/completions", method="POST", headers=(), now=0.0):
    """Status, headers and body of one request, in virtual time."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    server.receive(1, method, path, data, now, headers)
    parts = server.poll(now)
    while (at := server.next_deadline()) is not None:
        parts += server.poll(at)
    assert parts[-1].last
    return parts[0].status, dict(parts[0].headers), b"".join(part.body for part in parts)


def events(body):
    *data, empty = body.decode().split("\n\n")
    assert empty == ""
    assert all(each.startswith("data: ") for each in data)
    assert data[-1] == "data: [DONE]"
    return [json.loads(each[6:]) for each in data[:-1]]


def shape(value, key=""):
    """The order of the keys and the kinds of the values."""
    if key in BY_CONTENT:
        return "content"
    if isinstance(value, dict):
        return [(name, shape(each, name)) for name, each in value.items()]
    if isinstance(value, list):
        return ["list", *sorted({json.dumps(shape(each)) for each in value})]
    return "number" if type(value) in (int, float) else type(value).__name__


def by_choice(chunks):
    """The chunks of each choice, in order; those without a choice under ``None``."""
    found = {}
    for chunk in chunks:
        index = chunk["choices"][0]["index"] if chunk["choices"] else None
        found.setdefault(index, []).append(shape(chunk))
    return found


def load(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


NAMES = sorted(path.stem for path in GOLDEN.glob("*.json") if not path.stem.startswith(NOT_SERVED))
ERRORS = [name for name in NAMES if name.startswith("error_") or "_error_" in name]
STREAMS = [name for name in NAMES if name.startswith(("stream_", "chat_stream")) and name not in ERRORS]
OF_PLAIN = ("plain_", "models", "version", "health", "chat_")
PLAIN = [name for name in NAMES if name.startswith(OF_PLAIN) and name not in ERRORS + STREAMS]


def replay(name):
    request = load(name)["request"]
    body = json.dumps(request["json"]).encode() if "json" in request else request.get("text", "").encode()
    headers = [(key.lower().encode(), value.encode()) for key, value in request.get("headers", {}).items()]
    thinks = {
        "thinking_tokens": 500,
        "reasoning_parser": "unparsed" not in name,
        "output_lengths": OutputLengths(given=(13,)),
    }
    thinks = thinks if "thinking" in name else {}
    server = SimulatedServer("instant", model="tiny", max_model_len_tokens=2048, epoch_s=1.8e9, **thinks)
    return ask(server, body, request["path"], request["method"], headers)


def assert_refused_alike(name):
    """The same words, but for fields of wrong types: of these the same form, and the field's name."""
    real = load(name)
    status, headers, body = replay(name)
    assert (status, headers["content-type"]) == (real["status"], real["headers"]["content-type"])
    if real["status"] == 200:
        assert events(body) == events(real["body_text"].encode())
        return
    if '"type":"Bad Request"' not in real["body_text"]:
        assert body.decode() == real["body_text"]
        return
    ours, theirs = json.loads(body)["error"], json.loads(real["body_text"])["error"]
    assert [*ours] == [*theirs]
    assert (ours["type"], ours["code"]) == (theirs["type"], theirs["code"])
    (our_field, their_field) = (error["param"].split(".")[:2] for error in (ours, theirs))
    assert our_field == their_field or (our_field, name) == (["body"], "error_bad_json")
    assert ours["param"] in ours["message"]


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_the_real_ones_word_for_word(name):
    assert_refused_alike(name)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_replies_have_the_real_shape(name):
    real = load(name)
    status, headers, body = replay(name)
    assert status == real["status"]
    assert headers.get("content-type") == real["headers"].get("content-type")
    if status != 200:
        assert body.decode() == real["body_text"]
    elif real["body_text"]:
        ours, theirs = json.loads(body), json.loads(real["body_text"])
        assert shape(ours) == shape(theirs)
        choices = theirs.get("choices", [])
        assert [each["index"] for each in ours.get("choices", [])] == [each["index"] for each in choices]
        # Choice by choice, whether a field is null.
        for a, b in zip(ours.get("choices", []), choices, strict=True):
            nulls = [{key for key, value in each.items() if value is None} - {"stop_reason"} for each in (a, b)]
            assert nulls[0] == nulls[1]
    else:
        assert body == b""


@pytest.mark.parametrize("name", STREAMS)
def test_streams_have_the_real_events_and_shapes(name):
    real = load(name)
    status, headers, body = replay(name)
    assert (status, headers["content-type"]) == (200, real["headers"]["content-type"])
    ours, theirs = events(body), events(real["body_text"].encode())
    if "stop_string" in name:
        # Which token completes the stop string depends on the text.
        assert {json.dumps(shape(each)) for each in ours} >= {json.dumps(shape(each)) for each in theirs}
    else:
        assert by_choice(ours) == by_choice(theirs)
    assert (ours[-1]["choices"] == []) == (theirs[-1]["choices"] == [])


def choices_of(body):
    return json.loads(body)["choices"]


def test_every_prompt_gets_its_own_text_and_usage_is_the_sum():
    server = SimulatedServer("instant", model="m")
    prompts = ["one", "two three", "four"]
    _, _, body = ask(server, {"model": "m", "prompt": prompts, "max_tokens": 5, "temperature": 0})
    assert [each["text"] for each in choices_of(body)] == [
        expected_text(each, max_tokens=5, temperature=0) for each in prompts
    ]
    assert json.loads(body)["usage"]["completion_tokens"] == 15
    assert json.loads(body)["usage"]["prompt_tokens"] == 1 + 3 + 2


def test_indices_are_prompt_major_and_choices_differ():
    server = SimulatedServer("instant")
    _, _, body = ask(server, {"prompt": ["one", "two"], "n": 2, "seed": 7, "max_tokens": 4})
    assert [(each["index"], each["text"]) for each in choices_of(body)] == [
        (0, expected_text("one", max_tokens=4, seed=7)),
        (1, expected_text("one", max_tokens=4, seed=7, choice=1)),
        (2, expected_text("two", max_tokens=4, seed=7)),
        (3, expected_text("two", max_tokens=4, seed=7, choice=1)),
    ]


def test_without_a_seed_equal_prompts_and_requests_differ():
    server = SimulatedServer("instant")
    texts = [each["text"] for _ in range(2) for each in choices_of(ask(server, {"prompt": ["one", "one"]})[2])]
    assert len(set(texts)) == 4
    # Another server with the same seed says the same again.
    again = SimulatedServer("instant")
    assert texts[:2] == [each["text"] for each in choices_of(ask(again, {"prompt": ["one", "one"]})[2])]


@pytest.mark.parametrize("interval", [1, 2, 5, 100_000])
def test_a_streams_pieces_join_to_the_plain_text(interval):
    server = SimulatedServer("instant")
    fields = {"prompt": ["one", "two"], "max_tokens": 11, "temperature": 0, "stop": ["zzz", "ea"]}
    plain = [each["text"] for each in choices_of(ask(server, fields)[2])]
    streamed = ["", ""]
    for chunk in events(ask(server, fields | {"stream": True, "stream_interval": interval})[2]):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == plain


def test_token_ids_and_echo():
    server = SimulatedServer("instant")
    _, _, body = ask(server, {"prompt": ["a b c"], "max_tokens": 4, "return_token_ids": True, "echo": True})
    choice = choices_of(body)[0]
    assert len(choice["prompt_token_ids"]) == 3
    assert len(choice["token_ids"]) == 4
    assert choice["text"].startswith("a b c")
    _, _, body = ask(server, {"prompt": [[7, 8]], "max_tokens": 1, "return_token_ids": True})
    assert choices_of(body)[0]["prompt_token_ids"] == [7, 8]


def test_what_the_context_does_not_leave_is_cut_silently():
    server = SimulatedServer("instant", max_model_len_tokens=20)
    _, _, body = ask(server, {"prompt": "x " * 14, "max_tokens": 20})
    assert json.loads(body)["usage"]["completion_tokens"] == 20 - json.loads(body)["usage"]["prompt_tokens"]
    status, _, body = ask(server, {"prompt": "x", "max_tokens": 21})
    assert (status, json.loads(body)["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "x", "temperature": "hot"}, "body.temperature"),
        ({"prompt": "x", "n": 1.5}, "body.n"),
        ({"prompt": "x", "n": 0}, "body.n"),
        ({"prompt": "x", "n": 10**9}, "body.n"),
        ({"prompt": "x", "stream": True, "stream_interval": -1}, "body.stream_interval"),
        ({"prompt": "x", "stop": ["a"] * 5}, "body.stop"),
        ({"prompt": "x", "stop": [1]}, "body.stop"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "x", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": "x", "temperature": -1}, "body.temperature"),
        ({"prompt": 5}, "body.prompt"),
        ({}, "prompt"),
    ],
)
def test_other_refusals(fields, param):
    status, _, body = ask(SimulatedServer("instant"), fields)
    assert (status, json.loads(body)["error"]["param"]) == (400, param)


def test_a_body_that_is_no_object():
    for body in (b"[1]", b"\xff", b""):
        status, _, reply = ask(SimulatedServer("instant"), body)
        assert status == 400
        assert json.loads(reply)["error"]["type"] == "Bad Request"


# What nobody meant ----------------------------------------------------------------------------------------------------

ODD = {
    "a schema that is no JSON": {"structured_outputs": {"json": "{"}},
    "a reference that is a number": {"structured_outputs": {"json": {"$ref": 5}}},
    "an enum that is a number": {"structured_outputs": {"json": {"enum": 5}}},
    "a length that is a text": {"structured_outputs": {"json": {"type": "string", "minLength": "a"}}},
    "fields that are a number": {"structured_outputs": {"json": {"type": "object", "required": 5}}},
    "choices that are a number": {"structured_outputs": {"json": {"anyOf": 5}}},
    "a part that is a number": {"messages": [{"role": "user", "content": [5]}]},
    "a part that is a text": {"messages": [{"role": "user", "content": ["x"]}]},
    "a part whose text is null": {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
}


@pytest.mark.parametrize("odd", ODD)
def test_a_field_of_a_form_that_nobody_meant_is_a_400(odd):
    path = "/v1/chat/completions" if "messages" in ODD[odd] else "/v1/completions"
    fields = {"model": "simulated", "max_tokens": 8} | ({} if "messages" in ODD[odd] else {"prompt": "p"}) | ODD[odd]
    status, _, body = ask(SimulatedServer(), fields, path)
    assert (status, json.loads(body)["error"]["code"]) == (400, 400)


@pytest.mark.parametrize(
    "schema", [{"type": "string", "minLength": 50_000_000}, {"type": "array", "minItems": 2_000_000}]
)
def test_a_demand_for_more_than_an_answer_can_hold_is_cut_off(schema):
    fields = {"model": "simulated", "prompt": "p", "max_tokens": 8, "structured_outputs": {"json": schema}}
    status, _, body = ask(SimulatedServer(), fields)
    assert (status, json.loads(body)["choices"][0]["finish_reason"]) == (200, "length")


@pytest.mark.parametrize(
    ("path", "status"), [("/score", 200), ("/v1/score", 401), ("/rerank", 200), ("/v1/rerank", 401)]
)
def test_routes_outside_v1_ask_for_no_key(path, status):
    body = (
        {"model": "simulated", "query": "q", "documents": ["d"]}
        if "rerank" in path
        else {"model": "simulated", "text_1": "a", "text_2": "b"}
    )
    assert ask(SimulatedServer(api_key="key"), body, path)[0] == status


def test_numbers_shape_an_answer_whole_or_not():
    server = SimulatedServer("instant")
    for fields in ({"top_p": 1}, {"top_p": 1.0}, {"logit_bias": {"5": 1}}, {"presence_penalty": 2, "top_k": 5}):
        shaping = {"max_tokens": 4, "seed": 7, "temperature": 1, **fields}
        _, _, body = ask(server, {"prompt": "one", **shaping})
        assert choices_of(body)[0]["text"] == expected_text("one", **shaping)
