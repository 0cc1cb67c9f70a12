"""``map --call score`` and ``--call rerank``: a table of queries, each with a document or several."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from batchclient.simulator import score_of

from .conftest import read_rows, write_rows

ROWS = [("red fox", "a fox that is red"), ("blue whale", "stones"), ("green tea", "a cup of tea")]
LISTS = [("red fox", ["stones", "the red fox", "a fox"]), ("tea", ["green tea", "coffee"])]


@pytest.fixture
def rank(cli, server, tmp_path):
    def run(source, *options, call="score", out="out.jsonl"):
        command = ["--base-url", server.base_url, "--model", server.model, "--call", call, "--dialect", "vllm"]
        return cli("map", source, "-o", tmp_path / out, *command, *options)

    return run


PAIRS = ["--prompt", "Find {query}", "--documents", "text"]


def test_a_score_of_each_row_of_a_csv(rank, server, tmp_path):
    (tmp_path / "in.csv").write_text("query,text\n" + "".join(f"{query},{text}\n" for query, text in ROWS))
    assert rank(tmp_path / "in.csv", *PAIRS, out="out.csv").exit_code == 0
    rows = [*csv.DictReader((tmp_path / "out.csv").read_text().splitlines())]
    assert [float(row["score"]) for row in rows] == [pytest.approx(score_of(f"Find {q}", text)) for q, text in ROWS]
    assert [row["query"] for row in rows] == [query for query, _ in ROWS] and server.requests == 1


@pytest.mark.parametrize("call", ["score", "rerank"])
@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_several_documents_of_a_row(rank, tmp_path, call, form):
    source = tmp_path / f"in.{form}"
    if form == "parquet":
        pa.parquet.write_table(pa.table({"query": [q for q, _ in LISTS], "text": [d for _, d in LISTS]}), source)
    elif form == "csv":
        with source.open("w", newline="") as file:
            csv.writer(file).writerows([["query", "text"], *([query, json.dumps(each)] for query, each in LISTS)])
    else:
        write_rows(source, [{"query": query, "text": each} for query, each in LISTS])
    assert rank(source, *PAIRS, call=call).exit_code == 0
    for (query, documents), row in zip(LISTS, read_rows(tmp_path / "out.jsonl"), strict=True):
        told = [(score_of(f"Find {query}", text), place) for place, text in enumerate(documents)]
        told = sorted(told, reverse=True) if call == "rerank" else told
        assert row["results"] == [{"index": place, "score": pytest.approx(score)} for score, place in told]


def test_the_best_documents_alone_and_another_number_is_another_job(rank, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"query": query, "text": each} for query, each in LISTS])
    assert rank(source, *PAIRS, "--top-n", 1, call="rerank").exit_code == 0
    assert [len(row["results"]) for row in read_rows(tmp_path / "out.jsonl")] == [1, 1]
    assert "with another top_n" in rank(source, *PAIRS, "--top-n", 2, call="rerank").stderr
    assert "another documents and another top_n" in rank(source, *PAIRS[:3], "query", call="score").stderr


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"text": None}, "line 2: the document's field 'text' is null"),
        ({}, "line 2: the document's field 'text' is missing"),
        ({"text": "one"}, "line 2: 'text' is a list of texts, not a str"),
        ({"text": []}, "line 2: 'text' is a list of texts, not an empty list"),
        ({"text": [{"text": "t"}]}, "line 2: document 0 of 'text' is a dict, not a text"),
        ({"text": ["u", None]}, "line 2: document 1 of 'text' is null, not a text"),
    ],
)
def test_a_row_without_documents_fails_alone(rank, tmp_path, document, says):
    source = write_rows(tmp_path / "in.jsonl", [{"query": "q", "text": ["a"]}, {"query": "q"} | document])
    assert rank(source, *PAIRS, call="rerank").exit_code == 1
    first, second = read_rows(tmp_path / "out.jsonl")
    assert len(first["results"]) == 1 and says in second["error"]["message"]
    dry = rank(source, *PAIRS, "--dry-run", call="rerank")
    assert dry.exit_code == 1 and f"rows: 2\nunusable: 1\n  {says}\n" in dry.stdout


@pytest.mark.parametrize("call", ["score", "rerank"])
@pytest.mark.parametrize("documents", [[{"text": "t"}], ["u", None], [], 7])
def test_a_first_row_without_documents_fails_alone_and_a_pilot_leaves_it_out(rank, tmp_path, call, documents):
    rows = [{"query": "q", "text": each} for each in (documents, ["a"], ["b"])]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert "unusable: 1\n  line 1: " in rank(source, *PAIRS, "--dry-run", call=call).stdout
    assert rank(source, *PAIRS, "--pilot", 2, "-y", call=call).exit_code == 1
    failed, *scored = read_rows(tmp_path / "out.jsonl")
    assert "'text' is " in failed["error"]["message"] and [len(row["results"]) for row in scored] == [1, 1]


@pytest.mark.parametrize(
    ("call", "options", "says"),
    [
        ("score", ["--prompt", "{query}"], "--call score: --prompt makes the query, and --documents names"),
        ("rerank", ["--documents", "text"], "--call rerank: --prompt makes the query, and --documents names"),
        ("embed", PAIRS, "--documents is for --call score and rerank"),
        ("score", [*PAIRS, "--top-n", 1], "--top-n is for --call rerank"),
        (
            "score",
            [*PAIRS[:3], "txt"],
            "--documents names {txt}, and the first row (in.jsonl, line 1) has no such field",
        ),
        ("score", [*PAIRS, "--max-tokens", 1], "--max-tokens: --call score generates nothing"),
    ],
)
def test_a_wrong_command_is_refused(rank, server, tmp_path, monkeypatch, call, options, says):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", [{"query": "q", "text": "a"}])
    refused = rank("in.jsonl", *options, call=call)
    assert (refused.exit_code, server.requests) == (2, 0) and says in refused.stderr


def test_a_dry_run_counts_requests_whose_documents_are_none(cli, tmp_path):
    bodies = [{"query": "q", "documents": each} for each in (["d"], ["d", None], [{"text": "t"}], [])]
    rows = [{"custom_id": str(n), "url": "/v1/rerank", "body": each} for n, each in enumerate(bodies)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    away = ["--base-url", "http://127.0.0.1:9/v1", "--wait-for-server", 0]
    told = cli("map", source, "--dry-run", "--model", "m", *away).stdout.splitlines()
    assert told[:5] == [
        "rows: 4",
        "unusable: 3",
        "  line 2: document is a text, not null",
        "  line 3: document is a text, not a dict",
        "  line 4: documents is a list of texts, of one at least",
    ]
