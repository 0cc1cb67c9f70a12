"""The commands of the page about system prompts run as they stand."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer

PAGE = Path(__file__).parents[2] / "docs/how-to/system-prompt.md"
COMMANDS = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS, ids=["chat", "completion"])
def test_a_command_of_the_page_runs(command, tmp_path):
    documents = [{"text": f"Bonjour {number}"} for number in range(50)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (tmp_path / "batchclient").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m batchclient "$@"\n')
    (tmp_path / "batchclient").chmod(0o755)
    with EmbeddedServer("instant", model="m") as server:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command.replace("http://localhost:8000/v1", server.base_url)],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert server.requests < 25
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == [document["text"] for document in documents]
    assert all(row.keys() == {"id", "text", "completion", "finish_reason", "usage"} for row in rows)
