"""``map --answer-columns``: the properties of answers that fit ``--schema`` are typed columns of OUT."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.fakes.pages import serving

from batchclient.cli._answer_columns import kinds_in

from .conftest import read_rows, write_rows

SCHEMA = {
    "type": "object",
    "properties": {
        "good": {"type": "boolean"},
        "stars": {"type": ["integer", "null"]},
        "share": {"type": "number"},
        "label": {"enum": ["yes", "no"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "who": {"$ref": "#/$defs/person"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    },
    "required": ["good"],
    "$defs": {"person": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}},
}
FULL = {
    "good": True, "stars": 4.0, "share": 1, "label": "yes", "tags": ["a", "b"], "who": {"name": "Ann", "age": 7},
    "either": "5", "more": 1,
}  # fmt: skip
ANSWERS = [json.dumps(FULL), '{"good": false, "stars": null, "either": 5}', "no JSON"]


@pytest.fixture
def run(cli, tmp_path):
    """Map three rows, whose answers are ``ANSWERS``; the last one does not fit."""

    def answer(asked):
        if asked.method == "GET":
            return 404, b""
        running.asked_rows += 1
        choice = {"index": 0, "text": ANSWERS[int(asked.json["prompt"][-1])], "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}

    def run(name, *options, schema=SCHEMA, fields=None):
        source = write_rows(tmp_path / "in.jsonl", [{"id": i, "text": f"row {i}"} | (fields or {}) for i in range(3)])
        (tmp_path / "schema.json").write_text(json.dumps(schema))
        command = ["--base-url", running.url, "--model", "m", "--dialect", "vllm", "--prompt", "{text}"]
        command += ["--max-batch-size", 1, "--schema", tmp_path / "schema.json", "--answer-columns"]
        return cli("map", source, "-o", tmp_path / name, *command, *options)

    with serving(answer) as running:
        running.asked_rows = 0
        run.server = running
        yield run


def test_properties_are_fields_of_json_lines(run, tmp_path):
    assert run("out.jsonl").exit_code == 1
    rows = read_rows(tmp_path / "out.jsonl")
    assert [rows[0][name] for name in SCHEMA["properties"]] == [*FULL.values()][:-1]
    assert rows[0]["completion"] == ANSWERS[0] and "more" not in rows[0]
    assert [rows[1][name] for name in SCHEMA["properties"]] == [False, None, None, None, None, None, 5]
    assert rows[2].keys() == {"id", "text", "error", "health"}
    assert [row["health"] for row in rows] == ["ok", "ok", "invalid"]


def test_properties_are_typed_columns_of_parquet(run, tmp_path):
    assert run("out.parquet").exit_code == 1
    table = pa.parquet.read_table(tmp_path / "out.parquet")
    person = pa.struct([("name", pa.string()), ("age", pa.int64())])
    types = [pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.list_(pa.string()), person, pa.string()]
    assert {name: table.schema.field(name).type for name in SCHEMA["properties"]} == dict(
        zip(SCHEMA["properties"], types, strict=True)
    )
    first = {**FULL, "stars": 4, "share": 1.0, "either": '"5"'}
    assert [[row[name] for name in SCHEMA["properties"]] for row in table.to_pylist()] == [
        [*first.values()][:-1], [False, None, None, None, None, None, "5"], [None] * 7,
    ]  # fmt: skip
    assert table["other_fields"].null_count == 3


def test_properties_are_columns_of_csv_where_what_is_nested_is_json(run, tmp_path):
    assert run("out.csv").exit_code == 1
    rows = [*csv.DictReader((tmp_path / "out.csv").read_text("utf-8").splitlines())]
    nested = ['["a", "b"]', '{"name": "Ann", "age": 7}', '"5"']
    assert [[row[name] for name in SCHEMA["properties"]] for row in rows] == [
        ["true", "4", "1", "yes", *nested], ["false", "", "", "", "", "", "5"], [""] * 7,
    ]  # fmt: skip
    assert [*rows[0]][:10] == ["id", "text", *SCHEMA["properties"], "completion"]


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        (
            "out.csv",
            {"fields": {"stars": 3, "answer_stars": 3}},
            "has the fields 'stars' and 'answer_stars': give --answer-field",
        ),
        (
            "out.jsonl",
            {"schema": {"properties": {"usage": {}}}},
            "OUT has a field 'usage' of its own; give --answer-field",
        ),
        ("out.jsonl", {"schema": {"properties": {"id": {}}}}, "OUT has a field 'id' of its own; give --answer-field"),
        ("out.csv", {"schema": {"type": "array"}}, "the schema has no properties, which would be the columns"),
        ("out.jsonl", {"options": ["--output-form", "batch"]}, "--answer-columns: --output-form batch has no fields"),
    ],
)
def test_a_clash_is_refused_at_the_start_by_name(run, tmp_path, name, given, says):
    refused = run(name, *given.pop("options", ()), **given)
    assert (refused.exit_code, run.server.asked_rows) == (2, 0) and says in refused.stderr
    assert not (tmp_path / name).exists()


def test_an_answers_name_begins_those_of_its_columns(run, tmp_path):
    assert run("out.csv", "--answer-field", "review", fields={"stars": 3}).exit_code == 1
    (row, *_) = csv.DictReader((tmp_path / "out.csv").read_text("utf-8").splitlines())
    assert (row["stars"], row["review_stars"], row["review"]) == ("3", "4", ANSWERS[0])


def test_a_column_of_the_input_keeps_its_name_beside_a_property(run, tmp_path):
    told = run("out.csv", fields={"stars": 3})
    assert told.exit_code == 1
    assert told.stderr.count("has 'stars': the added one is 'answer_stars'") == 1
    (row, *_) = csv.DictReader((tmp_path / "out.csv").read_text("utf-8").splitlines())
    assert (row["stars"], row["answer_stars"], row["good"]) == ("3", "4", "true")


def test_a_finished_job_gets_its_columns_from_the_journal(run, tmp_path):
    assert run("out.csv").exit_code == 1
    sent = run.server.asked_rows
    assert run("out.csv", "--columns", "id").exit_code == 1 and run.server.asked_rows == sent
    text = (tmp_path / "out.csv").read_text()
    assert text.startswith("id,good,stars,share,")
    assert [row["health"] for row in csv.DictReader(text.splitlines())] == ["ok", "ok", "invalid"]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"const": 5}, "int64"), ({"enum": [1, 2.5, None]}, "float64"), ({"enum": ["a", 1]}, "json"), ({}, "json"),
        (True, "json"), ({"type": "null"}, "json"), ({"type": ["string", "null"]}, "string"),
        ({"type": "array"}, "json"), ({"type": "array", "items": {"type": ["number", "integer"]}}, ["float64"]),
        ({"type": "array", "items": {"anyOf": []}}, "json"), ({"type": "object"}, "json"),
        ({"$ref": "#/$defs/a~1b"}, "bool_"), ({"$ref": "#/$defs/tree"}, "json"), ({"$ref": "#/$defs/gone"}, "json"),
        ({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "boolean"}}}}, {"x": ["bool_"]}),
    ],
)  # fmt: skip
def test_the_schema_tells_the_types(part, kind):
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}}

    class Model:
        @staticmethod
        def model_json_schema():
            return {"properties": {"it": part}, "$defs": {"a/b": {"type": "boolean"}, "tree": tree}}

    assert kinds_in(Model) == {"it": kind}
