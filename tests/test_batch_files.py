"""The comparison over an OpenAI Batch file, rehearsed: each tool is run, killed and run again, and the table has it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "benchmarks" / "batch_files.py"


@pytest.mark.long
def test_no_row_is_lost_by_a_tool_that_is_killed_and_the_table_says_so(tmp_path):
    given = ["--rows", "4000", "--rounds", "1", "--arms", "map", "openai", "--name", tmp_path / "found"]
    subprocess.run([sys.executable, PROGRAM, *given], check=True, capture_output=True, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())["instant"]
    assert [(arm["kill"]["lost"], arm["kill"]["twice"]) for arm in found.values()] == [(0, 0)] * 2
    # At half of the rows it was killed: those were not asked anew, but for some (of a fifth of a second).
    assert all(0 <= arm["kill"]["again"] < 2000 for arm in found.values())
    assert (tmp_path / "found.md").read_text().count(" | 0 | 0 | ") == 2
