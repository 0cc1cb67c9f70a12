"""The embedded server's chat; ``test_wire`` has its bodies beside those of a real vLLM 0.32."""

import json

import pytest

from batchclient.simulator import (
    SimulatedServer,
    expected_text,
    render_messages,
)
from tests.simulator.test_wire import ask, events

CHAT = "/v1/chat/completions"
BATCH = "/v1/chat/completions/batch"


def user(text):
    return [{"role": "user", "content": text}]


def chat(server, messages, path=CHAT, **fields):
    status, _, body = ask(server, {"messages": messages, "temperature": 0, **fields}, path)
    return status, body


def contents(body):
    return [choice["message"]["content"] for choice in json.loads(body)["choices"]]


def test_a_conversation_is_answered_as_its_rendered_text():
    server = SimulatedServer("instant")
    talk = [{"role": "system", "content": "brief"}, *user("hi")]
    assert render_messages(talk) == "system: brief\nuser: hi\nassistant:"
    _, body = chat(server, talk, max_tokens=5)
    assert contents(body) == [expected_text(render_messages(talk), max_tokens=5, temperature=0)]
    _, body = chat(server, talk, max_tokens=5, max_completion_tokens=2)
    assert json.loads(body)["usage"]["completion_tokens"] == 2


def test_each_conversation_of_a_list_has_its_own_answer():
    server = SimulatedServer("instant")
    talks = [user("one"), user("two"), user("three")]
    _, body = chat(server, talks, BATCH, max_tokens=4)
    expected = [expected_text(render_messages(talk), max_tokens=4, temperature=0) for talk in talks]
    assert contents(body) == expected
    assert json.loads(body)["usage"]["completion_tokens"] == 12


def test_a_list_is_answered_plainly_and_whole_where_a_stream_is_asked_for():
    server = SimulatedServer("instant")
    status, body = chat(server, [user("one"), user("two")], BATCH, max_tokens=4, stream=True)
    whole = [expected_text(render_messages(user(each)), max_tokens=4, temperature=0) for each in ("one", "two")]
    assert (status, contents(body)) == (200, whole)
    assert json.loads(body)["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("interval", [1, 3, 100_000])
def test_a_streams_pieces_join_to_the_plain_text(interval):
    server = SimulatedServer("instant")
    _, plain = chat(server, user("one"), max_tokens=11)
    _, body = chat(server, user("one"), max_tokens=11, stream=True, stream_interval=interval)
    deltas = [chunk["choices"][0]["delta"] for chunk in events(body)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert ["".join(delta["content"] for delta in deltas)] == contents(plain)


def test_without_max_tokens_an_answer_fills_what_the_context_leaves():
    server = SimulatedServer("instant", max_model_len_tokens=50)
    _, body = chat(server, user("one"))
    assert json.loads(body)["usage"]["total_tokens"] == 50


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "of": {"$ref": "#/$defs/Of"}},
    "required": ["name", "age", "of"],
    "$defs": {"Of": {"enum": ["a", "b"]}},
}
AS_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}


@pytest.mark.parametrize("demand", [AS_SCHEMA, {"structured_outputs": {"json": SCHEMA}}], ids=["format", "structured"])
def test_an_answer_fits_the_schema_that_is_demanded(demand):
    server = SimulatedServer("instant")
    _, body = chat(server, user("one"), max_tokens=60, **demand)
    (choice,) = json.loads(body)["choices"]
    made = json.loads(choice["message"]["content"])
    assert (set(made), type(made["age"]), made["of"] in "ab") == ({"name", "age", "of"}, int, True)
    assert choice["finish_reason"] == "stop"
    # Another prompt has another answer, and completions have it too.
    _, _, other = ask(server, {"prompt": "two", "max_tokens": 60, **demand})
    assert json.loads(json.loads(other)["choices"][0]["text"])["name"] != made["name"]
    _, _, streamed = ask(server, {"prompt": "two", "max_tokens": 60, "stream": True, **demand})
    pieces = [chunk["choices"][0]["text"] for chunk in events(streamed)]
    assert "".join(pieces) == json.loads(other)["choices"][0]["text"]


def test_what_does_not_fit_into_max_tokens_breaks_off():
    _, body = chat(SimulatedServer("instant"), user("one"), max_tokens=3, **AS_SCHEMA)
    (choice,) = json.loads(body)["choices"]
    assert choice["finish_reason"] == "length"
    with pytest.raises(ValueError):
        json.loads(choice["message"]["content"])


# A server to try things with -----------------------------------------------------------------------------------------

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OTHER = {"type": "function", "function": {"name": "other"}}


def test_a_server_that_is_not_strict_serves_each_models_name():
    server = SimulatedServer("instant", model="m", is_strict=False)
    for name in ("m", "another"):
        status, body = chat(server, user("hi"), model=name, max_tokens=4)
        assert (status, json.loads(body)["model"]) == (200, name)
    status, body = chat(SimulatedServer("instant", model="m"), user("hi"), model="another")
    assert (status, json.loads(body)["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(("choice", "named"), [({"function": {"name": "weather"}}, "weather"), ("auto", "other")])
def test_it_calls_a_tool_once_and_answers_its_result_with_a_text(choice, named):
    server = SimulatedServer("instant", is_strict=False)
    asked = {"tools": [OTHER, WEATHER], "tool_choice": choice, "max_tokens": 64}
    status, body = chat(server, user("Rain in Ulm?"), **asked)
    (reply,) = json.loads(body)["choices"]
    assert (status, reply["finish_reason"], reply["message"]["content"]) == (200, "tool_calls", None)
    (call,) = reply["message"]["tool_calls"]
    assert call["function"]["name"] == named
    assert list(json.loads(call["function"]["arguments"])) == (["city"] if named == "weather" else [])
    told = [*user("Rain in Ulm?"), reply["message"], {"role": "tool", "tool_call_id": call["id"], "content": "yes"}]
    (last,) = json.loads(chat(server, told, **asked)[1])["choices"]
    assert last["message"]["content"] and "tool_calls" not in last["message"]


def test_a_streamed_call_of_a_tool_is_the_plain_one_in_pieces():
    server = SimulatedServer("instant", is_strict=False)
    asked = {"tools": [WEATHER], "max_tokens": 64}
    (plain,) = json.loads(chat(server, user("Rain?"), **asked)[1])["choices"]
    streamed = events(chat(server, user("Rain?"), stream=True, **asked)[1])
    pieces = [each["choices"][0]["delta"]["tool_calls"][0] for each in streamed if "tool_calls" in json.dumps(each)]
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    function = plain["message"]["tool_calls"][0]["function"]
    assert (pieces[0]["function"]["name"], arguments) == (function["name"], function["arguments"])
    assert [each["choices"][0]["finish_reason"] for each in streamed][-1] == "tool_calls"


def test_a_picture_is_looked_at_and_tools_without_a_name_are_refused():
    server = SimulatedServer("instant", is_strict=False)
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert chat(server, [{"role": "user", "content": parts}], max_tokens=4)[0] == 200
    assert render_messages([{"role": "user", "content": parts}]) == "user: What is it?\n<image_url>\nassistant:"
    assert render_messages([{"role": "user", "content": [{"type": "text", "text": ""}]}]) == "user: \nassistant:"
    assert chat(SimulatedServer("instant"), [{"role": "user", "content": parts}], max_tokens=4)[0] == 400
    for wrong in ({"tools": [{}]}, {"tools": 5}, {"tools": [WEATHER], "tool_choice": {"function": {"name": "x"}}}):
        assert chat(server, user("hi"), **wrong)[0] == 400
