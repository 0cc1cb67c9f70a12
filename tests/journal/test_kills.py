"""SIGKILL, wherever it falls: nothing that was handed out is lost, little is sent again.

SLOW=1 for the long form: 200 kills at random times in jobs of 2,000 rows, and a kill at every point of every kind.
"""

import json
import os
import subprocess
import sys

import pytest

IS_LONG = bool(os.environ.get("SLOW"))


def killed(folder, *how):
    program = [sys.executable, "-m", "tests.journal.killed", folder, *map(str, how)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_kills_at_random_times(tmp_path):
    kills, rows = (200, 2000) if IS_LONG else (20, 600)
    assert killed(tmp_path, "random", kills, 7, rows)["kills"] >= kills


@pytest.mark.parametrize(
    ("how", "least"),
    [
        ("statements", 15),
        pytest.param("middle", 8, marks=pytest.mark.skipif(not IS_LONG, reason="SLOW=1")),
        pytest.param("commits", 6, marks=pytest.mark.skipif(not IS_LONG, reason="SLOW=1")),
    ],
)
def test_a_kill_at_each_point_in_turn(tmp_path, how, least):
    told = killed(tmp_path, how)
    assert told["kills"] >= least and told["jobs"] == told["kills"] + 1
