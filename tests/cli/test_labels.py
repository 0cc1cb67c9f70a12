"""``map --labels``, ``--probabilities``: one of some words for each row, and its probability."""

import csv
import json

import pyarrow.parquet
import pytest

from .conftest import read_rows, write_rows


@pytest.fixture
def label(cli_map, tmp_path):
    def run(*options, name="out.jsonl"):
        source = write_rows(tmp_path / "in.jsonl", [{"id": n, "text": f"row {n}"} for n in range(6)])
        return cli_map(source, "-o", tmp_path / name, *options)

    return run


def test_each_row_has_its_label(label, tmp_path):
    assert label("--labels", "good, very bad").exit_code == 0
    rows = read_rows(tmp_path / "out.jsonl")
    assert {row["label"] for row in rows} == {"good", "very bad"}
    assert all(row["label"] == row["completion"].strip() for row in rows)


def test_an_option_for_each_label_keeps_its_commas(label, tmp_path):
    assert label("--labels", "yes, sir", "--labels", "no").exit_code == 0
    assert {row["label"] for row in read_rows(tmp_path / "out.jsonl")} == {"yes, sir", "no"}


def test_the_label_is_a_column_of_every_table(label, tmp_path):
    assert label("--labels", "good,bad", "--answer-field", "said", name="out.csv").exit_code == 0
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["said_label"] for row in rows} == {"good", "bad"} and rows[0]["said"].strip() == rows[0]["said_label"]
    assert label("--labels", "good,bad", name="out.parquet").exit_code == 0
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert {*table["label"].to_pylist()} == {"good", "bad"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--labels", "good"], "--labels: labels are two at least"),
        (["--labels", "good,Good"], "--labels"),
        (["--probabilities"], "--probabilities"),
        (["--labels", "a,b", "--param", 'regex="a"'], "--labels"),
        (["--param", 'labels=["a","b"]'], "--param labels: give --labels"),
        (["--labels", "a,b", "--retry-invalid", 1], "temperature"),
    ],
)
def test_wrong_labels_are_said_in_the_command_s_words(label, options, words):
    done = label(*options)
    assert done.exit_code == 2 and words in done.stderr, done.stderr


def test_a_finished_job_is_another_one_with_other_labels(label, tmp_path):
    assert label("--labels", "good,bad").exit_code == 0
    done = label("--labels", "good,fair")
    assert done.exit_code == 2 and "--new" in done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["label"] in ("good", "bad")


def test_each_label_s_probability_is_an_object_of_json_lines_and_a_column_of_a_table(label, tmp_path):
    options = ["--labels", "good,bad", "--probabilities"]
    assert label(*options).exit_code == 0
    rows = read_rows(tmp_path / "out.jsonl")
    for row in rows:
        numbers = row["probabilities"]
        assert [*numbers] == ["good", "bad", "other"] and sum(numbers.values()) == pytest.approx(1)
        assert row["label"] == max(["good", "bad"], key=numbers.__getitem__)
    assert label(*options, name="out.csv").exit_code == 0
    with (tmp_path / "out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["probability_good"]) for row in written] == [row["probabilities"]["good"] for row in rows]
    assert label(*options, "--answer-field", "said", name="out.parquet").exit_code == 0
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table["said_probability_other"].to_pylist() == [row["probabilities"]["other"] for row in rows]
    assert table["said_label"].to_pylist() == [row["label"] for row in rows]


def test_labels_that_share_their_first_token_have_no_other(label, tmp_path):
    assert label("--labels", "very good,very bad", "--probabilities", name="out.csv").exit_code == 0
    with (tmp_path / "out.csv").open() as file:
        assert {row["probability_other"] for row in csv.DictReader(file)} == {""}


def test_lines_of_the_batch_form_have_label_and_probabilities(label, tmp_path):
    options = ["--labels", "good,bad", "--probabilities"]
    assert label(*options).exit_code == 0
    assert label(*options, "--output-form", "batch", name="batch.jsonl").exit_code == 0
    told = [(row["label"], row["probabilities"]) for row in read_rows(tmp_path / "out.jsonl")]
    lines = read_rows(tmp_path / "batch.jsonl")
    assert [(line["label"], line["probabilities"]) for line in lines] == told
    assert [line["response"]["body"]["choices"][0]["text"] for line in lines] == [each for each, _ in told]
    assert label("--output-form", "batch", name="plain.jsonl").exit_code == 0
    assert not {"label", "probabilities"} & {name for line in read_rows(tmp_path / "plain.jsonl") for name in line}
