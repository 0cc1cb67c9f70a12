"""``batchclient map --schema``: answers that fit, answers that are asked again, and rows that fail."""

import json
import re
import sys
import threading
from collections import Counter
from functools import reduce

import pytest
from pydantic import ValidationError
from tests.fakes.pages import serving

from batchclient.cli._schema import schema_from

from .conftest import read_rows, write_rows

INVOICE = {
    "title": "An invoice",
    "type": "object",
    "properties": {"supplier": {"type": "string"}, "cents": {"$ref": "#/$defs/amount"}},
    "required": ["supplier", "cents"],
    "$defs": {"amount": {"type": "integer", "minimum": 0}},
}
GOOD = '{"supplier": "Smith & Sons", "cents": 7000}'


@pytest.fixture
def scripted():
    """A server that answers a prompt with the texts that stand in it, one after the other."""

    def answer(asked):
        if asked.method == "GET":
            return 404, b""
        prompt = asked.json["prompt"] if isinstance(asked.json["prompt"], str) else asked.json["prompt"][0]
        with lock:
            number = running.times[prompt]
            running.times[prompt] += 1
            running.bodies.append(asked.json)
        texts = json.loads(prompt)
        choice = {"index": 0, "text": texts[min(number, len(texts) - 1)], "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return 200, {"choices": [choice], "usage": usage}

    lock = threading.Lock()
    with serving(answer) as running:
        running.times, running.bodies = Counter(), []
        yield running


@pytest.fixture
def ask(cli, scripted, tmp_path):
    """Map rows, each with the texts of its answers; return the result and the rows of OUT."""

    def run(rows, *options, schema=INVOICE):
        out = tmp_path / "out.jsonl"
        source = write_rows(
            tmp_path / "in.jsonl", [{"id": str(i), "text": json.dumps(row)} for i, row in enumerate(rows)]
        )
        (tmp_path / "an invoice.schema.json").write_text(json.dumps(schema))
        command = ["--base-url", scripted.url, "--model", "m", "--prompt", "{text}", "--max-batch-size", 1]
        command += ["--schema", tmp_path / "an invoice.schema.json", "--columns", "id"]
        result = cli("map", source, "-o", out, *command, *options)
        return result, read_rows(out) if out.exists() else None

    return run


def test_an_answer_that_fits_is_written_as_it_came(ask, scripted):
    result, rows = ask([[GOOD], [GOOD]])
    assert result.exit_code == 0
    assert [row["completion"] for row in rows] == [GOOD, GOOD]
    assert "invalid" not in result.stderr
    form = scripted.bodies[0]["response_format"]
    assert form == {
        "type": "json_schema",
        "json_schema": {"name": "An_invoice", "schema": INVOICE, "strict": True},
    }


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ('{"supplier": "S", "cents": 7000', "json_invalid"),
        ('{"supplier": "S"}', "required"),
        ('{"supplier": "S", "cents": -1}', "minimum"),
        ("[]", "type"),
    ],
)
def test_an_answer_that_does_not_fit_fails_its_row(ask, answer, kind):
    result, rows = ask([[answer], [GOOD]])
    assert result.exit_code == 1
    assert rows[0] == {
        "id": "0",
        "error": {"type": "AnswerInvalid", "message": f"the answer is no An_invoice: {kind}"},
        "health": "invalid",
    }  # fmt: skip
    assert "; invalid: 1; failed: 1\n" in result.stderr
    assert "wasted: 5" in result.stderr


def test_a_row_is_asked_again_until_its_answer_fits(ask, scripted):
    result, rows = ask([["no", "{}", GOOD], [GOOD], ["no", "no", "no", GOOD]], "--retry-invalid", 2)
    assert result.exit_code == 1
    assert [row.get("completion") for row in rows] == [GOOD, GOOD, None]
    assert rows[2]["error"]["type"] == "AnswerInvalid"
    assert sorted(scripted.times.values()) == [1, 3, 3]
    assert re.search(r"requests sent: 7, tokens: 21 in, 14 out, wasted: 25; invalid: 5; failed: 1\n", result.stderr)


@pytest.mark.parametrize(
    ("wrapped", "name"),
    [
        ({"name": "cents", "strict": True, "schema": INVOICE}, "cents"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "description": "d", "schema": INVOICE}}, "a_b"),
        ({"type": "json_schema", "name": "c", "schema": INVOICE}, "c"),
        ({"schema": INVOICE}, "an_invoice"),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "object"}}}, "an_invoice"),
    ],
)
def test_a_schema_may_stand_in_the_wrapper_of_openai(ask, scripted, wrapped, name):
    result, rows = ask([[GOOD], ["1"]], schema=wrapped)
    form = scripted.bodies[0]["response_format"]["json_schema"]
    assert (form["name"], form["schema"]) == (name, wrapped if "$ref" in wrapped else INVOICE)
    assert (result.exit_code, sum("error" in row for row in rows)) == (1, 1)


