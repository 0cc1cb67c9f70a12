"""Lines in, rows out: each rule at the top of ``jobs/rows``."""

import copy
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchclient.jobs import BadRow
from batchclient.jobs.rows import FaultyRow, LineRows, LineSplitter, Origin, lines_in, make_row


def split(*chunks, **arguments):
    splitter = LineSplitter(**arguments)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.end()


def row_of(line, form="jsonl", **options):
    """The only row of a line, which is the seventh."""
    rows = list(LineRows(form, **options).feed([b""] * 6 + [line]))
    assert len(rows) <= 1
    return rows[0] if rows else None


def test_lines_end_at_newlines_only():
    text = "a\u2028b\x0bc\x85d\u2029e\n".encode()
    assert split(text) == [text[:-1]]


def test_the_byte_order_mark_is_dropped_before_the_first_line_alone():
    assert split(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\nthree") == [b"one", b"\xef\xbb\xbftwo", b"three"]
    assert split(b"\xef\xbb", b"\xbfone") == [b"one"]
    assert split(b"\xef\xbb\xbfone", at_start=False) == [b"\xef\xbb\xbfone"]


@settings(max_examples=60)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_where_chunks_end_makes_no_difference(data, cuts):
    edges = [0, *sorted(cuts), len(data)]
    assert split(*(data[low:high] for low, high in zip(edges, edges[1:], strict=False))) == split(data)


def test_a_line_that_is_too_long_is_no_line_and_the_next_one_is():
    assert split(b"a\n" + b"x" * 6, b"x" * 6, b"x" * 6, b"x\nb", longest_bytes=10) == [b"a", None, b"b"]
    assert split(b"x" * 11 + b"\nb\n", longest_bytes=10) == [None, b"b"]
    assert split(b"a\n" + b"x" * 11, longest_bytes=10) == [b"a", None]
    assert row_of(None).fault == "line 7 is longer than 16 MiB"


@pytest.mark.parametrize("line", [b"", b" \t ", b"\r"])
def test_blank_lines_are_no_rows(line):
    assert row_of(line) is None
    assert row_of(line, "text") is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"a": 1', "line 7 is not JSON: Expecting ',' delimiter (column 8)"),
        (b'{"a": NaN}', "line 7 is not JSON: NaN is no JSON number"),
        (b'{"a": -Infinity}', "line 7 is not JSON: -Infinity is no JSON number"),
        (b'{"a": 1e999}', "line 7 is not JSON: a number is too large for a 64-bit float"),
        (b'{"a": 1} {"b": 2}', "line 7 is not JSON: Extra data (column 10)"),
        (b"[1]", "line 7 is no JSON object"),
        (b'"text"', "line 7 is no JSON object"),
        (b"\xff", "line 7 is not UTF-8 (byte 1 of it)"),
        (b"[" * 100_000, "line 7 is not JSON"),
    ],
)
def test_a_line_that_cannot_be_used_says_why_and_where(line, fault):
    row = row_of(line)
    assert row.fault.startswith(fault)
    assert row == {}
    for ask in (lambda: row["text"], lambda: "text" in row):
        with pytest.raises(BadRow, match="line 7"):
            ask()
    assert row.get("text") is None


@pytest.mark.parametrize("line", [b'{"a": 1.5}', b'{"a": 1.5}\r', b' {"a": 1.5}  ', b'\t{"a":1.5}\r'])
def test_blanks_around_an_object_are_nothing(line):
    assert row_of(line) == {"a": 1.5}


def test_a_text_line_is_a_row_with_a_text():
    assert row_of(b'{"not": "parsed"}', "text") == {"text": '{"not": "parsed"}'}
    assert row_of(b"  indented \r", "text") == {"text": "  indented "}


def test_a_row_has_the_columns_that_were_asked_for_or_says_which_it_lacks():
    assert row_of(b'{"a": 1, "b": null, "c": 3}', columns=["c", "b"]) == {"c": 3, "b": None}
    assert row_of(b'{"a": 1}', columns=["a", "b"]).fault == "line 7 has no field 'b'"


def test_lines_are_numbered_over_all_chunks():
    rows = LineRows("text")
    assert [row.line for lines in ([b"a", b""], [b"b"], [], [b"c"]) for row in rows.feed(lines)] == [1, 3, 4]


def test_rows_count_without_the_blank_lines_where_some_are_chosen():
    asked = []
    rows = LineRows("text", keep=lambda number, line: asked.append((number, line)) or number == 1)
    assert [row.line for row in rows.feed([b"a", b" ", b"b\r", None, b"c"])] == [3]
    assert asked == [(0, b"a"), (1, b"b"), (2, b""), (3, b"c")]


def test_the_line_of_a_row_of_a_part_is_the_files(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"a\n\nb\nc\n")
    assert make_row({}, 1, Origin(str(path), 3)).line == 3
    assert FaultyRow("is no row", 2, Origin(str(path), 3)).fault == "line 4 is no row"
    # Whoever asks after the file has gone gets a number all the same.
    assert make_row({}, 1, Origin(str(tmp_path / "gone"), 3)).line == 1


@pytest.mark.parametrize(("content", "lines"), [("", 0), ("a", 1), ("a\n\nb\n", 3), ("a\n" * 9, 9)])
def test_lines_are_counted_as_far_as_asked(tmp_path, content, lines):
    (tmp_path / "in").write_text(content)
    path = str(tmp_path / "in")
    assert lines_in(path, 0, len(content)) == lines
    for most in (1, 3, 20):
        assert lines_in(path, 0, len(content), most) == min(lines, most)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda row: pickle.loads(pickle.dumps(row))])
def test_a_row_can_be_copied_and_sent_to_another_process(again):
    row = again(make_row({"a": [1]}, 5))
    assert (row, row.line, row.fault) == ({"a": [1]}, 5, None)
    faulty = again(FaultyRow("is no row", 6))
    assert (faulty.line, faulty.fault) == (6, "line 6 is no row")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=30)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_whatever_object_json_can_say_is_a_row(fields):
    assert row_of(json.dumps(fields).encode()) == fields
