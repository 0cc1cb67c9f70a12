"""``map`` without a template: rows that are requests, each with its own parameters, as one form or another."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.fakes.pages import serving

from batchclient.simulator import expected_text

from .conftest import read_rows, write_rows

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def requests(cli, server, tmp_path):
    """Run ``map`` on rows without a template; return the outcome, and the rows of the output."""

    def run(rows, *args):
        out = tmp_path / "out.jsonl"
        source = rows if not isinstance(rows, list) else write_rows(tmp_path / "in.jsonl", rows)
        given = ["--base-url", server.base_url, "--model", server.model, "--new", *args]
        result = cli("map", source, "-o", out, *given)
        return result, read_rows(out) if out.exists() else []

    return run


def batch(name, route, **body):
    return {"custom_id": name, "method": "POST", "url": f"/v1/{route}", "body": body}


def test_the_form_is_told_by_the_first_row_and_said(requests):
    result, rows = requests([{"messages": CHAT, "params": {"max_tokens": 2}}, {"messages": CHAT}], "--max-tokens", "3")
    assert result.exit_code == 0
    assert "each row is a chat, by its messages; each row's own parameters: params\n" in result.stderr
    assert [row["usage"]["completion_tokens"] for row in rows] == [2, 3]
    result, rows = requests([{"prompt": "p", "max_tokens": 4}], "--row-params", "take", "--temperature", 0)
    assert (result.exit_code, rows[0]["completion"]) == (0, expected_text("p", max_tokens=4, temperature=0))
    assert "; each row's own parameters: max_tokens\n" in result.stderr
    result, rows = requests([{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}])
    assert result.exit_code == 0
    assert "(ShareGPT); answers at their ends are left out\n" in result.stderr


def test_a_batch_file_goes_through_whole(requests, cli, server, tmp_path):
    rows = [
        batch("a", "chat/completions", messages=CHAT, max_tokens=2, n=2, temperature=0.5, model=server.model),
        batch("b", "completions", prompt=[1, 2, 3], max_tokens=1),
        batch("c", "embeddings", input="text", model=server.model),
        batch("d", "score", text_1="q", text_2="d"),
        batch("e", "rerank", query="q", documents=["d", "e"], top_n=1),
        batch("f", "responses", input="x"),
        batch("a", "chat/completions", messages=CHAT, stream=True),
    ]
    result, out = requests(rows, "--output-form", "jsonl")
    assert result.exit_code == 1
    chat, completion, vector, score, rank, responses, stream = out
    assert [row["id"] for row in out[:5]] == ["a", "b", "c", "d", "e"]
    assert len(chat["choices"]) == 2
    assert chat["choices"][0]["completion"] == chat["completion"]
    assert completion["usage"]["completion_tokens"] == 1
    assert vector["embedding"] and "score" in score and len(rank["results"]) == 1
    assert "/v1/responses" in responses["error"]["message"]
    assert stream["error"]["message"].startswith("line 7: stream is not a parameter")
    told = json.loads(cli("job", "status", tmp_path / "out.jsonl", "--json").stdout)
    assert told["prompt_tokens"] == sum(row["usage"]["prompt_tokens"] for row in out[:5]) > 0
    assert all(row["usage"]["prompt_tokens"] for row in (score, rank))


def test_what_nobody_has_decided_is_refused_before_anything_is_sent(requests, server):
    for rows, args, named in [
        ([{"messages": CHAT, "max_tokens": 2}], [], "--row-params take sends such fields, --row-params ignore leaves"),
        ([{"text": "t", "seed": 2}], ["--prompt", "{text}"], "the row's field 'seed' has the name of a parameter"),
        ([{"text": "t"}], [], "--prompt: the first row"),
        ([{"prompt": "t"}], ["--rows", "messages"], "has no field 'messages'"),
        ([{"prompt": "t"}], ["--rows", "prompt", "--prompt", "{prompt}"], "--rows prompt goes without a template"),
        ([{"messages": CHAT}], ["--call", "embed"], "--call chat"),
        ([{"prompt": "t"}], ["--system", "s"], "--system: line 1 is no chat"),
        ([batch("a", "embeddings", input="x")], ["--max-tokens", "3"], "--max-tokens"),
    ]:
        result, out = requests(rows, *args)
        assert (result.exit_code, out, server.requests) == (2, [], 0), (rows, result.stderr)
        assert named in result.stderr
    result, _ = requests([{"messages": CHAT, "n": 1}, {"messages": CHAT, "seed": 1}], "--row-params", "ignore")
    assert result.exit_code == 0


def test_the_columns_of_a_table_are_data(requests, tmp_path):
    source = tmp_path / "in.csv"
    text = json.dumps(CHAT).replace('"', '""')
    source.write_text(f'messages,seed\n"{text}",3\n')
    result, rows = requests(source, "--max-tokens", 2)
    assert result.exit_code == 0
    assert "columns that are data, and no parameters: seed (--row-params take sends them)" in result.stderr
    assert rows[0]["usage"]["completion_tokens"] == 2
    assert requests(source, "--row-params", "take", "--max-tokens", 2)[0].exit_code == 0


def test_columns_that_are_not_written_are_parameters_all_the_same(requests, tmp_path):
    template = ("--prompt", "{text}", "--columns", "text", "--max-tokens", 9)
    for name, own in [("max_tokens", 2), ("params", {"max_tokens": 2})]:
        source = tmp_path / f"{name}.parquet"
        parquet.write_table(pa.Table.from_pylist([{"text": "a", "note": "x", name: own}]), source)
        result, (row,) = requests(source, *template, "--row-params", "take")
        assert (row["usage"]["completion_tokens"], list(row)[:3]) == (2, ["text", "id", "completion"])
        result, (row,) = requests(source, *template)
        assert row["usage"]["completion_tokens"] == 9
        assert f"columns that are data, and no parameters: {name} (--row-params take sends them)" in result.stderr


def test_a_field_that_a_rows_own_call_adds_has_another_name_beside_the_rows_own(requests):
    own = [
        ({"prompt": "p", "logprobs": 2}, "logprobs"),
        ({"prompt": "p", "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt": "p", "params": {"n": 2}, "choices": "mine"}, "choices"),
    ]
    for row, name in [*own, (batch("a", "embeddings", input="p") | {"embedding": "mine"}, "embedding")]:
        result, (made,) = requests([row], "--row-params", "take", "--output-form", "jsonl")
        answer = f"answer_{name}" if name in row else name
        assert (result.exit_code, made.get(name) == row.get(name), bool(made[answer])) == (0, name in row, True)
    for row, name in own:
        result, (made,) = requests([row], "--row-params", "take", "--answer-field", "said", "--max-tokens", 1)
        assert (result.exit_code, made.get(name), bool(made[f"said_{name}"])) == (0, row.get(name), True)
    rows = [{"prompt": "p", "n": 1, "choices": "mine"}, {"prompt": "p", "logprobs": 1}]
    result, out = requests(rows, "--row-params", "take", "--max-tokens", 1)
    assert (out[0]["choices"], out[1]["logprobs"], bool(out[1]["answer_logprobs"])) == ("mine", 1, True)


def test_a_row_of_a_dry_run_is_counted_as_it_is_sent(requests):
    rows = [{"prompt": [1, 2, 3]}, batch("a", "rerank", query="q", documents=["d"]), {"messages": CHAT}]
    for row in rows:
        result, _ = requests([row], "--dry-run")
        assert (result.exit_code, "unusable: 0" in result.stdout) == (0, True), result.output


def test_a_row_without_a_model_fails_where_the_first_one_names_its_own(cli, server, tmp_path):
    rows = [{"prompt": "p", "params": {"model": server.model}}, {"prompt": "p"}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert cli("map", source, "-o", tmp_path / "out", "--base-url", server.base_url).exit_code == 1
    assert "line 2 names no model, and the first row does" in read_rows(tmp_path / "out")[1]["error"]["message"]


def test_rows_of_one_id_are_both_sent_and_the_second_one_is_told(requests, server):
    rows = [{"id": 7, "prompt": "a"}, {"prompt": "b"}, {"id": "7", "prompt": "c"}]
    result, out = requests(rows, "--max-tokens", 1)
    assert (result.exit_code, server.prompts) == (0, 3)
    assert "line 3 has the id of the row in line 1: both are sent\n" in result.stderr
    assert [row["prompt"] for row in out] == ["a", "b", "c"]
    twice = [batch("x", "completions", prompt="p", max_tokens=1)] * 6
    result, out = requests(twice)
    assert result.stderr.count(" has the id of the row in line 1") == 3
    assert "further rows have ids of earlier ones, too" in result.stderr
    assert len(out) == 6


def test_a_server_is_told_the_session_that_a_row_has_in_params(cli, tmp_path):
    def answer(asked):
        prompts = [asked.json["prompt"]] if isinstance(asked.json["prompt"], str) else asked.json["prompt"]
        return 200, {"choices": [{"index": n, "text": "x", "finish_reason": "stop"} for n, _ in enumerate(prompts)]}

    rows = [{"prompt": "a", "params": {"session": "s"}, "session": "data"}, {"prompt": "b", "session": "data"}]
    with serving(answer) as server:
        given = ["--base-url", server.url, "--model", "m", "--dialect", "openai", "--session-header", "X-Session-ID"]
        result = cli("map", write_rows(tmp_path / "in.jsonl", rows), "-o", tmp_path / "out", *given)
    assert result.exit_code == 0
    told = {asked.json["prompt"]: asked.headers["X-Session-ID"] for asked in server.asked}
    assert told == {"a": "s", "b": None}
