"""Draws the table of the log's events from the code, for the docs.

python scripts/log_table.py            # print it
python scripts/log_table.py --write    # put it into docs/reference/logs.md
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from pathlib import Path

from batchclient._shell.log import EVENTS, Event

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "logs.md"
_PLACE = re.compile(r"(?<=<!-- events -->\n).*?(?=<!-- /events -->)", re.DOTALL)


def drawn() -> str:
    """The table as Markdown."""
    lines = ["| event | level | fields | when |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *map(_line, EVENTS.values())]) + "\n"


def _line(event: Event) -> str:
    fields = ", ".join(f"`{field}`" for field in (*event.fields, *["left_out"] * event.repeats))
    return f"| `{event.name}` | `{logging.getLevelName(event.level)}` | {fields} | {event.says} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    written, places = _PLACE.subn(lambda _: drawn(), page)
    if options.check and (places != 1 or written != page):
        sys.exit(f"{PAGE.name} has another table: python scripts/log_table.py --write")
    if options.write:
        PAGE.write_text(written)
    elif not options.check:
        print(drawn(), end="")


if __name__ == "__main__":
    main()
