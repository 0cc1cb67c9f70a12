"""A dashboard for Grafana, as JSON: the panels of ``queries`` in rows.

Rules:
- The data source is a variable, so that the file can be imported as it is.
- ``schemaVersion`` is that of Grafana 9. Grafana 10 and later migrate the file.
- The same arguments give the same bytes: a diff shows what a new version changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from batchclient._metrics.queries import Panel

__all__ = ["dashboard_of"]

_SCHEMA_VERSION = 36
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_WIDTH, _HEIGHT = 8, 8
_ROW_HEIGHT = 1
_VARIABLES = (
    {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "regex": "",
     "refresh": 1, "hide": 0, "multi": False, "includeAll": False, "options": [], "current": {}},
    {"name": "filters", "label": "Filters", "type": "adhoc", "datasource": _SOURCE, "hide": 0, "filters": []},
)  # fmt: skip
"""Filters hold for all panels. So a filter's label must be one that all scraped programs have."""


def dashboard_of(panels: Iterable[Panel]) -> str:
    """Return the dashboard of some panels, as a file that Grafana imports."""
    board = {
        "title": "batchclient",
        "uid": "batchclient",
        "description": "Made by `batchclient metrics dashboard`.",
        "tags": ["batchclient", "llm"],
        "schemaVersion": _SCHEMA_VERSION,
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
                "expr": query.expression,
                "legendFormat": query.legend,
                "range": True,
                "editorMode": "code",
            }
            for number, query in enumerate(panel.queries)
        ],
    }
