"""The pages about commands: each command, file and field is named, and the commands run as they stand.

The tables of options are drawn (``scripts/tables.py``), and ``tests/test_docs.py`` compares them.
"""

import csv
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer, prompt_digest

from .conftest import has_rows, read_rows, wait_for, write_rows

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = (DOCS / "reference/commands.md").read_text()


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)


BENCH_BLOCKS = blocks("guide/measure", "text")
ROWS_BLOCKS = blocks("reference/rows", "console")
PIECES = [*" ,;'#\\\t\u2028", "", '"', '""', "\n", "\r\n", "a word", "é", "漢字", "🙂", "=1+1"]
"""Of texts that have all that a quoted value of CSV may have."""
URL = "http://localhost:8000/v1"


@pytest.fixture
def server():
    with EmbeddedServer("instant", model="m") as running:
        yield running


@pytest.fixture
def shell(tmp_path, server):
    """Start commands of a page in a folder of their own; killed at the end."""
    (tmp_path / "batchclient").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m batchclient "$@"\n')
    (tmp_path / "batchclient").chmod(0o755)
    (tmp_path / "here").mkdir()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = []

    def start(text):
        program = ["bash", "-o", "pipefail", "-c", text.replace(URL, server.base_url)]
        group = {"cwd": tmp_path / "here", "env": environment, "text": True, "start_new_session": True}
        started.append(subprocess.Popen(program, **group, **pipes))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def helped(cli, monkeypatch):
    """Ask a command for its help; return its options and its commands."""
    monkeypatch.setenv("COLUMNS", "200")

    def ask(*command):
        options, _, commands = cli(*command, "--help").stdout.partition("Options:")[2].partition("Commands:")
        there = set(re.findall(r"^  (?:-\w, )?(--[a-z0-9][a-z0-9-]+)", options, re.MULTILINE)) - {"--help"}
        return there, sorted(re.findall(r"^  ([a-z]+) ", commands, re.MULTILINE))

    return ask


def section(heading):
    """A section of the page of commands."""
    return COMMANDS.partition(f"\n{heading}\n")[2].partition("\n#")[0]


def cells(page, heading):
    """The names in the first column of a section's table."""
    table = page.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))


# Blocks of consoles ------------------------------------------------------------------------------------------------------
#
# A block shows files with ``$ cat NAME``: those before a command are written, those after it are compared. The lines
# after a command are parts of what it says, with ``…`` for anything; a program other than batchclient says exactly those.


def is_like(shown, there):
    """Whether a value is as the page shows it: ``…`` is any value, or any further fields."""
    if shown == "…":
        return True
    if isinstance(shown, dict) and isinstance(there, dict):
        names = shown.keys() - {"…"}
        return ("…" in shown or names == there.keys()) and all(
            name in there and is_like(shown[name], there[name]) for name in names
        )
    if isinstance(shown, list) and isinstance(there, list):
        return len(shown) == len(there) and all(map(is_like, shown, there))
    return shown == there


def compare(shown, there):
    if not shown.startswith("{"):
        assert re.fullmatch(re.escape(shown).replace("…", ".*"), there), there
        return
    rows, found = ([json.loads(line) for line in text.splitlines()] for text in (shown, there))
    assert len(rows) == len(found)
    for row, other in zip(rows, found, strict=True):
        assert is_like(row, other), (row, other)


