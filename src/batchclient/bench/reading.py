"""The cells of a report as JSON, read field by field: a wrong one is named.

Rules:
- Every value has its type and its bounds; the error names the cell and the field.
- A cell that contradicts itself is refused: nobody could say which of its figures is right.
- A field that an earlier version did not write has its default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from batchclient.bench.cell import SHARES, Cell, Figures, Setting
from batchclient.bench.generator import Times
from batchclient.bench.slo import Slo, share_of
from batchclient.errors import ConfigError

__all__ = ["ABOUT", "FIELDS", "TEXTS", "About", "cells_in", "checked"]

_SETTING = tuple(each.name for each in fields(Setting))
_COUNTS = ("repetition", "scheduled", "answered", "unanswered", "retried")
_AMOUNTS = (
    "calls_per_s",
    "tokens_per_s",
    "output_tokens_per_s",
    "prompt_tokens_mean",
    "output_tokens_mean",
    "goodput",
    "in_flight_mean",
    "client_cpu_share",
)
_NEAR = 1e-6
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Server:
    url: str
    name: str | None
    model: str


@dataclass(frozen=True, slots=True)
class _Workload:
    call: str
    prompt_tokens: int
    output_tokens: int
    spread: float
    prefix_reuse: float | None
    own_prompts: int | None
    fixed_length: bool
    burstiness: float
    seed: int


@dataclass(frozen=True, slots=True)
class About:
    """The parts of a report beside objectives and cells."""

    started: str
    complete: bool
    machine: dict[str, int | str | None]
    client: dict[str, str | None]
    server: _Server
    workload: _Workload
    times: Times


ABOUT, FIELDS, TEXTS = TypeAdapter(About), TypeAdapter(dict[str, Any]), TypeAdapter(list[str])
"""Forms for ``checked``: the parts of a report, any fields, and texts."""
_CELL = TypeAdapter(Cell)


def checked(form: TypeAdapter[T], told: object, place: str = "") -> T:
    """Return a value of a type, or refuse it with the name of the wrong field.

    Args:
        form: of the type.
        told: what JSON gave.
        place: where it stands.

    Raises:
        ConfigError: it is of another type.
    """
    try:
        return form.validate_python(told)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{': '.join(filter(None, (place, field)))}: {first['msg']}") from None


def cells_in(told: object, slos: Sequence[Slo]) -> Iterator[Cell]:
    """Yield the cells of a report.

    Args:
        told: what JSON gave.
        slos: the report's objectives.

    Raises:
        ConfigError: a cell is wrong; the message names it.
    """
    if not isinstance(told, list):
        raise ConfigError("cells: this is no list")
    for number, each in enumerate(told, 1):
        cell = checked(_CELL, _unfolded(each), f"cell {number}")
        if (fault := _fault_of(cell, slos)) is not None:
            raise ConfigError(f"cell {number} ({cell.setting}): {fault}")
        yield cell


def _unfolded(told: object) -> object:
    """Return the fields of a cell as ``Cell`` has them; what has another form is left for the check."""
    if not isinstance(told, dict):
        return told
    plain = {name: value for name, value in told.items() if name not in _SETTING}
    plain["setting"] = {name: told[name] for name in _SETTING if name in told}
    if isinstance(plain.get("times"), dict):
        plain["times"] = {name: _figures(figures) for name, figures in plain["times"].items()}
    return plain


def _figures(told: object) -> object:
    if not isinstance(told, dict) or not isinstance(told.get("intervals"), dict):
        return told
    return {
        "percentiles": {_share(name): value for name, value in told.items() if name not in ("max", "intervals")},
        "intervals": {_share(name): _bounds(ends) for name, ends in told["intervals"].items()},
        "max": told.get("max"),
    }


def _share(name: str) -> float | str:
    try:
        return share_of(name.removeprefix("p"))
    except ValueError:
        return name


def _bounds(ends: object) -> object:
    if not isinstance(ends, list) or len(ends) != 2:
        return ends
    unknown = -math.inf, math.inf
    return [unknown[place] if end is None else end for place, end in enumerate(ends)]


def _fault_of(cell: Cell, slos: Sequence[Slo]) -> str | None:
    """Return how a cell contradicts itself; ``None``: it does not."""
    setting = cell.setting
    loads = [each for each in (setting.concurrency, setting.rate, setting.size) if each is not None]
    if (setting.rate is None and setting.concurrency is None) or not all(0 < each < math.inf for each in loads):
        return "concurrency, rate, size: a load is needed, and each is above 0"
    if not 0 < cell.window_s < math.inf:
        return "window_s: seconds above 0"
    counts = {name: getattr(cell, name) for name in _COUNTS}
    counts |= {f"failed.{name}": count for name, count in cell.failed.items()}
    for name, count in counts.items():
        if count < 0:
            return f"{name}: a count of {count}"
    for name in _AMOUNTS:
        if not 0 <= getattr(cell, name) < math.inf:
            return f"{name}: {getattr(cell, name)} is no amount"
    failed = sum(cell.failed.values())
    if cell.scheduled != cell.answered + failed + cell.unanswered:
        ends = f"{cell.answered:,} answered, {failed:,} failed and {cell.unanswered:,} unanswered"
        return f"{cell.scheduled:,} calls were scheduled, but {ends}"
    if cell.retried > cell.scheduled:
        return f"retried: {cell.retried:,} of {cell.scheduled:,} scheduled calls"
    if not len(cell.slo_shares) == len(cell.slo_hits) == len(slos):
        return f"slo_shares, slo_hits: one for each of the {len(slos)} objectives"
    for share, hits in zip(cell.slo_shares, cell.slo_hits, strict=True):
        if not 0 <= hits <= cell.answered or abs(share * cell.scheduled - hits) > _NEAR * max(1, hits):
            return f"slo_hits: {hits:,} of {cell.answered:,} answered calls, as a share {share:g}"
    if bool(cell.answered) != ("latency" in cell.times):
        return f"times: {cell.answered:,} answered calls" + ("" if cell.answered else " have a latency")
    return next((fault for name, figures in cell.times.items() if (fault := _disorder(name, figures))), None)


def _disorder(name: str, figures: Figures) -> str | None:
    """Return what is wrong with the percentiles of a time."""
    percentiles = figures.percentiles
    if figures.intervals.keys() != percentiles.keys() or not percentiles.keys() >= set(SHARES):
        return f"times.{name}: p50, p90, p95, p99 and their intervals are needed"
    ascending = [*(percentiles[share] for share in sorted(percentiles)), figures.max]
    if not all(math.isfinite(value) for value in ascending) or ascending != sorted(ascending):
        return f"times.{name}: the percentiles do not ascend"
    if not all(figures.intervals[share].has(value) for share, value in percentiles.items()):
        return f"times.{name}: a percentile is outside its interval"
    return None
