"""Each example says what it promises, and runs as its reader would run it in the long run. Warnings are errors."""

import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer

FOLDER = Path(__file__).parents[2] / "examples"
PROMISES = {
    "chat_service": r"[1-9]\d* questions answered, slowest first piece after [\d.]+ s\n200 summaries in [1-9]\d* requests",
    "classify_one_token": r"300 messages in [1-9]\d? requests",
    "embed_corpus": r"1000 vectors of \d+ numbers in [1-9]\d* requests\n0\.\d\d ticket \d+: a reading lamp that flickers at night",
    "complete": r"1000 answers in [1-9]\d requests",
    "follow_dns": r"300 answers from 2 servers that are here now\neach was asked: True",
    "extraction": r"invoice 0: \w+, \d+\ninvoice 1: \w+, \d+\n12 invoices read, 12 with a supplier\ncut off: .*no Invoice.*finish_reason: length",
    "map_documents": r"r1: \w+.*\nr2: \w+.*\nr3: failed: .*'text' is null\nr4: \w+",
    "openai_drop_in": r"500 different summaries in [1-9]\d? requests\na ticket: Ticket\n100 vectors, \d+ tokens\nrefused: 404",
    "replicas": r"(?s)vllm 0.32.0: healthy.*sglang 0.5.23: healthy.*llamacpp b1-0c1e570: healthy, limit 4\n600 different answers",
    "stream_results": r"5000 results, 0 failed",
    "threads": r"1000 answers in [1-9]\d? requests\n300 tickets labelled, the first: ticket 0:\w+",
    "trio_app": r"100 answers in \d requests",
    "with_deadlines": r"timeout ended a call\ndeadline passed: True\ncancelled: True\nanswered: 8",
    "retry_with_tenacity": r"200 answers, [1-9]\d* requests sent again",
}


def run(name, *args):
    command = [sys.executable, "-W", "error", str(FOLDER / f"{name}.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_every_example_is_tested():
    assert {path.stem for path in FOLDER.glob("[!_]*.py")} == set(PROMISES)


@pytest.mark.parametrize("name", PROMISES)
def test_it_says_what_it_promises(name, monkeypatch, capsys):
    # In this process: most of an example's time is its imports.
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(FOLDER / f"{name}.py", run_name="__main__")
    said = capsys.readouterr()
    assert re.search(PROMISES[name], said.out), said.out
    assert said.err == ""


@pytest.mark.long
@pytest.mark.parametrize("name", PROMISES)
def test_it_runs_by_itself(name):
    done = run(name)
    assert done.returncode == 0, done.stderr
    assert re.search(PROMISES[name], done.stdout), done.stdout
    assert done.stderr == ""


def test_it_runs_on_a_given_server():
    with EmbeddedServer("instant", model="theirs") as server:
        done = run("map_documents", server.base_url, "theirs")
        assert done.returncode == 0, done.stderr
        assert server.prompts > 0


def test_the_servers_are_those_of_a_name():
    with EmbeddedServer("instant", model="theirs") as server:
        done = run("follow_dns", "localhost", str(server.port), "theirs")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "300 answers from 1 servers that are here now\n"
        assert server.prompts == 300


def test_the_application_with_tests_passes_them_and_runs():
    folder = FOLDER / "testing"
    options = [
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-c",
        "/dev/null",
        "--rootdir",
        str(folder),
    ]
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    with EmbeddedServer("instant", model="theirs") as server:
        command = [sys.executable, "-W", "error", str(folder / "triage.py"), server.base_url, "theirs"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, input="It is broken\nThanks\n")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "question | It is broken | -\nquestion | Thanks | -\n"


def test_half_a_server_is_wrong_usage():
    done = run("complete", "http://127.0.0.1:1/v1")
    assert done.returncode != 0
    assert "usage: python" in done.stderr
