"""The block for Ray runs as its reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer

pytest.importorskip("ray", reason="Ray is not installed here: make test-extra WHICH=ray")
ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENVIRONMENT = {
    **os.environ,
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
}


def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=180, env=ENVIRONMENT)


def test_the_block_of_the_guide_runs(tmp_path):
    blocks = BLOCK.findall((ROOT / "docs/guide/servers-and-workers.md").read_text())
    assert blocks
    with EmbeddedServer("instant", model="m") as server:
        for number, block in enumerate(blocks):
            file = tmp_path / f"block{number}.py"
            file.write_text(block.replace("http://localhost:8000/v1", server.base_url))
            done = run(str(file))
            assert done.returncode == 0, done.stderr
            assert "'finish_reason': 'length'" in done.stdout and "'error': None" in done.stdout
        assert server.prompts >= 1000
