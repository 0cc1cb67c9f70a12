"""``batchclient map``: tokens, reused rows and cost, at the end."""

import json
import re
import time
from functools import partial

import pytest
from tests.fakes.pages import serving

from batchclient.cli import _run as run_module
from batchclient.cli._job import Job
from batchclient.jobs.statuses import Status

from .conftest import read_rows, rows_of, write_rows


def source_of(tmp_path, count):
    return write_rows(tmp_path / "in.jsonl", rows_of(count))


def counts(stderr):
    """The numbers of a summary, by name."""
    summary = next(
        line for line in stderr.splitlines() if re.search(r"^(Interrupted: )?[\d,]+ rows? (to|written) ", line)
    )
    return {
        name: float(number.replace(",", ""))
        for name, number in re.findall(r"(requests sent|reused|wasted|cost|failed|sent again): ([\d,.]*\d)", summary)
    } | {name: int(number.replace(",", "")) for number, name in re.findall(r"([\d,]+) (in|out)\b", summary)}


# The cost ------------------------------------------------------------------------------------------------------------


def test_the_summary_has_the_cost_of_the_tokens(cli_map, tmp_path, out):
    result = cli_map(source_of(tmp_path, 20), "-o", out, "--price", "1000/20000")
    assert result.exit_code == 0
    told = counts(result.stderr)
    assert told["in"] and told["out"] == 60
    assert told["cost"] == pytest.approx((told["in"] * 1000 + told["out"] * 20000) / 1e6, abs=0.0051)
    assert told.keys() == {"requests sent", "in", "out", "cost"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--price", "a/b"], "--price: "),
        (["--price", "-1/2"], "--price: "),
        (["--gpu-price", "nan"], "--gpu-price: "),
        (["--max-cost", "2"], "--max-cost: the cost is known with --price, --gpu-price or a priced --server"),
        (["--max-cost", "0", "--price", "1/2"], "--max-cost: "),
    ],
)
def test_a_wrong_price_is_refused_before_anything_is_sent(cli_map, tmp_path, out, server, options, said):
    result = cli_map(source_of(tmp_path, 1), "-o", out, *options)
    assert (result.exit_code, server.requests, out.exists()) == (Status.USAGE, 0, False)
    assert result.stderr.startswith(f"Error: {said}")
    assert result.stderr.count("\n") == 1


def test_a_job_that_has_cost_too_much_stops_and_keeps_what_is_finished(cli_map, tmp_path, out, server):
    server.set_faults("stall,after=12")
    options = ["--max-batch-size", 1, "--unordered", "--price", "0/1000000", "--max-cost", 30]
    result = cli_map(source_of(tmp_path, 20), "-o", out, *options)
    assert result.exit_code == Status.STOPPED
    assert [len(row["completion"].split()) for row in read_rows(tmp_path / "out.jsonl.part")] == [3] * 12
    stopped, summary, _ = result.stderr.splitlines()
    assert stopped == "Error: stopped: --max-cost is reached; rows left out: 8"
    assert counts(summary) == {"requests sent": 20, "cost": 36, "in": counts(summary)["in"], "out": 36}


def test_time_alone_reaches_the_cost(cli_map, tmp_path, out, server):
    server.set_faults("stall")
    result = cli_map(source_of(tmp_path, 3), "-o", out, "--gpu-price", 3600, "--max-cost", 0.4, "--timeout", 20)
    assert result.exit_code == Status.STOPPED
    assert "rows left out: 3" in result.stderr
    assert 0.4 <= counts(result.stderr)["cost"] < 20


def test_the_wait_for_a_server_costs_nothing(cli, tmp_path, out):
    began = time.monotonic()

    def answer(asked):
        if time.monotonic() < began + 1:
            return 503, b""
        return 200, {"choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]}

    with serving(answer) as server:
        where = ["--base-url", server.url, "--model", "m", "--dialect", "openai", "--wait-for-server", 30]
        bound = ["--gpu-price", 3600, "--max-cost", 0.6]
        done = cli("map", source_of(tmp_path, 1), "-o", out, *where, "--prompt", "{text}", *bound)
    assert done.exit_code == 0, done.stderr
    told = json.loads(cli("job", "status", out, "--json").stdout)
    assert counts(done.stderr).get("cost", 0) < 0.6 and told["cost"] < 0.6


def test_the_time_of_a_job_shorter_than_a_look_counts(cli, tmp_path, out):
    def answer(asked):
        time.sleep(0.1)
        return 200, {"choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]}

    with serving(answer) as server:
        where = ["--base-url", server.url, "--model", "m", "--dialect", "openai"]
        done = cli("map", source_of(tmp_path, 1), "-o", out, *where, "--prompt", "{text}")
    assert done.exit_code == 0, done.stderr
    assert json.loads(cli("job", "status", out, "--json").stdout)["run"]["seconds"] >= 0.1


# Tokens --------------------------------------------------------------------------------------------------------------


def test_reused_rows_are_told_apart(cli_map, tmp_path, out):
    source = source_of(tmp_path, 10)
    first = cli_map(source, "-o", out, "--first", 6)
    assert "reused: " not in first.stderr and " rows/s" in first.stderr
    told = cli_map(source, "-o", out, "--price", "1/1").stderr
    assert re.match(r"10 rows to .* s, \d+ new rows/s, reused: 6, requests sent: [1-4], tokens: \d+ in, 12 out, ", told)


def test_reused_rows_that_failed_do_not_stop_the_job(cli_map, tmp_path, out, server, monkeypatch):
    monkeypatch.setattr(run_module, "Job", partial(Job, refusals=4))
    server.set_faults("bad_prompt=text")
    source = source_of(tmp_path, 6)
    source.write_text('{"id": "first", "text": "fine"}\n' + source.read_text())
    options = ["-o", out, "--max-batch-size", 1, "--concurrency", 1]
    assert "failed: 6" in cli_map(source, *options).stderr
    server.set_faults()
    with source.open("a") as file:
        file.write('{"id": "last", "text": "another"}\n')
    result = cli_map(source, *options)
    assert "reused: 7, requests sent: 1, " in result.stderr
    assert [row["id"] for row in read_rows(out) if "completion" in row] == ["first", "last"]


def test_an_objective_is_told_with_what_was_reached(cli_map, tmp_path, out):
    told = cli_map(source_of(tmp_path, 10), "-o", out, "--p95-latency", 7.5).stderr
    assert re.search(r"^95 % of requests within [\d.]+ s \(asked: 7.5 s\)$", told, re.MULTILINE)
