"""The limit's code stays as small as it was meant to be."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "limit_size.py"


def test_the_limits_code_has_no_more_lines_and_numbers_than_are_allowed():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
