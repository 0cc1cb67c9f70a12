"""Say where prose is wider than 100 columns, so that a page reads well beside another window.

    python scripts/prose.py             # docstrings and comments of src, pages of docs
    python scripts/prose.py PATH …      # files or folders

Prose is a docstring, a comment on a line of its own, or a line of a page outside code and tables.
A line of one or two words, such as a link, cannot be broken. Where there is any, the exit status
is 1.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = 100
NO_PROSE = re.compile(r"# (noqa|type:|fmt:|-{3})|#!|#.*-{10}$")
"""Marks for tools, and headings with a rule."""


def of_python(source: str) -> Iterator[tuple[int, str]]:
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, lines[node.lineno - 1].lstrip()
            yield from enumerate(lines[node.lineno : node.end_lineno], node.lineno + 1)
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#") and not NO_PROSE.match(line.lstrip()):
            yield number, line


def of_markdown(source: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith(("|", "#", "    ", "<!--")):
            yield number, line


def main(paths: list[str]) -> int:
    found = 0
    given = [Path(path) for path in paths] or [ROOT / "src", ROOT / "docs", *sorted(ROOT.glob("*.md"))]
    for file in [each for path in given for each in (sorted(path.rglob("*.[pm][yd]")) if path.is_dir() else [path])]:
        source = file.read_text("utf-8")
        for number, line in of_python(source) if file.suffix == ".py" else of_markdown(source):
            if len(line) > COLUMNS and len(line.split()) > 2:
                found += 1
                print(f"{file}:{number}: {len(line)} columns; prose ends at {COLUMNS}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
