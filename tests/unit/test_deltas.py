"""How the pieces of a message are put together: as openai-python does it, and where we differ on purpose."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming._deltas import accumulate_delta

from batchclient.dialects._deltas import join_deltas

TEXTS = frozenset({"content", "refusal", "reasoning", "reasoning_content"})


def join(*deltas):
    return join_deltas(deltas, TEXTS)


def theirs(deltas):
    whole = {}
    for delta in copy.deepcopy(deltas):
        whole = accumulate_delta(whole, delta)
    return without_nulls(whole)


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


# Where the two agree -------------------------------------------------------------------------------------------------

words = st.text("ab{é", max_size=3)
texts = st.none() | words
numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.25])


@st.composite
def calls(draw, spoken):
    """One piece's fragments of tool calls; a call begins with its name and id, and numbers have no gaps."""
    pieces = []
    for place in draw(st.lists(st.integers(0, 2), max_size=3)):
        place = min(place, spoken[0])
        fragment = {"index": place, "function": {"arguments": draw(texts)}}
        if place == spoken[0]:
            spoken[0] += 1
            fragment |= {"id": f"call-{place}", "type": "function"}
            fragment["function"]["name"] = draw(st.sampled_from(["f", "look_up"]))
        pieces.append(fragment)
    return pieces


@st.composite
def streams(draw):
    spoken = [0]
    deltas = []
    for _ in range(draw(st.integers(0, 6))):
        fields = {
            "content": texts,
            "reasoning": texts,
            "new_text": texts,
            "new_number": st.none() | numbers,
            "new_list": st.none() | st.lists(words, max_size=2),
            "new_object": st.none() | st.fixed_dictionaries({}, optional={"text": texts, "number": numbers, "deep": st.fixed_dictionaries({"text": texts})}),
            "function_call": st.none() | st.fixed_dictionaries({"arguments": texts}),
            "audio": st.none() | st.fixed_dictionaries({}, optional={"data": texts, "transcript": texts, "expires_at": numbers}),
            "tool_calls": st.none() | calls(spoken),
        }  # fmt: skip
        deltas.append(draw(st.fixed_dictionaries({}, optional=fields)))
    return deltas


@settings(max_examples=40)
@given(streams())
def test_a_message_is_what_openai_makes_of_its_pieces(deltas):
    before = copy.deepcopy(deltas)
    assert without_nulls(join(*deltas)) == theirs(deltas)
    assert deltas == before, "the pieces are handed to callers, too"


def test_openai_makes_the_same_of_a_whole_conversation():
    deltas = [
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "get_", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "weather"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}}, {"index": 1, "id": "b", "function": {"name": "g"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"audio": {"id": "au", "transcript": "he"}},
        {"audio": {"transcript": "llo", "expires_at": 5}},
    ]  # fmt: skip
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"index": 0, "id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"q":1}'}},
            {"index": 1, "id": "b", "function": {"name": "g"}},
        ],
        "audio": {"id": "au", "transcript": "hello", "expires_at": 5},
    }
    assert join(*deltas) == message == theirs(deltas)


# Where they do not, on purpose ---------------------------------------------------------------------------------------


def fragment(index, arguments, name="", call_id="", **fields):
    """As servers send them that leave nothing out."""
    return {
        "tool_calls": [{"index": index, "id": call_id, "type": "", "function": {"name": name, "arguments": arguments}, **fields}]
    }  # fmt: skip


def test_empty_labels_in_later_pieces_change_nothing():
    deltas = [fragment(0, "{", "f", "a", type="function"), fragment(0, "}"), fragment(0, "")]
    assert join({"role": "assistant"}, *deltas, {"role": ""}) == {
        "role": "assistant",
        "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_labels_that_come_with_every_piece_are_no_pieces():
    """openai joins them: ``assistantassistant``, ``aa``, ``ff``."""
    deltas = [{"role": "assistant"} | fragment(0, text, "f", "a", type="function") for text in ("{", "}")]
    assert join(*deltas) == {
        "role": "assistant",
        "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert join({"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"name": "", "arguments": "}"}}) == {
        "function_call": {"name": "f", "arguments": "{}"}
    }  # fmt: skip


def test_two_calls_with_one_number_and_different_ids_are_two_calls():
    """Some servers number every call 0; openai runs them together: ``{}{"x":1}``."""
    deltas = [fragment(0, "{", "f", "a"), fragment(0, "}"), fragment(0, '{"x":', "g", "b"), fragment(0, "1}")]
    assert [(call["id"], call["function"]) for call in join(*deltas)["tool_calls"]] == [
        ("a", {"name": "f", "arguments": "{}"}),
        ("b", {"name": "g", "arguments": '{"x":1}'}),
    ]


def test_a_new_id_without_a_name_is_no_new_call():
    """Older vLLM made an id for every piece. The first is the call's."""
    deltas = [fragment(0, "{", "f", "a"), fragment(0, "}", call_id="b")]
    assert [(call["id"], call["function"]) for call in join(*deltas)["tool_calls"]] == [
        ("a", {"name": "f", "arguments": "{}"})
    ]


def test_numbers_with_gaps_out_of_order_and_as_texts():
    """openai inserts by place, and makes two of a call that begins at 1."""
    deltas = [fragment(3, "{", "g", "b"), fragment("1", "[", "f", "a"), fragment(3.0, "}"), fragment(1, "]")]
    assert [(call["id"], call["function"]["arguments"]) for call in join(*deltas)["tool_calls"]] == [
        ("a", "[]"),
        ("b", "{}"),
    ]


def test_calls_without_numbers_go_on_by_id_or_by_order():
    """openai raises."""
    whole = {"id": "a", "function": {"name": "f", "arguments": "{"}}
    deltas = [whole, {"function": {"arguments": "}"}}, whole | {"id": "b"}, {"id": "a", "function": {"arguments": " "}}]
    assert [
        (call["id"], call["function"]["arguments"]) for call in join(*[{"tool_calls": [d]} for d in deltas])["tool_calls"]
    ] == [("a", "{} "), ("b", "{")]  # fmt: skip


def test_other_lists_without_numbers_are_joined():
    """openai raises."""
    citation = {"type": "url_citation", "id": "1", "url": "u"}
    assert join({"annotations": [citation]}, {"annotations": [citation]}) == {"annotations": [citation, citation]}


def test_a_truth_value_is_the_last_ones():
    """openai adds them."""
    assert join({"done": False}, {"done": True}, {"done": True}) == {"done": True}


def test_what_is_no_piece_raises():
    for deltas in [
        [{"content": 5}],
        [{"content": "a"}, {"content": ["b"]}],
        [{"reasoning": {}}],
        [{"tool_calls": 5}],
        [{"tool_calls": [5]}],
        [{"tool_calls": [{"index": "x"}]}],
        [{"tool_calls": [{"index": True}]}],
        [{"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, {"tool_calls": [{"index": 0, "function": {"arguments": {}}}]}],
    ]:  # fmt: skip
        with pytest.raises(TypeError):
            join(*deltas)


def test_fields_that_nobody_knows_raise_nothing():
    assert join({"x": "a"}, {"x": 5}, {"x": ["b"]}, {"y": 1}, {"y": "c"}, {"z": [1]}, {"z": {"q": 1}}) == {
        "x": "a",
        "y": 1,
        "z": [1],
    }
