"""``benchmarks/report.py``: pages have the figures of the results, and the text around them stays."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NOTEBOOKS = [ROOT / "benchmarks" / "README.md", *sorted((ROOT / "benchmarks" / "notes").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
RUN = """
import sys
sys.path.insert(0, {benchmarks!r})
import report
from pathlib import Path
report.RESULTS = Path({results!r})
sys.argv = ["report.py", "--root", {root!r}]
report.main()
"""


def run(root: Path, results: Path) -> str:
    script = RUN.format(benchmarks=str(ROOT / "benchmarks"), results=str(results), root=str(root))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The pages, in a folder of their own."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copy(ROOT / "docs" / "benchmarks.md", tmp_path / "docs")
    return tmp_path


def test_the_pages_show_what_was_measured(copied: Path) -> None:
    """A figure that was changed by hand, or a result that was not merged, would differ here."""
    run(copied, RESULTS)
    for page in ("README.md", "docs/benchmarks.md"):
        assert (copied / page).read_text() == (ROOT / page).read_text(), f"{page}: run python benchmarks/report.py"
    names = {path.name for path in (copied / "docs" / "images").iterdir()}
    assert names == {path.name for path in (ROOT / "docs" / "images").glob("benchmark_*")}


def test_one_result_gives_the_same_figure_to_both_pages(copied: Path) -> None:
    results = copied / "results"
    shutil.copytree(RESULTS, results)
    measured = json.loads((results / "overhead.json").read_text())
    measured["loop"]["plain"]["cpu_us"] = 31.4
    (results / "overhead.json").write_text(json.dumps(measured))
    run(copied, results)
    assert "| client CPU per call of one token | 31.4 µs |" in (copied / "README.md").read_text()
    assert "plain batches (`max_tokens` ≤ 4) | 31.4 |" in (copied / "docs" / "benchmarks.md").read_text()


def test_text_by_hand_stays_and_what_was_not_measured_is_left_out(copied: Path) -> None:
    results, page = copied / "results", copied / "docs" / "benchmarks.md"
    results.mkdir()
    shutil.copy(RESULTS / "prefix.json", results)
    page.write_text("# Benchmarks\n\nBy hand.\n")
    said = run(copied, results)
    assert "prefix: merged" in said
    assert "overhead: not measured" in said
    page.write_text(page.read_text() + "\nAfter it, by hand.\n")
    written = page.read_text()
    assert written.startswith("# Benchmarks\n\nBy hand.\n\n<!-- results:prefix -->\n## Shared prefixes\n")
    run(copied, results)
    assert page.read_text() == written


def test_each_section_names_the_commit_and_the_command_of_its_runs() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    sections = re.findall(r"<!-- results:(\w+) -->(.*?)<!-- /results", page, re.DOTALL)
    assert len(sections) == page.count("\n## ")
    for name, text in sections:
        runs = re.findall(r"^    (\S.*?)  \d{4}-\d\d-\d\d \d\d:\d\d UTC  python benchmarks/", text, re.MULTILINE)
        assert runs, name
        assert "not noted" not in runs, name


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.name)
def test_the_links_of_the_notebooks_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_each_result_is_named_beside_its_program() -> None:
    index = "".join(page.read_text() for page in NOTEBOOKS)
    for saved in RESULTS.glob("*.md"):
        assert f"results/{saved.name}" in index or f"results/{saved.stem}.json" in index, saved.name
