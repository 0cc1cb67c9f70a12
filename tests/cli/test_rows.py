"""Lines in, rows out, without files: each rule at the top of ``_rows``."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchclient import Choice, Completion, MapResult, Usage
from batchclient.cli import _rows
from batchclient.cli._rows import BadRow, LineSplitter, Row, blame, make_row, to_line


def split(*chunks, **arguments):
    splitter = LineSplitter(**arguments)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + list(splitter.end())


def result(row, *, completion=None, error=None):
    return MapResult("made-id", 3, row, completion, error)


def completion(text="yes", usage=Usage(4, 2)):
    return Completion((Choice(0, text, "stop"),), usage)


def test_lines_end_at_newlines_only():
    text = "a\u2028b\x0bc\x85d\u2029e\n".encode()
    assert split(text) == [(1, text[:-1])]


def test_carriage_returns_and_the_byte_order_mark_are_dropped():
    assert split(b"\xef\xbb\xbfone\r\n\xef\xbb\xbftwo\rx\r\nthree") == [
        (1, b"one"),
        (2, b"\xef\xbb\xbftwo\rx"),
        (3, b"three"),
    ]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_where_chunks_end_makes_no_difference(data, cuts):
    edges = [0, *sorted(cuts), len(data)]
    assert split(*(data[low:high] for low, high in zip(edges, edges[1:], strict=False))) == split(data)


def test_a_line_that_is_too_long_is_no_line_and_the_next_one_is():
    lines = split(b"a\n" + b"x" * 6, b"x" * 6, b"x" * 6, b"x\nb", longest_bytes=10)
    assert lines == [(1, b"a"), (2, None), (3, b"b")]
    assert "line 2 is longer" in make_row(2, None, "jsonl").fault


@pytest.mark.parametrize("line", [b"", b" \t "])
def test_blank_lines_are_no_rows(line):
    assert make_row(1, line, "jsonl") is None
    assert make_row(1, line, "text") is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"a": 1', "line 7 is not JSON: Expecting ',' delimiter (column 8)"),
        (b'{"a": NaN}', "line 7 is not JSON: NaN is no JSON number"),
        (b'{"a": -Infinity}', "line 7 is not JSON: -Infinity is no JSON number"),
        (b'{"a": 1e999}', "line 7 is not JSON: a number is too large for a 64-bit float"),
        (b"[1]", "line 7 is no JSON object"),
        (b'"text"', "line 7 is no JSON object"),
        (b"\xff", "line 7 is not UTF-8 (byte 1 of it)"),
        (b"[" * 100_000, "line 7 is not JSON"),
        (b'{"text": "x", "usage": 1}', "line 7 has a field 'usage', which the output would overwrite; rename it"),
    ],
)
def test_a_line_that_cannot_be_used_says_why_and_where(line, fault):
    row = make_row(7, line, "jsonl")
    assert row.fault.startswith(fault)
    with pytest.raises(BadRow, match="line 7"):
        blame(str)(row)
    assert json.loads(to_line(result(row, error=BadRow(row.fault)))) == {
        "line": 7,
        "error": {"type": "BadRow", "message": row.fault},
    }


def test_a_text_line_is_a_row_with_a_text():
    assert make_row(1, b'{"not": "parsed"}', "text") == {"text": '{"not": "parsed"}'}
    assert make_row(2, b"  indented", "text") == {"text": "  indented"}


def test_a_row_keeps_its_fields_and_gets_an_answer():
    row = Row({"text": "ä\u2028", "n": 1.5, "deep": {"a": [None]}}, 1)
    line = to_line(result(row, completion=completion("naïve")))
    assert "naïve" in line.decode()
    assert json.loads(line) == {
        **row,
        "id": "made-id",
        "completion": "naïve",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 4, "completion_tokens": 2},
    }


@pytest.mark.parametrize("own", ["mine", 7, 0])
def test_a_row_keeps_its_own_id_and_its_type(own):
    assert json.loads(to_line(result(Row({"id": own}, 1), completion=completion())))["id"] == own


@pytest.mark.parametrize("own", [None, ""])
def test_an_empty_id_is_none(own):
    assert json.loads(to_line(result(Row({"id": own}, 1), completion=completion())))["id"] == "made-id"


def test_a_usage_that_is_estimated_says_so():
    share = completion(usage=Usage(4, 2, prompt_tokens_estimated=True))
    usage = json.loads(to_line(result(Row({}, 1), completion=share)))["usage"]
    assert usage == {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_estimated": True}


def test_a_server_that_counts_no_tokens_leaves_usage_null():
    assert json.loads(to_line(result(Row({}, 1), completion=completion(usage=None))))["usage"] is None


def test_a_failed_row_keeps_its_fields_and_names_its_line():
    fields = json.loads(to_line(result(Row({"text": "x"}, 9), error=ValueError("document 3: no good"))))
    assert fields == {"text": "x", "id": "made-id", "error": {"type": "ValueError", "message": "line 9: no good"}}


def test_a_lone_surrogate_leaves_as_it_came():
    row = make_row(1, rb'{"text": "x", "other": "\ud800"}', "jsonl")
    line = to_line(result(row, completion=completion()))
    assert b"\\ud800" in line
    assert json.loads(line)["other"] == "\ud800"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_whatever_json_came_in_goes_out(fields):
    fields = {name: value for name, value in fields.items() if name not in _rows.ADDED and name != "id"}
    row = make_row(1, json.dumps(fields, ensure_ascii=False).encode(), "jsonl")
    line = to_line(result(row, completion=completion()))
    assert line.count(b"\n") == 1
    assert {name: value for name, value in json.loads(line).items() if name in fields} == fields
