"""Which calls share a request: what a call's parameters make of it before its server is known."""

import json
from enum import IntEnum, StrEnum
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchclient._calls.inputs import has_media, write_messages
from batchclient.dialects._fields import FIELDS, Role
from batchclient.errors import ConfigError
from tests.core import Kind, Shape
from tests.inspection import held
from tests.params import as_given
from tests.replies.harness import Shapes, shape_of

# fmt: off


def same(one, other):
    """Whether two calls share a shape, the first time and when the answer is remembered."""
    shapes = Shapes()
    made = [shapes.shape(as_given(params), "tiny")[0] for params in (one, other, one, other)]
    assert made[0] is made[2]
    assert made[1] is made[3]
    assert (made[0] is made[1]) == (made[0].key == made[1].key)
    return made[0] is made[1]


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    TWO = 2


OTHER_ANSWERS = [
    ({"x": 1}, {"x": True}), ({"x": 1}, {"x": 1.0}), ({"x": 1}, {"x": "1"}), ({"x": 0}, {"x": False}),
    ({"x": 0.0}, {"x": -0.0}),
    ({"x": None}, {}), ({"x": None}, {"x": "None"}), ({"x": "a"}, {"y": "a"}),
    ({"x": "a", "y": "b"}, {"x": "b", "y": "a"}),
    ({"x": [1]}, {"x": [True]}), ({"x": {"a": 1, "b": 2}}, {"x": {"b": 2, "a": 1}}), ({"n": 1}, {"n": 2}),
    ({"seed": 1}, {}),
    ({"max_tokens": 5}, {"max_tokens": 6}), ({"cache_salt": "a"}, {"cache_salt": "b"}), ({"model": "a"}, {}),
    ({"return_token_ids": True}, {}), ({"x": 0}, {"x": None}), ({"x": ""}, {"x": []}), ({"x": []}, {"x": {}}),
    ({"x": '1","y":"2'}, {"x": "1", "y": "2"}),
]
SAME_ANSWERS = [
    ({"x": 1, "y": 2}, {"y": 2, "x": 1}), ({"user": "a"}, {"user": "b"}), ({"request_id": "a"}, {}),
    ({"stream": False}, {}),
    ({"stream": None}, {}), ({"extra_body": {"x": 1}}, {"x": 1}), ({"extra_body": {}}, {}), ({"extra_body": None}, {}),
    ({"stop": ["a"]}, {"stop": ("a",)}), ({"return_token_ids": False}, {}),
    ({"seed": 1, "extra_body": {"seed": 2}}, {"seed": 2}),
    ({"stop": Colour.RED, "x": Number.TWO}, {"stop": "red", "x": 2}),
]


def test_calls_that_ask_for_different_answers_never_share_a_shape():
    assert [pair for pair in OTHER_ANSWERS if same(*pair)] == []


def test_calls_that_ask_for_the_same_answer_share_a_shape():
    assert [pair for pair in SAME_ANSWERS if not same(*pair)] == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
fields = st.dictionaries(st.sampled_from("abcd"), values)


@given(fields, fields)
def test_two_calls_share_a_shape_only_if_they_are_the_same_json(one, other):
    # The fields of a call are sorted, and not what is within them.
    written = [json.dumps(sorted(each.items())) for each in (one, other)]
    assert same(one, other) == (written[0] == written[1])
    assert json.loads(shape_of(Kind.COMPLETION, {"extra_body": one}).body) == one | {"model": "tiny"}


def test_models_and_forms_that_are_demanded_join_the_key():
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    demands = [{}, {"response_format": schema}, {"guided_json": {}}, {"structured_outputs": {}}]
    assert len({shape_of(Kind.CHAT, each).key for each in demands} | {shape_of(Kind.CHAT, {}, "other").key}) == 5
    assert json.loads(shape_of(Kind.COMPLETION, {"extra_body": {"model": "other"}}).body) == {"model": "other"}


