"""The coalescing key and the table of fields."""

import datetime
import json
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchclient.dialects._fields import FIELDS, Role, canonical, sort_fields
from batchclient.errors import ConfigError


def test_values_that_python_calls_equal_are_keys_of_their_own():
    for values in [(1, True, 1.0, "1"), (0, False, 0.0, "0", None, "", [], {}), (-0.0, 0.0, 0)]:
        assert len({canonical({"x": value}) for value in values}) == len(values)


def test_fields_are_sorted_by_name():
    assert canonical({"b": 1, "a": 2}) == canonical({"a": 2, "b": 1}) == b'{"a":2,"b":1}'


def test_nested_objects_keep_their_order():
    one = {"schema": {"properties": {"a": 1, "b": 2}}}
    other = {"schema": {"properties": {"b": 2, "a": 1}}}
    assert canonical(one) == b'{"schema":{"properties":{"a":1,"b":2}}}'
    assert canonical(one) != canonical(other)


def test_lists_and_tuples_are_the_same_json():
    assert canonical({"stop": ("a", "b")}) == canonical({"stop": ["a", "b"]}) == b'{"stop":["a","b"]}'


def test_text_is_written_as_it_is():
    assert canonical({"stop": "né\n\U0001f600"}) == '{"stop":"né\\n\U0001f600"}'.encode()


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    TWO = 2


def test_enums_are_their_values():
    assert canonical({"a": Colour.RED, "b": Number.TWO}) == b'{"a":"red","b":2}'


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_the_key_holds_every_field_untouched(fields):
    assert json.loads(canonical(fields)) == fields


@given(values, values)
def test_two_values_share_a_key_only_if_they_are_the_same_json(one, other):
    same = json.dumps(one) == json.dumps(other)
    assert (canonical({"x": one}) == canonical({"x": other})) == same


def test_two_keys_never_run_into_each_other():
    assert canonical({"a": '1","b":"2'}) != canonical({"a": "1", "b": "2"})


LOOP = []
LOOP.append(LOOP)
DEEP = []
for _ in range(100_000):
    DEEP = [DEEP]


def test_what_is_no_json_is_refused_by_the_name_of_its_field():
    for value, words in [
        (float("nan"), "NaN and infinity"),
        (float("inf"), "NaN and infinity"),
        ({"a": [float("-inf")]}, "NaN and infinity"),
        (b"bytes", "bytes"),
        (datetime.date(2026, 1, 1), "date"),
        ({1, 2}, "set"),
        (object(), "object"),
        ("\ud800", "lone surrogate"),
        (["x", "\udfff"], "lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        (LOOP, "Circular"),
        (DEEP, "recursion|Stack overflow"),
        (10**5000, "digits"),
        ({(1, 2): 3}, "keys must be"),
    ]:
        with pytest.raises(ConfigError, match=words) as caught:
            canonical({"fine": 1, "guilty": value, "too": "fine"})
        assert caught.value.field == "guilty"
        assert caught.value.message.startswith("guilty ")


def test_names_of_mixed_kinds_are_refused():
    with pytest.raises(ConfigError):
        canonical({"a": 1, 2: 3})


def test_the_shown_reason_holds_no_value():
    with pytest.raises(ConfigError) as caught:
        canonical({"user": ["the patient is Smith", b"x"]})
    assert "Smith" not in str(caught.value)


def test_fields_that_are_not_in_the_table_join():
    params = {"temperature": 0.5, "no_such_field": {"deep": [1]}, "seed": 7, "logit_bias": 3, "cache_salt": "s"}
    assert sort_fields(params) == (params, {}, None)


def test_labels_are_kept_on_our_side():
    for name in [name for name, (role, _) in FIELDS.items() if role is Role.SOLO]:
        assert sort_fields({name: "x", "seed": 1}) == ({"seed": 1}, {name: "x"}, None)


def test_what_is_answered_once_per_request_goes_alone():
    for name in [name for name, (role, _) in FIELDS.items() if role is Role.ALONE]:
        assert sort_fields({name: {"a": 1}}) == ({name: {"a": 1}}, {}, name)
        assert sort_fields({name: None}) == ({name: None}, {}, None)


def test_what_we_set_is_not_the_callers():
    for name in [name for name, (role, _) in FIELDS.items() if role is Role.OURS]:
        with pytest.raises(ConfigError) as caught:
            sort_fields({name: "x"})
        assert caught.value.field == name


def test_streaming_to_the_caller_is_refused():
    for value in [True, "true", 1, {}]:
        with pytest.raises(ConfigError, match="whole answer") as caught:
            sort_fields({"stream": value})
        assert caught.value.field == "stream"


@pytest.mark.parametrize("value", [False, None])
def test_not_streaming_is_what_we_do_anyway(value):
    assert sort_fields({"stream": value, "seed": 1}) == ({"seed": 1}, {}, None)


def test_an_extra_body_is_merged_and_wins():
    assert sort_fields({"seed": 1, "extra_body": {"seed": 2, "min_p": 0.1, "user": "u"}}) == (
        {"seed": 2, "min_p": 0.1}, {"user": "u"}, None,
    )  # fmt: skip


def test_an_extra_body_of_none_is_nothing():
    assert sort_fields({"seed": 1, "extra_body": None}) == ({"seed": 1}, {}, None)


def test_an_extra_body_is_checked_as_the_parameters_are():
    with pytest.raises(ConfigError) as caught:
        sort_fields({"extra_body": {"stream": True}})
    assert caught.value.field == "stream"


def test_an_extra_body_is_a_mapping():
    for extra in [[], "x", 5, [("a", 1)]]:
        with pytest.raises(ConfigError) as caught:
            sort_fields({"extra_body": extra})
        assert caught.value.field == "extra_body"


def test_the_callers_mapping_is_left_alone():
    params = {"user": "u", "extra_body": {"a": 1}}
    sort_fields(params)
    assert params == {"user": "u", "extra_body": {"a": 1}}


def test_every_field_of_the_table_says_why():
    assert all(why for _, why in FIELDS.values())
