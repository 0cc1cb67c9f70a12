"""Draws the tables of the docs that have a row for each thing in the code.

    python scripts/tables.py                      # print all of them
    python scripts/tables.py metrics --write      # put one into its page
    python scripts/tables.py --check              # exit status 1 where a page has another table

The tables: ``events`` of the log, ``metrics``, attributes of ``spans``, and ``recovery``, the way
of a failed batch's calls. Each stands between the markers of its name in a page of ``docs``.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from batchclient._common.log import EVENTS
from batchclient._core.outcomes.table import TABLE
from batchclient._metrics.registry import METRICS
from batchclient._telemetry.conventions import ATTRIBUTES, READ_AT

DOCS = Path(__file__).resolve().parents[1] / "docs"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as Markdown."""
    names = [*header]
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def events() -> str:
    rows = [
        (
            f"`{each.name}`",
            f"`{logging.getLevelName(each.level)}`",
            listed((*each.fields, *["left_out"] * each.repeats)),
            each.says,
        )
        for each in EVENTS.values()
    ]
    return table(("event", "level", "fields", "when"), rows)


def metrics() -> str:
    rows = [(f"`{each.full_name}`", each.kind, each.unit, listed(each.labels), each.help) for each in METRICS]
    return table(("metric", "type", "unit", "labels", "meaning"), rows)


def spans() -> str:
    rows = [(f"`{each.name}`", ", ".join(each.of), each.meaning) for each in ATTRIBUTES]
    return table(("attribute", "of", "meaning"), rows) + f"\nRead at `{READ_AT}`.\n"


def said(function: Callable[..., object] | None) -> str:
    """The docstring of a condition, as a part of a sentence."""
    words = " ".join(((function and function.__doc__) or "").split())
    return words[:1].lower() + words[1:].rstrip(".")


def recovery() -> str:
    rows = [
        (
            ", ".join(kind.value for kind in row.kinds) or "any",
            said(row.when),
            row.way.value,
            said(row.learn),
        )
        for row in TABLE
    ]
    return table(("the failure", "when", "how the calls go again", "the server then"), rows)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "events": ("reference/logs.md", events),
    "metrics": ("reference/metrics.md", metrics),
    "spans": ("reference/spans.md", spans),
    "recovery": ("reference/servers.md", recovery),
}
"""By the name in the page's markers: the page, and the table."""


def written(page: str, name: str, drawn: str) -> str | None:
    """A page with this table between its markers; ``None``: the page has no such place, or several."""
    place = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
    page, places = place.subn(lambda _: drawn, page)
    return page if places == 1 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all if none is given")
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--write", action="store_true")
    doing.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.names) - set(TABLES):
        parser.error(f"there is no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    for name in options.names or TABLES:
        path, draw = TABLES[name]
        if not (options.write or options.check):
            print(draw())
            continue
        before = (DOCS / path).read_text()
        after = written(before, name, draw())
        if after is None:
            sys.exit(f"{path} has no place for the table, or several: {name}")
        if options.write:
            (DOCS / path).write_text(after)
        elif after != before:
            sys.exit(f"{path} has another table: python scripts/tables.py {name} --write")


if __name__ == "__main__":
    main()