SHAPES = [
    (Kind.COMPLETION, {}, {"weight": 1, "max_output_tokens": 16, "alone_reason": None, "plain_only": False,
                           "wants_token_ids": False, "greedy": False}),
    (Kind.COMPLETION, {"n": 3, "max_tokens": 50}, {"weight": 3, "max_output_tokens": 50}),
    (Kind.COMPLETION, {"n": None, "max_tokens": None}, {"weight": 1, "max_output_tokens": 16}),
    (Kind.COMPLETION, {"max_tokens": 0}, {"max_output_tokens": 0}),
    (Kind.COMPLETION, {"prompt_logprobs": 0}, {"plain_only": True}),
    (Kind.COMPLETION, {"prompt_logprobs": None}, {"plain_only": False}),
    (Kind.COMPLETION, {"use_beam_search": True, "n": 4}, {"weight": 4, "plain_only": True}),
    (Kind.COMPLETION, {"use_beam_search": False}, {"plain_only": False}),
    (Kind.COMPLETION, {"return_token_ids": True}, {"wants_token_ids": True}),
    (Kind.COMPLETION, {"kv_transfer_params": {}}, {"alone_reason": "kv_transfer_params"}),
    *((Kind.COMPLETION, {"temperature": value}, {"greedy": greedy}) for value,
      greedy in ((0, True), (0.0, True), (None, False), (False, False), (0.01, False), ("0", False))),
    (Kind.COMPLETION, {"extra_body": {"temperature": 0}}, {"greedy": True}),
    # An ordinary chat may share a plain list, and may fill the context.
    (Kind.CHAT, {"n": 1, "temperature": 0.5, "response_format": {"type": "json_object"}},
     {"alone_reason": None, "lists_plain": True, "plain_only": False, "max_output_tokens": None}),
    # The newer name of the length stands first.
    (Kind.CHAT, {"max_tokens": 50, "max_completion_tokens": 5}, {"max_output_tokens": 5}),
    (Kind.CHAT, {"max_completion_tokens": 0}, {"max_output_tokens": 0}),
    (Kind.CHAT, {"max_tokens": 7}, {"max_output_tokens": 7}),
    # What lists lack sends a chat alone.
    *((Kind.CHAT, params, {"alone_reason": next(iter(params))}) for params in (
        {"tools": [{"type": "function"}]}, {"tool_choice": "auto"}, {"n": 2}, {"use_beam_search": True},
        {"functions": []},
        {"prompt_logprobs": 1}, {"return_token_ids": True}, {"modalities": ["text", "audio"]},
    )),
]


@pytest.mark.parametrize(("kind", "params", "expected"), SHAPES,
                         ids=lambda each: each.value if isinstance(each, Kind) else str(each))
def test_a_shape_says_what_the_scheduler_needs(kind, params, expected):
    shape = shape_of(kind, params)
    assert {name: getattr(shape, name) for name in expected} == expected


def test_tool_calls_are_not_streamed_inside():
    assert shape_of(Kind.CHAT, {"tools": [{"type": "function"}]}).plain_only
    assert not shape_of(Kind.CHAT, {"tools": [{}]}, to_caller=True).plain_only


def test_a_call_for_a_waiting_caller_is_alone_and_learns_lengths_with_the_others():
    common, streamed = (shape_of(Kind.CHAT, {"max_tokens": 5}, to_caller=to_caller) for to_caller in (False, True))
    assert streamed.key != common.key
    assert streamed.answer_key == common.answer_key
    assert (streamed.alone_reason, streamed.to_caller) == ("streamed to its caller", True)


REFUSED = [
    *((Kind.COMPLETION, {"extra_body": {"n": value}}, "n") for value in (0, -1, True, 1.0, "2")),
    *((Kind.COMPLETION, {"extra_body": {"max_tokens": value}}, "max_tokens") for value in (-1, 1.5, True, "9")),
    *((Kind.COMPLETION, {"extra_body": {"model": value}}, "model") for value in ("", 5)),
    *((Kind.CHAT, {name: value}, name) for name in ("max_tokens", "max_completion_tokens", "n")
      for value in (-1, 1.5, True, "3")),
    *((kind, {name: True}, name) for kind,
      name in ((Kind.COMPLETION, "messages"), (Kind.COMPLETION, "stream"), (Kind.CHAT, "prompt"),
               (Kind.CHAT, "messages"), (Kind.CHAT, "stream"))),
]


def of_role(role):
    """The names of the fields that have this role."""
    return [name for name, (its_own, why) in FIELDS.items() if its_own is role and why]


