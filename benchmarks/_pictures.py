"""The pictures of ``docs/benchmarks.md`` and ``README.md``.

Rules:
- One message a picture, said by its title; the values stand on the bars.
- Bars of amounts begin at 0, bars of ratios at 1.
- A picture is 7 inches wide and is shown at 700 pixels: a point is 1.4 pixels. No text is below 8.5
  points, 12 pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from _common import median
from _limits_report import named, share
from first_job import ratios as job_ratios
from matplotlib.axes import Axes
from matplotlib.figure import Figure

mpl.use("Agg")

OURS, THEIRS, FLOOR, INK = "#1b6ca8", "#c8743c", "#8a8a8a", "#222222"
WIDTH = 7.0
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "text.color": INK,
}


def drawn(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.add_subplot()


def saved(figure: Figure, path: Path) -> None:
    # Without the version of matplotlib in it, so that the same figures make the same file.
    figure.savefig(path, dpi=200, metadata={"Software": None})


def titled(figure: Figure, title: str, under: str) -> None:
    """Write the message on top, and below the message the quantity and its unit."""
    height = figure.get_figheight()
    figure.text(0.012, 1 - 0.08 / height, title, fontsize=12.5, fontweight="bold", va="top")
    figure.text(0.012, 1 - 0.36 / height, under, va="top")
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - 0.62 / height))


def bare(axes: Axes) -> None:
    """No axis for values that stand on their bars."""
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


CLIENTS = {
    "floor": "a micro-batcher by hand, no checks",
    "plain": "batchclient, batches",
    "streamed": "batchclient, streamed batches",
    "streamed_spaced": "the same, events 1 ms apart",
    "openai_aiohttp": "AsyncOpenAI with aiohttp",
    "openai": "AsyncOpenAI",
}


@mpl.rc_context(STYLE)
def cpu_per_call(overhead: dict[str, Any], path: Path) -> None:
    values = {name: overhead["loop"][name]["cpu_us"] for name in CLIENTS}
    colours = [FLOOR if name == "floor" else THEIRS if name.startswith("openai") else OURS for name in values]
    figure, axes = drawn(3.0)
    bars = axes.barh(list(CLIENTS.values()), list(values.values()), color=colours, height=0.66)
    axes.bar_label(bars, [f"{value:,.0f} µs" for value in values.values()], padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * max(values.values()))
    bare(axes)
    title = f"A call costs your process {values['plain']:.0f} µs of CPU, not {values['openai']:,.0f}"
    titled(figure, title, "client CPU per call of one token, 64 in flight, a server that answers at once")
    saved(figure, path)


@mpl.rc_context(STYLE)
def million_memory(million: dict[str, Any], path: Path) -> None:
    samples = million["samples"]
    figure, axes = drawn(2.8)
    axes.plot([sample["documents"] / 1e3 for sample in samples], [each["rss_mib"] for each in samples], color=OURS)
    for each, align in ((samples[1], "left"), (samples[-1], "right")):
        at = (each["documents"] / 1e3, each["rss_mib"])
        axes.annotate(f"{each['rss_mib']:.0f} MiB", at, (0, 8), textcoords="offset points", ha=align, color=OURS)
    axes.set_ylim(0, 1.4 * million["peak_mib"])
    axes.set_xlim(0, million["documents"] / 1e3)
    axes.set_xlabel("thousand documents answered")
    axes.set_ylabel("MiB")
    title = f"{million['documents']:,} documents in {million['peak_mib']:.0f} MiB"
    titled(figure, title, "resident memory of the client's process during one stream_map")
    saved(figure, path)


def from_one(axes: Axes, at: list[float], values: list[float], labels: list[str]) -> None:
    """Bars of ratios: from 1 to the right for a gain, to the left for a loss."""
    colours = [OURS if value >= 1 else THEIRS for value in values]
    axes.barh(at, [value - 1 for value in values], left=1, color=colours, height=0.62)
    for place, value, label in zip(at, values, labels, strict=True):
        axes.annotate(label, (max(value, 1), place), (5, 0), textcoords="offset points", va="center")
    axes.axvline(1, color=INK, linewidth=1)
    axes.spines["left"].set_visible(False)
    axes.invert_yaxis()


@mpl.rc_context(STYLE)
def first_job(jobs: dict[str, Any], path: Path) -> None:
    cases = sorted(jobs["cases"], key=lambda case: int(case["cell"].split(" × ")[1]))
    values = [1 / median(job_ratios(case, "batchclient")) for case in cases]
    figure, axes = drawn(2.6)
    at = [float(place) for place in range(len(cases))]
    from_one(axes, at, values, [f"{value:.2f} ×" for value in values])
    cells = [case["cell"].split(" × ") for case in cases]
    axes.set_yticks(at, [f"{calls} calls of {tokens} token{'s' if tokens != '1' else ''}" for calls, tokens in cells])
    axes.set_xlim(min(0.9, *values) - 0.05, 1.12 * max(values))
    bare(axes)
    title = f"Short answers: a job ends up to {max(values):.1f} times as fast"
    titled(figure, title, "on a real vLLM; 1 is the fastest AsyncOpenAI of each round (all at once, 64, 256 in flight)")
    saved(figure, path)


@mpl.rc_context(STYLE)
def limits(measured: dict[str, Any], path: Path) -> None:
    at_most = measured["max_other"]
    shares = {named(case): share(case, at_most) for case in measured["cases"]}
    known = {name: value for name, value in shares.items() if value is not None}
    figure, axes = drawn(3.2)
    at = [float(place) for place in range(len(known))]
    from_one(axes, at, list(known.values()), [f"{value:.2f} ×" for value in known.values()])
    axes.set_yticks(at, list(known))
    # Half of the best would be at the left edge.
    axes.set_xlim(min(0.5, *known.values()), max(1.2, *known.values()) + 0.1)
    bare(axes)
    title = f"The default limit: {min(known.values()):.2f} to {max(known.values()):.2f} times the best fixed one"
    titled(figure, title, "answers a second on a real vLLM; 1 is the fixed limit that was best for the load")
    saved(figure, path)
