"""``batchclient demo``, on few texts; ``batchclient demo`` runs it whole."""

from collections import Counter

import pytest

from batchclient.cli import _corpus
from batchclient.cli._contest import Report, Run, percentile
from batchclient.cli._corpus import docstrings
from batchclient.cli.demo import DemoFailed, _check, _histogram
from batchclient.simulator import EmbeddedServer


def test_it_runs_and_checks_itself(cli):
    result = cli("demo", "--documents", 70, "--max-tokens", 4)
    assert result.exit_code == 0, result.output
    for part in (
        "70 docstrings of Python's standard library",
        "the embedded one",
        "AsyncOpenAI + gather, texts/s by calls in flight: 16: ",
        "Batches of batch_map: ",
        "Checked: every text got its own answer, by content; 64 of 64",
        "README.md, then docs/tutorial.md",
    ):
        assert part in result.stdout
    for row in ("texts", "seconds", "texts/s", "requests", "client CPU", "latency p50", "latency p95"):
        assert f"│ {row} " in result.stdout


def test_it_runs_on_a_given_server(cli):
    with EmbeddedServer("instant", model="theirs", api_key="hush") as server:
        command = ["demo", "--documents", 20, "--max-tokens", 2, "--base-url", server.base_url, "--model", "theirs"]
        result = cli(*command, env={"BATCHCLIENT_API_KEY": "hush"})
        assert result.exit_code == 0, result.output
        assert f"Server: {server.base_url}, model theirs" in result.stdout
        assert "Checked: 20 of 20" in result.stdout
        assert "by content" not in result.stdout
        wrong = cli(*command, env={"BATCHCLIENT_API_KEY": "not-that"})
        assert wrong.exit_code == 1
        assert "AuthenticationFailed" in wrong.stderr
        assert "not-that" not in wrong.output


def test_a_failure_of_the_rival_loses_no_table(cli):
    # Passed: the map's warm call and its list. Refused: the rival's warm call, three samples of 20, and half of its run.
    with EmbeddedServer("instant", faults=["status=418,after=2,count=71"]) as server:
        command = ["demo", "--documents", 20, "--base-url", server.base_url, "--model", server.model]
        result = cli(*command, env={"COLUMNS": "160"})
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: AsyncOpenAI failed: 10 of 20 (")
    assert result.stderr.count("\n") == 1
    assert "batch_map against AsyncOpenAI" in result.stdout
    assert "│ failed " in result.stdout
    assert "failed: 10 of 20 (" in result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "m"], "--model needs --base-url"),
        (["--base-url", "http://127.0.0.1:1/v1"], "--base-url needs --model, or BATCHCLIENT_MODEL"),
    ],
)
def test_half_a_server_is_refused(cli, options, said):
    result = cli("demo", *options)
    assert (result.exit_code, result.stderr) == (2, f"Error: {said}\n")


@pytest.mark.parametrize(
    ("options", "variables", "named"),
    [
        (["--base-url", "sk-canary"], {}, "--base-url"),
        (["--base-url", "http://127.0.0.1:1/v1", "--api-key", "canary canary"], {}, "--api-key"),
        (["--base-url", "http://127.0.0.1:1/v1"], {"BATCHCLIENT_API_KEY": "canary canary"}, "BATCHCLIENT_API_KEY"),
    ],
)
def test_a_wrong_server_is_refused_and_not_shown(cli, options, variables, named):
    result = cli("demo", "--model", "m", *options, env=variables)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {named}: ")
    assert "canary" not in result.output


def test_a_variable_sends_it_to_no_real_server(cli):
    with EmbeddedServer("instant") as server:
        variables = {"BATCHCLIENT_BASE_URL": server.base_url, "BATCHCLIENT_MODEL": "m", "BATCHCLIENT_API_KEY": "k"}
        result = cli("demo", "--documents", 5, "--max-tokens", 2, env=variables)
        assert server.requests == 0
    assert result.exit_code == 0, result.output
    assert "the embedded one" in result.stdout


def test_a_server_that_wants_a_key_is_answered_with_where_to_give_one(cli):
    with EmbeddedServer("instant", model="m", api_key="hush") as server:
        command = ["demo", "--documents", 5, "--base-url", server.base_url]
        told = cli(*command, env={"BATCHCLIENT_MODEL": "m"}).stderr
    assert told.endswith("; no key was given: set BATCHCLIENT_API_KEY or give --api-key (OPENAI_API_KEY is not read)\n")
    assert told.count("no key was given") == 1


def test_without_sources_it_says_so(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(_corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    result = cli("demo", "--documents", 5)
    assert result.exit_code == 1
    assert "sources" in result.stderr


def test_the_texts_are_the_same_each_time_and_differ_from_each_other():
    texts = docstrings(300)
    assert texts == docstrings(300)
    assert len(set(texts)) == 300
    assert all(20 <= len(text) <= 400 for text in texts)
    assert texts[:100] == docstrings(100)


def test_what_cannot_be_parsed_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_bytes(b'"""\xff"""')
    (tmp_path / "b.py").write_text("def (")
    (tmp_path / "c.py").write_text('"""A text that is long enough: \\ud800"""')
    (tmp_path / "d.py").write_text('"""Short"""\ndef f():\n    """A text that is long enough, and it \\d warns"""\n')
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "e.py").write_text('"""A text that is left out because of where it is"""')
    monkeypatch.setattr(_corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    assert docstrings(10) == ["A text that is long enough: ?", "A text that is long enough, and it \\d warns"]


def report_of(answers, agreeing=1):
    run = Run(["p"], answers, 1.0, 1.0, 1)
    return Report(run, run, run, {16: 1.0}, 16, agreeing, 1)


def test_a_wrong_answer_fails_the_demo():
    with pytest.raises(DemoFailed, match="not its own"):
        _check(report_of(["wrong"]), 4, embedded=True)


def test_clients_that_disagree_fail_the_demo():
    with pytest.raises(DemoFailed, match="only 0 of 1"):
        _check(report_of(["x"], agreeing=0), 4, embedded=False)


def test_list_sizes_in_one_line():
    assert _histogram(Counter({1: 2, 7: 1, 33: 4, 64: 1})) == "2 of 1, 1 of 2–8, 5 of 33–64 prompts; median 33"


def test_percentiles():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.95) == 1.0
