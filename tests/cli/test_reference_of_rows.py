"""The page about rows and the quickstart do as they say: each block's files go in, and what it shows comes out.

A block shows files with ``$ cat NAME``: those before a command are written, those after it are compared. The lines
after a command are parts of what it says; a program other than batchclient says exactly those.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS, QUICKSTART = (
    re.findall(r"^```console\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    for page in ("reference/rows.md", "tutorial.md")
)


def is_like(shown, there):
    """Whether a value is as the page shows it: ``…`` is any value, or any further fields."""
    if shown == "…":
        return True
    if isinstance(shown, dict) and isinstance(there, dict):
        names = shown.keys() - {"…"}
        return ("…" in shown or names == there.keys()) and all(
            name in there and is_like(shown[name], there[name]) for name in names
        )
    if isinstance(shown, list) and isinstance(there, list):
        return len(shown) == len(there) and all(map(is_like, shown, there))
    return shown == there


def compare(shown, there):
    if not shown.startswith("{"):
        assert re.fullmatch(re.escape(shown).replace("…", ".*"), there), there
        return
    rows, found = ([json.loads(line) for line in text.splitlines()] for text in (shown, there))
    assert len(rows) == len(found)
    for row, other in zip(rows, found, strict=True):
        assert is_like(row, other), (row, other)


@pytest.fixture
def run(cli, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHCLIENT_BASE_URL", server.base_url)
    monkeypatch.setenv("BATCHCLIENT_MODEL", server.model)
    return lambda block: follow(block, cli)


def follow(block, cli):
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        program, *given = shlex.split(command.replace("$PWD", str(Path.cwd())))
        if program == "batchclient":
            done = cli(*given)
            for line in shown.splitlines():
                assert line in done.output, done.output
        elif program == "export":
            continue  # the fixture has done so
        elif program == "cat":
            path = Path(given[0])
            if path.exists():
                compare(shown, path.read_text())
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(shown)
        elif program == "python":
            compare(shown, subprocess.run([sys.executable, *given], check=True, capture_output=True, text=True).stdout)
        else:
            subprocess.run(["bash", "-c", command], check=True)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_goes_in_and_comes_out(run, block):
    run(block)


def test_the_quickstart(run):
    first, again = QUICKSTART
    run(first)
    reviews = Path("reviews.csv").read_text()
    Path("reviews.csv").write_text(reviews.replace("lamp,", "lamp,Broke after a week."))
    run(again)
