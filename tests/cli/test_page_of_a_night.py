"""The commands of the page about a night's job run as they stand, also when they are killed."""

import csv
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer, prompt_digest

from .conftest import read_rows

PAGE = Path(__file__).parents[2] / "docs/how-to/night-job.md"
BLOCKS = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PIECES = [
    "",
    " ",
    ",",
    '"',
    '""',
    "\n",
    "\r\n",
    "\t",
    ";",
    "'",
    "\\",
    "a word",
    "é",
    "漢字",
    "🙂",
    "#",
    "\u2028",
    "=1+1",
]


def block(start):
    """The one block of the page that begins so."""
    (found,) = [each for each in BLOCKS if each.startswith(start)]
    return found


COMMAND = block("batchclient map in.csv -o out.jsonl --base")
TRIAL = block("batchclient map in.csv -o try.jsonl")
ANEW = block("batchclient map in.csv -o out.jsonl --new")
LOOP = block("until batchclient map")
LOOK = block("batchclient job status")
PARTS = block('batchclient map in.jsonl -o "out-{')


@pytest.fixture
def server():
    with EmbeddedServer("instant", model="m") as running:
        yield running


@pytest.fixture
def shell(tmp_path, server):
    """Start a command of the page in a folder of its own."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/batchclient"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m batchclient "$@"\n')
    command.chmod(0o755)
    (tmp_path / "night").mkdir()
    started = []

    def start(text):
        process = subprocess.Popen(
            ["bash", "-c", text.replace("http://localhost:8000/v1", server.base_url)],
            cwd=tmp_path / "night",
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def write_odd_rows(path, count):
    """Write a CSV file whose texts have all that a quoted value may have; return the texts."""
    chosen = random.Random(7)
    # A number ends each text: an empty one would fail, and equal ones share nothing here.
    texts = ["".join(chosen.choices(PIECES, k=6)) + f" {number}" for number in range(count)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(texts))
    return texts


def wait_for_more(place, process):
    """Wait until the command is some rows further; return its place then."""
    until, before = time.monotonic() + 30, place()
    while (now := place()) < before + 20_000:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.02)
    return now


def test_the_loop_of_the_page_starts_a_killed_command_again(shell, server, cli, tmp_path):
    night = tmp_path / "night"
    out = night / "out.jsonl"
    texts = write_odd_rows(night / "in.csv", 1000)
    assert "sleep 60" in LOOP
    server.set_faults("slow=0.2")
    process = shell(LOOP.replace("sleep 60", "sleep 0.01"))
    part = night / "out.jsonl.part"
    wait_for_more(lambda: part.stat().st_size if part.exists() else 0, process)
    # Whoever writes the journal is named in its lease.
    os.kill(json.loads((night / "out.jsonl.journal.lease").read_text())["pid"], signal.SIGKILL)
    server.set_faults()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Killed" in said
    rows = read_rows(out)
    assert [(row["id"], row["text"]) for row in rows] == [(str(number), text) for number, text in enumerate(texts)]
    for row in rows:
        assert row["completion"].startswith(prompt_digest(f"Name the language: {row['text']}")), row
    status = json.loads(cli("job", "status", night / "out.jsonl.journal", "--json").stdout)["run"]
    assert (status["read"], status["answered"] + status["reused"], status["failed"]) == (1000, 1000, 0)
    assert status["reused"] > 0


def test_the_other_commands_of_the_page_run(cli, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("id,text\n" + "".join(f"{number},row {number}\n" for number in range(20)))
    Path("in.jsonl").write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(20)))
    told = ""
    for line in f"{TRIAL}{COMMAND}{LOOK}{PARTS}{ANEW}".replace("\\\n", "").splitlines():
        program, *args = shlex.split(line.replace("http://localhost:8000/v1", server.base_url))
        if program == "batchclient":
            done = cli(*args)
            assert done.exit_code == 0, done.stderr
            told += done.stdout
    assert "state: finished\n" in told
    assert "answered: 20\n" in told
    files = ["in.csv", "in.jsonl", "out-3.jsonl", "out-3.jsonl.journal", "out.jsonl", "out.jsonl.journal", "try.jsonl"]
    assert sorted(os.listdir()) == files
    assert read_rows(Path("out.jsonl"))[7]["completion"].startswith(
        prompt_digest("Name the language in one word: row 7")
    )
