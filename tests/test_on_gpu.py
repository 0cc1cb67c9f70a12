"""The measurement for a machine with a GPU, rehearsed on the embedded server: every client answers every job whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer

PROGRAM = Path(__file__).resolve().parents[1] / "benchmarks" / "on_gpu.py"


@pytest.mark.long
def test_every_client_answers_every_job_and_the_page_shows_them(tmp_path):
    out = tmp_path / "on_gpu.jsonl"

    def run(*arguments):
        return subprocess.run(
            [sys.executable, PROGRAM, *arguments, "--out", out], check=True, capture_output=True, text=True, timeout=300
        ).stdout

    with EmbeddedServer("gpu", process=True, model="m", speed=20.0) as server:
        run("load", "--base-url", server.base_url, "--model", "m", "--scale", "0.004", "--seconds", "200")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    runs = [line for line in lines if "job" in line]
    assert [line for line in runs if "failed" in line or line["lacking"]] == []
    assert len(runs) == 2 * len({line["job"] for line in runs}) * len({line["arm"] for line in runs}) >= 2 * 7 * 6
    page = run("page")
    assert all(line["job"] in page for line in runs)
