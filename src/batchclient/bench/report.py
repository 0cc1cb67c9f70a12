"""The report of a measurement as JSON, and reading it again.

Rules:
- The JSON is the truth; every other form of the report is made from it.
- It has no text of prompts or answers, no key, and no URL's user part or query.
- Infinite bounds of intervals are ``null``.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batchclient import __version__
from batchclient._client.connections import shown
from batchclient.bench.cell import Cell
from batchclient.bench.find import Recommendation
from batchclient.bench.intervals import Interval
from batchclient.bench.session import Session
from batchclient.bench.slo import Slo
from batchclient.errors import ConfigError

__all__ = ["SCHEMA", "Report", "read_report", "report_of", "write_report"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Report:
    """A measurement that was written down.

    Args:
        about: started, machine, client, server, workload, times, and how it ended.
        slos: the objectives.
        cells: all cells, in the order in which they were measured.
        recommendation: as ``find`` gave it, or the sweep's; ``None``: there is none.
        lines: the answer in words, one line each.
    """

    about: dict[str, Any]
    slos: tuple[Slo, ...]
    cells: tuple[Cell, ...]
    recommendation: dict[str, Any] | None
    lines: tuple[str, ...]


def report_of(
    session: Session,
    cells: Sequence[Cell],
    started: datetime,
    *,
    recommendation: Recommendation | None = None,
    lines: Sequence[str] = (),
    complete: bool = True,
) -> Report:
    """Return the report of a session's cells.

    Args:
        session: the server and the workload.
        cells: what was measured.
        started: when.
        recommendation: ``None``: there is none.
        lines: the answer in words.
        complete: whether all cells were measured that were asked for.
    """
    workload = session.workload
    about = {
        "started": started.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "complete": complete,
        "machine": {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "client": {"batchclient": __version__, "python": platform.python_version(), "openai": _openai_version()},
        "server": {"url": shown(session.target.base_url), "name": session.server, "model": session.target.model},
        "workload": {
            "call": workload.call,
            "prompt_tokens": workload.prompt_tokens,
            "output_tokens": workload.output_tokens,
            "spread": workload.spread,
            "prefix_reuse": workload.prefix_reuse,
            "own_prompts": None if workload.prompts is None else len(workload.prompts),
            "fixed_length": bool(session.target.fields),
            "burstiness": session.burstiness,
            "seed": session.seed,
        },
        "times": asdict(session.times),
    }
    told = None if recommendation is None else _recommended(recommendation)
    return Report(about, tuple(session.slos), tuple(cells), told, tuple(lines))


def _openai_version() -> str | None:
    module = sys.modules.get("openai")
    return None if module is None else str(getattr(module, "__version__", ""))


def _recommended(recommendation: Recommendation) -> dict[str, Any]:
    batching = {
        each.name: value
        for each in fields(recommendation.batching)
        if (value := getattr(recommendation.batching, each.name)) is not None
    }
    return {**asdict(recommendation), "batching": batching, "interval": _bounds(recommendation.interval)}


def write_report(report: Report, path: Path) -> None:
    """Write a report.

    Raises:
        OSError: it cannot be written.
    """
    told = {
        "schema": SCHEMA,
        **report.about,
        "slo": [slo.text for slo in report.slos],
        "recommendation": report.recommendation,
        "answer": list(report.lines),
        "cells": [_written(cell) for cell in report.cells],
    }
    path.write_text(json.dumps(told, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _written(cell: Cell) -> dict[str, Any]:
    told = asdict(cell)
    told.update(told.pop("setting"))
    told["times"] = {
        name: {
            **{f"p{share * 100:g}": value for share, value in figures.percentiles.items()},
            "max": figures.max,
            "intervals": {f"p{share * 100:g}": _bounds(bounds) for share, bounds in figures.intervals.items()},
        }
        for name, figures in cell.times.items()
    }
    return told


def _bounds(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [bound if math.isfinite(bound) else None for bound in interval]


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        ConfigError: the file is no report, is one of another version, or has a wrong field, which
            the message names.
        OSError: it cannot be read.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: the report is damaged: {error}") from None
    if not isinstance(told, dict) or "cells" not in told:
        raise ConfigError(f"{path}: this is no report of a measurement")
    if told.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: a report of schema {told.get('schema')!r}; this version reads {SCHEMA}")
    # Pydantic takes as long to import as all the rest.
    from batchclient.bench.reading import ABOUT, FIELDS, TEXTS, cells_in, checked

    try:
        objectives = checked(TEXTS, told.get("slo"), "slo")
        slos = tuple(map(Slo, objectives))
        about = asdict(checked(ABOUT, told))
        recommendation = told.get("recommendation")
        if recommendation is not None:
            recommendation = checked(FIELDS, recommendation, "recommendation")
        lines = checked(TEXTS, told.get("answer"), "answer")
        return Report(about, slos, tuple(cells_in(told["cells"], slos)), recommendation, tuple(lines))
    except ConfigError as error:
        raise ConfigError(f"{path}: the report is damaged: {error.message}") from None


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number")
