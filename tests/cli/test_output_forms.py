"""The forms of ``OUT``: each is read by a library that people read it with."""

import csv
import gzip
import datetime
import json
import math
import re
import shlex
import subprocess
import threading
import time
import uuid
from array import array
from decimal import Decimal
from pathlib import Path

import numpy
import pyarrow as pa
import pytest
from openai.types import CreateEmbeddingResponse
from openai.types import Completion as TextCompletion
from openai.types.batch_error import BatchError
from openai.types.chat import ChatCompletion
from pyarrow import parquet

from batchclient import Embedding, MapResult
from batchclient.cli._rows import ADDED, fields_of_row
from batchclient.jobs import Row
from batchclient.jobs.forms import BatchLines, CsvRows, Vectors
from batchclient.jobs.parquet_rows import ParquetRows

from .conftest import read_rows, write_rows

NEVER = "a " * 33_000
"""A prompt that is too long for the server: its row fails with status 400."""


@pytest.fixture
def source(tmp_path):
    rows = [
        {"id": "a", "text": "one", "k": 1, "tags": ["x", None], "deep": {"k": [True]}},
        {"id": "b", "text": NEVER, "k": None, "tags": [], "deep": None},
        {"id": "c", "text": 'q"u,o\nte', "k": 2, "tags": None, "deep": 7},
    ]
    path = write_rows(tmp_path / "in.jsonl", rows)
    path.write_text(path.read_text() + "[]\n")
    return path


@pytest.fixture
def embed(cli, server):
    def run(source, *args):
        where = ["--base-url", server.base_url, "--model", server.model]
        return cli("map", source, *where, "--call", "embed", "--prompt", "{text}", *args)

    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_csv_has_every_row_under_one_header(cli_map, source, tmp_path):
    out = tmp_path / "out.csv"
    assert cli_map(source, "-o", out).exit_code == 1
    with out.open(newline="") as file:
        first, failed, third, unusable = csv.DictReader(file)
    assert list(first) == [
        *("id", "text", "k", "tags", "deep"),
        *("completion", "finish_reason", "health", "usage", "error", "other_fields"),
    ]
    assert (first["id"], first["k"], first["tags"], first["deep"]) == ("a", "1", '["x", null]', '{"k": [true]}')
    assert first["completion"]
    assert json.loads(first["usage"])["completion_tokens"] == 3
    assert [row["health"] for row in (first, failed, unusable)] == ["ok", "", ""]
    assert (failed["k"], failed["completion"], json.loads(failed["error"])["type"]) == ("", "", "BadRequest")
    assert (third["text"], third["deep"], third["error"]) == ('q"u,o\nte', "7", "")
    assert json.loads(unusable["error"])["message"] == "line 4 is no JSON object"
    assert json.loads(unusable["other_fields"]) == {"line": 4}
    # A column of that name is the user's. NaN is no value.
    (tmp_path / "own.csv").write_text("id,text,line\n1,x,mine\n2\n")
    assert cli_map(tmp_path / "own.csv", "-o", out, "--new").exit_code == 1
    with out.open(newline="") as file:
        assert [(row["line"], row["other_fields"]) for row in csv.DictReader(file)] == [
            ("mine", ""),
            ("", '{"line": 3}'),
        ]
    writer = CsvRows(dict, ["x", "other_fields"])
    floats = [writer.add([("x", number)]) for number in (math.nan, math.inf, -math.inf)]
    assert b"".join(floats) == b"x,other_fields\n,\ninf,\n-inf,\n"
    # A field that the header does not have, since it came too late.
    assert writer.add([("x", 1), ("late", 2)]) == b'1,"{""late"": 2}"\n'
    # Tabs, and an id of the map's behind the columns.
    (tmp_path / "in.txt").write_text("one\n")
    assert cli_map(tmp_path / "in.txt", "-o", tmp_path / "out.tsv").exit_code == 0
    header = (tmp_path / "out.tsv").read_text().partition("\n")[0]
    assert header.split("\t") == ["text", "id", *ADDED, "other_fields"]


