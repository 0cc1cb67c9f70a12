"""JSONL and text: lines, faults, and rows as objects."""

import copy
import pickle
from decimal import Decimal

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchclient.jobs import BadRow, Row, read_rows

from .conftest import Slow


def row_of(line, form="jsonl", **options):
    """The only row of a line, which is the seventh."""
    rows = list(read_rows(Slow(b"\n" * 6 + line, 1 << 20), format=form, **options))
    assert len(rows) <= 1
    return rows[0] if rows else None


def test_lines_end_at_newlines_only_and_marks_before_them_are_dropped(rows_of):
    text = "a\u2028b\x0bc\x85d\u2029e \r\n\n \t\n\ufefftwo\n\ufeff\nthree\ufeff"
    assert rows_of(text, "in.txt") == [
        (1, {"text": "a\u2028b\x0bc\x85d\u2029e "}),
        (4, {"text": "two"}),
        (6, {"text": "three\ufeff"}),
    ]


def test_a_line_that_is_too_long_is_no_row_and_the_next_one_is(rows_of):
    long = b"x" * (16 << 20)
    rows = rows_of(b"a\n%b\n%bx\nb\n%b%b" % (long, long, long, long), "in.txt")
    assert [(line, row if isinstance(row, str) else len(row["text"])) for line, row in rows] == [
        (1, 1),
        (2, 16 << 20),
        (3, "line 3 is longer than 16 MiB"),
        (4, 1),
        (5, "line 5 is longer than 16 MiB"),
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"a": 1', "line 7 is not JSON: Expecting ',' delimiter (column 8)"),
        (b'{"a": NaN}', "line 7 is not JSON: NaN is no JSON number"),
        (b'{"a": 1e999}', "line 7 is not JSON: a number is too large for a 64-bit float"),
        (b'{"a": 1} {"b": 2}', "line 7 is not JSON: Extra data (column 10)"),
        (b"[1]", "line 7 is no JSON object"),
        (
            b"\xff",
            "line 7 is not UTF-8, or not in the given encoding (byte 1 of it); it may be cp1252 (Windows) or latin-1: give the encoding",
        ),
        (b"[" * 100_000, "line 7 is not JSON"),
    ],
)
def test_a_line_that_cannot_be_used_says_why_and_where(line, fault):
    row = row_of(line)
    assert row.fault.startswith(fault)
    assert (row, row.get("text"), "text" in row) == ({}, None, False)
    with pytest.raises(BadRow, match="line 7"):
        row["text"]


def test_blanks_around_an_object_are_nothing():
    for line in [b'{"a": 1.5}', b'{"a": 1.5}\r', b' {"a": 1.5}  ', b'\t{"a":1.5}\r']:
        assert row_of(line) == {"a": 1.5}
    assert row_of(b"  indented \r", "text") == {"text": "  indented "}
    for blank in [b"", b" \t ", b"\r"]:
        assert row_of(blank) is row_of(blank, "text") is None


def test_a_row_has_the_columns_that_were_asked_for_or_says_which_it_lacks():
    assert row_of(b'{"a": 1, "b": null, "c": 3}', columns=["c", "b"]) == {"c": 3, "b": None}
    assert row_of(b'{"a": 1}', columns=["a", "b"]).fault == "line 7 has no field 'b'"


def test_a_row_can_be_copied_and_sent_to_another_process():
    for again in (copy.copy, copy.deepcopy, lambda row: pickle.loads(pickle.dumps(row))):
        row, faulty = again(Row({"a": [1]}, 5)), again(Row((), 6, "is no row"))
        assert (row, row.line, row.fault) == ({"a": [1]}, 5, None)
        assert (faulty.line, faulty.fault) == (6, "line 6 is no row")


def test_a_row_that_is_sent_takes_its_own_cells_of_the_table_along():
    values = [Decimal(number) / 100 for number in range(10_000)]
    batch = pyarrow.record_batch(
        {"price": pyarrow.array(values, pyarrow.decimal256(40, 2)), "word": ["x" * 90] * 10_000}
    )
    row = Row({"word": "x" * 90}, 7)
    row.cells = batch, 4_321
    sent = pickle.dumps(row)
    table, place = pickle.loads(sent).cells
    assert table.schema == batch.schema and table.slice(place, 1).to_pylist() == batch.slice(4_321, 1).to_pylist()
    assert len(sent) < 2_000


@settings(max_examples=60)
@given(st.binary(max_size=80), st.integers(1, 30), st.sampled_from(["jsonl", "text", "csv"]))
def test_whatever_the_bytes_are_chunks_make_no_difference(data, size, form):
    data = b"abcdef,g\n" + data

    def read(size):
        return [(row.line, row.fault or dict(row)) for row in read_rows(Slow(data, size), format=form)]

    # What the first bytes tell is told by the first eight.
    assert read(max(8, size)) == read(100)
