"""``read_rows``: forms, gzip, files that are refused, and what a map makes of an unusable row."""

import asyncio
import gzip
import io
import os
import re
import subprocess
import sys
import threading
import tracemalloc

import pytest

from batchclient import BatchClient, ConfigError
from batchclient.jobs import BadRow, Row, read_rows
from batchclient.jobs.other_files import advice_for, advice_for_format
from batchclient.jobs.source import open_source
from batchclient.simulator import EmbeddedServer

TABLE = "id,text\n1,a\n2,b\n"
JSONL = '{"id": "1", "text": "a"}\n{"id": "2", "text": "b"}\n'
ROWS = [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}]
TEXT = [{"text": line} for line in JSONL.splitlines()]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("in.jsonl", JSONL, ROWS),
        ("in.NDJSON", JSONL, ROWS),
        ("in.csv", TABLE, ROWS),
        ("in.v2.csv", TABLE, ROWS),
        ("in.txt", JSONL, TEXT),
        ("in", JSONL, ROWS),
        ("in", f"# {JSONL}", [{"text": f"# {TEXT[0]['text']}"}, TEXT[1]]),
        ("in", "\n \n" + JSONL, ROWS),
        ("in", "", []),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_the_ending_decides_else_the_first_line(rows_of, name, content, rows, packed):
    data = content.encode()
    names = [name, f"{name}.gz"] if packed else [name]
    for one in names:
        assert [fields for _, fields in rows_of(gzip.compress(data) if packed else data, one)] == rows


def test_blank_lines_before_the_first_row_are_counted_over_all_chunks(rows_of):
    assert rows_of("\n" * 600_000 + JSONL, "in") == [(600_001, ROWS[0]), (600_002, ROWS[1])]


def test_a_file_that_is_named_packed_and_is_not_is_read(rows_of):
    assert [fields for _, fields in rows_of(JSONL, "in.jsonl.gz")] == ROWS


def test_gzip_of_several_members_is_one_file(rows_of):
    packed = gzip.compress(JSONL[:30].encode()) + gzip.compress(JSONL[30:].encode())
    assert [fields for _, fields in rows_of(packed, "in.jsonl")] == ROWS


@pytest.mark.parametrize(
    ("damage", "named"), [(lambda packed: packed[:-9], "early"), (lambda packed: packed[:-8] + b"x" * 8, "damaged")]
)
def test_damaged_gzip_ends_the_reading_with_its_reason(tmp_path, damage, named):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(
        damage(gzip.compress(b'{"text": "%b"}\n' % os.urandom(500_000).hex().encode() + JSONL.encode() * 9))
    )
    with pytest.raises(OSError, match=f"the gzip data .* ?{named}"):
        list(read_rows(path))


def test_the_form_may_be_said(rows_of):
    assert [fields for _, fields in rows_of(TABLE, "in.log", format="csv")] == ROWS
    assert rows_of(TABLE, "in.log", format="text")[0][1] == {"text": "id,text"}


@pytest.mark.parametrize(
    ("name", "content", "options", "field", "named"),
    [
        ("in.log", "x", {}, None, "the ending '.log' tells no form of rows; if each line is a row, give format="),
        ("in.log.gz", "x", {}, None, "the ending '.log' tells no form"),
        ("in.tsv", "x", {}, None, "it is TSV; make JSONL of it"),
        ("in.json", "[1]", {}, None, "it is JSON; make JSONL of it"),
        ("in", '[{"a": 1}]', {}, None, "it is a JSON array"),
        ("in", "PAR1", {}, None, "it is Parquet; make JSONL of it (pip install pyarrow)"),
        ("in.jsonl", "PAR1", {"shard": "0/2"}, None, "it is Parquet"),
        ("in", "ARROW1\0\0", {}, None, "it is Arrow; make JSONL of it (pip install pyarrow)"),
        ("in", "PK\x03\x04", {}, None, "it is a zip archive (or a spreadsheet)"),
        ("in.csv", "a,a\n", {}, None, "the name 'a' twice"),
        ("in.jsonl", "", {"format": "parquet"}, "format", "format: parquet is not read: it is Parquet; make JSONL"),
        ("in.jsonl", "", {"format": "arrow"}, "format", "format: arrow is not read: it is Arrow; make JSONL"),
        ("in.jsonl", "", {"format": "openai-batch"}, "format", "is not read: it is an OpenAI batch file; make JSONL"),
        ("in.jsonl", "", {"format": "xml"}, "format", "format: one of jsonl, text, csv, not 'xml'"),
        ("in.jsonl", "", {"columns": "a"}, "columns", "columns: a list of names, not 'a'"),
        ("in.jsonl", "", {"columns": []}, "columns", "columns: an empty name"),
        ("in.jsonl", "", {"columns": ["a", "a"]}, "columns", "columns: 'a' comes twice"),
        ("in.txt", "x", {"columns": ["a"]}, "columns", "columns: a line of text has the field 'text' alone, not 'a'"),
        ("in", "x", {"columns": ["a"]}, "columns", "columns: a line of text has the field 'text' alone, not 'a'"),
        ("in.csv", "a\n1\n", {"columns": ["b"]}, "columns", "has no 'b'; it has a"),
    ],
)
def test_what_is_not_read_is_refused_at_once_with_a_way(tmp_path, name, content, options, field, named):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as refused:
        read_rows(str(tmp_path / name), **options)
    assert named in str(refused.value)
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("s3://bucket/in.jsonl", "aws s3 cp s3://bucket/in.jsonl -"),
        ("gs://bucket/in.jsonl", "gcloud storage cat gs://bucket/in.jsonl"),
        ("https://host/a b", "curl -fsSL 'https://host/a b'"),
        ("abfs://box@host/in.jsonl", "import fsspec"),
        ("hf://datasets/x", "import fsspec"),
    ],
)
def test_an_object_store_is_named_with_the_command_that_fetches(url, command):
    with pytest.raises(ConfigError) as refused:
        read_rows(url)
    assert str(refused.value).startswith(f"{url}: object stores and URLs are not read; fetch it: ")
    assert command in str(refused.value)