def test_parquet_of_json_lines_is_typed_and_loses_nothing(cli_map, source, tmp_path):
    # Behind the rows that tell the types come values of others.
    rows = [{"id": f"{number}", "text": "x", "k": 2, "tags": [], "deep": []} for number in range(256)]
    odd = {"id": 7, "text": "y", "k": 1.5, "tags": [1, "s"], "deep": "s", "new": {"k": None}, "big": 2**70}
    with source.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in [*rows, odd])
    out = tmp_path / "out.parquet"
    assert cli_map(source, "-o", out).exit_code == 1
    table = parquet.read_table(out)
    text, whole = pa.string(), pa.int64()
    assert {name: table.schema.field(name).type for name in ("id", "k", "tags", "deep", "completion")} == {
        **{"id": text, "k": whole, "tags": pa.list_(text), "deep": text, "completion": text}
    }
    assert table.schema.field("error").type == pa.struct([("type", text), ("message", text)])
    first, failed, third, unusable, *_, last = table.to_pylist()
    assert (first["k"], first["tags"], first["deep"], first["error"]) == (1, ["x", None], '{"k": [true]}', None)
    assert (first["usage"]["completion_tokens"], first["other_fields"]) == (3, None)
    assert (failed["k"], failed["tags"], failed["completion"], failed["error"]["type"]) == (
        None,
        [],
        None,
        "BadRequest",
    )
    assert (third["tags"], third["deep"]) == (None, "7")
    assert unusable["error"] == {"type": "BadRow", "message": "line 4 is no JSON object"}
    assert (last["id"], last["text"], last["k"], last["deep"]) == (None, "y", None, '"s"')
    assert json.loads(last["other_fields"]) == {name: odd[name] for name in ("id", "k", "tags", "new", "big")}


def test_a_value_that_python_cannot_hold_is_no_fault_where_nobody_names_its_column(cli_map, tmp_path):
    table = pa.table({"text": ["a", "b"], "far": pa.array([0, 10**17], pa.date64())})
    parquet.write_table(table, tmp_path / "in.parquet")
    assert cli_map(tmp_path / "in.parquet", "-o", tmp_path / "out.parquet").exit_code == 0
    assert parquet.read_table(tmp_path / "out.parquet")["far"].equals(
        parquet.read_table(tmp_path / "in.parquet")["far"]
    )
    assert cli_map(tmp_path / "in.parquet", "-o", tmp_path / "out.jsonl").exit_code == 0
    assert [row["far"] for row in read_rows(tmp_path / "out.jsonl")] == ["1970-01-01", None]
    named = cli_map(tmp_path / "in.parquet", "-o", tmp_path / "named.jsonl", prompt="{text} {far}")
    assert named.exit_code == 1
    assert "line 2 has a date" in read_rows(tmp_path / "named.jsonl")[1]["error"]["message"]


def test_a_parquet_file_is_packed_in_the_thread_that_writes_it(cli_map, monkeypatch, tmp_path):
    """pyarrow's first array takes seconds where pandas is installed: no call waits for it."""
    array, threads = pa.array, []

    def packing(*values):
        threads.append(threading.current_thread())
        return array(*values)

    monkeypatch.setattr(pa, "array", packing)
    source = write_rows(tmp_path / "in.jsonl", [{"id": number, "text": "x"} for number in range(3)])
    assert cli_map(source, "-o", tmp_path / "out.parquet").exit_code == 0
    assert threads and threading.main_thread() not in threads


def test_the_first_256_rows_tell_the_columns_of_a_parquet_file(cli_map, tmp_path):
    rows = [{"id": number, "text": "x"} for number in range(257)]
    rows[255]["in_time"] = rows[256]["late"] = 1
    out = tmp_path / "out.parquet"
    assert cli_map(write_rows(tmp_path / "in.jsonl", rows), "-o", out).exit_code == 0
    table = parquet.read_table(out)
    assert table["in_time"][255].as_py() == 1 and "late" not in table.schema.names
    assert json.loads(table["other_fields"][256].as_py()) == {"late": 1}


