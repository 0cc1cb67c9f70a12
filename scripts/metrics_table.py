"""Draws the table of metrics from the code, for the docs.

python scripts/metrics_table.py            # print it
python scripts/metrics_table.py --write    # put it into docs/reference/metrics.md
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from batchclient._metrics.registry import METRICS, Metric

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "metrics.md"
_PLACE = re.compile(r"(?<=<!-- metrics -->\n).*?(?=<!-- /metrics -->)", re.DOTALL)


def drawn() -> str:
    """The table as Markdown."""
    lines = ["| metric | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*lines, *map(_line, METRICS)]) + "\n"


def _line(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.full_name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text()
    written, places = _PLACE.subn(lambda _: drawn(), page)
    if options.check and (places != 1 or written != page):
        sys.exit(f"{PAGE.name} has another table: python scripts/metrics_table.py --write")
    if options.write:
        PAGE.write_text(written)
    elif not options.check:
        print(drawn(), end="")


if __name__ == "__main__":
    main()
