"""Prometheus' text format, version 0.0.4, straight from the table of metrics.

``prometheus_client`` makes an object per line, and so takes several times the CPU time for the same
page. A test compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from batchclient import Histogram
from batchclient._metrics.registry import METRICS, Metric, View

__all__ = ["CONTENT_TYPE", "bounds_as_text", "lines_of", "text_of"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text_of(views: Sequence[tuple[str, View]]) -> bytes:
    """Return the page of some clients; each has a name, perhaps an empty one."""
    is_named = any(name for name, _ in views)
    lines: list[str] = []
    for metric in METRICS:
        lines += (f"# HELP {metric.full_name} {metric.help}", f"# TYPE {metric.full_name} {metric.kind}")
        names = ("client", *metric.labels) if is_named else metric.labels
        for client, view in views:
            before = (client,) if is_named else ()
            for values, number in metric.read(view):
                _write(lines, metric, zip(names, (*before, *values), strict=True), number)
    return ("\n".join(lines) + "\n").encode()


def lines_of(numbers: Mapping[str, Sequence[tuple[str, float]]]) -> bytes:
    """Return a program's own numbers by name, each with its client's name, which may be empty."""
    lines: list[str] = []
    for name, of_clients in numbers.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        for client, number in of_clients:
            label = f'{{client="{_escaped(client)}"}}' if client else ""
            lines.append(f"{name}{label} {number!r}")
    return "".join(f"{line}\n" for line in lines).encode()


def _write(lines: list[str], metric: Metric, labels: Iterable[tuple[str, str]], number: float | Histogram) -> None:
    name, shown_labels = metric.full_name, ",".join([f'{label}="{_escaped(value)}"' for label, value in labels])
    if not isinstance(number, Histogram):
        lines.append(f"{name}{{{shown_labels}}} {float(number)!r}" if shown_labels else f"{name} {float(number)!r}")
        return
    comma, below = "," if shown_labels else "", 0
    for bound, count in zip(bounds_as_text(number.bounds), number.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{shown_labels}{comma}le="{bound}"}} {below}')
    shown = f"{{{shown_labels}}}" if shown_labels else ""
    lines.append(f"{name}_count{shown} {below}")
    lines.append(f"{name}_sum{shown} {float(number.sum)!r}")


@cache
def bounds_as_text(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the values of the label ``le`` for the buckets of these bounds."""
    return (*(str(float(bound)) for bound in bounds), "+Inf")


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