def test_shards_of_json_lines_have_the_same_columns(cli_map, tmp_path):
    rows = [{"id": number, "text": "x", "k": number} for number in range(10)]
    rows += [{"id": number, "text": "x", "k": 0.5, "new": True} for number in range(10, 20)]
    for name, given in {"few": rows, "many": rows[:10] * 30 + rows[10:] * 30}.items():
        source = write_rows(tmp_path / f"{name}.jsonl", given)
        for part in range(2):
            out = tmp_path / (name + "-{shard}.parquet")
            assert cli_map(source, "-o", out, "--shard", f"{part}/2").exit_code == 0
        table = parquet.read_table(list(tmp_path.glob(f"{name}-*.parquet")))
        assert table.num_rows == len(given)
        assert ("new" in table.schema.names) == (name == "few")


def test_parquet_to_parquet_keeps_types_and_nulls_whatever_fails(cli_map, tmp_path):
    day = datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC)
    columns = {
        "text": pa.array(["a", NEVER, None], pa.large_string()),
        "at": pa.array([day, None, day], pa.timestamp("us", "UTC")),
        "nano": pa.array([1, 1_000, None], pa.timestamp("ns")),
        "zoned": pa.array([1, 1_000, None], pa.timestamp("ns", "Europe/Berlin")),
        "cost": pa.array([Decimal("1.20"), None, Decimal("0.01")], pa.decimal128(9, 2)),
        "raw": pa.array([b"\xff", b"", None]),
        "kind": pa.array(["x", "y", None]).dictionary_encode(),
        "small": pa.array([1, None, 3], pa.int8()),
        "deep": pa.array([{"k": [1.5]}, None, {"k": None}]),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "vector": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
        "took": pa.array([1, 2_000_000_001, None], pa.duration("ns")),
        "flag": pa.array([1, None, 0], pa.bool8()),
        "ids": pa.ListArray.from_arrays([0, 1, None, 1], pa.array([uuid.UUID(int=7).bytes], pa.uuid())),
        "views": pa.array([["a"], None, []], pa.list_(pa.string_view())),
        # A value that Python cannot hold fails its row, and is written as it is.
        "nanos": pa.array([None, [1], []], pa.list_(pa.timestamp("ns"))),
    }
    given = pa.table(columns)
    fields = [field.with_metadata({b"about": field.name.encode()}) for field in given.schema]
    given = given.cast(pa.schema(fields, metadata={b"pandas": b"{}"}))
    parquet.write_table(given, tmp_path / "in.parquet")
    schemas = []
    for prompt, failed in (("Say {text}", [False, True, True]), ("Say {text}" + NEVER, [True] * 3)):
        out = tmp_path / f"{len(schemas)}.parquet"
        assert cli_map(tmp_path / "in.parquet", "-o", out, "--dedupe", prompt=prompt).exit_code == 1
        table = parquet.read_table(out)
        assert table.select(list(columns)).equals(given)
        assert table.schema.metadata[b"pandas"] == b"{}"
        assert table.schema.field("cost").metadata[b"about"] == b"cost"
        assert [value is not None for value in table["error"].to_pylist()] == failed
        schemas.append(table.schema)
    assert schemas[0] == schemas[1]
    # What came out goes in.
    again = ["-o", tmp_path / "again.parquet", "--answer-field", "second"]
    assert cli_map(tmp_path / "0.parquet", *again).exit_code == 1
    table = parquet.read_table(tmp_path / "again.parquet")
    assert table.select(schemas[0].names[:-1]).equals(parquet.read_table(tmp_path / "0.parquet").drop("other_fields"))
    assert table["second"].to_pylist()[0] == table["completion"].to_pylist()[0]
    assert table.schema.names[-6:] == ["second", *(f"second_{name}" for name in (*ADDED[1:], "other_fields"))]


def test_what_parquet_has_not_is_json_and_a_later_file_may_have_other_types(cli_map, tmp_path):
    columns = {
        "text": pa.array(["a", "b"]),
        "span": pa.array([pa.MonthDayNano([1, 2, 3]), None]),
        "run": pa.RunEndEncodedArray.from_arrays([2], ["q"]),
        "none": pa.array([{}, None], pa.struct([])),
        "at": pa.array([1, 2], pa.timestamp("ns")),
    }
    (tmp_path / "in").mkdir()
    for name, fields in {"a": columns, "b": {"text": ["c"], "at": pa.array([3], pa.timestamp("us"))}}.items():
        table = pa.table(fields)
        with pa.ipc.new_file(tmp_path / "in" / f"{name}.arrow", table.schema) as file:
            file.write_table(table)
    for args in ((), ("--unordered", "--new")):
        assert cli_map(tmp_path / "in", "-o", tmp_path / "out.parquet", *args).exit_code == 0
        table = parquet.read_table(tmp_path / "out.parquet").sort_by("text")
        told = table.select(["span", "run", "none"]).to_pydict()
        assert told == {"span": ["[1, 2, 3]", None, None], "run": ['"q"', '"q"', None], "none": ["{}", None, None]}
        assert table["at"].cast(pa.int64()).to_pylist() == [1, 2, 3000]


def test_vectors_have_a_fixed_size_and_a_row_each_in_both_forms(embed, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"id": 1, "text": NEVER}, *({"text": each} for each in "ab")])
    assert embed(source, "-o", tmp_path / "out.jsonl").exit_code == 1
    expected = [row.get("embedding") for row in read_rows(tmp_path / "out.jsonl")]
    assert embed(source, "-o", tmp_path / "out.parquet").exit_code == 1
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), len(expected[1]))
    assert table["embedding"].combine_chunks().to_pylist()[0] is None
    assert embed(source, "-o", tmp_path / "out.npy").exit_code == 1
    vectors = numpy.load(tmp_path / "out.npy")
    assert (vectors.dtype, vectors.shape) == (numpy.float32, (3, len(expected[1])))
    assert numpy.isnan(vectors[0]).all()
    for place in (1, 2):
        assert vectors[place].tolist() == numpy.float32(expected[place]).tolist() == table["embedding"][place].as_py()
    ids = read_rows(tmp_path / "out.npy.ids")
    assert (ids[0]["id"], ids[0]["error"]["type"], list(ids[1])) == (1, "BadRequest", ["id"])
    assert [row["id"] for row in ids] == [row["id"] for row in read_rows(tmp_path / "out.jsonl")]
    # A vector of another length than the first, as of another model. The input's fields are not told.
    writer = Vectors(fields_of_row)
    own = {"error": "none", "line": 7}
    made = [MapResult("x", n, Row(own, n), Embedding(array("f", [1.0] * size))) for n, size in enumerate((2, 3))]
    told = [(writer.add(each), json.loads(writer.beside(each))) for each in made]
    data = b"".join(each for each, _ in told) + writer.end()
    why = {"type": "ValueError", "message": "the vector has 3 numbers, and the first one 2"}
    assert [each for _, each in told] == [{"id": "x"}, {"id": "x", "error": why}]
    (tmp_path / "odd.npy").write_bytes(writer.head + data[len(writer.head) :])
    assert numpy.isnan(numpy.load(tmp_path / "odd.npy")).tolist() == [[False] * 2, [True] * 2]
    # Each of its forms is the job's own.
    for form in ("batch", "npy"):
        assert embed(source, "-o", tmp_path / "out.npy", "--output-form", form).exit_code == 1
        seconds = [path.suffix for path in tmp_path.glob("out.npy.*") if path.suffix != ".journal"]
        assert seconds == [{"batch": ".errors", "npy": ".ids"}[form]]
    assert embed(source, "-o", tmp_path / "one.npy", "--first", 1).exit_code == 1
    assert numpy.load(tmp_path / "one.npy").shape == (1, 0)


