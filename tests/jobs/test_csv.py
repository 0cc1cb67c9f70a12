"""CSV: values as they stand, headers as others write them, faults with their lines, and files that are refused."""

import csv
import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchclient import ConfigError
from batchclient.jobs import read_rows

from .conftest import Slow


@pytest.fixture
def read(rows_of):
    return lambda content, name="in.csv", **options: rows_of(content, name, **options)


def fields(rows):
    return [row for _, row in rows]


def test_values_are_texts_as_they_stand_and_empty_ones_are_missing(read):
    text = 'id,text\n007,"a ""b"", c\r\nd"\n1e3, x \n-,ä\u2028\n,""\n'
    assert read(text) == [
        (2, {"id": "007", "text": 'a "b", c\r\nd'}),
        (4, {"id": "1e3", "text": " x "}),
        (5, {"id": "-", "text": "ä\u2028"}),
        (6, {"id": None, "text": None}),
    ]


def test_line_ends_marks_and_blank_lines_change_nothing(read):
    for start, end, last in [("", "\n", ""), ("\ufeff", "\r\n", "\r\n"), ("\ufeff\n\ufeff", "\n", "\n")]:
        shift = start.count("\n")
        text = start + end.join(["id,text", "", "1,a", "  ", "\ufeff2,b"]) + last
        assert read(text) == [(3 + shift, {"id": "1", "text": "a"}), (5 + shift, {"id": "2", "text": "b"})]
    assert read("text\na\n \n\nb") == [(2, {"text": "a"}), (3, {"text": " "}), (5, {"text": "b"})]


def test_columns_without_a_name_of_their_own_have_their_places(read):
    for header, names in [
        (",text", ["column_1", "text"]),
        ('"",a,', ["column_1", "a", "column_3"]),
        ("a, ,a,a_4,a", ["a", "column_2", "a_3", "a_4", "a_5"]),
        ("a,a_3,a", ["a", "a_3", "a_3_"]),
        (",", ["column_1", "column_2"]),
        ('"{a}",b', ["{a}", "b"]),
        ('"{""a""}",{b}', ['{"a"}', "{b}"]),
    ]:
        record = ",".join(map(str, range(len(names))))
        assert fields(read(f"{header}\n{record}\n")) == [dict(zip(names, record.split(","), strict=True))]


def test_the_header_tells_the_delimiter_where_none_is_given(read):
    row = [{"a x": "1,5", "b": "t"}]
    for content, name, options in [
        ("a x;b\n1,5;t\n", "in.csv", {}),
        ('"a x";"b"\r\n"1,5";"t"\r\n', "in.csv", {}),
        ("\ufeffsep=;\r\na x;b\r\n1,5;t\r\n", "in.csv", {}),
        ('"sep=|"\na x|b\n1,5|t\n', "in.csv", {}),
        ("sep=\t\na x\tb\n1,5\tt\n", "in.csv", {}),
        ('a x\tb\n"1,5"\tt\n', "in.csv", {}),
        ("a x\tb\n1,5\tt\n", "in.tsv", {}),
        ("a x\tb\n1,5\tt\n", "in.TAB.gz", {}),
        ("a x|b\n1,5|t\n", "in.csv", {"delimiter": "|"}),
        ("a x\tb\n1,5\tt\n", "in.log", {"delimiter": r"\t", "format": "csv"}),
        ("a x,b\n1\\,5,t\n", "in.csv", {"escape": "\\"}),
    ]:
        assert fields(read(content, name, **options)) == row, (content, options)
    assert fields(read('"a;b",c\n1,2\n')) == [{"a;b": "1", "c": "2"}]
    assert fields(read('"a\nb;c";d\n1;2\n')) == [{"a\nb;c": "1", "d": "2"}]
    assert fields(read("a;b\n1;2\n", delimiter=",")) == [{"a;b": "1;2"}]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (b"1", "has 1 field, and the header has 2"),
        (b"1,a,b", "has 3 fields, and the header has 2"),
        (b"1,a\0b", "has a NUL"),
        (
            b"1,\xff",
            "is not UTF-8, or not in the given encoding (byte 3 of it); it may be cp1252 (Windows) or latin-1: give the encoding",
        ),
        (b'1,"a" b', "has more text after a closing quote; within quotes, double a quote"),
        (b"1,a\rb", "has a carriage return outside quotes"),
        (b"1," + b"x" * (17 << 20), "is longer than 16 MiB"),
    ],
)
def test_a_record_that_is_no_row_says_why_and_stops_nothing(read, record, fault):
    rows = read(b"id,text\n0,x\n%b\n2,y\n" % record)
    assert rows == [(2, {"id": "0", "text": "x"}), (3, f"line 3 {fault}"), (4, {"id": "2", "text": "y"})]


