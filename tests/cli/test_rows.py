"""Results in, lines out, without files: each rule at the top of ``_rows``. Reading is in ``tests/jobs``."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchclient import Choice, Completion, MapResult, Usage
from batchclient.cli import _rows
from batchclient.cli._rows import Ids, added_by, blame, to_line
from batchclient.jobs import BadRow, Row


def result(row, *, completion=None, error=None):
    return MapResult("made-id", 3, row, completion, error)


def completion(text="yes", usage=Usage(4, 2)):
    return Completion((Choice(0, text, "stop"),), usage)


def test_an_unusable_row_fails_with_its_own_words():
    row = Row((), 7, "is no JSON object")
    with pytest.raises(BadRow, match="line 7 is no JSON object"):
        blame(str)(row)
    assert json.loads(to_line(result(row, error=BadRow(row.fault)))) == {
        "line": 7,
        "error": {"type": "BadRow", "message": "line 7 is no JSON object"},
    }


def test_only_the_columns_are_written_and_the_id():
    row = Row({"id": "x", "text": "long", "n": 1, "usage": "theirs"}, 1)
    written = json.loads(to_line(result(row, completion=completion()), columns=["n", "other"]))
    assert list(written) == ["id", "n", "completion", "finish_reason", "health", "usage"]
    assert written["usage"] == {"prompt_tokens": 4, "completion_tokens": 2}


def test_a_row_keeps_its_fields_and_gets_an_answer():
    row = Row({"text": "ä\u2028", "n": 1.5, "deep": {"a": [None]}}, 1)
    line = to_line(result(row, completion=completion("naïve", Usage(4, 2, prompt_tokens_estimated=True))))
    assert "naïve" in line.decode()
    assert json.loads(line) == {
        **row,
        "id": "made-id",
        "completion": "naïve",
        "finish_reason": "stop",
        "health": "ok",
        "usage": {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_estimated": True},
    }
    assert json.loads(to_line(result(row, completion=completion(usage=None))))["usage"] is None


def test_a_row_keeps_its_own_id_as_it_stands():
    for own in ["mine", 7, 0, "", None]:
        assert json.loads(to_line(result(Row({"id": own}, 1), completion=completion())))["id"] == own


def test_what_a_parameter_asks_for_is_written_where_the_server_sends_it():
    choice = Choice(
        0, "yes", "stop", {"tokens": ["yes"], "token_logprobs": [-0.5]}, (7, 8), {"prompt_logprobs": [None]}
    )
    line = json.loads(to_line(result(Row({"text": "x"}, 1), completion=Completion((choice,), None))))
    assert list(line)[-3:] == ["logprobs", "prompt_logprobs", "token_ids"]
    assert (line["logprobs"], line["prompt_logprobs"]) == (choice.logprobs, [None])
    assert line["token_ids"] == [7, 8]
    of_chat = Completion((Choice(0, "yes", "stop"),), None, extra={"prompt_logprobs": [{}]})
    assert json.loads(to_line(result(Row({}, 1), completion=of_chat)))["prompt_logprobs"] == [{}]


def test_a_rows_own_field_is_not_overwritten_by_what_nobody_asked_for():
    row = Row({"logprobs": "mine"}, 1)
    told = Completion((Choice(0, "yes", "stop", {"tokens": ["yes"]}),), None)
    assert json.loads(to_line(result(row, completion=told)))["logprobs"] == "mine"
    assert "logprobs" in added_by("complete", {"logprobs": 0})
    assert "logprobs" not in added_by("complete", {"seed": 1, "n": 1, "logprobs": False})


def test_an_id_of_an_earlier_row_is_known_with_its_place_or_without():
    ids = Ids(2)
    rows = [Row({"id": name}, number) for number, name in enumerate("abcdabcd", 1)]
    told = [f"line {number} has the id of the row " for number in (5, 6, 7, 8)]
    places = ("in line 1", "in line 2", "after line 2", "after line 2")
    assert [ids.repeated(row) for row in rows] == [None] * 4 + [a + b for a, b in zip(told, places, strict=True)]


def test_a_logprob_that_json_cannot_write_is_null():
    told = Completion((Choice(0, "yes", "stop", {"token_logprobs": [-1.5, float("-inf"), float("nan")]}),), None)
    line = to_line(result(Row({"other": "\ud800"}, 1), completion=told))
    assert json.loads(line)["logprobs"] == {"token_logprobs": [-1.5, None, None]}


def test_a_failed_row_keeps_its_fields_and_names_its_line():
    fields = json.loads(to_line(result(Row({"text": "x"}, 9), error=ValueError("document 3: no good"))))
    assert fields == {"text": "x", "id": "made-id", "error": {"type": "ValueError", "message": "line 9: no good"}}


def test_a_lone_surrogate_leaves_as_it_came():
    line = to_line(result(Row({"other": "\ud800"}, 1), completion=completion()))
    assert b"\\ud800" in line
    assert json.loads(line)["other"] == "\ud800"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=30)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_whatever_json_came_in_goes_out(fields):
    fields = {name: value for name, value in fields.items() if name not in _rows.ADDED and name != "id"}
    row = Row(json.loads(json.dumps(fields)), 1)
    line = to_line(result(row, completion=completion()))
    assert line.count(b"\n") == 1
    assert {name: value for name, value in json.loads(line).items() if name in fields} == fields
