"""Shards of files: disjoint, and together the file."""

import gzip
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchclient import ConfigError
from batchclient.jobs import read_rows
from batchclient.jobs.source import Source

lines = st.lists(st.sampled_from(["", "a", " ", "bb", "é", "x" * 30, '"', '{"text": "q"}']), max_size=12)


def read(path, **options):
    return [(row.line, row.fault or dict(row)) for row in read_rows(path, **options)]


def whole_and_parts(data, name, parts, form):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        whole = read(path, format=form)
        return whole, [read(path, format=form, shard=(part, parts)) for part in range(parts)]


@settings(max_examples=50, deadline=None)
@given(lines, st.integers(1, 9), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(), st.booleans())
def test_ranges_are_the_file_in_order(texts, parts, end, last, mark, jsonl):
    data = ("\ufeff" if mark else "") + end.join(texts) + (end if last else "")
    whole, shards = whole_and_parts(data.encode(), "in", parts, "jsonl" if jsonl else "text")
    assert [row for shard in shards for row in shard] == whole


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60), st.integers(1, 5))
def test_ranges_of_any_bytes_are_the_file(data, parts):
    whole, shards = whole_and_parts(b"text" + data, "in", parts, "text")
    assert [row for shard in shards for row in shard] == whole


csv_values = st.text(st.sampled_from('ab",\n\r '), max_size=5)


@settings(max_examples=50, deadline=None)
@given(st.lists(csv_values, max_size=10), st.integers(1, 5))
def test_parts_of_csv_are_the_file_whatever_its_quotes(values, parts):
    data = "id,text\n" + "".join(f"{number},{value}\n" for number, value in enumerate(values))
    whole, shards = whole_and_parts(data.encode(), "in.csv", parts, None)
    assert sorted((row for shard in shards for row in shard), key=lambda row: row[0]) == whole


@pytest.mark.parametrize("form", ["jsonl", "text"])
def test_parts_of_what_is_packed_streamed_or_recoded_are_the_file(tmp_path, form):
    data = b"\n".join(b'{"text": "%d"}' % number if number % 5 else b" " for number in range(200))
    (tmp_path / "in.gz").write_bytes(gzip.compress(data))
    (tmp_path / "in").write_bytes(data.decode().encode("utf-16"))
    whole = read(tmp_path / "in.gz", format=form)
    for source in (lambda: tmp_path / "in.gz", lambda: io.BytesIO(data), lambda: tmp_path / "in"):
        shards = [read(source(), format=form, shard=f"{part}/3") for part in range(3)]
        assert sorted((row for shard in shards for row in shard), key=lambda row: row[0]) == whole
        assert min(map(len, shards)) > 30


def test_a_part_reads_its_own_bytes_and_counts_its_lines(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(b"".join(b"%07d\n" % number for number in range(400_000)))
    with Source(path, shard=(1, 8)) as source:
        assert source.first()["text"] == "0050000"
        assert source.expected() == 50_000
        assert [int(row["text"]) for row in source.read()] == list(range(50_000, 100_000))


def test_lines_of_a_part_are_numbered_as_the_files(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n' * 20)
    assert read(path, shard=(3, 4)) == read(path)[30:]
    assert read(path)[39][1].startswith("line 60 is not JSON")
    *_, last = read_rows(path, shard=(3, 4))
    path.unlink()
    assert last.line < 60, "whoever asks after the file has gone gets a number all the same"


def test_a_file_without_an_ending_has_one_form_in_all_parts(tmp_path):
    path = tmp_path / "in"
    path.write_text("\ntext first\n" + '{"text": "x"}\n' * 9)
    assert all("text" in fields for part in range(3) for _, fields in read(path, shard=(part, 3)))
    assert read(path, shard=(2, 3))[0][1] == {"text": '{"text": "x"}'}


def test_what_is_no_part_is_refused(tmp_path):
    for shard in ["8/8", "-1/8", "1", "1/0", "a/b", "", "0x1/2", "١/8", (8, 8), (0, 0), (1,), (True, 2), 3]:
        with pytest.raises(ConfigError) as refused:
            read_rows(tmp_path / "in.txt", shard=shard)
        assert refused.value.field == "shard"
