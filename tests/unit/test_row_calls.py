"""Rows become calls: forms told by the first row, inputs, parameters of a row's own; nothing is left out in silence."""

import json
from types import MappingProxyType

import numpy
import pytest

from batchclient._maps.row_calls import RowCall, RowCalls
from batchclient.errors import ConfigError
from batchclient.types import NOT_GIVEN

CHAT = [{"role": "user", "content": "Hi"}]
ANSWER = {"role": "assistant", "content": "A"}
TURNS = [{"from": "system", "value": "S"}, {"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]


def line(url, body, **more):
    return {"custom_id": "a", "method": "POST", "url": url, "body": body, **more}


def read(row, **given):
    return RowCalls(**given).read(row)


def test_the_first_row_tells_the_form():
    for row, form, call in [
        ({"messages": CHAT}, "messages", RowCall("chat", CHAT, {})),
        ({"prompt": "p", "messages": CHAT}, "messages", RowCall("chat", CHAT, {})),
        ({"prompt": "p"}, "prompt", RowCall("complete", "p", {})),
        ({"prompt": [1, 2]}, "prompt", RowCall("complete", [1, 2], {})),
        ({"prompt": CHAT}, "prompt", RowCall("chat", CHAT, {})),
        ({"prompt": ""}, "prompt", RowCall("complete", "", {})),
        (
            {"conversations": TURNS},
            "conversations",
            RowCall("chat", [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], {}),
        ),
        (
            {"system": "Be", "conversations": TURNS[1:]},
            "conversations",
            RowCall("chat", [{"role": "system", "content": "Be"}, {"role": "user", "content": "Q"}], {}),
        ),
        ({"conversations": [*CHAT, ANSWER]}, "conversations", RowCall("chat", CHAT, {})),
        (line("/v1/chat/completions", {"messages": CHAT}), "batch", RowCall("chat", CHAT, {})),
    ]:
        calls = RowCalls()
        assert calls.settle(row)
        made = calls.read(row)
        assert (calls.form, made[:3]) == (form, call[:3])
        assert (made.model, made.timeout_s, made.priority) == (None, NOT_GIVEN, None)


def test_a_template_wins_and_its_fields_are_data():
    row = {"messages": CHAT, "user": "me", "n": {"a": 1}}
    calls = RowCalls(template="Say {user} {n.a}")
    assert calls.settle(row) == "the template makes the prompt of each row, for call='complete'"
    assert calls.read(row) == RowCall("complete", "Say me 1", {})
    assert read("t", template="{}", call="chat").item == [{"role": "user", "content": "t"}]
    row = {"messages": CHAT}
    assert read(row, template="{messages}", call="chat").item == CHAT
    assert read(row, template=lambda each: each["messages"]).call == "chat"


@pytest.mark.parametrize(
    ("body", "url", "call", "item", "params"),
    [
        ({"messages": CHAT, "n": 2}, "/v1/chat/completions", "chat", CHAT, {"n": 2}),
        ({"messages": CHAT, "stream": None, "stream_options": None}, "/v1/chat/completions", "chat", CHAT, {}),
        ({"prompt": [3, 4], "best_of": 2}, "/v1/completions", "complete", [3, 4], {"best_of": 2}),
        ({"prompt": ["p"]}, "/v1/completions", "complete", "p", {}),
        ({"input": "t", "dimensions": 8}, "/v1/embeddings", "embed", "t", {"dimensions": 8}),
        ({"text_1": "q", "text_2": "d"}, "/v1/score", "score", ("q", "d", None), {}),
        ({"queries": "q", "documents": ["d", "e"]}, "/score", "score", ("q", ["d", "e"], None), {}),
        ({"query": "q", "documents": ["d"], "top_n": 1}, "/v1/rerank", "rerank", ("q", ["d"], 1), {}),
        ({"input": "t", "new_field": 1}, "/v1/classify", "classify", "t", {"extra_body": {"new_field": 1}}),
    ],
)
def test_a_batch_line_is_its_request(body, url, call, item, params):
    own = {"model": "m", "timeout_s": 9}
    made = read(line(url, body | own))
    assert made[:5] == (call, item, params, "m", 9)
    assert made.own == own.keys() | params.keys() - {"extra_body"} | params.get("extra_body", {}).keys()


def test_a_rows_own_parameters_stand_before_the_jobs():
    job = {"max_tokens": 1, "seed": 5, "extra_body": {"new": 1, "top_k": 3}}
    row = {"prompt": "p", "params": {"max_tokens": 2, "newer": [1], "top_k": 4, "extra_body": {"x": 0}}}
    extra = {"new": 1, "newer": [1], "x": 0}
    made = read(row, params=job)
    assert made.params == {"max_tokens": 2, "seed": 5, "top_k": 4, "extra_body": extra}
    assert read({"prompt": "p"}, params=job).params is job
    row = {"prompt": "p", "max_tokens": 2, "temperature": None, "note": 1, "model": "lora"}
    made = read(row, row_params="take", params=job)
    assert (made.model, made.params["max_tokens"], "temperature" in made.params) == ("lora", 2, False)
    assert read(row, row_params="ignore", params=job).params is job
    assert read(row | {"params": {"seed": 1}}, row_params="ignore", params=job).params is job


def test_a_bound_of_the_rows_own_displaces_the_jobs_by_either_name():
    for job, own in [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]:
        params = {job: 8, "seed": 1, "extra_body": {job: 9, "x": 0}}
        made = read({"messages": CHAT, "params": {own: 2}}, params=params)
        assert made.params == {own: 2, "seed": 1, "extra_body": {"x": 0}}


def test_a_field_is_a_parameter_if_the_call_of_its_row_has_such_a_one():
    row = {"prompt": "p", "task": "qa", "instruction": "x", "tools": [{}]}
    assert read(row).params == read(row, row_params="take").params == {}
    with pytest.raises(ConfigError, match="'tools' has the name of a parameter"):
        read({"messages": CHAT, "tools": [{}]})
    assert read({"input": "t", "task": "qa"}, call="embed", row_params="take").params == {"task": "qa"}


def test_a_batch_lines_priority_travels_as_it_is_and_orders_the_queue_within_its_bounds():
    for url, body in [("/v1/completions", {"prompt": "p"}), ("/v1/embeddings", {"input": "t"})]:
        for written, ours in [(1000, -100), (-3, 3), (0, 0)]:
            made = read(line(url, body | {"priority": written}))
            assert (made.priority, made.params) == (ours, {"extra_body": {"priority": written}} if written else {})


def test_arrays_are_lists():
    chat = numpy.array(CHAT, dtype=object)
    assert read({"messages": chat}).item == CHAT
    assert read({"prompt": numpy.array([1, 2])}).item == [1, 2]
    assert read({"m": chat}, template="{m}", call="chat").item == CHAT


def test_nothing_is_left_out_in_silence():
    named = type("Named", (str,), {})
    for name, value in [
        ("max_tokens", 5), ("max_tokens", 5.0), ("stop", []), ("model", "m"), ("stream", True), ("stop", ("a",)),
        ("logit_bias", '{"5": 1}'), ("max_tokens", numpy.int64(5)), ("model", named("m")), ("response_format", MappingProxyType({})),
    ]:  # fmt: skip
        for row, given in [({"messages": CHAT}, {}), ({"text": "t"}, {"template": "{text}"})]:
            with pytest.raises(ConfigError, match=rf"'{name}' has the name of a parameter") as caught:
                read(row | {name: value}, **given)
            assert caught.value.field == name
    with pytest.raises(ConfigError, match="'tools' has the name of a parameter"):
        read({"messages": CHAT, "tools": '[{"type": "function"}]'})
    assert read({"messages": CHAT, "tools": "[1]"}, row_params="take").params == {"tools": [1]}
    told = RowCalls().settle({"messages": [*CHAT, ANSWER]})
    assert told.endswith("; the first chat ends with the assistant's turn, with which many servers go on")
    # Of another type it is data.
    assert read({"prompt": "p", "n": "a note", "tools": None, "seed": True}).params == {}
    assert read({"prompt": "p", "params": "x"}, row_params="ignore").params == {}
    for row, field in [
        ({"prompt": "p", "params": {"seed": 1}, "seed": 2}, "seed"),
        (line("/v1/completions", {"prompt": "p", "seed": 1}, seed=2), "seed"),
        ({"prompt": "p", "params": "x"}, "params"),
        ({"prompt": "p", "params": ["x"]}, "params"),
        ({"prompt": "p", "params": {"seed": 1, "extra_body": {"seed": 1}}}, "seed"),
        ({"prompt": "p", "params": {"model": "m", "extra_body": {"model": "m"}}}, "model"),
    ]:
        for given in ({}, {"row_params": "take"}):
            with pytest.raises(ConfigError) as caught:
                read(row, **given)
            assert caught.value.field == field


def test_the_columns_of_a_table_are_taken_or_are_data():
    row = {"prompt": "p", "seed": "3", "stop": "7", "tools": '[{"a": 1}]', "user": None, "note": "x"}
    calls = RowCalls(is_table=True, row_params="ignore")
    assert calls.settle(row).endswith(
        "columns that are data, and no parameters: seed, stop, user (row_params='take' sends them)"
    )
    assert calls.read(row) == RowCall("complete", "p", {})
    taken = read(row, is_table=True, row_params="take")
    assert taken.params == {"seed": 3, "stop": "7"}
    assert read({"messages": CHAT} | row, is_table=True, row_params="take").params["tools"] == [{"a": 1}]
    # Without a word a table's rows are as all others.
    assert read({"prompt": "p", "params": {"seed": 1}, "max_tokens": None}, is_table=True).params == {"seed": 1}
    with pytest.raises(ConfigError, match="'seed' has the name of a parameter"):
        read({"prompt": "p", "seed": 3}, is_table=True)
    for name, value, expected in [
        ("ignore_eos", "True", True), ("ignore_eos", "FALSE", False), ("return_hidden_states", "TRUE", True),
        ("max_tokens", "5.0", 5), ("max_tokens", 5.0, 5), ("top_k", "-1", -1), ("temperature", "1.0", 1.0),
        ("stop", '["a", "b"]', ["a", "b"]), ("user", "[1]", "[1]"), ("user", "True", "True"), ("seed", "null", None),
    ]:  # fmt: skip
        sent = read({"prompt": "p", name: value}, is_table=True, row_params="take").params[name]
        assert (sent, type(sent)) == (expected, type(expected)), name
    for name, value in [("ignore_eos", "yes"), ("max_tokens", "5.5"), ("max_tokens", "true"), ("response_format", "x")]:
        with pytest.raises(ConfigError) as caught:
            read({"prompt": "p", name: value}, is_table=True, row_params="take")
        assert caught.value.field == name
    text = json.dumps(CHAT)
    assert read({"messages": text}, is_table=True).item == CHAT
    assert read({"m": text}, is_table=True, template="{m}", call="chat").item == CHAT
    assert read({"prompt": text}, is_table=True).item == CHAT
    for plain in ("[1]", "[2024] a year", '[{"a": 1}]'):
        assert read({"prompt": plain}, is_table=True).item == plain


def test_a_null_of_a_table_is_a_gap_and_one_in_a_text_is_meant():
    struct = [{"role": "user", "content": None, "name": None, "parts": [{"a": None, "b": 1}]}]
    chat = [{"role": "user", "content": None, "parts": [{"b": 1}]}]
    tools = [{"function": {"parameters": {"properties": {"a": {"type": "string", "of": None}, "b": None}}}}]
    whole = [{"function": {"parameters": {"properties": {"a": {"type": "string"}}}}}]
    own = {"tools": tools, "seed": None}
    for row, given in [
        ({"messages": struct, "params": own}, {}),
        ({"messages": struct} | own, {"row_params": "take"}),
        ({"prompt": struct, "params": own}, {}),
        ({"m": struct, "params": own}, {"template": "{m}", "call": "chat"}),
        (line("/v1/chat/completions", {"messages": struct} | own), {}),
    ]:
        made = read(row, is_table=True, **given)
        assert (made.call, made.item, made.params) == ("chat", chat, {"tools": whole})
    row = {"messages": json.dumps(struct), "params": json.dumps(own)}
    made = read(row, is_table=True)
    assert (made.item, made.params) == (struct, own)
    assert read({"messages": struct, "params": own}).params == own


def test_what_is_no_call_is_refused_by_name():
    for row, field, given in [
        ({"text": "t"}, "prompt", {}),
        ("t", "prompt", {}),
        ({"prompt": None}, "prompt", {}),
        ({"prompt": []}, "prompt", {}),
        ({"prompt": ["a", "b"]}, "prompt", {}),
        ({"prompt": [1, True]}, "prompt", {}),
        ({"messages": "x"}, "messages", {"form": "messages"}),
        ({"prompt": "x"}, "messages", {"form": "messages"}),
        ({"messages": CHAT}, "call", {"call": "embed"}),
        ({"conversations": TURNS[2:]}, "conversations", {}),
        ({"conversations": [{"from": "bot", "value": "x"}]}, "conversations", {}),
        (line("/v1/responses", {"input": "x"}), "url", {}),
        (line("/v1/chat/completions", {}), "messages", {}),
        (line("/v1/embeddings", {"input": ["a", "b"]}), "input", {}),
        (line("/v1/completions", {"prompt": CHAT}), "prompt", {}),
        (line("/v1/score", {"text_1": "x"}), "body", {}),
        ({**line("/v1/completions", {"prompt": "x"}), "method": "GET"}, "method", {}),
        (line("/v1/embeddings", {"input": "x", "priority": 1.5}), "priority", {}),
        ({"prompt": "x", "params": {"extra_body": 1}}, "extra_body", {}),
        ({"prompt": "x", "params": {"model": 1}}, "model", {}),
    ]:
        with pytest.raises(ConfigError) as caught:
            read(row, **given)
        assert caught.value.field == field, row
    with pytest.raises(ConfigError, match="/v1/responses"):
        read(line("/v1/responses", {"input": "x"}))
    for field, given in [
        ("rows", {"form": "x"}), ("rows", {"form": "prompt", "template": "{a}"}), ("prompt", {"form": "template"}),
        ("row_params", {"row_params": "x"}),
    ]:  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            RowCalls(**given)
        assert caught.value.field == field


def test_a_row_at_fault_settles_nothing():
    calls = RowCalls()
    with pytest.raises(ConfigError):
        calls.read({"prompt": None})
    assert calls.form is None
    assert calls.read({"messages": CHAT}).call == "chat"
