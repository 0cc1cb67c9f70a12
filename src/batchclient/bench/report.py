"""The report of a measurement as JSON, and reading it again.

Rules:
- The JSON is the truth; every other form of the report is made from it.
- It has no text of prompts or answers, no key, and no URL's user part or query.
- Infinite bounds of intervals are ``null``.
- A field of the wrong type is refused by its name; one that an earlier version did not write has
  its default.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from batchclient import ConfigError, __version__
from batchclient.bench.find import Recommendation
from batchclient.bench.generator import Times
from batchclient.bench.intervals import Interval
from batchclient.bench.measurement import Figures, Measurement, Setting
from batchclient.bench.session import Session
from batchclient.bench.slo import Slo, share_of

__all__ = ["SCHEMA", "About", "Calls", "Report", "Server", "read_report", "report_of", "write_report"]

SCHEMA = 1
_SETTING = tuple(each.name for each in fields(Setting))
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Server:
    """The server that was measured; the name with its version."""

    url: str
    name: str | None
    model: str | None


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that were made: those of a ``Workload``.

    Args:
        own_prompts: how many texts were taken in turn; ``None``: prompts were drawn.
        fixed_length: whether answers have as many tokens as asked for.
        seed: of prompts, arrivals and orders.
    """

    call: str
    prompt_tokens: int
    output_tokens: int
    spread: float
    prefix_reuse: float | None
    own_prompts: int | None
    fixed_length: bool
    seed: int


@dataclass(frozen=True, slots=True)
class About:
    """What was measured, by whom and when; ``complete``: whether the run came to its end."""

    started: str
    complete: bool
    machine: dict[str, int | str | None]
    client: dict[str, str | None]
    server: Server
    workload: Calls
    times: Times


@dataclass(frozen=True, slots=True)
class Report:
    """A measurement that was written down.

    Args:
        about: server, client, calls, times, and how it ended.
        slos: the objectives.
        measurements: all, in their order.
        recommendation: of a search; ``None``: there is none.
        lines: the answer in words, one line each.
    """

    about: About
    slos: tuple[Slo, ...]
    measurements: tuple[Measurement, ...]
    recommendation: Recommendation | None
    lines: tuple[str, ...]


def report_of(
    session: Session,
    measurements: Sequence[Measurement],
    started: datetime,
    *,
    recommendation: Recommendation | None = None,
    lines: Sequence[str] = (),
    complete: bool = True,
) -> Report:
    """Return the report of a session's measurements.

    Args:
        session: the server and the workload.
        measurements: what was measured.
        started: when.
        recommendation: ``None``: there is none.
        lines: the answer in words.
        complete: whether all was measured that was asked for.
    """
    workload, openai = session.workload, getattr(sys.modules.get("openai"), "__version__", None)
    about = About(
        started=started.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        complete=complete,
        machine={"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        client={"batchclient": __version__, "python": platform.python_version(), "openai": openai},
        server=Server(_without_secrets(session.target.base_url), session.server, session.model),
        workload=Calls(
            call=workload.call,
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            spread=workload.spread,
            prefix_reuse=workload.prefix_reuse,
            own_prompts=None if workload.prompts is None else len(workload.prompts),
            fixed_length=bool(session.target.fields),
            seed=session.seed,
        ),
        times=session.times,
    )
    return Report(about, tuple(session.slos), tuple(measurements), recommendation, tuple(lines))


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def write_report(report: Report, path: Path) -> None:
    """Write a report.

    Raises:
        OSError: it cannot be written.
    """
    written = {
        "schema": SCHEMA,
        **asdict(report.about),
        "slo": [slo.text for slo in report.slos],
        "recommendation": _plain(report.recommendation),
        "answer": list(report.lines),
        "cells": [{**asdict(each.setting), **_plain(each, without="setting")} for each in report.measurements],
    }
    path.write_text(json.dumps(written, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _plain(value: Any, *, without: str = "") -> Any:
    """Return a value as JSON has it: percentiles by their names, bounds as pairs."""
    if isinstance(value, Interval):
        return [bound if math.isfinite(bound) else None for bound in value]
    if isinstance(value, Figures):
        names = {share: f"p{share * 100:g}" for share in value.percentiles}
        return {
            **{names[share]: at for share, at in value.percentiles.items()},
            "max": value.max,
            "intervals": {names[share]: _plain(interval) for share, interval in value.intervals.items()},
        }
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.name != without}
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        ConfigError: the file is no report, is one of another version, or has a wrong field, which
            the message names.
        OSError: it cannot be read.
    """
    try:
        written = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: the report is damaged: {error}") from None
    if not isinstance(written, dict) or "cells" not in written:
        raise ConfigError(f"{path}: this is no report of a measurement")
    if written.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: a report of schema {written.get('schema')!r}; this version reads {SCHEMA}")
    try:
        about = _read(About, written)
        slos = tuple(Slo(text) for text in _read(list[str], written.get("slo"), "slo"))
        cells = _read(list[dict[str, Any]], written["cells"], "cells")
        measurements = [_read(Measurement, _nested(each), f"cell {place}") for place, each in enumerate(cells, 1)]
        for place, each in enumerate(measurements, 1):
            if not (
                len(each.slo_hits) == len(each.slo_shares) == len(slos)
                and max(each.slo_hits, default=0) <= each.scheduled
            ):
                raise ConfigError(f"cell {place}: slo_shares, slo_hits: calls for each of the {len(slos)} objectives")
        recommendation = _read(Recommendation | None, written.get("recommendation"), "recommendation")  # type: ignore[arg-type]
        return Report(
            about,
            slos,
            tuple(measurements),
            recommendation,
            tuple(_read(list[str], written.get("answer"), "answer")),
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: the report is damaged: {error.message}") from None


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _read(form: type[_T], value: object, where: str = "") -> _T:
    """Return a value in the form of a type; the error names the field."""
    # Pydantic takes as long to import as all the rest.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(form).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        names = ".".join(str(each) for each in first["loc"])
        raise ConfigError(": ".join(part for part in (where, names, first["msg"]) if part)) from None


def _nested(cell: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a cell as ``Measurement`` has them; a wrong form is left for the check."""
    plain = {name: value for name, value in cell.items() if name not in _SETTING}
    plain["setting"] = {name: cell[name] for name in _SETTING if name in cell}
    if isinstance(plain.get("times"), dict):
        plain["times"] = {name: _figures(figures) for name, figures in plain["times"].items()}
    return plain


def _figures(figures: object) -> object:
    if not isinstance(figures, dict) or not isinstance(figures.get("intervals"), dict):
        return figures
    names = [name for name in figures if name not in ("max", "intervals")]
    return {
        "percentiles": {_share(name): figures[name] for name in names},
        "intervals": {_share(name): _bounds(ends) for name, ends in figures["intervals"].items()},
        "max": figures.get("max"),
    }


def _share(name: str) -> float | str:
    try:
        return share_of(name.removeprefix("p"))
    except ValueError:
        return name


def _bounds(ends: object) -> object:
    if not isinstance(ends, list) or len(ends) != 2:
        return ends
    return [unknown if end is None else end for end, unknown in zip(ends, (-math.inf, math.inf), strict=True)]
