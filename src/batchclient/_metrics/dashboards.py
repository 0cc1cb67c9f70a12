"""A dashboard for Grafana and alert rules for Prometheus, of the files in ``fragments``.

Rules:
- Who wants them names the parts: ``client``, ``jobs``, ``worker``, servers, ``dcgm``.
- The dashboard's data source is a variable, so that the file can be imported as it is. Its
  ``schemaVersion`` is that of Grafana 9. Grafana 10 and later migrate the file.
- Strings of JSON are strings of YAML, so that the rules are written without a library.
- The same parts give the same bytes: a diff shows what a new version changed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import groupby
from string import Template
from typing import Any

__all__ = [
    "PROGRAMS",
    "SERVERS",
    "Alert",
    "ForeignMetric",
    "Panel",
    "alerts_of",
    "dashboard_of",
    "panels_of",
    "rules_of",
]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS, _WIDTH, _HEIGHT, _ROW_HEIGHT = 24, 8, 8, 1
_VARIABLES = (
    {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "regex": "",
     "refresh": 1, "hide": 0, "multi": False, "includeAll": False, "options": [], "current": {}},
    {"name": "filters", "label": "Filters", "type": "adhoc", "datasource": _SOURCE, "hide": 0, "filters": []},
)  # fmt: skip
"""Filters hold for all panels. So a filter's label must be one that all scraped programs have."""


@dataclass(frozen=True, slots=True)
class ForeignMetric:
    """A metric of another program.

    Args:
        name: as it is exported.
        kind: as Prometheus has it.
        help: one sentence.
        source: the file that defines the metric, and the version that was read.
    """

    name: str
    kind: str
    help: str
    source: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard.

    Args:
        row: the row of panels that it stands in.
        title: what is shown.
        unit: Grafana's name of the unit.
        help: what the number says.
        queries: in PromQL, by the name of their line, with labels as ``{{label}}``.
    """

    row: str
    title: str
    unit: str
    help: str
    queries: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule.

    Args:
        name: in capitals, as Prometheus' users write them.
        expression: in PromQL.
        lasts: how long the expression holds before the alert fires.
        severity: the label of that name.
        summary: one sentence.
        description: what to do.
    """

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    description: str


@cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("fragments", name).read_text("utf-8"))


def _programs() -> Iterator[tuple[str, dict[str, ForeignMetric]]]:
    programs = _read("programs.toml")
    for program, found in programs.items():
        if program != "help":
            metrics = {role: value for role, value in found.items() if isinstance(value, list)}
            yield (
                program,
                {
                    role: ForeignMetric(name, kind, programs["help"][role], found["source"])
                    for role, (name, kind) in metrics.items()
                },
            )


PROGRAMS: Mapping[str, Mapping[str, ForeignMetric]] = dict(_programs())
"""By program, and then by role: the metrics that panels and rules ask for."""
SERVERS: tuple[str, ...] = tuple(program for program in PROGRAMS if program != "dcgm")


def panels_of(parts: Sequence[str]) -> Iterator[Panel]:
    """Yield the panels of some parts, in the order of the parts."""
    for part in parts:
        for made in _of(part, _read("panels.toml")["panel"]):
            queries = {legend: _named(query, part) for legend, query in made["queries"].items()}
            if all(queries.values()):
                row = made.get("row") or _read("programs.toml")[part]["shown"]
                yield Panel(row, made["title"], made["unit"], made["help"], queries)


def alerts_of(parts: Sequence[str]) -> Iterator[Alert]:
    """Yield the alert rules of some parts, in the order of the parts."""
    for part in parts:
        for made in _of(part, _read("rules.toml")["rule"]):
            alert = Alert(*(made[key] for key in ("alert", "expr", "for", "severity", "summary", "description")))
            name = Template(alert.name).substitute(Server=part.capitalize())
            if expression := _named(alert.expression, part):
                yield replace(alert, name=name, expression=expression)


def _of(part: str, fragments: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    wanted = "server" if part in SERVERS else part
    return (each for each in fragments if each["of"] == wanted)


def _named(expression: str, part: str) -> str:
    """Put a program's names in place of roles; an empty text if the program lacks one of them."""
    template, roles = Template(expression), PROGRAMS.get(part, {})
    if not set(template.get_identifiers()) <= roles.keys():
        return ""
    return template.substitute({role: metric.name for role, metric in roles.items()})


def dashboard_of(panels: Iterable[Panel]) -> str:
    """Return the dashboard of some panels, as a file that Grafana imports."""
    board = {
        "title": "batchclient",
        "uid": "batchclient",
        "description": "Made by `batchclient metrics dashboard`.",
        "tags": ["batchclient", "llm"],
        "schemaVersion": 36,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": list(_VARIABLES)},
        "annotations": {"list": []},
        "panels": list(_placed(panels)),
    }
    return json.dumps(board, indent=2) + "\n"


def _placed(panels: Iterable[Panel]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, row in groupby(panels, lambda panel: panel.row):
        number += 1
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
               "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": _ROW_HEIGHT}}  # fmt: skip
        y += _ROW_HEIGHT
        x = 0
        for panel in row:
            if x == _COLUMNS:
                x, y = 0, y + _HEIGHT
            number += 1
            yield {"id": number, **_drawn(panel), "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}}
            x += _WIDTH
        y += _HEIGHT


def _drawn(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "range": True,
                "editorMode": "code",
            }
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }


_HEAD = """\
# Made by `batchclient metrics rules`. The bounds are for you to change.
groups:
- name: batchclient
  rules:
"""


def rules_of(alerts: Iterable[Alert]) -> str:
    """Return the file of some alert rules, as ``rule_files`` takes it."""
    return _HEAD + "".join(map(_rule, alerts))


def _rule(alert: Alert) -> str:
    expression = alert.expression.replace("\n", "\n      ")
    return f"""\
  - alert: {alert.name}
    expr: |-
      {expression}
    for: {alert.lasts}
    labels:
      severity: {alert.severity}
    annotations:
      summary: {json.dumps(alert.summary)}
      description: {json.dumps(alert.description)}
"""
