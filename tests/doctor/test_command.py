"""``batchclient doctor`` on real sockets: statuses, output, and the key that is in none of it."""

import functools
import io
import json

import pytest
from tests import command_line

from batchclient.cli._words import put
from batchclient.simulator import EmbeddedServer
from batchclient.transport._proxies import proxy_variable


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No variables."""
    for name in ("BATCHCLIENT_BASE_URL", "BATCHCLIENT_MODEL", "BATCHCLIENT_API_KEY", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cli():
    return functools.partial(command_line.run, "doctor")


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer("instant", model="m", api_key="right") as running:
        yield running


def test_status_0_and_nothing_to_mend(cli, server):
    result = cli(server.base_url, "--api-key", "right")
    assert (result.exit_code, result.stderr) == (0, "")
    head, _, rest = result.stdout.partition("\n\n")
    assert head.startswith(f"{server.base_url}: vllm 0.32.0, model m, ")
    assert rest.startswith("nothing to mend\n\nnot known:\n  ")


def test_status_1_and_what_to_change(cli):
    with EmbeddedServer("instant", model="m", faults=["no_lists"]) as running:
        result = cli(running.base_url)
    assert (result.exit_code, result.stderr) == (1, "")
    assert "costly: Lists of prompts are refused: each call is a request of its own.\n  change: " in result.stdout
    assert "\n  seen: a list of 8 was refused" in result.stdout
    assert "nothing to mend" not in result.stdout


def test_status_5_where_calls_fail(cli, server):
    result = cli(server.base_url)
    assert (result.exit_code, result.stderr) == (5, "")
    assert "broken: The server wants a key, and none was given: 401.\n" in result.stdout
    assert cli(server.base_url, "--api-key", "wrong").exit_code == 5
    assert cli(server.base_url, "--api-key", "right", "--model", "other").exit_code == 5


def test_status_5_where_nobody_is(cli):
    result = cli("http://127.0.0.1:1/v1", env={"HTTP_PROXY": "http://user:canary@proxy:3128"})
    assert result.exit_code == 5
    assert "broken: The server cannot be reached: no connection to http://127.0.0.1:1/v1: a refused" in result.stdout
    assert "HTTP_PROXY is set" in result.stdout
    assert "canary" not in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sk-canary"], "Error: URL (BATCHCLIENT_BASE_URL): the URL does not begin with http:// or https://"),
        (["http://user:canary@host/v1"], "Error: URL (BATCHCLIENT_BASE_URL): the URL has a user or password in it"),
        (
            ["--base-url", "sk-canary"],
            "Error: URL (BATCHCLIENT_BASE_URL): the URL does not begin with http:// or https://",
        ),
        (["http://host/v1", "--api-key", "canary canary"], "Error: --api-key (BATCHCLIENT_API_KEY): "),
        (["http://host/v1", "--header", "canary"], "Error: --header number 1: write 'Name: value'"),
    ],
)
def test_status_2_for_a_wrong_command(cli, arguments, said):
    result = cli(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(said)
    assert "canary" not in result.output


def test_a_host_without_a_proxy_is_not_sent_to_one(cli):
    """``NO_PROXY`` names the host: a client that heeded the variables would connect as this one does."""
    variables = {"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "other,127.0.0.1"}
    result = cli("http://127.0.0.1:1/v1", env=variables)
    assert result.exit_code == 5
    assert "HTTP_PROXY" not in result.stdout


@pytest.mark.parametrize(
    ("names", "is_told"),
    [
        ("", True),
        ("llm", True),
        ("*", False),
        ("LLM.lan", False),
        (".lan", False),
        ("llm.lan:8000", False),
        ("other", True),
    ],
)
def test_the_names_without_a_proxy_are_those_that_a_client_heeds(names, is_told, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", names)
    assert proxy_variable("http://llm.lan:8000/v1") == ("HTTP_PROXY" if is_told else None)


def test_the_url_may_come_from_the_environment(cli, server):
    result = cli(env={"BATCHCLIENT_BASE_URL": server.base_url, "BATCHCLIENT_API_KEY": "right"})
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{server.base_url}: vllm")
    for url, said in (
        ("", "Error: give URL: the doctor examines one server"),
        ("http://a/v1 http://b/v1", "Error: give URL: the doctor examines one server"),
        ("canary", "Error: URL (BATCHCLIENT_BASE_URL): "),
    ):
        result = cli(env={"BATCHCLIENT_BASE_URL": url})
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(said)
        assert "canary" not in result.stderr


def test_the_url_may_be_an_option_as_in_the_other_commands(cli, server):
    result = cli("--base-url", server.base_url, "--api-key", "right")
    assert result.stdout.startswith(f"{server.base_url}: vllm")
    result = cli("http://a/v1", "--base-url", "http://b/v1")
    assert result.stderr.startswith("Error: give URL: the doctor examines one server")


def test_a_narrow_terminal_breaks_lines_between_words(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    put(
        "costly: This process gets 25% of a core: it is slow",
        "  change: a free core for the client: a machine of its own",
    )
    assert terminal.getvalue().splitlines() == [
        "costly: This process gets 25% of a core:",
        "  it is slow",
        "  change: a free core for the client: a",
        "    machine of its own",
    ]


def test_a_name_cannot_steer_a_terminal(cli):
    with EmbeddedServer("instant", model="m\x1b]0;gone\x07\r") as running:
        result = cli(running.base_url)
    assert r"model m\u001b]0;gone\u0007\r, " in result.stdout


def test_json(cli, server):
    result = cli(server.base_url, "--api-key", "right", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 0
    assert set(told) == {"schema", "url", "works", "server", "findings", "not_known"}
    assert told["works"] is True
    assert told["findings"] == []
    assert told["server"] | {"name": "vllm 0.32.0", "model": "m"} == told["server"]
    told = json.loads(cli(server.base_url, "--json").stdout)
    assert told["works"] is False
    assert [set(each) for each in told["findings"]] == [{"id", "weight", "sentence", "setting", "seen", "of_server"}]
    assert told["findings"][0]["id"] == "key-missing"
