"""Pictures of a report: lines with intervals, drawn by matplotlib as SVG for a page.

Rules:
- Colours are the page's variables, so that a picture is readable on a dark page and in print.
- Lines differ by colour, dash and marker. A hollow marker is a setting that is not recommended.
- Where matplotlib is missing there are no pictures; the page has the tables.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from typing import Any

from batchclient.bench.intervals import Interval

__all__ = ["Line", "Picture", "Point", "can_draw", "drawn"]

_INK, _FAINT, _PAPER = "#010101", "#020202", "#090909"
_SERIES = tuple(f"#0{place}0{place}0{place}" for place in range(3, 9))
_NAMES = {
    _INK: "ink",
    _FAINT: "faint",
    _PAPER: "paper",
    **{colour: f"line-{place}" for place, colour in enumerate(_SERIES)},
}
"""Colours that stand for the page's variables."""
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_MARKERS = "osD^vP"
_INCHES = (4.7, 3.1)
_LOG_FROM = 20.0
"""The ratio of the largest to the smallest time from which on an axis of times is logarithmic."""


@dataclass(frozen=True, slots=True)
class Point:
    """A figure of a setting.

    Args:
        x, y: of the point; above 0.
        interval: of ``y``; an infinite end is not known.
        is_hollow: whether nothing is recommended from it.
        is_ringed: whether it is the knee.
    """

    x: float
    y: float
    interval: Interval | None = None
    is_hollow: bool = False
    is_ringed: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Points with a name; ``look``: the line's place among the looks."""

    name: str
    points: tuple[Point, ...]
    look: int


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn.

    Args:
        x_label, y_label: of the axes.
        lines: to be drawn.
        bounds: objectives, as lines across: the figure and the name.
        is_time: whether the y axis is one of times, which may be logarithmic.
        is_stepped: whether x is a time, and a line keeps its figure until the next point.
    """

    x_label: str
    y_label: str
    lines: Sequence[Line]
    bounds: Sequence[tuple[float, str]] = ()
    is_time: bool = False
    is_stepped: bool = False


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def drawn(picture: Picture, ident: str) -> str:
    """Return a picture as SVG to stand in a page.

    Args:
        picture: to be drawn.
        ident: unlike that of the page's other pictures.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": ident, "font.size": 9, "font.family": "sans-serif",
        "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
        "axes.edgecolor": _FAINT, "grid.color": _FAINT, "grid.linewidth": 0.5, "axes.grid": True,
        "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    }  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        for line in picture.lines:
            _draw_line(axes, line, is_stepped=picture.is_stepped)
        for at, name in picture.bounds:
            axes.axhline(at, color=_INK, linewidth=1, linestyle=(0, (6, 3)))
            axes.text(0.02, at, name, transform=axes.get_yaxis_transform(), va="bottom", fontsize=8)
        axes.set(xlabel=picture.x_label, ylabel=picture.y_label)
        _scale(axes, picture)
        figure.legend(loc="outside upper left", ncols=2, fontsize=8)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(file.getvalue(), ident, f"{picture.y_label} by {picture.x_label}")


def _draw_line(axes: Any, line: Line, *, is_stepped: bool) -> None:
    look = line.look % len(_SERIES)
    colour = _SERIES[look]
    xs, ys = [point.x for point in line.points], [point.y for point in line.points]
    style = {"color": colour, "linestyle": _DASHES[look], "linewidth": 1.6, "label": line.name}
    if is_stepped:
        axes.step(xs, ys, where="post", **style)
        return
    axes.plot(xs, ys, marker=_MARKERS[look], markersize=5, **style)
    for point in line.points:
        if point.interval is not None:
            # An end that is not known goes on to the picture's edge.
            low, high = max(point.interval.low, min(ys) / 10), min(point.interval.high, 2 * max(ys))
            axes.vlines(point.x, low, high, color=colour, linewidth=1)
        if point.is_hollow:
            axes.plot(point.x, point.y, marker=_MARKERS[look], markersize=5, color=colour, mfc=_PAPER)
        if point.is_ringed:
            axes.plot(point.x, point.y, marker="o", markersize=11, mfc="none", color=_INK)


def _scale(axes: Any, picture: Picture) -> None:
    """Give each doubling of the load the same length, and begin amounts at zero."""
    points = [point for line in picture.lines for point in line.points]
    ys = [point.y for point in points if point.y > 0]
    if not picture.is_stepped:
        loads = sorted({point.x for point in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, [f"{load:,g}" for load in loads])
        axes.minorticks_off()
    if picture.is_time and ys and max(ys) >= _LOG_FROM * min(ys):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0, top=1.15 * max([*ys, *(at for at, _ in picture.bounds)], default=1.0))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def _for_page(svg: str, ident: str, label: str) -> str:
    """Return the drawing without what a page has no use for, with ids and colours of the page."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\g<1>{ident}-", svg)
    for colour, name in _NAMES.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)