def test_each_field_of_the_table_has_its_role():
    """What is answered once for a request goes alone; a label of the caller's is for a lone call; ours nobody sets."""
    for name in of_role(Role.ALONE):
        assert [shape_of(Kind.COMPLETION, {name: value}).alone_reason for value in ({"a": 1}, None)] == [name, None]
    for name in of_role(Role.SOLO):
        shape, solo = Shapes().shape({name: "x", "seed": 1}, "tiny")
        assert (json.loads(shape.body), solo) == ({"model": "tiny", "seed": 1}, f'"{name}":"x"'.encode())
    for name in of_role(Role.OURS):
        with pytest.raises(ConfigError) as caught:
            shape_of(Kind.COMPLETION, {name: "x"})
        assert caught.value.field == name
    assert {*of_role(Role.ALONE), *of_role(Role.SOLO), *of_role(Role.OURS)} <= FIELDS.keys()
    assert all(why for _, why in FIELDS.values())


NO_JSON = [
    (float("nan"), "NaN and infinity"), ({"a": [float("-inf")]}, "NaN and infinity"), (["secret", b"x"], "bytes"),
    ({1, 2}, "set"), (object(), "object"), (["x", "\udfff"], "lone surrogate"), ({"\ud800": 1}, "lone surrogate"),
    (10**5000, "digits"), ({(1, 2): 3}, "keys must be"),
]


@pytest.mark.parametrize(("value", "words"), NO_JSON, ids=lambda value: f"{type(value)}"[8:-2])
def test_what_is_no_json_is_refused_in_words_without_its_value(value, words):
    with pytest.raises(ConfigError, match=words) as caught:
        shape_of(Kind.COMPLETION, as_given({"fine": 1, "guilty": value, "too": "fine"}))
    assert caught.value.field == "guilty"
    assert "secret" not in str(caught.value)


def test_names_of_mixed_kinds_are_refused():
    with pytest.raises(ConfigError):
        shape_of(Kind.COMPLETION, {"extra_body": {"a": 1, 2: 3}})


def test_the_callers_mappings_are_left_alone():
    params = {"user": "u", "extra_body": {"a": 1}}
    shape_of(Kind.COMPLETION, params)
    assert params == {"user": "u", "extra_body": {"a": 1}}


@pytest.mark.parametrize(("kind", "params", "field"), REFUSED, ids=str)
def test_a_wrong_parameter_is_refused_by_its_name(kind, params, field):
    with pytest.raises(ConfigError) as caught:
        shape_of(kind, params)
    assert caught.value.field == field
    if field in ("messages", "prompt", "stream"):
        assert ("chat()" if kind is Kind.CHAT else "complete()") in caught.value.message


@pytest.mark.parametrize("params", [{"use_beam_search": True}, {"prompt_logprobs": 1}, {"stream_interval": 0}], ids=str)
def test_what_cannot_be_streamed_to_a_caller_is_refused(params):
    with pytest.raises(ConfigError):
        shape_of(Kind.CHAT, params, to_caller=True)


def test_labels_come_back_for_a_lone_call_and_only_there():
    shapes = Shapes()
    one, solo = shapes.shape({"user": "u", "seed": 1}, "tiny")
    other, none = shapes.shape({"seed": 1}, "tiny")
    assert one is other
    assert (solo, none) == (b'"user":"u"', b"")
    # Labels are never taken from the short cut.
    assert shapes.shape({"user": "v", "seed": 1}, "tiny")[1] == b'"user":"v"'


def test_keys_and_short_cuts_are_forgotten_rather_than_grow():
    shapes = Shapes()
    for seed in range(10_000):
        shapes.shape({"seed": seed}, "tiny")
    assert held(shapes, Shape) <= 4096
    shapes = Shapes()
    for order in permutations(["seed", "top_k", "min_p", "top_p", "best_of", "min_tokens", "mirostat"]):
        shapes.shape(dict.fromkeys(order, 1), "tiny")
    assert held(shapes, Shape) == 1
    assert held(shapes, tuple) <= 4096


def test_parts_that_are_no_text_are_seen():
    for content, media in [
        ("hi", False), (None, False), ([{"type": "text", "text": "hi"}], False), ([], False), (["odd"], True),
        ([{"type": "image_url", "image_url": {"url": "x"}}], True),
        ([{"type": "text", "text": "hi"}, {"type": "input_audio"}], True),
    ]:
        assert has_media([{"role": "user", "content": content}]) is media


def test_what_is_no_conversation_is_refused():
    for messages in ("hi", b"hi", {"role": "user"}, [], ["hi"], [{}], [{"role": ""}],
                     [{"role": "user", "content": {1}}], 5, None):
        with pytest.raises(ConfigError) as caught:
            write_messages(messages)
        assert caught.value.field == "messages"
