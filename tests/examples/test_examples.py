"""Each example says what it promises, and runs as its reader would run it in the long run. Warnings are errors."""

import asyncio
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer
from batchclient.testing import MockLLM

pytest_plugins = ["pytester"]

FOLDER = Path(__file__).parents[2] / "examples"
PROMISES = {
    "agents": r"[1-9]\d of 50 agents have an answer: \d{2,3} turns in [1-9]\d? requests",
    "draft_judge_revise": r"40 announcements, (\d+) of them revised: [1-9]\d\d calls sent\n40 announcements, \1 of them revised: 0 calls sent",
    "embed_to_parquet": r"5000 vectors of \d+ numbers in [1-9]\d{1,2} requests, 0 failed",
    "map_documents": r'(?s)"r1", "label": ".+"r2", "label": ".+"r3", "error": ".*is empty.+"r4", "label": "',
    "stream_answers": r"[1-9]\d? tokens\nleft after '.{31,60}'",
    "threads": r"500 labels from 64 threads in [1-9]\d{1,2} requests",
    "share_a_server": r"200 answers in time; the colleague's 5 chats took at most \d\.\d\d s",
    "two_views": r"3000 rows tagged; meanwhile [1-9]\d* questions, answered in \d{1,4} ms each",
    "structured_output": r"100 invoices in [1-9]\d? requests.*supplier=.*\ncut off: .*no Invoice.*finish_reason: length",
}
OTHERS = {
    "langchain_drop_in": "integrations/test_pages.py",
    "service": "integrations/test_pages.py",
    "redis_queue": "redis/test_page.py",
}
"""Those that need what is not installed here, and the tests that run them."""


def test_every_example_is_tested_and_in_the_table():
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {*PROMISES, *OTHERS}
    assert all(name in (Path(__file__).parents[1] / tests).read_text() for name, tests in OTHERS.items())
    table = (FOLDER / "README.md").read_text()
    assert {*re.findall(r"^\| \[(\w+)\.py\]", table, re.MULTILINE)} == names


@pytest.fixture(scope="module")
def theirs():
    with EmbeddedServer(model="m") as server:
        yield server


@pytest.mark.parametrize("name", PROMISES)
def test_it_says_what_it_promises_of_the_server_that_the_environment_names(name, capsys, monkeypatch, theirs):
    # In this process: most of an example's time is its imports.
    monkeypatch.setenv("BATCHCLIENT_BASE_URL", theirs.base_url)
    before = theirs.requests
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr()
    assert re.search(PROMISES[name], said.out), said.out
    assert said.err == ""
    assert theirs.requests > before


def test_an_agents_bad_answer_ends_that_agent_alone(capsys):
    main = runpy.run_path(str(FOLDER / "agents.py"))["main"]
    with MockLLM() as server:
        server.when().answer('{"tool": "answer", "input": "42"}')
        server.when(re.compile(r"Task 7\b")).answer("I do not know")
        asyncio.run(main(server.base_url))
    assert capsys.readouterr().out.startswith("49 of 50 agents have an answer: 50 turns in")


@pytest.mark.long
@pytest.mark.parametrize("name", PROMISES)
def test_it_runs_by_itself(name):
    command = [sys.executable, "-W", "error", str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(PROMISES[name], done.stdout), done.stdout
    assert done.stderr == ""


def test_the_tests_pass(pytester):
    pytester.makepyfile((FOLDER / "testing/test_labels.py").read_text())
    pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio").assert_outcomes(passed=4)
