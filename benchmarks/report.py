"""Write ``benchmarks/results`` into the documentation: sections, pictures, the README's table.

    python benchmarks/report.py                    # README.md, docs/benchmarks.md, docs/images
    python benchmarks/report.py --root out         # the same files below another folder

Text outside the markers stays. A section without markers is added at the end. A result that was not
measured is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _common import HERE, RESULTS, merged
from _sections import README_RESULTS, SECTIONS, readme

INTRODUCTION = "# Benchmarks\n"
MEASURED = ("<!-- measured -->", "<!-- /measured -->")


def loaded(names: tuple[str, ...]) -> list[dict[str, Any]] | None:
    """The results of these names, or ``None`` if one was not measured."""
    files = [RESULTS / f"{name}.json" for name in names]
    return [json.loads(file.read_text()) for file in files] if all(file.exists() for file in files) else None


def write_page(docs: Path) -> None:
    (docs / "images").mkdir(parents=True, exist_ok=True)
    path = docs / "benchmarks.md"
    page = path.read_text() if path.exists() else INTRODUCTION
    for name, section in SECTIONS.items():
        data = loaded(section.results)
        if data is None:
            print(f"{name}: not measured")
            continue
        page = merged(page, name, section.markdown(data, docs / "images"))
        print(f"{name}: merged")
    path.write_text(page)


def write_readme(path: Path) -> None:
    data = loaded(README_RESULTS)
    if data is None or not path.exists():
        return
    page, (start, end) = path.read_text(), MEASURED
    before, after = page[: page.index(start)], page[page.index(end) + len(end) :]
    path.write_text(f"{before}{start}\n{readme(*data)}\n{end}{after}")
    print("README.md: written")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE.parent, help="folder of README.md and docs/")
    root: Path = parser.parse_args().root
    write_page(root / "docs")
    write_readme(root / "README.md")


if __name__ == "__main__":
    main()
