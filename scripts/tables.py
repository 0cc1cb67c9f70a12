"""Draws the tables of the docs that have a row for each thing in the code.

    python scripts/tables.py                      # print all of them
    python scripts/tables.py metrics --write      # put one into its page
    python scripts/tables.py --check              # exit status 1 where a page has another table

The tables: ``events`` of the log, ``metrics``, attributes of ``spans``, and the options of each
command, of ``map`` a table for each group of its help. Each stands between the markers of its name
in a page of ``docs``. ``recovery``, the way of a failed batch's calls, stands in no page: it is
printed.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import wrap

import typer

from batchclient._common.log import EVENTS
from batchclient._core.outcomes.table import TABLE
from batchclient._metrics.registry import METRICS, Metric
from batchclient._telemetry.conventions import ATTRIBUTES, READ_AT
from batchclient.cli.app import make_app

DOCS = Path(__file__).resolve().parents[1] / "docs"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as Markdown."""
    names = [*header]
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def events() -> str:
    """A table for each level from INFO on, the gravest first; the page tells those of DEBUG in a sentence."""
    drawn = []
    for level in sorted({each.level for each in EVENTS.values() if each.level > logging.DEBUG}, reverse=True):
        rows = [
            (f"`{each.name}`", listed((*each.fields, *["left_out"] * each.repeats)), each.says)
            for each in EVENTS.values()
            if each.level == level
        ]
        drawn.append(table((f"`{logging.getLevelName(level)}`", "fields", "when"), rows))
    return "\n".join(drawn)


def metrics() -> str:
    """A table for each type, of those that stand beside no field of the statistics."""
    beside = (DOCS / "reference/numbers.md").read_text().partition("\n## Metrics\n")[0]
    drawn = []
    for kind in dict.fromkeys(each.kind for each in METRICS):
        names = {f"`{each.full_name}{labels_of(each)}`": each.help for each in METRICS if each.kind == kind}
        rows = [(name, text) for name, text in names.items() if name not in beside]
        drawn.append(table((kind, "meaning"), rows))
    return "\n".join(drawn)


def labels_of(metric: Metric) -> str:
    return f"{{{', '.join(metric.labels)}}}" if metric.labels else ""


def spans() -> str:
    """A row for each meaning."""
    alike: dict[tuple[str, str], list[str]] = {}
    for each in ATTRIBUTES:
        alike.setdefault((", ".join(each.of), each.meaning), []).append(each.name)
    rows = [(listed(names), of, meaning) for (of, meaning), names in alike.items()]
    return table(("attribute", "of", "meaning"), rows) + f"\nRead at `{READ_AT}`.\n"


def options(command: str) -> str:
    """The options of a command: a table for each group of its help, and those that a command before has alike."""
    before = {name: dict(chain.from_iterable(groups(name).values())) for name in COMMANDS[: COMMANDS.index(command)]}
    drawn, shared = [], {}
    for title, rows in groups(command).items():
        own = []
        for name, text in rows:
            alike = next((other for other, told in before.items() if told.get(name) == text), None)
            if alike is None:
                own.append((f"`{name}`", text))
            else:
                shared.setdefault(alike, []).append(re.findall(r"--[\w-]+", name)[0])
        if own:
            drawn.append(table((title, "meaning"), own))
    as_of = "; ".join(f"of `{other}`: {listed(names)}" for other, names in shared.items())
    return "\n".join([*drawn, *["\n".join(wrap(f"As {as_of}.", 100)) + "\n"] * bool(shared)])


def of_map(title: str) -> str:
    """The options of ``map`` in one group of its help: the page says more about them below each group."""
    return table((title, "meaning"), [(f"`{name}`", text) for name, text in groups("map")[title]])


def groups(*path: str) -> dict[str, list[tuple[str, str]]]:
    """Each option of a command with its line of help, by the title of its group."""
    command = typer.main.get_command(make_app(path[:1]))
    context = command.make_context("batchclient", [], resilient_parsing=True)
    for name in path:
        command = command.commands[name]
    found: dict[str, list[tuple[str, str]]] = {}
    for param in command.params:
        record = param.get_help_record(context)
        if record is not None:
            group = getattr(param, "rich_help_panel", None) or "option"
            found.setdefault(group, []).append((name_of(record[0]), text_of(record[1])))
    return found


def name_of(told: str) -> str:
    """An option's names, and what its value is called."""
    for kind, word in {r"<int( range)?>": "N", r"<float( range)?>": "X", r"<(list\[)?str\]?>": "TEXT"}.items():
        told = re.sub(kind, word, told)
    told = told.removesuffix(" TEXT").strip("{}[]") if not told.startswith("-") else told
    return told.replace("|", r"\|")


def text_of(told: str) -> str:
    """A line of help, without the bounds that the command tells of a wrong number."""
    told = re.sub(r"[\[;] ?[\d.<=]*x[<>]=[\d.]+\]", lambda bound: "]" if bound[0][0] == ";" else "", told)
    told = re.sub(r"\S*</?\w+>", r"`\g<0>`", told.replace("[required]", ""))
    return " ".join(told.replace("[default: ", "[default ").split())


def said(function: Callable[..., object] | None) -> str:
    """The docstring of a condition, as a part of a sentence."""
    words = " ".join(((function and function.__doc__) or "").split())
    return words[:1].lower() + words[1:].rstrip(".")


def recovery() -> str:
    rows = [
        (", ".join(kind.value for kind in row.kinds) or "any", said(row.when), row.way.value, said(row.learn))
        for row in TABLE
    ]
    return table(("the failure", "when", "how the calls go again", "the server then"), rows)


COMMANDS = ("map", "plan", "bench", "doctor", "work", "enqueue")
TABLES: dict[str, tuple[str | None, Callable[[], str]]] = {
    "recovery": (None, recovery),
    "events": ("reference/numbers.md", events),
    "metrics": ("reference/numbers.md", metrics),
    "spans": ("reference/numbers.md", spans),
    **{f"map: {title}": ("reference/commands.md", partial(of_map, title)) for title in groups("map")},
    **{name: ("reference/commands.md", partial(options, name)) for name in COMMANDS[1:]},
}
"""By the name in the page's markers: the page, if it stands in one, and the table."""


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
        if path is None or not (options.write or options.check):
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
