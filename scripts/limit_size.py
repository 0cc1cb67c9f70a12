"""How large the code of the limit is: python scripts/limit_size.py

Every number in the code wants a reason, and every line a reader. Counted are the lines of
``_core/limits`` that are not blank. Counted are also the numeric literals other than 0, 1 and 2, in
``_core/limits`` and in the modules that feed it. A sign does not count, so -1 is 1; numbers in
docstrings and comments are text. Blank lines are shown, too.

The script prints a line per file, and exits with 1 where there is more than allowed.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

CODE = Path(__file__).resolve().parents[1] / "src" / "batchclient"
LIMITS = "_core/limits"
FEEDS = ("_client/make_limit.py", "_core/feeding.py")
"""Where a limit begins, and what it is told of answers."""
MOST_LINES = 1400
MOST_NUMBERS = 60
PLAIN = (0, 1, 2)
OTHERS = ("_REMEMBERED",)
"""Numbers beside the limit: how many adjustments are remembered."""


def numbers(source: str) -> list[float]:
    """The numeric literals of a module that are not plain ones; ``True`` and ``False`` are 1 and 0."""
    module = ast.parse(source)
    module.body = [
        each for each in module.body if not (isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) in OTHERS)
    ]
    found = (node.value for node in ast.walk(module) if isinstance(node, ast.Constant))
    return [value for value in found if isinstance(value, (int, float)) and float(value) not in PLAIN]


def main() -> int:
    lines_in_all = blank_in_all = numbers_in_all = 0
    print(f"{'lines':>7} {'blank':>7} {'numbers':>8}")
    for path in [*sorted((CODE / LIMITS).glob("*.py")), *(CODE / name for name in FEEDS)]:
        source, name = path.read_text(), path.relative_to(CODE).as_posix()
        count = len(numbers(source))
        numbers_in_all += count
        if name in FEEDS:
            print(f"{'':>7} {'':>7} {count:>8}  {name}")
            continue
        blank = sum(not line.strip() for line in source.splitlines())
        lines = len(source.splitlines()) - blank
        lines_in_all += lines
        blank_in_all += blank
        print(f"{lines:>7} {blank:>7} {count:>8}  {name}")
    print(f"{lines_in_all:>7} {blank_in_all:>7} {numbers_in_all:>8}  in all")
    print(f"{MOST_LINES:>7} {'':>7} {MOST_NUMBERS:>8}  allowed")
    return int(lines_in_all > MOST_LINES or numbers_in_all > MOST_NUMBERS)


if __name__ == "__main__":
    sys.exit(main())
