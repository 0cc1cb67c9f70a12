"""How the pieces of a message are put together: as openai-python does it, and where we differ on purpose."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming._deltas import accumulate_delta

from tests.replies.harness import chats, delta, read, stream

# fmt: off


def joined(*deltas):
    """The message that a chat's stream of these pieces makes."""
    (answer,) = read(chats(), stream(*[delta(**each) for each in deltas], delta("stop"))).answers.values()
    return answer.message


def theirs(deltas):
    """openai's message without what ours leaves out: nulls, numbers of tool calls, empty texts beside them."""
    whole = {"role": "assistant", "content": None}
    for each in copy.deepcopy(deltas):
        whole = accumulate_delta(whole, each)
    whole = without_nulls(whole)
    for call in whole.get("tool_calls", ()):
        del call["index"]
    if whole.get("tool_calls") == []:
        del whole["tool_calls"]
    if whole.get("tool_calls") or whole.get("reasoning"):
        whole = {name: value for name, value in whole.items() if value != "" or name not in ("content", "reasoning")}
    return {"content": None} | whole


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


words = st.text("ab{é", max_size=3)
texts = st.none() | words
numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.25])
deep = st.fixed_dictionaries({"text": texts})


@st.composite
def calls(draw, spoken):
    """One piece's fragments of tool calls; a call begins with its name and id, and numbers have no gaps."""
    pieces = []
    for place in draw(st.lists(st.integers(0, 2), max_size=3)):
        place = min(place, spoken[0])
        fragment_ = {"index": place, "function": {"arguments": draw(texts)}}
        if place == spoken[0]:
            spoken[0] += 1
            fragment_ |= {"id": f"call-{place}", "type": "function"}
            fragment_["function"]["name"] = draw(st.sampled_from(["f", "look_up"]))
        pieces.append(fragment_)
    return pieces


@st.composite
def streams(draw):
    spoken = [0]
    deltas = []
    for _ in range(draw(st.integers(0, 6))):
        fields = {
            "content": texts, "reasoning": texts, "new_text": texts, "new_number": st.none() | numbers,
            "new_list": st.none() | st.lists(words, max_size=2),
            "new_object": st.none() | st.fixed_dictionaries({},
                                                            optional={"text": texts, "number": numbers, "deep": deep}),
            "function_call": st.none() | st.fixed_dictionaries({"arguments": texts}),
            "audio": st.none() | st.fixed_dictionaries({},
                                optional={"data": texts, "transcript": texts, "expires_at": numbers}),
            "tool_calls": st.none() | calls(spoken),
        }
        deltas.append(draw(st.fixed_dictionaries({}, optional=fields)))
    return deltas


@settings(max_examples=40)
@given(streams())
def test_a_message_is_what_openai_makes_of_its_pieces(deltas):
    assert without_nulls(joined(*deltas)) == without_nulls(theirs(deltas))


def test_openai_makes_the_same_of_a_whole_conversation():
    function = {"name": "get_", "arguments": ""}
    deltas = [
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"name": "weather"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}},
                        {"index": 1, "id": "b", "function": {"name": "g"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"audio": {"id": "au", "transcript": "he"}}, {"audio": {"transcript": "llo", "expires_at": 5}},
    ]
    message = {
        "role": "assistant", "content": None, "audio": {"id": "au", "transcript": "hello", "expires_at": 5},
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"q":1}'}},
            {"id": "b", "function": {"name": "g"}},
        ],
    }
    first, *rest = deltas
    assert joined(*deltas) == message == theirs([first | {"role": None}, *rest])


# Where they differ, on purpose ---------------------------------------------------------------------------------------


def fragment(index, arguments, name="", call_id="", kind=""):
    """As servers send them that leave nothing out."""
    return {"tool_calls": [{"index": index, "id": call_id, "type": kind,
                            "function": {"name": name, "arguments": arguments}}]}


def unnumbered(**fields):
    return {"tool_calls": [fields]}


F = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
WHOLE = {"id": "a", "function": {"name": "f", "arguments": "{"}}
CITATION = {"type": "url_citation", "id": "1", "url": "u"}
DIFFERENT = {
    "Empty labels in later pieces change nothing":
        ([{"role": "assistant"}, fragment(0, "{", "f", "a", "function"), fragment(0, "}"), fragment(0, ""),
          {"role": ""}], {"tool_calls": F}),
    "Labels that come with every piece are no pieces; openai joins them to 'assistantassistant', 'aa', 'ff'":
        ([{"role": "assistant"} | fragment(0, text, "f", "a", "function") for text in "{}"], {"tool_calls": F}),
    "So is the name of a function call":
        ([{"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"name": "", "arguments": "}"}}],
         {"function_call": {"name": "f", "arguments": "{}"}}),
    "Other lists without numbers are joined; openai raises":
        ([{"annotations": [CITATION]}, {"annotations": [CITATION]}], {"annotations": [CITATION, CITATION]}),
    "A truth value is the last one's; openai adds them": ([{"done": False}, {"done": True}, {"done": True}],
                                                          {"done": True}),
    "Fields that nobody knows raise nothing":
        ([{"x": "a"}, {"x": 5}, {"x": ["b"]}, {"y": 1}, {"y": "c"}, {"z": [1]}, {"z": {"q": 1}}],
         {"x": "a", "y": 1, "z": [1]}),
}
CALLS = {
    "Two calls with one number and different ids are two calls; openai runs them together":
        ([fragment(0, "{", "f", "a"), fragment(0, "}"), fragment(0, '{"x":', "g", "b"), fragment(0, "1}")],
         [("a", "f", "{}"), ("b", "g", '{"x":1}')]),
    "A new id without a name is no new call: older vLLM made an id for every piece":
        ([fragment(0, "{", "f", "a"), fragment(0, "}", call_id="b")], [("a", "f", "{}")]),
    "Numbers may have gaps, no order, and be texts; openai inserts by place":
        ([fragment(3, "{", "g", "b"), fragment("1", "[", "f", "a"), fragment(3.0, "}"), fragment(1, "]")],
         [("a", "f", "[]"), ("b", "g", "{}")]),
    "Calls without numbers go on by id or by order; openai raises":
        ([unnumbered(**WHOLE), unnumbered(function={"arguments": "}"}), unnumbered(**WHOLE | {"id": "b"}),
          unnumbered(id="a", function={"arguments": " "})],
         [("a", "f", "{} "), ("b", "f", "{")]),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_message_is_put_together_as_openai_does_not(name):
    deltas, fields = DIFFERENT[name]
    assert joined(*deltas) == {"role": "assistant", "content": None} | fields


@pytest.mark.parametrize("name", CALLS)
def test_tool_calls_are_told_apart_as_openai_does_not(name):
    deltas, expected = CALLS[name]
    found = [(call["id"], call["function"]["name"], call["function"]["arguments"])
             for call in joined(*deltas)["tool_calls"]]
    assert found == expected
