"""``import batchclient`` is quick and loads nothing that a script may not need."""

import json
import subprocess
import sys

HEAVY = ["aiohttp", "httpx", "httpx2", "openai", "rich", "starlette", "tenacity", "trio", "typer", "uvicorn"]
PROGRAM = """
import sys, time
before = set(sys.modules)
start = time.perf_counter()
import batchclient
seconds = time.perf_counter() - start
import json
print(json.dumps([seconds, sorted({name.split(".")[0] for name in set(sys.modules) - before})]))
"""


def import_once():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_import_loads_nothing_heavy():
    _, modules = import_once()
    assert not set(HEAVY) & set(modules)
    assert "batchclient" in modules


def test_import_takes_under_a_quarter_of_a_second():
    # The best of several: a busy machine makes it slower, nothing makes it faster than it is.
    best = 10.0
    for _ in range(15):
        best = min(best, import_once()[0])
        if best < 0.25:
            break
    assert best < 0.25