def test_batch_form_is_read_by_openais_types_and_errors_are_in_a_file_of_their_own(cli_map, embed, source, tmp_path):
    out = tmp_path / "out.jsonl"
    for call, kind in (("complete", TextCompletion), ("chat", ChatCompletion)):
        assert cli_map(source, "-o", out, "--output-form", "batch", "--call", call, "--new").exit_code == 1
        first, failed, third, unusable = lines = read_rows(out)
        assert all(list(line)[:4] == ["id", "custom_id", "response", "error"] for line in lines)
        assert [line.get("health") for line in lines] == ["ok", None, "ok", None]
        assert len({line["id"] for line in lines}) == 4
        assert [line["custom_id"] for line in lines] == ["a", "b", "c", None]
        for line in (first, third):
            body = kind.model_validate(line["response"]["body"], strict=True)
            assert (line["response"]["status_code"], line["error"], body.usage.completion_tokens) == (200, None, 3)
            assert body.choices[0].finish_reason == "length"
        assert (failed["response"]["status_code"], failed["error"]) == (400, None)
        assert "maximum context length" in failed["response"]["body"]["error"]["message"]
        assert unusable["response"] is None
        assert BatchError.model_validate(unusable["error"], strict=True).line == 4
        assert read_rows(tmp_path / "out.jsonl.errors") == [failed, unusable]
        assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.errors", "out.jsonl.journal"]
    assert embed(source, "-o", tmp_path / "vectors", "--output-form", "batch", "--first", 1).exit_code == 0
    body = read_rows(tmp_path / "vectors")[0]["response"]["body"]
    assert CreateEmbeddingResponse.model_validate(body, strict=True).data[0].embedding
    writer = BatchLines(fields_of_row, "m")
    for own, told in [({"custom_id": None}, None), ({"custom_id": 7}, "7"), ({"id": None}, None), ({}, "x")]:
        made = writer.add(MapResult("x", 0, Row(own, 1), Embedding(array("f", [1.0]))))
        assert json.loads(made)["custom_id"] == told


def test_the_second_file_is_owned_as_out_is(cli_map, source, tmp_path):
    out, errors = tmp_path / "out.jsonl", tmp_path / "out.jsonl.errors"
    batch = (source, "-o", out, "--output-form", "batch")
    errors.write_text("mine")
    refused = cli_map(*batch)
    assert (refused.exit_code, errors.read_text(), out.exists()) == (2, "mine", False)
    assert f"{errors}: the file exists" in refused.stderr
    assert cli_map(*batch, "--new").exit_code == 1
    whole = errors.read_bytes()
    assert len(whole.splitlines()) == 2
    assert "nothing to do" in cli_map(*batch).stderr
    # As after a kill between the two renames: the next run writes both again.
    out.unlink()
    assert cli_map(*batch).exit_code == 1
    errors.unlink()
    assert cli_map(*batch).exit_code == 1
    assert (errors.read_bytes(), len(read_rows(out))) == (whole, 4)
    # With another form it goes: it would be about another output. A changed one is no longer ours.
    for args in ((), ("--new",)):
        assert cli_map(source, "-o", out, "--output-form", "csv", *args).exit_code == 1
        assert not errors.exists()
        assert (cli_map(*batch).exit_code, errors.read_bytes()) == (1, whole)
    errors.write_text("mine")
    assert cli_map(source, "-o", out, "--output-form", "jsonl").exit_code == 1
    refused = cli_map(*batch, "--retry-failed")
    assert (refused.exit_code, errors.read_text()) == (2, "mine")
    assert "has not written this file" in refused.stderr


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_named_columns_keep_their_order(cli_map, tmp_path, name):
    (tmp_path / "in.csv").write_text("a,id,b,text\nA,1,B,t\n")
    for columns, wanted in (("b,a", ["id", "b", "a"]), ("text,id,a", ["text", "id", "a"])):
        assert cli_map(tmp_path / "in.csv", "-o", tmp_path / name, "--columns", columns).exit_code == 0
        if name.endswith("parquet"):
            names = parquet.read_schema(tmp_path / name).names
        else:
            line = (tmp_path / name).read_text().splitlines()[0]
            names = line.split(",") if name.endswith("csv") else list(json.loads(line))
        assert names[:4] == [*wanted, "completion"]


