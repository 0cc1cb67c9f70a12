"""Templates: ``{}`` for a text, ``{name}`` for a field, nothing else."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from batchclient.errors import ConfigError, MissingField
from batchclient.templates import fields_of, make_prompt, value_of


def test_a_template_is_filled():
    for template, document, prompt in [
        ("Summarise: {}", "a text", "Summarise: a text"),
        ("{}", "", ""),
        ("{} and {}", "x", "x and x"),
        ("{{}} {}", "x", "{} x"),
        ('{{"a": {}}}', "1", '{"a": 1}'),
        ("{title}: {body}", {"title": "T", "body": "B"}, "T: B"),
        ("{a}{a}", {"a": "x"}, "xx"),
        ("{n}", {"n": 3}, "3"),
        ("{_x1}", {"_x1": "y", "other": None}, "y"),
        ("{größe}", {"größe": "5"}, "5"),
        ("{Review Text} {x-y} {0}", {"Review Text": "a", "x-y": "b", "0": "c"}, "a b c"),
        (
            "{user.name} {tags[1]} {a[b].c}",
            {"user": {"name": "n"}, "tags": "xy", "tags[1]": "t", "a": {"b": {"c": 1}}},
            "n t 1",
        ),
        ("{Unnamed: 0} {a:b} {a:c.d} {a:>5}", {"Unnamed: 0": 1, "a:b": 2, "a:c": {"d": 3}, "a:>5": 4}, "1 2 3 4"),
        ("{a.b}", {"a": {"b": "the path"}, "a.b": "the field"}, "the field"),
        ("{}", "{name} {} {{", "{name} {} {{"),
        ("{a}", {"a": "{b}"}, "{b}"),
    ]:
        assert make_prompt(template)(document) == prompt


@given(st.text())
def test_a_text_is_put_in_as_it_is(text):
    assert make_prompt("<{}>")(text) == f"<{text}>"


@given(st.text())
def test_doubled_braces_are_the_text_itself(text):
    template = text.replace("{", "{{").replace("}", "}}")
    assert make_prompt(template + "{}")("!") == text + "!"


def test_a_field_enters_as_json_where_the_template_says_so():
    row = {"t": 'ä "q"', "yes": True, "tags": ["a", 1], "user": {"name": None}, "day": date(2026, 3, 1), "No: 1": 2}
    for template, prompt in [
        ("{user.name!j} {user!j} {tags[1]}", 'null {"name": null} 1'),
        ("{tags!j} {user!j}", '["a", 1] {"name": null}'),
        ("{t!j}{t}", '"ä \\"q\\""ä "q"'),
        ("{yes} {yes!j} {tags[1]!j}", "true true 1"),
        ("{day!j} {user.name!j} {No: 1!j}", '"2026-03-01" null 2'),
    ]:
        assert make_prompt(template)(row) == prompt
    assert make_prompt("{!j}")("a\n") == '"a\\n"'
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        make_prompt("{x!j}")({"x": float("nan")})


def test_a_list_or_an_object_is_no_text():
    chat = [{"role": "user", "content": "the secret"}]
    for value, what in [(["a"], "a list"), ({"a": 1}, "a dict"), ((1,), "a tuple"), (chat, "a conversation")]:
        with pytest.raises(ConfigError, match=rf"'x' is {what}: {{x!j}} writes it as JSON") as caught:
            make_prompt("Say {x}", is_chat=True)({"x": value})
        assert caught.value.field == "x"
        assert "secret" not in str(caught.value)
    assert make_prompt("{x}", is_chat=True)({"x": chat}) == chat


@dataclass
class Point:
    x: int


class Model(BaseModel):
    x: int
    day: date


class Colour(Enum):
    RED = "red"


def test_an_object_enters_as_json_or_not_at_all():
    for value, written in [
        (Point(1), '{"x": 1}'),
        (Model(x=1, day=date(2026, 3, 1)), '{"x": 1, "day": "2026-03-01"}'),
        ([Point(1)], '[{"x": 1}]'),
        (Colour.RED, '"red"'),
        (UUID(int=1), f'"{UUID(int=1)}"'),
        (Decimal("1.50"), '"1.50"'),
    ]:
        assert make_prompt("{x!j}")({"x": value}) == written
    for value in [{1, 2}, range(3), object, object(), 1 + 2j]:
        for template in ("{x}", "{x!j}"):
            with pytest.raises(ConfigError) as caught:
                make_prompt(template)({"x": value})
            assert caught.value.field == "x"
    for value in [Point(1), Model(x=1, day=date(2026, 3, 1))]:
        with pytest.raises(ConfigError, match=r"{x!j} writes it as JSON"):
            make_prompt("{x}")({"x": value})
    told = {"colour": Colour.RED, "id": UUID(int=1), "day": date(2026, 3, 1)}
    assert make_prompt("{colour} {id} {day}")(told) == f"red {UUID(int=1)} 2026-03-01"


def test_any_mapping_will_do():
    assert make_prompt("{a}")(MappingProxyType({"a": "x"})) == "x"


def test_a_callable_is_taken_as_it_is():
    assert make_prompt(str.upper) is str.upper


def test_the_fields_of_a_template_and_their_values():
    assert fields_of("{a.b} {{x}} {Review Text}") == ["a.b", "Review Text"]
    assert fields_of("Say {}") == [""]
    assert fields_of("{Unnamed: 0}{a:b}") == ["Unnamed: 0", "a:b"]
    assert value_of({"tags": [{"n": 1}]}, "tags[0].n") == 1
    for name in ["tags[0]", "user.name", "user.name.first"]:
        assert value_of({"tags": None, "user": None}, name) is None
    with pytest.raises(ConfigError, match=r"^'user.name' is empty \(NaN\)$"):
        make_prompt("{user.name}")({"user": float("nan")})
    for name in ["tags[1]", "tags.x", "b", "tags[0].m", "tags[-1]", "x[", "n[0]"]:
        with pytest.raises(KeyError):
            value_of({"tags": [{"n": 1}], "n": "text"}, name)


def test_a_single_brace_or_a_conversion_says_to_double_it():
    for template in [
        "{",
        "}",
        "a { b",
        "a } b",
        '{"a": {}}',
        "{a!r}",
        "{a!r:>5}",
        "{:>5}",
        "{a: {}}",
        '{a: "b"}',
        "{} {}}",
        '{"a"}',
        '{ "a" }',
        "{\n}",
        "{ }",
        "{!r}",
    ]:
        with pytest.raises(ConfigError, match="double it") as caught:
            make_prompt(template)
        assert caught.value.field == "prompt"


def test_a_template_without_a_field_is_refused():
    for template in ["", "no field", "{{}}", "{{name}}"]:
        with pytest.raises(ConfigError, match="no field") as caught:
            make_prompt(template)
        assert caught.value.field == "prompt"


def test_a_template_uses_one_kind_of_field():
    with pytest.raises(ConfigError, match="not both"):
        make_prompt("{} {name}")


def test_what_is_no_template_is_refused():
    for template in [None, 5, b"{}", ["{}"]]:
        with pytest.raises(ConfigError, match="a template or a callable"):
            make_prompt(template)


def test_a_text_template_takes_texts_only():
    for document in [5, b"bytes", {"a": 1}, ["x"]]:
        with pytest.raises(ConfigError, match="takes a text"):
            make_prompt("{}")(document)
    with pytest.raises(MissingField, match="the document is empty"):
        make_prompt("{}")(None)


def test_a_template_of_names_takes_mappings_only():
    for document in [None, 5, "text", ["x"]]:
        with pytest.raises(ConfigError, match="not a mapping"):
            make_prompt("{a}")(document)


def test_a_missing_field_names_what_there_is():
    with pytest.raises(ConfigError, match="no field 'c'; it has: a, b") as caught:
        make_prompt("{c}")({"b": 1, "a": 2})
    assert caught.value.field == "c"


def test_a_null_is_no_text():
    with pytest.raises(MissingField, match="'a' is empty") as caught:
        make_prompt("{a}")({"a": None})
    assert caught.value.field == "a"


def test_bytes_are_no_text():
    for value in [b"the secret", bytearray(b"the secret"), memoryview(b"the secret")]:
        with pytest.raises(ConfigError, match=r"^the document's field 'a' is a \w+: decode it$") as caught:
            make_prompt("{a}")({"a": value})
        assert caught.value.field == "a"


def test_an_error_holds_no_value_of_the_document():
    for template, document in [("{a}", {"b": "the secret"}), ("{}", ["the secret"]), ("{a}", "the secret")]:
        with pytest.raises(ConfigError) as caught:
            make_prompt(template)(document)
        assert "the secret" not in str(caught.value)
