"""CSV: values as they stand, faults with their lines, and files that are refused."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchclient import ConfigError
from batchclient.jobs import csv_rows
from batchclient.jobs.csv_rows import CsvRows
from batchclient.jobs.rows import LineSplitter


def parse(data, size=1 << 18, **options):
    """Rows of bytes that come in chunks of a size."""
    splitter, rows = LineSplitter(), CsvRows("in.csv", **options)
    made = []
    for at in range(0, len(data), size):
        made += rows.feed(splitter.feed(data[at : at + size]))
    made += rows.feed(splitter.end())
    made += rows.end()
    return [(row.line, row.fault or dict(row)) for row in made]


def read(text, **options):
    return parse(text.encode() if isinstance(text, str) else text, **options)


def test_values_are_texts_as_they_stand():
    text = 'id,text\n007,"a ""b"", c\r\nd"\n1e3, x \n-,ä\u2028\n'
    assert read(text) == [
        (2, {"id": "007", "text": 'a "b", c\r\nd'}),
        (4, {"id": "1e3", "text": " x "}),
        (5, {"id": "-", "text": "ä\u2028"}),
    ]


def test_an_empty_field_is_a_missing_value():
    assert read('id,text\n1,\n2,""\n,x\n') == [
        (2, {"id": "1", "text": None}),
        (3, {"id": "2", "text": None}),
        (4, {"id": None, "text": "x"}),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_line_ends_the_mark_and_blank_lines_change_nothing(end, last, start):
    text = start + end.join(["id,text", "", "1,a", "  ", "2,b"]) + (end if last else "")
    assert read(text) == [(3, {"id": "1", "text": "a"}), (5, {"id": "2", "text": "b"})]


def test_one_column_may_have_a_blank_for_a_value():
    assert read("text\na\n \n\nb") == [(2, {"text": "a"}), (3, {"text": " "}), (5, {"text": "b"})]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (b"1", "has 1 field, and the header has 2"),
        (b"1,a,b", "has 3 fields, and the header has 2"),
        (b"1,a\0b", "has a NUL"),
        (b"1,\xff", "is not UTF-8"),
        (b'1,"a" b', "has more text after a closing quote; within quotes, double a quote"),
        (b"1,a\rb", "has a carriage return outside quotes"),
    ],
)
def test_a_record_that_is_no_row_says_why_and_stops_nothing(record, fault):
    assert read(b"id,text\n0,x\n%b\n2,y\n" % record) == [
        (2, {"id": "0", "text": "x"}),
        (3, f"line 3 {fault}"),
        (4, {"id": "2", "text": "y"}),
    ]


def test_a_quote_without_an_end_is_one_fault_that_names_its_lines():
    assert read('id,text\n0,x\n1,"a\n2,b\n3,c\n') == [
        (2, {"id": "0", "text": "x"}),
        (3, "line 3 has a quote without an end (up to line 5)"),
    ]


def test_a_quote_in_an_unquoted_field_is_a_character():
    assert read('id,text\n1,5" pipe\n2,say "x"\n') == [
        (2, {"id": "1", "text": '5" pipe'}),
        (3, {"id": "2", "text": 'say "x"'}),
    ]


def test_a_field_of_megabytes_is_a_value_and_one_without_an_end_does_not_fill_the_memory(monkeypatch):
    long = "line\n" * 60_000
    assert read(f'id,text\n1,"{long}"\n2,b\n') == [
        (2, {"id": "1", "text": long}),
        (60_003, {"id": "2", "text": "b"}),
    ]
    monkeypatch.setattr(csv_rows, "LONGEST_LINE_BYTES", 1000)
    faults = read('id,text\n1,"' + "line\n" * 1000, size=300)
    assert [fault for _, fault in faults][0].startswith("line 2 has a field of more than 16 MiB")
    assert len(faults) > 1


def test_a_line_over_the_length_is_one_fault_with_the_record_that_it_ends():
    lines = [b"id,text", b"1,a", b'2,"b', None, b"3,c"]
    assert [(row.line, row.fault or dict(row)) for row in CsvRows("in.csv").feed(lines)] == [
        (2, {"id": "1", "text": "a"}),
        (3, "line 3 is longer than 16 MiB (up to line 4)"),
        (5, {"id": "3", "text": "c"}),
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no header"),
        ("\n\n", "has no header"),
        ("id,text,id\n", "the header has the name 'id' twice"),
        ("id,,text\n", "the header has an empty name (column 2)"),
        ("id, \n", "the header has an empty name (column 2)"),
        (b"id,t\0xt\n", "the header is not UTF-8 without NUL"),
        (b"id,\xff\n", "the header is not UTF-8 without NUL"),
        ('id,"text\n1,a\n', "the header has a quote without an end"),
        ("id;text\n1;a\n", "the header has semicolons and no comma; make JSONL of it: "),
        ("id\ttext\n", "the header has tabs and no comma; make JSONL of it: "),
        ('{"id": 1}\n', "the header begins a JSON object"),
    ],
)
def test_a_file_without_a_usable_header_is_refused(text, named):
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert str(refused.value).startswith("in.csv: ")
    assert named in str(refused.value)


def test_columns_are_picked_by_name_and_must_be_in_the_header():
    assert read("a,b,c\n1,2,3\n4,5\n", columns=["c", "a"]) == [
        (2, {"c": "3", "a": "1"}),
        (3, "line 3 has 2 fields, and the header has 3"),
    ]
    with pytest.raises(ConfigError, match="the header has no 'd'; it has a, b, c") as refused:
        read("a,b,c\n1,2,3\n", columns=["d"])
    assert refused.value.field == "columns"


def test_rows_are_chosen_by_their_number_and_their_bytes():
    asked = []
    text = b'a,b\n1,"x\r\ny"\r\n\n2\n3,"\n'
    rows = parse(text, keep=lambda number, row: asked.append((number, row)) or number != 0)
    assert asked == [(0, b'1,"x\r\ny"'), (1, b"2"), (2, b'3,"')]
    assert [line for line, _ in rows] == [5, 6]


values = st.text(st.sampled_from('ab",;\n\r\t é\u2028\x85 '), max_size=6)


@settings(max_examples=60)
@given(
    st.lists(st.lists(values, min_size=2, max_size=2), max_size=6), st.integers(1, 40), st.sampled_from(["\n", "\r\n"])
)
def test_what_the_standard_library_writes_is_read_back_wherever_chunks_end(rows, size, end):
    file = io.StringIO(newline="")
    # With "\n" alone the writer leaves "\r" unquoted, which then is part of a line end.
    quoting = csv.QUOTE_ALL if end == "\n" else csv.QUOTE_MINIMAL
    writer = csv.writer(file, lineterminator=end, quoting=quoting)
    writer.writerows([["x", "y"], *rows])
    read_back = [fields for _, fields in parse(file.getvalue().encode(), size)]
    assert read_back == [{"x": x or None, "y": y or None} for x, y in rows]


@settings(max_examples=60)
@given(st.binary(max_size=80), st.integers(1, 30))
def test_whatever_the_bytes_are_chunks_make_no_difference(data, size):
    data = b"a,b\n" + data
    assert parse(data, size) == parse(data)
