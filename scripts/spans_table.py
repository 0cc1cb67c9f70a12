"""Draws the table of attributes of spans from the code, for the docs.

python scripts/spans_table.py            # print it
python scripts/spans_table.py --write    # put it into docs/reference/spans.md
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from batchclient._telemetry.conventions import ATTRIBUTES, READ_AT, Attribute

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "spans.md"
_PLACE = re.compile(r"(?<=<!-- spans -->\n).*?(?=<!-- /spans -->)", re.DOTALL)


def drawn() -> str:
    """The table as Markdown, and where its names were read."""
    lines = ["| attribute | of | meaning |", "| --- | --- | --- |", *map(_line, ATTRIBUTES)]
    return "\n".join([*lines, "", f"Read at `{READ_AT}`."]) + "\n"


def _line(attribute: Attribute) -> str:
    return f"| `{attribute.name}` | {', '.join(attribute.of)} | {attribute.meaning} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    written, places = _PLACE.subn(lambda _: drawn(), page)
    if options.check and (places != 1 or written != page):
        sys.exit(f"{PAGE.name} has another table: python scripts/spans_table.py --write")
    if options.write:
        PAGE.write_text(written)
    elif not options.check:
        print(drawn(), end="")


if __name__ == "__main__":
    main()