@pytest.fixture
def run(cli, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHCLIENT_BASE_URL", server.base_url)
    monkeypatch.setenv("BATCHCLIENT_MODEL", server.model)
    return lambda block: follow(block, cli)


def follow(block, cli):
    for step in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        program, *given = shlex.split(command.replace("$PWD", str(Path.cwd())))
        if program == "batchclient":
            done = cli(*given)
            for line in shown.splitlines():
                assert re.search(re.escape(line).replace("…", ".*"), done.output), done.output
        elif program == "export":
            continue  # the fixture has done so
        elif program == "cat" and len(given) == 1:
            path = Path(given[0])
            if path.exists():
                compare(shown, path.read_text())
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(shown)
        elif program == "python":
            compare(shown, subprocess.run([sys.executable, *given], check=True, capture_output=True, text=True).stdout)
        else:
            subprocess.run(["bash", "-c", command], check=True)


@pytest.mark.parametrize("block", ROWS_BLOCKS, ids=range(len(ROWS_BLOCKS)))
def test_a_block_about_rows_goes_in_and_comes_out(run, block):
    run(block)


@pytest.mark.parametrize("page", ["map-a-file", "night-job"])
def test_the_blocks_of_a_page_run_one_after_the_other(run, page):
    for block in blocks(f"guide/{page}", "console"):
        run(block)


def test_the_quickstart(run):
    first, again = blocks("guide/quickstart", "console")
    run(first)
    reviews = Path("reviews.csv").read_text()
    Path("reviews.csv").write_text(reviews.replace("lamp,", "lamp,Broke after a week."))
    run(again)


# map -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(cli_map, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"id": "0", "text": "a"}, {"text": "word " * 40000}])
    assert cli_map(source, "-o", tmp_path / "out.jsonl").exit_code == 1
    return tmp_path / "out.jsonl.journal"


def test_the_commands_of_groups(helped):
    assert sorted(name.split()[2] for name in cells(COMMANDS, "## `batchclient job`")) == helped("job")[1]
    assert sorted(name.split()[2] for name in cells(COMMANDS, "## `batchclient dead`")) == helped("dead")[1]
    named = re.findall(r"`batchclient metrics ([a-z]+)`", section("## `batchclient top`, `metrics`, `demo`"))
    assert sorted(named) == helped("metrics")[1]
    for command in helped("bench")[1]:
        assert f"batchclient bench {command}" in " ".join(section("## `batchclient bench`").split())


@pytest.mark.parametrize(
    ("heading", "commands"),
    [
        ("## `batchclient bench`", [("bench", "compare")]),
        ("## `batchclient dead`", [("dead", "list"), ("dead", "retry"), ("dead", "drop")]),
        ("## `batchclient job`", [("job", "status"), ("job", "export")]),
        ("## `batchclient top`, `metrics`, `demo`", [("top",), ("metrics", "rules"), ("metrics", "list")]),
    ],
)
def test_the_options_of_commands_without_a_table(helped, heading, commands):
    there = set().union(*(helped(*command)[0] for command in commands)) - {"--output"}
    assert not {option for option in there if f"`{option}" not in section(heading)}


def test_the_fields_of_the_status_and_of_an_export(cli, job):
    assert cells(COMMANDS, "### `status --json`") == list(json.loads(cli("job", "status", job, "--json").stdout))
    lines = [json.loads(line) for line in cli("job", "export", job).stdout.splitlines()]
    of_other_calls = {"embedding", "classification", "score", "ranking"}
    assert set(cells(COMMANDS, "### A line of `export`")) == {name for line in lines for name in line} | of_other_calls


def test_the_loop_of_a_night_starts_a_killed_command_again(shell, server, cli, tmp_path):
    out, part = tmp_path / "here" / "out.jsonl", tmp_path / "here" / "out.jsonl.part"
    chosen = random.Random(7)
    # A number ends each text: an empty one would fail, and equal ones share nothing here.
    texts = ["".join(chosen.choices(PIECES, k=6)) + f" {number}" for number in range(1000)]
    with (tmp_path / "here" / "in.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    (loop,) = blocks("guide/night-job", "text")
    assert "sleep 60" in loop
    # So that it is not done before it is killed: all rows are some sixteen requests.
    server.set_faults("stall,after=8")
    process = shell(loop.replace("sleep 60", "sleep 0.01"))
    wait_for(lambda: has_rows(part, 8))
    # Whoever writes the journal is named in its lease.
    os.kill(json.loads((tmp_path / "here" / "out.jsonl.journal.lease").read_text())["pid"], signal.SIGKILL)
    server.set_faults()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Killed" in said
    rows = read_rows(out)
    assert [(row["id"], row["text"]) for row in rows] == [(str(number), text) for number, text in enumerate(texts)]
    for row in rows:
        assert row["completion"].startswith(prompt_digest(f"Name the language: {row['text']}")), row
    status = json.loads(cli("job", "status", f"{out}.journal", "--json").stdout)["run"]
    assert (status["read"], status["answered"] + status["reused"], status["failed"]) == (1000, 1000, 0)
    assert status["reused"] > 0


# bench -----------------------------------------------------------------------------------------------------------------


def test_the_reference_names_every_field_and_the_commands_answer(cli, server, tmp_path):
    """The command of the first look, with a shorter measurement; the port is a free one."""
    (first,) = [block for block in BENCH_BLOCKS if "--quick" in block]
    command = shlex.split(first.replace(URL, server.base_url))
    assert command.pop(0) == "batchclient"
    shorter = ["--for", "0.2", "--warm-up", "0.1", "--output-tokens", "4", "--concurrency", "8"]
    done = cli(*command, *shorter, "--json", tmp_path / "r.json")
    assert done.exit_code == 0, done.stderr
    # On a busy machine every cell may have measured the client, and the answer says so.
    assert "suggested: BatchClient(…" in done.stdout or "too busy to measure the server" in done.stdout
    told = json.loads((tmp_path / "r.json").read_text())
    of_bench = section("## `batchclient bench`")
    fields = re.findall(r"`([a-z_0-9]+)`", " ".join(re.findall(r"^\| (`.*?) \|", of_bench, re.M)))
    measured = told["measurements"][0]
    assert set(fields) >= measured.keys() | measured["setting"].keys()
    for name in told:
        assert f"`{name}`" in of_bench


def test_the_commands_of_the_page_about_measuring_are_right(cli, tmp_path, monkeypatch):
    """Up to the server, which is not there; ``compare`` has no reports."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("in.jsonl"), [{"text": "a fine day"}])
    for block in BENCH_BLOCKS:
        command = shlex.split(block.replace("\\\n", "").replace(URL, "http://127.0.0.1:9/v1"))[1:]
        told = cli(*command)
        assert "before.json: No such file" in told.stderr if "compare" in command else told.exit_code == 5, told.stderr


# Redis -----------------------------------------------------------------------------------------------------------------


def test_the_names_for_python():
    module = pytest.importorskip("batchclient.integrations.redis")
    *_, paragraph = section("## `batchclient work`").strip().split("\n\n")
    assert set(re.findall(r"`(\w+)`", paragraph)) - {"decode_responses"} == set(module.__all__)
