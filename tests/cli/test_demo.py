"""``batchclient demo``, on a server that answers at once."""

from itertools import accumulate, chain
from types import SimpleNamespace

import pytest

from batchclient.bench.openai_process import answers_in_process
from batchclient.cli import _corpus
from batchclient.cli._corpus import docstrings
from batchclient.simulator import EmbeddedServer


@pytest.fixture
def instant(monkeypatch):
    """An embedded server that answers at once, in this process, and few texts."""
    monkeypatch.setattr("batchclient.cli.demo.docstrings", lambda count: docstrings(count // 10))
    monkeypatch.setattr("batchclient.simulator.EmbeddedServer", lambda _, **__: EmbeddedServer("instant"))


@pytest.fixture
def clock(monkeypatch):
    """Sets how many seconds each run takes, and how many of the CPU: this client's and AsyncOpenAI's by turns."""

    def set_runs(*runs):
        # This client's first call, which loads what is needed, comes before its runs.
        ours, theirs = [(0.0, 0.0), *runs[::2]], iter(runs[1::2])
        times, cpu = (accumulate(chain.from_iterable([(0.0, each) for each in column])) for column in zip(*ours))
        fake = SimpleNamespace(monotonic=lambda: next(times), process_time=lambda: next(cpu))
        monkeypatch.setattr("batchclient.cli.demo.time", fake)

        async def timed(*arguments):
            texts, *_ = await answers_in_process(*arguments)
            return texts, *next(theirs)

        monkeypatch.setattr("batchclient.cli.demo.answers_in_process", timed)

    return set_runs


@pytest.mark.usefixtures("instant")
def test_it_labels_texts_on_the_embedded_server_and_says_what_was_gained(cli, clock):
    clock((1.0, 0.1), (4.0, 1.0), (2.0, 0.3), (3.0, 2.0), (1.5, 0.2), (6.0, 1.0))
    with EmbeddedServer("instant") as server:
        variables = {"BATCHCLIENT_BASE_URL": server.base_url, "BATCHCLIENT_MODEL": "m", "BATCHCLIENT_API_KEY": "k"}
        result = cli("demo", env=variables)
        assert server.requests == 0
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("the embedded server, a model of vLLM, in a process of its own\n")
    _, ours, *theirs, right, gain = result.stdout.splitlines()
    requests = int(ours.split()[1])
    assert requests < 20 and ours.split() == ["batchclient", str(requests), "1.50", "0.20"]
    assert [line.split()[1:] for line in theirs] == [
        ["16", "in", "flight", "50", "4.00", "1.00"],
        ["64", "in", "flight", "50", "3.00", "2.00"],
        ["256", "in", "flight", "50", "6.00", "1.00"],
    ]
    assert right == "Each text got its own answer, every time."
    assert gain == (
        f"batchclient sent {requests} requests for 50: 2.0 times as fast as AsyncOpenAI at its best,"
        " for 10 % of its CPU."
    )


@pytest.mark.usefixtures("instant")
def test_where_one_run_was_as_slow_as_the_other_client_no_times_are_compared(cli, clock):
    clock((1.0, 0.1), (4.0, 1.0), (3.0, 0.3), (3.0, 2.0), (1.5, 0.2), (6.0, 1.0))
    last = cli("demo").stdout.splitlines()[-1]
    assert "requests for 50. This machine was too busy to compare seconds: one run took 3.00." in last


@pytest.mark.usefixtures("instant")
def test_an_answer_that_is_another_texts_fails_it(cli, monkeypatch):
    monkeypatch.setattr("batchclient.simulator.expected_text", lambda *_, **__: "another")
    result = cli("demo")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("\nError: a text got an answer that is not its own\n")


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
