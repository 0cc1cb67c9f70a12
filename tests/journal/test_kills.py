"""SIGKILL, wherever it falls: nothing that was handed out is lost, little is sent again.

SLOW=1 for the long form: 200 kills at random times in jobs of 2,000 rows, and a kill at every point of every kind.
"""

import json
import os
import re
import subprocess
import sys

import pytest

IS_LONG = bool(os.environ.get("SLOW"))


def killed(folder, *how):
    program = [sys.executable, "-m", "tests.journal.killed", folder, *map(str, how)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) | {"machines": len(set(re.findall(r"was left by pid (\d+)", done.stderr)))}


def test_kills_at_random_times(tmp_path):
    kills, rows = (200, 2000) if IS_LONG else (8, 300)
    assert killed(tmp_path, "random", kills, 7, rows)["kills"] >= kills


def test_a_job_goes_on_on_another_machine_after_each_kill(tmp_path):
    kills, rows = (50, 2000) if IS_LONG else (3, 400)
    assert killed(tmp_path, "moves", kills, 7, rows)["machines"] >= 3


def test_a_job_goes_on_elsewhere_once_the_first_stands_still_and_the_first_ends(tmp_path):
    killed(tmp_path, "stopped")


@pytest.mark.parametrize(
    "how", ["calls", pytest.param("takeovers", marks=pytest.mark.skipif(not IS_LONG, reason="SLOW=1"))]
)
def test_a_kill_at_each_writing_call_in_turn(tmp_path, how):
    assert killed(tmp_path, how, 1 if IS_LONG else 3)["jobs"] >= (20 if IS_LONG else 7)
