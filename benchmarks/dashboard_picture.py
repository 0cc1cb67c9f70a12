"""Draw panels of the dashboard from a real run, into ``docs/images/dashboard.png``.

    python benchmarks/dashboard_picture.py           # boots a vLLM and a Prometheus; 10 minutes
    python benchmarks/dashboard_picture.py --minutes 3 --to board.png

A Prometheus (``scripts/prometheus.sh``) scrapes a ``BatchClient`` and the vLLM of
``tests/live/vllm_server.py``. The queries are those of ``batchclient metrics dashboard --server
vllm``. No package registry has Grafana, so matplotlib draws them. Single calls arrive all the time,
and a job runs beside them in the second third.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import HERE
from _pictures import INK, OURS, STYLE, THEIRS
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from batchclient import BatchClient
from batchclient._metrics.alerts import alerts_of
from batchclient._metrics.queries import Panel, panels_of
from batchclient._metrics.rules import rules_of
from batchclient.errors import BatchClientError
from batchclient.integrations.prometheus import serve

sys.path.insert(0, str(HERE.parent))
from tests.live.vllm_server import VllmServer
from tests.prometheus.programs import PrometheusServer

SHOWN = (
    "Calls that end", "Time of a call, 99th percentile", "Calls that wait",
    "Sequences in flight, and the limit", "Prompts per request, mean",
    "Time of a request by its prompts, 95th percentile", "Tokens per second", "Requests, by outcome",
    "Time to the first token, 95th percentile", "Sequences on a server", "KV cache in use",
    "Time between tokens, 95th percentile",
)  # fmt: skip
"""By title, row by row. The server's panels come last, as in the dashboard."""
COLUMNS, STEP_S = 3, 2
COLORS = (OURS, THEIRS, "#4b8b3b", "#8a8a8a", "#7a5195", "#b8860b", "#333333")
SINGLE_CALLS_PER_S = 4.0
CALLERS_OF_THE_JOB = 300


async def single_calls(client: BatchClient, until: float) -> None:
    """Calls one after the other, each fourth of them streamed."""
    draw, calls = random.Random(7), set()

    async def call(number: int) -> None:
        prompt = f"{number} def f("
        if number % 4:
            await client.complete(prompt, max_tokens=32)
        else:
            async with client.stream(prompt, max_tokens=32) as pieces:
                async for _ in pieces:
                    pass

    number = 0
    while time.monotonic() < until:
        number += 1
        calls.add(asyncio.ensure_future(call(number)))
        await asyncio.sleep(draw.expovariate(SINGLE_CALLS_PER_S))
    await asyncio.gather(*calls)


async def job(client: BatchClient, until: float) -> None:
    """Rows of several lengths, as many at once as the callers."""
    draw = random.Random(11)

    async def row() -> None:
        while time.monotonic() < until:
            try:
                await client.complete([draw.randrange(5, 999) for _ in range(40)], max_tokens=draw.choice((8, 64)))
            except BatchClientError as error:
                print(f"a row failed: {error}")

    await asyncio.gather(*(row() for _ in range(CALLERS_OF_THE_JOB)))


async def measured(server: VllmServer, folder: Path, panels: list[Panel], minutes: float) -> list[list[dict[str, Any]]]:
    """The lines of each panel."""
    async with BatchClient(server.base_url, model=server.model) as client:
        pages = serve(client, 0)
        targets = {"client": pages.url.removeprefix("http://"), "vllm": f"127.0.0.1:{server.port}"}
        with PrometheusServer(folder, targets, rules_of(alerts_of(["vllm"]))) as prometheus:
            begun, began_at, third = time.monotonic(), time.time(), minutes * 60 / 3
            singles = asyncio.ensure_future(single_calls(client, begun + 3 * third))
            await asyncio.sleep(third)
            await job(client, begun + 2 * third)
            await singles
            span = {"start": began_at + 10, "end": time.time(), "step": STEP_S}

            def lines(panel: Panel) -> list[dict[str, Any]]:
                told = []
                for query in panel.queries:
                    for series in prometheus.get("query_range", query=query.expression, **span)["result"]:
                        legend = query.legend
                        for name, value in series["metric"].items():
                            legend = legend.replace(f"{{{{{name}}}}}", value)
                        points = [((at - began_at) / 60, float(number)) for at, number in series["values"]]
                        told.append({"legend": legend.replace(f" {server.base_url}", ""), "points": points})
                return told

            # By the first number of a legend: "9-16" stands behind "5-8".
            return [sorted(await asyncio.to_thread(lines, panel), key=_place) for panel in panels]


def _place(line: dict[str, Any]) -> int:
    number = re.match(r"\d+", line["legend"])
    return int(number[0]) if number else 0


def drawn(axes: Axes, panel: Panel, lines: list[dict[str, Any]]) -> None:
    for line, color in zip(lines, COLORS, strict=False):
        points = [(at, number) for at, number in line["points"] if not math.isnan(number)]
        axes.plot(*zip(*points, strict=True), color=color, label=line["legend"], linewidth=1.2)
    axes.set_title(panel.title, fontsize=8.5, loc="left", color=INK)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.3)  # the legend stands above the lines
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if panel.unit == "percentunit":
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    if panel.unit == "s":
        axes.yaxis.set_major_formatter("{x:g} s")
    axes.tick_params(labelsize=7.5)
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes.legend(fontsize=7, frameon=False, ncols=2, loc="upper left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--to", type=Path, default=HERE.parent / "docs" / "images" / "dashboard.png")
    options = parser.parse_args()
    panels = {panel.title: panel for panel in panels_of(["vllm"])}
    # A client's panel and a server's may share a title: the client's own comes first.
    for panel in panels_of():
        panels[panel.title] = panel
    chosen = [panels[title] for title in SHOWN]
    with tempfile.TemporaryDirectory() as folder, VllmServer() as server:
        lines = asyncio.run(measured(server, Path(folder), chosen, options.minutes))
    with rc_context(STYLE):
        rows = math.ceil(len(chosen) / COLUMNS)
        figure = Figure(figsize=(10.5, 2.0 * rows), layout="constrained")
        for axes, panel, told in zip(figure.subplots(rows, COLUMNS, sharex=True).flat, chosen, lines, strict=True):
            drawn(axes, panel, told)
        figure.supxlabel("minutes", fontsize=8.5)
        figure.savefig(options.to, dpi=120, metadata={"Software": None})
    print(options.to, f"{options.to.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
