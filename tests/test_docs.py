"""Every Python block of the README and the docs runs, in order, page by page, against the embedded server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchclient import BatchClient
from batchclient.simulator.app import EmbeddedServer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE_OF_TESTS = ROOT / "docs/how-to/testing.md"
"""Its blocks are tests; tests/testing/test_page.py runs them."""
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
SECTION_LINK = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(profile="instant", model="m") as embedded:
        yield embedded


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text()) and page != PAGE_OF_TESTS], ids=name
)
def test_the_blocks_of_a_page_run(
    page: Path, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "docs"}

    clients: dict[int, Any] = {}

    async def run() -> None:
        for block in BLOCK.findall(page.read_text()):
            # A whole program ends with this; here a loop runs already.
            source = block.replace("asyncio.run(main())", "await main()").replace(
                "http://localhost:8000/v1", server.base_url
            )
            code = compile(source, name(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, namespace)
            if inspect.isawaitable(result):
                await result
            clients.update({id(value): value for value in namespace.values() if type(value) is BatchClient})
        for client in clients.values():
            await client.aclose()

    asyncio.run(asyncio.wait_for(run(), 60))


def as_module(page: Path) -> str:
    """A page's blocks as a module with each line in its place; each block is a function within the one before.

    So a block knows the names of the blocks before it, may give them anew, and may ``await``.
    """
    lines, depth, inside = [], 0, False
    for line in page.read_text().splitlines():
        if inside and line == "```":
            lines.append(" " * depth + "pass")
            inside = False
        elif inside:
            lines.append(" " * depth + line if line else "")
        elif line == "```python":
            lines.append(" " * depth + f"async def block_{depth}() -> None:")
            depth, inside = depth + 1, True
        else:
            lines.append("")
    return "\n".join(lines) + "\n"


def test_the_blocks_of_all_pages_are_typed(tmp_path: Path) -> None:
    for page in PAGES:
        if BLOCK.search(page.read_text()):
            module = tmp_path / (re.sub(r"\W", "_", name(page)) + ".py")
            module.write_text(as_module(page))
    # Its configuration is strict, and its cache is the one of ``make types``.
    command = [sys.executable, "-m", "mypy", *map(str, sorted(tmp_path.iterdir()))]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout.replace(str(tmp_path), "")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def sections(page: Path) -> set[str]:
    """A page's headings, as links name them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_sections_that_a_page_links_to_are_there(page: Path) -> None:
    for target, section in SECTION_LINK.findall(page.read_text()):
        linked = page.parent / target if target else page
        if "://" not in target and linked.suffix == ".md":
            assert section in sections(linked), f"{name(page)} links to {target}#{section}"


def test_the_reference_shows_the_presets_as_they_are() -> None:
    from batchclient.config import PRESETS

    page = (ROOT / "docs/how-to/settings.md").read_text()
    for setting in PRESETS["balanced"]:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{setting}`"))
        shown = [eval(cell) for cell in row.split("|")[2:5]]
        assert shown == [PRESETS[preset][setting] for preset in ("latency", "balanced", "throughput")], setting


def test_the_error_tree_is_the_one_in_the_code() -> None:
    import batchclient.errors as errors

    page = (ROOT / "docs/reference/errors.md").read_text()
    assert all(f"{each}" in page for each in errors.__all__)


def test_the_table_of_failures_is_the_one_in_the_code() -> None:
    script = Path(__file__).resolve().parents[1] / "scripts" / "recovery_table.py"
    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_readme_shows_what_was_measured() -> None:
    found = re.search(r"<!-- measured -->(.*?)<!-- /measured -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, "README.md has no measured section"
    assert found[1].strip(), "README.md's measured section is empty: run make bench"
