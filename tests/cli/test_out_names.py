"""What the columns of ``OUT`` are called: ``health``, a name that ``IN`` has already, ``--id``, a job that began before."""

import csv
import json
from contextlib import closing

import pytest
from pyarrow import parquet

from batchclient.cli._kept import outputs_in
from batchclient.journal.held import HeldJournal
from batchclient.journal.settings import Journal

from .conftest import read_rows, write_rows

LONG = {"text": "word " * 40000}
"""Longer than the model takes."""


def rows_in(out):
    """Return the rows of an output of any form."""
    if out.suffix == ".parquet":
        return parquet.read_table(out).to_pylist()
    csv.field_size_limit(1 << 20)
    with out.open(newline="") as file:
        return [*csv.DictReader(file)] if out.suffix == ".csv" else [json.loads(line) for line in file]


@pytest.fixture
def embed(cli, server):
    def run(source, *args):
        command = ["--base-url", server.base_url, "--model", server.model, "--call", "embed", "--prompt", "{text}"]
        return cli("map", source, *args, *command)

    return run


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet", "out.batch"])
def test_every_form_has_the_health_of_a_generated_answer(cli_map, tmp_path, name):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a"}, LONG, {"text": "c"}])
    form = ["--output-form", "batch"] if name.endswith("batch") else []
    # Three tokens are what was asked for, and eight a bound.
    assert cli_map(source, "-o", tmp_path / name, *form).exit_code == 1
    assert [row.get("health") or None for row in rows_in(tmp_path / name)] == ["ok", None, "ok"]
    assert cli_map(source, "-o", tmp_path / name, *form, "--new", "--max-tokens", 8).exit_code == 1
    assert [row.get("health") or None for row in rows_in(tmp_path / name)] == ["truncated", None, "truncated"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_column_of_the_input_keeps_its_name_and_its_values(cli_map, tmp_path, name):
    given = [{"text": "a", "health": "good", "error": None}, {**LONG, "health": "bad", "error": "mine"}]
    source = write_rows(tmp_path / "in.jsonl", [given[0] | {"text": "b"}, *given])
    done = cli_map(source, "-o", tmp_path / name)
    said = "in.jsonl has 'error': the added one is 'answer_error', 'health': the added one is 'answer_health'"
    assert (done.exit_code, done.stderr.count(said)) == (1, 1)
    rows = rows_in(tmp_path / name)
    assert [row["health"] for row in rows] == ["good", "good", "bad"]
    assert [row["error"] or None for row in rows] == [None, None, "mine"]
    assert [row.get("answer_health") or None for row in rows] == ["ok", "ok", None]
    assert "BadRequest" in str(rows[2]["answer_error"])
    assert not rows[0].get("answer_error")
    assert "finish_reason" in rows[0]
    # Its output is the input of the next job, by another name.
    again = cli_map(tmp_path / name, "-o", tmp_path / f"again-{name}")
    assert again.exit_code == 2
    assert "has the fields 'error' and 'answer_error': give --answer-field" in again.stderr
    assert cli_map(tmp_path / name, "-o", tmp_path / f"again-{name}", "--answer-field", "second").exit_code == 1


def test_a_column_that_is_not_written_takes_no_name(cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a", "usage": 1, "health": 2}])
    done = cli_map(source, "-o", out, "--columns", "health")
    assert done.exit_code == 0
    assert "'usage'" not in done.stderr
    (row,) = read_rows(out)
    assert (row["health"], row["answer_health"], type(row["usage"])) == (2, "ok", dict)


def test_the_shards_of_an_input_have_the_same_names(cli_map, tmp_path):
    # The second half has no such field.
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a", "usage": 1}] * 4 + [{"text": "a"}] * 4)
    for part in (0, 1):
        assert cli_map(source, "-o", tmp_path / "{shard}.jsonl", "--shard", f"{part}/2").exit_code == 0
        assert "answer_usage" in read_rows(tmp_path / f"{part}.jsonl")[-1]


def test_the_columns_of_a_job_stay_whatever_its_input_has_later(cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a", "health": 1}, LONG])
    assert cli_map(source, "-o", out).exit_code == 1
    write_rows(source, [{"text": "a"}, LONG, {"text": "b", "usage": 5}])
    done = cli_map(source, "-o", out, "--retry-failed")
    assert (done.exit_code, "'usage'" in done.stderr) == (1, True)
    first, _, last = read_rows(out)
    assert (first["answer_health"], type(first["usage"])) == ("ok", dict)
    assert (
        last["error"]["message"] == "line 3 has a field 'usage', which the output would overwrite; give --answer-field"
    )
    # It is another output by another name of the answer.
    assert cli_map(source, "-o", out, "--answer-field", "said").exit_code == 1
    assert [row.get("usage") for row in read_rows(out)] == [None, None, 5]
    assert "said_usage" in read_rows(out)[2]


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet", "out.batch"])
def test_a_job_that_began_before_keeps_its_columns(cli_map, tmp_path, name):
    source, out = write_rows(tmp_path / "in.jsonl", [{"text": "a"}, LONG]), tmp_path / name
    command = [source, "-o", out, *(["--output-form", "batch"] if name.endswith("batch") else [])]
    assert cli_map(*command).exit_code == 1
    # As the version before has left it.
    with closing(HeldJournal.open(Journal(f"{out}.journal", settings={}))) as held:
        outputs = outputs_in(held)
        del outputs[name]["names"]
        held.note("outputs", outputs)
    write_rows(source, [{"text": "a"}, LONG, {"text": "c", "usage": 5}])
    assert cli_map(*command, "--retry-failed").exit_code == 1
    rows = rows_in(out)
    assert [row.get("health") for row in rows] == [None] * 3
    assert "health" not in rows[0]
    assert "answer_usage" not in rows[0]
    if not name.endswith("batch"):
        assert "which the output would overwrite" in str(rows[2]["error"])
    assert cli_map(*command, "--new").exit_code == 1
    assert "health" in rows_in(out)[0]


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet", "out.batch"])
def test_a_column_names_the_rows_ids(cli, cli_map, tmp_path, name):
    rows = [{"sku": "x-1", "text": "a", "id": 7}, {"sku": "12", "text": "b", "id": 7}]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / name
    command = [source, "-o", out, "--id", "sku", *(["--output-form", "batch"] if name.endswith("batch") else [])]
    assert cli_map(*command).exit_code == 0
    told = rows_in(out)
    if name.endswith("batch"):
        assert [row["custom_id"] for row in told] == ["x-1", "12"]
    else:
        assert [str(row["sku"]) for row in told] == ["x-1", "12"]
        assert [str(row["id"]) for row in told] == ["7", "7"]
    records = [json.loads(line) for line in cli("job", "export", out).stdout.splitlines()]
    assert {record["id"] for record in records} == {"x-1", "12"}
    if name == "out.jsonl":
        write_rows(source, [{"sku": "x-1", "text": "a"}])
        assert cli_map(*command, "--new", "--columns", "text").exit_code == 0
        assert list(read_rows(out)[0])[:3] == ["sku", "text", "completion"]


def test_vectors_have_the_ids_of_the_column_and_a_job_keeps_its_answers(embed, server, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.npy"
    source.write_text("sku,text\nx-1,a\n12,b\n")
    assert embed(source, "-o", out).exit_code == 0
    ids = tmp_path / "out.npy.ids"
    assert {len(row["id"]) for row in read_rows(ids)} == {18}
    asked = server.requests
    assert embed(source, "-o", out, "--id", "sku").exit_code == 0
    assert read_rows(ids) == [{"id": "x-1"}, {"id": "12"}]
    # The keys of a journal have no ids.
    assert server.requests == asked


def test_a_row_without_an_id_and_one_with_an_earlier_ones_fail_unsent(cli_map, tmp_path, out):
    texts = [("a", "a"), ("b", "b"), ("a", "c"), (None, "d"), ("", "e"), (1.5, "f"), ("1", "g"), (1, "h")]
    source = write_rows(tmp_path / "in.jsonl", [{"user": own, "text": text} for own, text in texts])
    # A column of ids is data, also if it is called as a parameter is.
    done = cli_map(source, "-o", out, "--id", "user", "--row-params", "take")
    assert done.exit_code == 1
    failed = {row["text"]: row["error"]["message"] for row in read_rows(out) if "error" in row}
    none = "has no id in 'user': an id is a text or a whole number"
    assert failed == {
        "c": "line 3 has the id of the row in line 1",
        **{text: f"line {line} {none}" for line, text in ((4, "d"), (5, "e"), (6, "f"))},
        "h": "line 8 has the id of the row in line 7",
    }
    assert "rows that were not sent: 5" in done.stderr
    refused = cli_map(source, "-o", tmp_path / "other", "--id", "sku", "--row-params", "ignore")
    assert (refused.exit_code, "--id: the first row" in refused.stderr) == (2, True)


def test_what_is_wrong_behind_the_first_rows_leaves_these_their_answers(cli_map, tmp_path, out, part):
    (tmp_path / "in").mkdir()
    write_rows(tmp_path / "in" / "a.jsonl", [{"text": "a"}, {"text": "b"}])
    (tmp_path / "in" / "b.jsonl").write_bytes(b"\x1f\x8bno gzip")
    done = cli_map(tmp_path / "in", "-o", out)
    assert (done.exit_code, "the input cannot be read any further: b.jsonl: " in done.stderr) == (1, True)
    assert [row["text"] for row in read_rows(part)] == ["a", "b"]
