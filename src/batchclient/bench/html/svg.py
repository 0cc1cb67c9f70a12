"""Line pictures as inline SVG: axes, lines with interval bars, a legend.

Rules:
- A picture needs no script and no file beside itself. Its colours stand in the picture; its fonts
  are those of the page.
- Lines differ in colour, marker and dashes, so that print in black and white tells them apart. The
  colours are those of Okabe and Ito, which the colour-blind tell apart.
- Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Axis", "Bound", "Line", "Point", "amount_axis", "chart", "doubling_axis", "number"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa3377", "#e69f00", "#222222", "#56b4e9", "#777777")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2", "6 2 2 2 2 2")
_CORNERS = (
    (),
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.25), (1.2, 0.95), (-1.2, 0.95)),
    ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    ((0, 1.25), (1.2, -0.95), (-1.2, -0.95)),
    # A cross, an hourglass, a hexagon.
    tuple(
        (x / 2, y / 2)
        for x, y in zip(
            (-1, 1, 1, 3, 3, 1, 1, -1, -1, -3, -3, -1), (-3, -3, -1, -1, 1, 1, 3, 3, 1, 1, -1, -1), strict=True
        )
    ),
    ((-1.1, -1.2), (1.1, -1.2), (-1.1, 1.2), (1.1, 1.2)),
    ((-1.3, 0), (-0.65, -1.15), (0.65, -1.15), (1.3, 0), (0.65, 1.15), (-0.65, 1.15)),
)
"""Corners of the markers, in radii; the first is a circle."""
_NEUTRAL = 7
"""The look of what stands for no line."""
_RADIUS, _RING = 4.0, 8.5
_LETTER = 6.6
"""The width of a letter of 12 pixels, on the mean."""
_HEAD, _PLOT, _FOOT, _ROW, _SIDE = 34, 230, 44, 18, 18
"""Heights above, in and below the plot, of a row of the legend; the room at the right."""
_ACROSS = ("#b00000", 'stroke-width="1.8" stroke-dasharray="10 3"')
_UPRIGHT = ("#555", 'stroke-dasharray="3 3"')
"""Colour and form of the straight lines across the picture."""
_TICKS = 5
_LOG_FROM = 20
"""From this ratio of the greatest to the smallest value on, an axis is logarithmic."""
_MOST_BEYOND = 1.4
"""An interval may stretch an axis to this many times its greatest value; the rest is cut."""
_DODGE = 3.5
"""Pixels between lines at the same place, so that their interval bars stand side by side."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Which value stands where.

    Args:
        label: the name and the unit.
        low, high: the ends.
        ticks: values and their texts.
        is_log: whether equal ratios have equal lengths.
    """

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value stands, from 0 to 1; values beyond the ends stand at the ends."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Point:
    """A figure in a picture.

    Args:
        x, y: the place.
        low, high: of the interval, perhaps infinite; ``None``: there is none.
        is_hollow: whether the marker is drawn hollow.
        is_ringed: whether a ring stands around the marker.
        tip: shown where the pointer rests.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    is_hollow: bool = False
    is_ringed: bool = False
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points in a row.

    Args:
        name: for the legend.
        points: by ascending ``x``.
        look: a number for colour, marker and dashes.
        is_steps: whether a value holds until the next; then the last point alone has a marker.
    """

    name: str
    points: tuple[Point, ...]
    look: int
    is_steps: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """A straight line across the picture.

    Args:
        value: its place.
        label: its name.
        is_upright: whether the place is one of the horizontal axis.
    """

    value: float
    label: str
    is_upright: bool = False


def number(value: float) -> str:
    """Return a number as people write it: three digits, at most three decimals, thousands apart."""
    value = round(float(f"{value:.3g}"), 3) if abs(value) < 100 else value
    if not value or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{min(3, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def doubling_axis(label: str, values: Sequence[float]) -> Axis:
    """Return an axis on which each doubling has the same length, with a tick for each value."""
    known = sorted({value for value in values if value > 0})
    if not known:
        return Axis(label, 0.5, 2, (), is_log=True)
    # Room at both ends; one value alone stands in the middle.
    room = (known[-1] / known[0]) ** 0.05 if len(known) > 1 else 2
    ticks = tuple((value, f"{value:,g}") for value in known)
    return Axis(label, known[0] / room, known[-1] * room, ticks, is_log=True)


def amount_axis(
    label: str,
    values: Sequence[float],
    ends: Sequence[float] = (),
    *,
    may_be_log: bool = False,
    shown: Callable[[float], str] = lambda tick: f"{tick:,g}",
) -> Axis:
    """Return an axis for amounts: from 0, or logarithmic where they differ much.

    Args:
        label: the name and the unit.
        values: that must have a place.
        ends: of intervals, that should have one.
        may_be_log: whether the axis may be logarithmic.
        shown: the text of a tick.
    """
    most = max(values, default=0.0)
    known = [end for end in ends if math.isfinite(end)]
    high = max([most, *(min(end, most * _MOST_BEYOND) for end in known)]) or 1.0
    least = min((value for value in values if value > 0), default=high)
    if may_be_log and least and high / least > _LOG_FROM:
        return _log_axis(label, least, high, shown)
    step = _step(high / _TICKS)
    count = math.ceil(high / step - 1e-9)
    return Axis(label, 0.0, count * step, tuple((at * step, shown(at * step)) for at in range(count + 1)))


def _log_axis(label: str, low: float, high: float, shown: Callable[[float], str]) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 4 else (1,)
    every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    begin = max((each for each in every if each <= low * (1 + 1e-9)), default=low)
    end = min((each for each in every if each >= high * (1 - 1e-9)), default=high)
    ticks = tuple((each, shown(each)) for each in every if begin <= each <= end)
    return Axis(f"{label} (logarithmic)", begin, end, ticks, is_log=True)


def _step(rough: float) -> float:
    """Return the next of 1, 2, 5, 10, 20 …"""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(each * power for each in (1, 2, 5, 10) if each * power >= rough * (1 - 1e-9))


def chart(
    ident: str,
    title: str,
    description: str,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    *,
    bounds: Sequence[Bound] = (),
    notes: Sequence[str] = (),
    width: int = 440,
) -> str:
    """Return a picture as an ``svg`` element.

    Args:
        ident: of the element; no other element of the page has it.
        title, description: for those who do not see the picture.
        x, y: the axes.
        lines: to be drawn.
        bounds: straight lines across the picture.
        notes: more rows of the legend: ``"ring"`` and ``"hollow"`` explain these marks.
        width: in pixels, before the page scales the picture.
    """
    left = 14 + _LETTER * max((len(text) for _, text in y.ticks), default=1)
    plot = _Plot(x, y, left, width - left - _SIDE)
    legend, rows = _legend(lines, bounds, notes, width - left)
    height = _HEAD + _PLOT + _FOOT + rows * _ROW
    name = escape(ident)
    heard = f'role="img" aria-labelledby="{name}-t {name}-d"'
    parts = [
        f'<svg id="{name}" {heard} viewBox="0 0 {width} {height}" font-size="12">',
        f'<title id="{name}-t">{escape(title)}</title>',
        f'<desc id="{name}-d">{escape(description)}</desc>',
        *plot.grid(),
        *(plot.bound(bound) for bound in bounds),
        *(plot.line(line, (place - (len(lines) - 1) / 2) * _DODGE) for place, line in enumerate(lines)),
        f'<g transform="translate({left:.0f} {_HEAD + _PLOT + _FOOT})">{legend}</g>',
        "</svg>",
    ]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Plot:
    """The part of a picture within its axes."""

    x_axis: Axis
    y_axis: Axis
    left: float
    width: float

    def x(self, value: float) -> float:
        return self.left + self.x_axis.place(value) * self.width

    def y(self, value: float) -> float:
        return _HEAD + (1 - self.y_axis.place(value)) * _PLOT

    def grid(self) -> list[str]:
        right, foot = self.left + self.width, _HEAD + _PLOT
        parts = [_text(2, 14, self.y_axis.label, bold=True)]
        for value, text in self.y_axis.ticks:
            at = self.y(value)
            parts.append(_straight(self.left, at, right, at, "#d8d8d8"))
            parts.append(_text(self.left - 6, at + 4, text, anchor="end"))
        free_from = -math.inf
        for value, text in self.x_axis.ticks:
            at, half = self.x(value), (_LETTER * len(text) + 4) / 2
            parts.append(_straight(at, foot, at, foot + 4, "#333"))
            # A text that has no room is left out; its tick stays.
            if at - half >= free_from:
                parts.append(_text(at, foot + 17, text, anchor="middle"))
                free_from = at + half
        parts.append(_straight(self.left, foot, right, foot, "#333"))
        parts.append(_text(self.left + self.width / 2, foot + 34, self.x_axis.label, anchor="middle", bold=True))
        return parts

    def bound(self, bound: Bound) -> str:
        if bound.is_upright:
            at = self.x(bound.value)
            return _straight(at, _HEAD, at, _HEAD + _PLOT, *_UPRIGHT)
        at = self.y(bound.value)
        return _straight(self.left, at, self.left + self.width, at, *_ACROSS)

    def line(self, line: Line, shift: float) -> str:
        if not line.points:
            return ""
        colour, dashes, _ = _look(line.look)
        shift = 0.0 if line.is_steps else shift
        places = [(self.x(point.x) + shift, self.y(point.y)) for point in line.points]
        bars = "".join(self._bar(at, point, colour) for (at, _), point in zip(places, line.points, strict=True))
        path = "M" + "L".join(f"{at:.1f} {up:.1f}" for at, up in places)
        if line.is_steps:
            path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(f"H{at:.1f}V{up:.1f}" for at, up in places[1:])
        style = f' stroke-dasharray="{dashes}"' if dashes else ""
        drawn = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{style}/>'
        marked = list(zip(places, line.points, strict=True))[-1 if line.is_steps else 0 :]
        return bars + drawn + "".join(_marker(at, up, line.look, point) for (at, up), point in marked)

    def _bar(self, at: float, point: Point, colour: str) -> str:
        if point.low is None or point.high is None:
            return ""
        low, high = self.y(point.low), self.y(point.high)
        caps = [
            _straight(at - 3, up, at + 3, up, colour)
            for end, up in ((point.low, low), (point.high, high))
            # A bar without an end goes on beyond the picture.
            if self.y_axis.low <= end <= self.y_axis.high
        ]
        return _straight(at, low, at, high, colour) + "".join(caps)


def _look(look: int) -> tuple[str, str, Sequence[tuple[float, float]]]:
    """Return colour, dashes and corners; beyond the eighth look the colours have other forms."""
    form = look + look // len(_COLOURS)
    return _COLOURS[look % len(_COLOURS)], _DASHES[form % len(_DASHES)], _CORNERS[form % len(_CORNERS)]


def _marker(x: float, y: float, look: int, point: Point) -> str:
    colour, _, corners = _look(look)
    # No white: a browser that darkens pages leaves it, and makes dark edges white.
    fill = "none" if point.is_hollow else colour
    ink = f'fill="{fill}" stroke="{colour}" stroke-width="1.6"'
    if corners:
        places = " ".join(f"{x + _RADIUS * right:.1f},{y + _RADIUS * down:.1f}" for right, down in corners)
        drawn = f'<polygon points="{places}" {ink}>'
    else:
        drawn = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" {ink}>'
    tip = f"<title>{escape(point.tip)}</title>" if point.tip else ""
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RING}" fill="none" stroke="{colour}"/>' if point.is_ringed else ""
    return f"{drawn}{tip}</{drawn[1:].split()[0]}>{ring}"


def _legend(lines: Sequence[Line], bounds: Sequence[Bound], notes: Sequence[str], width: float) -> tuple[str, int]:
    """Return the legend, and how many rows it has."""
    entries = [(line.name, _sample(line)) for line in lines]
    entries += [(bound.label, _straight(0, 0, 24, 0, *(_UPRIGHT if bound.is_upright else _ACROSS))) for bound in bounds]
    explained = {"ring": "knee: 97 % of the highest throughput", "hollow": "recommends nothing: see the marks"}
    for note in notes:
        point = Point(0, 0, is_hollow=note == "hollow", is_ringed=note == "ring")
        entries.append((explained[note], _marker(12, 0, _NEUTRAL, point)))
    parts, at, row = [], 0.0, 0
    for name, sample in entries:
        needed = 30 + _LETTER * len(name) + 16
        if at and at + needed > width:
            at, row = 0.0, row + 1
        parts.append(f'<g transform="translate({at:.0f} {row * _ROW + 9})">{sample}{_text(30, 4, name)}</g>')
        at += needed
    return "".join(parts), row + 1


def _sample(line: Line) -> str:
    colour, dashes, _ = _look(line.look)
    more = f'stroke-width="1.6" stroke-dasharray="{dashes}"' if dashes else 'stroke-width="1.6"'
    return _straight(0, 0, 24, 0, colour, more) + _marker(12, 0, line.look, Point(0, 0))


def _straight(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}" {more}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "", bold: bool = False) -> str:
    more = (f' text-anchor="{anchor}"' if anchor != "start" else "") + (f' fill="{colour}"' if colour else "")
    more += ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'