@pytest.mark.parametrize("name", ["in.parquet", "in.arrow", "in.feather", "in.parquet.gz"])
def test_the_programs_in_the_advice_are_python(name):
    told = advice_for(name, {}) or advice_for("in.parquet", {})
    compile(re.search(r"python3 -c '([^']*)'", told)[1], "advice", "exec")
    assert advice_for_format("parquet", "my file") == advice_for("in.parquet", {}, shown="my file")


@pytest.mark.parametrize("source", [3, None, ""])
def test_a_source_is_a_path_or_a_file(source):
    with pytest.raises(ConfigError, match="source is"):
        read_rows(source)


def test_what_is_not_there_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_rows(tmp_path / "none.jsonl")
    with pytest.raises(IsADirectoryError):
        read_rows(tmp_path)
    with pytest.raises(ConfigError, match="mode 'rb'"):
        list(read_rows(io.StringIO(JSONL)))


def test_a_path_is_read_anew_each_time_and_a_file_once(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(JSONL)
    rows = read_rows(path)
    assert list(rows) == list(rows) == ROWS
    with path.open("rb") as file:
        assert list(read_rows(file)) == ROWS
        assert not file.closed


def test_rows_are_dicts_with_a_line(rows_of, tmp_path):
    rows_of(JSONL)
    row = next(iter(read_rows(tmp_path / "in.jsonl")))
    assert isinstance(row, (dict, Row))
    assert (row.line, row.fault, row["text"]) == (1, None, "a")


def test_a_named_pipe_is_read_once_and_only_when_rows_are_asked_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    rows = read_rows(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(JSONL))
    writer.start()
    assert list(rows) == ROWS
    writer.join()


def test_standard_input():
    program = "from batchclient.jobs import read_rows; print([dict(row) for row in read_rows('-')])"
    done = subprocess.run([sys.executable, "-c", program], input=gzip.compress(JSONL.encode()), capture_output=True)
    assert done.stdout.decode().strip() == str(ROWS)


def test_a_map_yields_an_unusable_row_with_its_reason(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("id,text\n1,a\n2\n3,\n4,d\n")

    async def main():
        with EmbeddedServer("instant") as server:
            async with BatchClient(server.base_url, model=server.model) as client:
                by_template = client.stream_map(read_rows(path), "Say {text}", ordered=True, max_tokens=1)
                rows = [row async for row in by_template]
                by_function = client.stream_map(
                    read_rows(path), lambda row: row["text"] or "-", ordered=True, max_tokens=1
                )
                return rows, [row async for row in by_function]

    by_template, by_function = asyncio.run(main())
    assert [type(row.error) for row in by_template] == [type(None), BadRow, ConfigError, type(None)]
    assert str(by_template[1].error) == "line 3 has 1 field, and the header has 2"
    assert "'text' is null" in str(by_template[2].error)
    assert [row.id for row in by_template if row.answer] == ["1", "4"]
    assert [type(row.error) for row in by_function] == [type(None), BadRow, type(None), type(None)]


@pytest.mark.parametrize("form", ["jsonl", "csv", "text"])
def test_memory_does_not_grow_with_the_file(tmp_path, form):
    line = {"jsonl": '{"text": "%0200d"}\n', "csv": '1,"a\n%0190d"\n', "text": "%0200d\n"}[form]
    peaks = []
    for count in (3_000, 15_000):
        path = tmp_path / f"{count}"
        path.write_text(("id,text\n" if form == "csv" else "") + "".join([line % number for number in range(count)]))
        tracemalloc.start()
        with open_source(path, form) as source:
            assert sum(1 for _ in source.read()) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_500_000
