"""``batchclient`` as a process, for the tests of its commands."""

from __future__ import annotations

import os
import subprocess
import sys

VARIABLES = ("REDIS_URL", "VLLM_URL", "BATCH_SIZE", "BATCH_TIMEOUT_MS")


def environment(**variables):
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in VARIABLES and not name.startswith("BATCHCLIENT_")
    }
    return kept | {"PYTHONUNBUFFERED": "1"} | variables


def start(*arguments, cwd, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", "batchclient", *map(str, arguments)],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments, cwd, stdin="", **variables):
    """The exit status and what was written, of a command that ends by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "batchclient", *map(str, arguments)],
        cwd=cwd,
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr
