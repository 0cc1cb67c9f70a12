"""``batchclient demo``, in short windows; ``batchclient demo`` runs it whole."""

import pytest

from batchclient.cli import _corpus
from batchclient.cli._corpus import docstrings
from batchclient.simulator import EmbeddedServer


@pytest.fixture
def instant(monkeypatch):
    """An embedded server that answers at once, in this process."""
    monkeypatch.setattr("batchclient.simulator.EmbeddedServer", lambda _, **__: EmbeddedServer("instant"))


@pytest.mark.usefixtures("instant")
def test_it_measures_the_embedded_server_whatever_the_environment_says(cli):
    with EmbeddedServer("instant") as server:
        variables = {"BATCHCLIENT_BASE_URL": server.base_url, "BATCHCLIENT_MODEL": "m", "BATCHCLIENT_API_KEY": "k"}
        result = cli("demo", "--for", "0.1", env=variables)
        assert server.requests == 0
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("the embedded server, a model of vLLM, in a process of its own\n")
    assert result.stdout.startswith("batch_map: 500 texts in ") and ", each with its own answer\n" in result.stdout
    # What else is said is bench's.
    assert "\nmost answers per second: " in result.stdout
    for line in ("\n[4/4] ", "\nadaptive, 16 in flight", "\nasync-openai, 16 in flight"):
        assert line in result.stderr


@pytest.mark.usefixtures("instant")
def test_an_answer_that_is_another_texts_fails_it(cli, monkeypatch):
    monkeypatch.setattr("batchclient.simulator.expected_text", lambda *_, **__: "another")
    result = cli("demo", "--for", "0.1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("\nError: a text got an answer that is not its own\n")


def test_a_given_server_is_measured_with_its_key(cli, monkeypatch):
    with EmbeddedServer("instant", model="theirs", api_key="hush") as server:
        command = ["demo", "--base-url", server.base_url]
        wrong, without = cli(*command, "--api-key", "not-that"), cli(*command)
    assert wrong.exit_code == without.exit_code == 1
    assert "AuthenticationFailed" in wrong.stderr and "not-that" not in wrong.output
    assert without.stderr.count("no key was given") == 1 and "BATCHCLIENT_API_KEY" in without.stderr
    measured = []
    monkeypatch.setattr("batchclient.cli.demo.measure", lambda target, *_, **__: measured.append(target))
    cli(*command, env={"BATCHCLIENT_API_KEY": "hush"})
    assert [(target.base_url, target.api_key) for target in measured] == [(server.base_url, "hush")]


def test_a_wrong_option_is_refused_and_not_shown(cli):
    for options in (["--base-url", "sk-canary"], ["--for", "0"]):
        result = cli("demo", *options)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {options[0]}")
        assert "canary" not in result.output


def test_the_texts_are_the_same_each_time_and_differ_from_each_other(cli, monkeypatch, tmp_path):
    texts = docstrings(300)
    assert len(set(texts)) == 300 and texts[:100] == docstrings(100)
    (tmp_path / "a.py").write_bytes(b'"""\xff"""')
    (tmp_path / "b.py").write_text("def (")
    monkeypatch.setattr(_corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    result = cli("demo")
    assert result.exit_code == 1 and "sources" in result.stderr
    (tmp_path / "c.py").write_text('"""A text that is long enough: \\ud800"""')
    assert docstrings(10) == ["A text that is long enough: ?"]