def test_numbers_are_compared_as_they_are_written(tmp_path):
    integer, cents = '{"type": "integer"}', '{"multipleOf": 0.01}'
    for schema, fits, fits_not in [
        (cents, "4.02 0.3 1.0 1e30 -19.99 0.0 7 1e-2", "4.025 1e-3 0.30000000000000001 NaN Infinity 1e400"),
        ('{"multipleOf": 1e-3, "minimum": 0.1}', "0.1 0.3 2.675", "0.0999 0.1001"),
        ('{"multipleOf": 3}', "3 3.0 3e30", "1.5 1e30000000000"),
        (integer, "1 1.0 1e30 -0.0 40e-1", "1.5 1e-3 9007199254740993.5"),
        ('{"enum": [0.1, 2.0, [0.3]]}', "0.1 0.10 1e-1 2 [0.30]", "0.2 true 0.1000000000000000055"),
        ('{"const": {"a": 1.0}}', '{"a":1} {"a":1.0}', '{"a":true} {"a":1.00000000000000000001}'),
        # A value that looks like a reference is none.
        ('{"const": {"$ref": "elsewhere"}}', '{"$ref":"elsewhere"}', "{}"),
        ('{"type": "number", "exclusiveMaximum": 0.3, "minLength": 2.0}', "0.29 1e-400", '0.3 "ab"'),
    ]:
        (tmp_path / "s.json").write_text(schema)
        model = schema_from(str(tmp_path / "s.json"))
        assert model.model_json_schema() == json.loads(schema)
        for answer in fits.split():
            model.model_validate_json(answer)
        for answer in fits_not.split():
            with pytest.raises(ValidationError):
                model.model_validate_json(answer)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "strin"}, "is no JSON schema: type: "),
        ({"$ref": "http://127.0.0.1:1/other.json"}, "'http://127.0.0.1:1/other.json' leads nowhere; no other"),
        (
            {"properties": {"default": {"$ref": "other.json#/a"}}},
            "'other.json#/a' leads nowhere; no other file is read",
        ),
        ({"allOf": [{"$ref": "#/$defs/none"}]}, "'/$defs/none' leads nowhere"),
        ({"$schema": "http://127.0.0.1:1/mine"}, "its $schema is not known"),
        ({"response_format": {"schema": INVOICE}}, "is no JSON schema: it demands nothing of an answer"),
        (reduce(lambda inner, _: {"not": inner}, range(300), INVOICE), "nested too deeply"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(ask, scripted, schema, said):
    result, rows = ask([[GOOD]], schema=schema)
    assert (result.exit_code, rows, scripted.bodies) == (2, None, [])
    assert result.stderr.startswith("Error: --schema: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [None, b"\xff", b"[" * 100_000, b" " * (1024 * 1024 + 1)])
def test_a_schema_that_cannot_be_read_is_refused(cli_map, server, tmp_path, content):
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content)
    result = cli_map(write_rows(tmp_path / "in.jsonl", [{"text": "a"}]), "--schema", path)
    assert (result.exit_code, server.requests) == (2, 0)
    assert re.fullmatch(r"Error: --schema: .*schema\.json(:| is) .*\n", result.stderr)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--retry-invalid", 1, "--temperature", 0], "--retry-invalid: with temperature=0 every answer to a prompt"),
        (["--retry-invalid", 101], "--retry-invalid: a whole number from 0 to 100"),
        (["--param", 'response_format={"type":"json_object"}'], "--schema and response_format both demand a form"),
        (["--call", "embed"], "--schema: for texts that are generated"),
    ],
)
def test_what_does_not_go_with_it_is_refused(ask, scripted, options, said):
    result, rows = ask([[GOOD]], *options)
    assert (result.exit_code, rows, scripted.bodies) == (2, None, [])
    assert result.stderr.startswith(f"Error: {said}")


def test_without_the_checker_the_missing_package_is_named(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    result, _ = ask([[GOOD]])
    assert result.exit_code == 2
    assert result.stderr == "Error: --schema needs jsonschema, of the extra batchclient[cli]\n"


# With a journal ------------------------------------------------------------------------------------------------------


def test_a_row_whose_answer_did_not_fit_runs_again_if_asked(ask, scripted):
    first, rows = ask([["no", GOOD], [GOOD]])
    assert (first.exit_code, ["error" in row for row in rows]) == (1, [True, False])
    # The same command sends none: the answer would be the same, at temperature 0.
    same, rows = ask([["no", GOOD], [GOOD]], "--columns", "text")
    assert (same.exit_code, ["error" in row for row in rows]) == (1, [True, False])
    assert sorted(scripted.times.values()) == [1, 1]
    again, rows = ask([["no", GOOD], [GOOD]], "--retry-failed")
    assert (again.exit_code, [row["completion"] for row in rows]) == (0, [GOOD, GOOD])
    assert sorted(scripted.times.values()) == [1, 2]
    assert "invalid" not in again.stderr


def test_another_schema_makes_another_job(ask, scripted):
    ask([[GOOD]])
    result, _ = ask([[GOOD]], schema={"type": "object"})
    assert result.exit_code == 2
    assert "with another schema" in result.stderr
    assert len(scripted.bodies) == 1