@pytest.mark.parametrize("name", ["out.jsonl.gz", "out.csv.gz", "out.tsv.gz", "out.NDJSON", "out.x.gz"])
def test_the_ending_of_out_is_obeyed_and_what_came_out_goes_in(cli_map, server, source, tmp_path, name):
    form = ["--output-form", "jsonl"] if ".x" in name else []
    assert cli_map(source, "-o", tmp_path / name, *form).exit_code == 1
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x1f\x8b") == name.endswith(".gz")
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    if "sv" not in name:
        assert [json.loads(line)["id"] for line in text.splitlines()[:3]] == ["a", "b", "c"]
    else:
        rows = list(csv.reader(text.splitlines(keepends=True), delimiter="\t" if "tsv" in name else ","))
        assert [row[0] for row in rows] == ["id", "a", "b", "c", ""]
        again = cli_map(tmp_path / name, "-o", tmp_path / "again.jsonl", "--answer-field", "second")
        assert (again.exit_code, read_rows(tmp_path / "again.jsonl")[0]["k"]) == (1, "1")
    assert "nothing to do" in cli_map(source, "-o", tmp_path / name, *form).stderr


def test_another_form_is_another_output_of_the_same_answers(cli_map, source, server, tmp_path):
    out = tmp_path / "out"
    assert cli_map(source, "-o", out).exit_code == 1
    asked = server.requests
    assert cli_map(source, "-o", out, "--output-form", "csv").exit_code == 1
    assert (server.requests, out.read_text().partition(",")[0]) == (asked, "id")
    assert cli_map(source, "-o", out, "--answer-field", "said").exit_code == 1
    assert (server.requests, list(read_rows(out)[0])[-4:]) == (
        asked,
        ["said", *(f"said_{name}" for name in ADDED[1:4])],
    )
    assert list(read_rows(out)[3]) == ["line", "said_error"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(
            (["-o", name], f"--output: the ending '{ending}' tells no form; give --output-form, one of jsonl, csv,")
            for name, ending in [
                *((f"x{each}", each) for each in (".arrow", ".feather", ".json", ".xlsx", ".txt", ".gz", ".zst")),
                ("x.json.gz", ".json"),
                ("x.y.gz", ".y"),
            ]
        ),
        (["-o", "x.parquet.gz"], "--output: parquet is not packed by gzip; leave out .gz"),
        (["--delimiter", ";"], "in.jsonl is jsonl, and only CSV has one"),
        (["--escape", "\\"], "in.jsonl is jsonl, and only CSV has one"),
        (["--yes"], "--yes goes with --pilot"),
        (["-o", "x.npy"], "--output-form npy is for --call embed"),
        (["-o", "/dev/null", "--output-form", "npy"], "the file begins with the number of its rows; give"),
        (
            ["-o", "x", "--output-form", "batch", "--columns", "text"],
            "--columns: --output-form batch has no fields of the input",
        ),
        (["-o", "x", "--output-form", "batch", "--answer-field", "a"], "--answer-field: --output-form batch"),
        (["-o", "x", "--answer-field", "id"], "--answer-field: a name that is neither empty nor id"),
        (["-o", "x.csv", "--journal", "x.csv.part"], "rows go there"),
    ],
)
def test_what_cannot_be_is_refused(cli_map, source, server, monkeypatch, options, named):
    monkeypatch.chdir(source.parent)
    result = cli_map(source, *options)
    assert (result.exit_code, server.requests, names(source.parent)) == (2, 0, ["in.jsonl"])
    assert named in result.stderr


def test_a_killed_job_goes_on_to_a_whole_parquet_file(cli_map, spawn, server, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"id": number, "text": f"t{number}"} for number in range(300)])
    out, journal = tmp_path / "out.parquet", tmp_path / "out.parquet.journal"
    process = spawn("-", "-o", out, stdin=subprocess.PIPE)
    process.stdin.write(b"".join(source.read_bytes().splitlines(keepends=True)[:100]))
    process.stdin.flush()
    until = time.monotonic() + 30
    while not journal.exists() or journal.read_bytes().count(b'{"key"') < 100:
        assert time.monotonic() < until
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not out.exists()
    assert cli_map(source, "-o", out).exit_code == 0
    assert parquet.read_table(out)["id"].to_pylist() == list(range(300))
    assert names(tmp_path) == ["in.jsonl", "out.parquet", "out.parquet.journal"]