def test_the_first_record_of_a_header_that_is_a_name_short_says_so(read):
    # As R's write.table writes them.
    for content, options in (
        ('"id","text"\n"1",7,"a"\n"2",8,"b"\n', {}),
        ('"id" "text"\n"1" 7 "a"\n"2" 8 "b"\n', {"delimiter": " "}),
    ):
        fault = "has 3 fields, and the header has 2"
        advice = "; R's write.table leaves out the name of the first column: add one"
        assert read(content, **options) == [(2, f"line 2 {fault}{advice}"), (3, f"line 3 {fault}")]


def test_a_quote_without_an_end_is_one_fault_that_names_its_lines(read):
    assert read('id,text\n0,x\n1,"a\n2,b\n3,c\n')[1:] == [(3, "line 3 has a quote without an end (up to line 5)")]
    long = ("y" * (1 << 20) + "\n") * 17
    assert read(f'id,text\n1,"{long}2,b\n') == [
        (2, "line 2 has more than 16 MiB; a quote may be without an end (up to line 17)"),
        *((line, f"line {line} has 1 field, and the header has 2") for line in [18]),
        (19, {"id": "2", "text": "b"}),
    ]
    assert fields(read('id,text\n1,5" pipe\n2,say "x"\n')) == [
        {"id": "1", "text": '5" pipe'},
        {"id": "2", "text": 'say "x"'},
    ]


def test_a_file_without_a_usable_header_is_refused(read):
    for content, named in [
        ("\n\n", "has no header"),
        (b"id,t\0xt\n", "the header has a NUL"),
        (b"id,\xff\n", "the header is not UTF-8, or not in the given encoding (byte 4 of it)"),
        ('id,"text\n1,a\n', "the header has a quote without an end"),
        (' { "id": 1}\n', "the header begins a JSON object"),
        ("id,text\r1,a\r", "the header has a carriage return outside quotes; old Macs' line ends: tr '\\r' '\\n'"),
        ('"id" "text"\n"1" "a"\n', "double a quote; between columns of blanks, delimiter ' '"),
    ]:
        with pytest.raises(ConfigError) as refused:
            read(content)
        assert named in str(refused.value)


def test_columns_are_picked_by_name_and_must_be_in_the_header(read):
    assert read("a,b,c\n1,2,3\n4,5\n", columns=["c", "a"]) == [
        (2, {"c": "3", "a": "1"}),
        (3, "line 3 has 2 fields, and the header has 3"),
    ]
    with pytest.raises(ConfigError, match="has no 'd'; it has a, b, c") as refused:
        read("a,b,c\n1,2,3\n", columns=["d"])
    assert refused.value.field == "columns"
    with pytest.raises(ConfigError, match="it has a;b, c; give delimiter ';'$"):
        read("a;b,c\n1;2,3\n", columns=["a"])


WRITTEN = {
    # pandas: DataFrame.to_csv with its index; R: write.csv with row names; both in quotes only where they must.
    "pandas": (",text,n\n0,a,1.5\n1,,2.0\n", [("column_1", "0"), ("text", "a"), ("n", "1.5")]),
    "R": ('"","text","n"\n"1","a",1.5\n"2",NA,2\n', [("column_1", "1"), ("text", "a"), ("n", "1.5")]),
    "R, write.csv2": ('"";"text";"n"\n"1";"a";1,5\n', [("column_1", "1"), ("text", "a"), ("n", "1,5")]),
    "Excel, CSV UTF-8": ("\ufefftext;n;\r\na;1,5;\r\n", [("text", "a"), ("n", "1,5"), ("column_3", None)]),
    "Excel, Unicode text": ("text\tn\r\nä\t1,5\r\n".encode("utf-16"), [("text", "ä"), ("n", "1,5")]),
    "LibreOffice": ('text,"n, all"\na,"1,5"\n', [("text", "a"), ("n, all", "1,5")]),
    "DuckDB, polars, pyarrow": ("text,n\na,1.5\n", [("text", "a"), ("n", "1.5")]),
    "pyarrow": ('"text","n"\n"a",1.5\n', [("text", "a"), ("n", "1.5")]),
}


def test_what_others_write_by_default_goes_in(read):
    for program, (content, first) in WRITTEN.items():
        rows = fields(read(content))
        assert list(rows[0].items()) == first, program
        assert all(isinstance(row, dict) for row in rows), program


values = st.text(st.sampled_from('ab",;\n\r\t é\u2028\x85 '), max_size=6)


@settings(max_examples=60)
@given(
    st.lists(st.lists(values, min_size=2, max_size=2), max_size=6), st.integers(8, 40), st.sampled_from(["\n", "\r\n"])
)
def test_what_the_standard_library_writes_is_read_back_wherever_chunks_end(rows, size, end):
    file = io.StringIO(newline="")
    # With "\n" alone the writer leaves "\r" unquoted, which then is part of a line end.
    quoting = csv.QUOTE_ALL if end == "\n" else csv.QUOTE_MINIMAL
    csv.writer(file, lineterminator=end, quoting=quoting).writerows([["x", "y"], *rows])
    read_back = [dict(row) for row in read_rows(Slow(gzip.compress(file.getvalue().encode()), size), format="csv")]
    assert read_back == [{"x": x or None, "y": y or None} for x, y in rows]
