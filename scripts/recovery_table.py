"""Draws the table of what becomes of a failed batch's calls from the code, for the docs.

python scripts/recovery_table.py            # print it
python scripts/recovery_table.py --write    # put it into docs/explanation/batching.md
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from batchclient._core.outcomes.recovery_table import TABLE, Row

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "batching.md"
_PLACE = re.compile(r"(?<=<!-- recovery -->\n).*?(?=<!-- /recovery -->)", re.DOTALL)


def drawn() -> str:
    """The table as Markdown."""
    lines = ["| the failure | when | how the calls go again | the server then |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *map(_line, TABLE)]) + "\n"


def _line(row: Row) -> str:
    kinds = ", ".join(kind.value for kind in row.kinds) or "any"
    return f"| {kinds} | {row.when} | {row.way.value} | {row.learnt} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    written, places = _PLACE.subn(lambda _: drawn(), page)
    if options.check and (places != 1 or written != page):
        sys.exit(f"{PAGE.name} has another table: python scripts/recovery_table.py --write")
    if options.write:
        PAGE.write_text(written)
    elif not options.check:
        print(drawn(), end="")


if __name__ == "__main__":
    main()
