"""The pages about commands: each option, command, file and field is named, and the commands run as they stand."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer

from .conftest import write_rows

DOCS = Path(__file__).parents[2] / "docs"
BENCH, MAP, REDIS = ((DOCS / f"reference/{name}.md").read_text() for name in ("bench", "map", "redis"))
BENCH_BLOCKS, PROMPT_BLOCKS = (
    re.findall(r"^```text\n(.*?)^```", (DOCS / f"how-to/{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    for name in ("measure", "system-prompt")
)
URL = "http://localhost:8000/v1"


@pytest.fixture
def helped(cli, monkeypatch):
    """Ask a command for its help; return its options and its commands."""
    monkeypatch.setenv("COLUMNS", "200")

    def ask(*command):
        options, _, commands = cli(*command, "--help").stdout.partition("Options:")[2].partition("Commands:")
        there = set(re.findall(r"(?<!\S)(--[a-z0-9][a-z0-9-]+)", options)) - {"--help"}
        return there, sorted(re.findall(r"^  ([a-z]+) ", commands, re.MULTILINE))

    return ask


def cells(page, heading):
    """The names in the first column of a section's table."""
    section = page.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))


# map -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(cli_map, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"id": "0", "text": "a"}, {"text": "word " * 40000}])
    assert cli_map(source, "-o", tmp_path / "out.jsonl").exit_code == 1
    return tmp_path / "out.jsonl.journal"


def test_the_options_of_map_and_the_commands_of_job(helped):
    there, _ = helped("map")
    named = set(re.findall(r"(?<![\w-])(--[a-z0-9][a-z0-9-]+)", MAP))
    assert there - named <= {"--output"}
    assert named - there <= {"--json", "--scheduling-policy", "--retry-failed", "--help"}
    assert sorted(name.split()[2] for name in cells(MAP, "### `batchclient job`")) == helped("job")[1]


def test_the_fields_of_the_status_and_of_an_export(cli, job):
    assert cells(MAP, "### `status --json`") == list(json.loads(cli("job", "status", job, "--json").stdout))
    lines = [json.loads(line) for line in cli("job", "export", job).stdout.splitlines()]
    of_other_calls = {"embedding", "classification"}
    assert set(cells(MAP, "### A line of `export`")) == {name for line in lines for name in line} | of_other_calls


@pytest.mark.parametrize("command", PROMPT_BLOCKS, ids=["chat", "completion"])
def test_a_command_of_the_page_about_system_prompts_runs(command, tmp_path):
    documents = [{"text": f"Bonjour {number}"} for number in range(50)]
    write_rows(tmp_path / "in.jsonl", documents)
    (tmp_path / "batchclient").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m batchclient "$@"\n')
    (tmp_path / "batchclient").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with EmbeddedServer("instant", model="m") as server:
        program = ["bash", "-e", "-o", "pipefail", "-c", command.replace(URL, server.base_url)]
        done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert server.requests < 25
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == [document["text"] for document in documents]
    assert all(row.keys() == {"id", "text", "completion", "finish_reason", "usage"} for row in rows)


# bench -----------------------------------------------------------------------------------------------------------------


def test_the_options_of_bench(helped):
    section = BENCH.partition("## The options")[2].partition("\n`batchclient")[0]
    assert helped("bench")[0] == set(re.findall(r"`(--[a-z][a-z-]+)", section))


def test_the_reference_names_every_field_and_the_commands_answer(tmp_path):
    """The command of the first look, with a shorter measurement; the port is a free one."""
    (first,) = [block for block in BENCH_BLOCKS if "--quick" in block]
    with EmbeddedServer("instant", process=True) as server:
        command = shlex.split(first.replace(URL, server.base_url))
        assert command.pop(0) == "batchclient"
        command += ["--for", "0.2", "--warm-up", "0.1", "--output-tokens", "4", "--json", str(tmp_path / "r.json")]
        done = subprocess.run([sys.executable, "-m", "batchclient", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # On a busy machine every cell may have measured the client, and the answer says so.
    assert "suggested: BatchClient(…" in done.stdout or "too busy to measure the server" in done.stdout
    told = json.loads((tmp_path / "r.json").read_text())
    fields = re.findall(
        r"`([a-z_0-9]+)`", " ".join(re.findall(r"^\| (`.*?) \|", BENCH.partition("## The JSON")[2], re.M))
    )
    assert set(fields) == set(told["cells"][0])
    for name in told:
        assert f"`{name}`" in BENCH


def test_the_commands_of_the_page_about_measuring_are_right(cli, tmp_path, monkeypatch):
    """Up to the server, which is not there; ``compare`` has no reports."""
    monkeypatch.chdir(tmp_path)
    for block in BENCH_BLOCKS:
        command = shlex.split(block.replace("\\\n", "").replace(URL, "http://127.0.0.1:9/v1"))[1:]
        told = cli(*command)
        assert "before.json: No such file" in told.stderr if "compare" in command else told.exit_code == 5, told.stderr


# Redis -----------------------------------------------------------------------------------------------------------------


def test_the_options_of_work_enqueue_and_dead(helped):
    for command in ("work", "enqueue"):
        named = {name.split()[0] for name in cells(REDIS, f"## `batchclient {command}`")}
        assert helped(command)[0] == named - {"IN"}
    commands = helped("dead")[1]
    assert sorted(re.findall(r"^\| `batchclient dead ([a-z]+)` \|", REDIS, re.MULTILINE)) == commands
    options = set().union(*(helped("dead", command)[0] for command in commands))
    assert options == {"--all", "--dead", "--json", "--redis", "--stream"}


def test_the_names_for_python():
    module = pytest.importorskip("batchclient.integrations.redis")
    section = REDIS.partition("\n## From Python\n")[2]
    assert set(re.findall(r"`(\w+)`", section)) - {"decode_responses"} == set(module.__all__)
