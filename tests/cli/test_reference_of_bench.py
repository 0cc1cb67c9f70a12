"""The pages of ``bench``: every option and field is named, and the first command runs as it stands."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference/bench.md").read_text()
HOW_TO = (DOCS / "how-to/measure.md").read_text()
BLOCKS = re.findall(r"^```text\n(.*?)^```", HOW_TO, re.MULTILINE | re.DOTALL)


def test_the_reference_names_every_option(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    there = set(re.findall(r"(?<!\S)(--[a-z][a-z-]+)", cli("bench", "--help").stdout)) - {"--help"}
    named = set(
        re.findall(r"`(--[a-z][a-z-]+)", REFERENCE.partition("## The options")[2].partition("\n`batchclient")[0])
    )
    assert there == named


def test_the_reference_names_every_field_and_the_commands_answer(tmp_path):
    """The two commands of the first look, with a shorter measurement; the port is a free one."""
    (first,) = [block for block in BLOCKS if "--quick" in block]
    with EmbeddedServer("gpu", process=True) as server:
        command = shlex.split(first.replace("http://localhost:8000/v1", server.base_url))
        assert command.pop(0) == "batchclient"
        command += ["--for", "0.5", "--warm-up", "0.3", "--output-tokens", "4", "--json", str(tmp_path / "r.json")]
        done = subprocess.run([sys.executable, "-m", "batchclient", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # On a busy machine every cell may have measured the client, and the answer says so.
    assert "suggested: BatchClient(…" in done.stdout or "too busy to measure the server" in done.stdout
    told = json.loads((tmp_path / "r.json").read_text())
    fields = re.findall(
        r"`([a-z_0-9]+)`", " ".join(re.findall(r"^\| (`.*?) \|", REFERENCE.partition("## The JSON")[2], re.M))
    )
    assert set(fields) == set(told["cells"][0])
    for name in told:
        assert f"`{name}`" in REFERENCE


@pytest.mark.parametrize("block", BLOCKS)
def test_the_commands_of_the_page_are_right(cli, block, tmp_path, monkeypatch):
    """Up to the server, which is not there; ``compare`` has no reports."""
    monkeypatch.chdir(tmp_path)
    one_line = block.replace("\\\n", "")
    command = shlex.split(one_line.replace("http://localhost:8000/v1", "http://127.0.0.1:9/v1"))[1:]
    told = cli(*command)
    if "compare" in command:
        assert "before.json: No such file" in told.stderr
    else:
        assert told.exit_code == 5, told.stderr
