"""``benchmarks/report.py``: results go between their markers, what stands around them stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUN = """
import sys
sys.path.insert(0, {benchmarks!r})
import report
from pathlib import Path
report.RESULTS = Path({results!r})
sys.argv = ["report.py", "--docs", {docs!r}]
report.main()
"""


def run(tmp_path: Path) -> str:
    places = {"benchmarks": ROOT / "benchmarks", "results": tmp_path / "results", "docs": tmp_path / "docs"}
    script = RUN.format(**{name: str(path) for name, path in places.items()})
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text("{}")
    (folder / f"{name}.md").write_text(text)


def test_chats_and_embeddings_are_merged_and_the_rest_is_left(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    page.write_text("# Benchmarks\n\nBy hand.\n")
    write(results, "chat_vllm", "# Chats\n\n| old |\n")
    said = run(tmp_path)
    assert "chat_vllm: merged" in said
    assert "embeddings_vllm: not measured" in said
    page.write_text(page.read_text() + "\nAfter it, by hand.\n")
    write(results, "chat_vllm", "# Chats\n\n| new |\n")
    write(results, "embeddings_vllm", "# Embeddings\n\n| vectors |\n")
    run(tmp_path)
    text = page.read_text()
    assert text.startswith("# Benchmarks\n\nBy hand.\n\n<!-- results:chat_vllm -->\n## Chats\n\n| new |\n")
    assert text.index("After it, by hand.") < text.index("## Embeddings\n\n| vectors |")
    assert "old" not in text
    run(tmp_path)
    assert page.read_text() == text


def test_what_was_measured_is_in_the_page() -> None:
    """A result that is saved and not merged would be found by nobody."""
    text = (ROOT / "docs" / "benchmarks.md").read_text() + (ROOT / "docs" / "laboratory.md").read_text()
    source = (ROOT / "benchmarks" / "report.py").read_text()
    for saved in (ROOT / "benchmarks" / "results").glob("*.md"):
        if f'"{saved.stem}": {{' in source:
            assert f"<!-- results:{saved.stem} -->" in text, saved.name
