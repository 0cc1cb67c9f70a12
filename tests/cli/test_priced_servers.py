"""``map --server``: servers with a model and a price of their own, what they cost, and the bound."""

import json

import pytest

from batchclient.jobs.statuses import Status
from batchclient.simulator import EmbeddedServer

from tests.fakes.pages import serving

from .conftest import free_port, read_rows, rows_of, write_rows
from .test_cost import counts


@pytest.fixture
def hosted():
    with EmbeddedServer("instant", model="big") as server:
        yield server


@pytest.fixture
def run(cli, tmp_path, out, hosted):
    def run(*options, rows=20, price="input=1000,output=20000", url=hosted.base_url):
        source = write_rows(tmp_path / "in.jsonl", rows_of(rows))
        asked = ["--prompt", "Say {text}", "--max-tokens", 3, "--temperature", 0]
        return cli("map", source, "-o", out, "--server", f"{url},model=big,{price}", *asked, *options)

    return run


def test_a_server_alone_has_its_model_and_its_price(run, hosted, out):
    done = run()
    assert done.exit_code == 0, done.stderr
    told = counts(done.stderr)
    cost = (told["in"] * 1000 + told["out"] * 20000) / 1e6
    assert told["cost"] == pytest.approx(cost, abs=0.0051)
    assert f"\n  {hosted.base_url} cost {told['cost']:,.2f}\n" in f"{done.stderr}\n"
    assert len(read_rows(out)) == 20


def test_a_call_goes_to_the_dearer_server_for_a_reason_that_is_told(run, hosted, server):
    done = run("--base-url", server.base_url, "--model", server.model)
    assert (done.exit_code, hosted.requests) == (0, 0)
    assert f"\n  {server.base_url} cost 0.0000\n  {hosted.base_url} cost 0.0000\n" in f"{done.stderr}\n"
    away = f"http://localhost:{free_port()}/v1"
    done = run("--base-url", away, "--model", "mine", "--new")
    assert done.exit_code == 0, done.stderr
    cost = counts(done.stderr)["cost"]
    assert cost > 0
    assert f"  {hosted.base_url} cost {cost:,.2f}; calls instead of a cheaper server's: 20 (is down)" in done.stderr


def test_max_cost_holds_for_priced_servers_and_the_same_command_goes_on(run, cli, hosted, out):
    # A row costs 0.06 and its prompt's tokens.
    done = run("--max-batch-size", 1, "--max-cost", 0.7)
    assert done.exit_code == Status.STOPPED
    assert "stopped: --max-cost is reached; rows left out: " in done.stderr
    assert 0 < counts(done.stderr)["cost"] <= 0.7
    assert not out.exists()
    asked = hosted.requests
    done, first = run("--max-batch-size", 1, "--max-cost", 5), counts(done.stderr)["cost"]
    assert done.exit_code == 0, done.stderr
    told = json.loads(cli("job", "status", out, "--json").stdout)
    assert told["cost"] == pytest.approx(first + counts(done.stderr)["cost"], abs=0.011)
    assert len(read_rows(out)) == 20
    assert all("completion" in row for row in read_rows(out))
    assert hosted.requests - asked <= 20


def test_rows_that_max_cost_does_not_pay_for_are_left_out(cli, tmp_path, hosted, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(200))
    asked = ["--prompt", "Dear reader, good or bad: {text}\nA:", "--labels", "g,b", "--probabilities"]
    server = ["--server", f"{hosted.base_url},model=big,input=1000,output=1000"]
    done = cli("map", source, "-o", out, *server, *asked, "--max-cost", 1.5, "--fail-if", "failed>1%")
    assert done.exit_code == Status.STOPPED, done.stderr
    # A row has 15 tokens, one of them the answer's, and a prompt of some 40 bytes.
    assert 1.4 < counts(done.stderr)["cost"] <= 1.5
    rows = read_rows(out.with_name("out.jsonl.part"))
    assert 80 < len(rows) < 100 and all("probabilities" in row for row in rows)
    assert f"stopped: --max-cost is reached; rows left out: {200 - len(rows)}\n" in done.stderr
    assert "unusable" not in done.stderr and "failed" not in done.stderr


def test_a_pilot_and_its_job_spend_max_cost_together(run, out):
    done = run("--max-batch-size", 1, "--max-cost", 0.7, "--pilot", 8, "--yes")
    assert done.exit_code == Status.STOPPED
    assert 0.4 < counts(done.stderr)["cost"] <= 0.7


def test_where_a_server_costs_nothing_rows_beyond_the_bound_wait_for_it(run, hosted, server, out):
    done = run("--base-url", server.base_url, "--model", server.model, "--max-cost", 0.000001)
    assert (done.exit_code, hosted.requests, len(read_rows(out))) == (0, 0, 20)


def test_a_key_comes_from_a_variable(run, hosted, monkeypatch):
    monkeypatch.setenv("HOSTED_KEY", "secret-of-hosted")
    refused = run(price="input=1,key=sk-secret-abc")
    assert (refused.exit_code, hosted.requests) == (2, 0)
    assert "--server: key=VARIABLE has to name a variable of the environment that has a key" in refused.stderr
    assert "sk-secret" not in refused.stderr  # the key itself was given
    keys = set()

    def answer(asked):
        keys.add(asked.headers.get("authorization"))
        return 200, {"choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]}

    with serving(answer) as keyed:
        assert run("--dialect", "openai", price="key=HOSTED_KEY", rows=1, url=keyed.url).exit_code == 0
    assert keys == {"Bearer secret-of-hosted"}


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ("price=1", [], "--server: URL,model=NAME,input=PRICE,output=PRICE,key=VARIABLE"),
        ("input=1,input=2", [], "--server: URL,"),
        ("input=", [], "--server: URL,"),
        ("input=a", [], "--server: input and output are prices of a million tokens"),
        ("input=-1", [], "--server: input is a number of at least 0"),
        ("input=1", ["--price", "1/1"], "--price is of all servers alike"),
        (
            "key=HOME",
            ["--max-cost", "1"],
            "--max-cost: the cost is known with --price, --gpu-price or a priced --server",
        ),
    ],
)
def test_what_is_wrong_is_refused(run, hosted, out, given, options, said):
    done = run(*options, price=given)
    assert (done.exit_code, hosted.requests, out.exists()) == (2, 0, False)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "stopped", [[], ["--max-tokens", 8, "--pilot", 50, "--fail-if", "truncated>1%"]], ids=["whole", "pilot alone"]
)
def test_a_job_of_priced_servers_has_its_cost_in_its_status(cli, run, out, stopped):
    done = run(*stopped, rows=60)
    assert (done.exit_code, out.exists()) == ((Status.STOPPED, False) if stopped else (0, True))
    cost = counts(done.stderr)["cost"]
    assert cost > 3
    assert json.loads(cli("job", "status", out, "--json").stdout)["cost"] == pytest.approx(cost, abs=0.0051)
