"""The results of draws as the laboratory's page shows them.

The table has a line per family with the usual arms side by side. Every bar that is missed follows.
``write`` keeps the figures in ``benchmarks/results/draws.json`` and ``draws.md``. It puts the table
between the markers of ``benchmarks/notes/laboratory.md``. Virtual time gives the same figures on
every machine, so no machine is named.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks._common import HERE, RESULTS, commit, merged, section_text, table, write_results
from benchmarks.lab.drawn_check import Finding
from benchmarks.lab.drawn_runs import VERSION
from benchmarks.lab.drawn_table import Result, Summary, by_group

__all__ = ["ARMS", "text", "write"]

ARMS = {"default": "default", "fixed-256": "fixed 256", "no-limit": "no limit"}
"""The arms of the page, and their names there."""
_NAME = "draws"


def write(
    results: Sequence[Result],
    findings: Sequence[Finding],
    seeds: range,
    folder: Path = RESULTS,
    page: Path = HERE / "notes" / "laboratory.md",
) -> None:
    """Keep the figures in ``folder``, and put them into the page."""
    write_results(_NAME, _data(results, findings, seeds), text(results, findings, seeds), folder)
    page.write_text(merged(page.read_text(), _NAME, section_text(_NAME, folder)))


def text(results: Sequence[Result], findings: Sequence[Finding], seeds: range) -> str:
    """In Markdown."""
    columns = [f"{name}: {figure}" for name in ARMS.values() for figure in ("mean", "tenth", "latency")]
    rows = []
    for group, arms in by_group(results).items():
        summaries = {arm: Summary.of(arms[arm]) for arm in ARMS}
        figures = [figure for summary in summaries.values() for figure in _figures(summary)]
        rows.append([group, summaries["default"].draws, *figures, summaries["default"].beside])
    missed = [finding.described for finding in findings if not finding.reached]
    reached = f"Of {len(findings)} bars {len(findings) - len(missed)} are reached."
    command = f"python -m benchmarks.lab --draws {len(seeds)} --first-seed {seeds[0]} --write"
    return "\n\n".join(
        [
            "# What the draws came to",
            f"Seeds {seeds[0]} to {seeds[-1]}: `{command}` at commit `{commit()}`.",
            table(["family", "draws", *columns, "beside, of the default"], rows),
            textwrap.fill(
                f"{reached} Missed: {'; '.join(missed)}." if missed else reached,
                100,
                break_long_words=False,
                break_on_hyphens=False,
            ),
        ]
    )


def _figures(summary: Summary) -> list[str]:
    latency = "" if summary.latency is None else f"{summary.latency:.2f} ×"
    return [f"{summary.mean:.3f}", f"{summary.tenth:.3f}", latency]


def _data(results: Sequence[Result], findings: Sequence[Finding], seeds: range) -> dict[str, Any]:
    return {
        "version": VERSION,
        "first_seed": seeds[0],
        "draws": len(seeds),
        "groups": {
            group: {arm: _rounded(asdict(Summary.of(of_arm))) for arm, of_arm in arms.items()}
            for group, arms in by_group(results).items()
        },
        "findings": [_rounded(asdict(finding) | {"reached": finding.reached}) for finding in findings],
    }


def _rounded(fields: dict[str, Any]) -> dict[str, Any]:
    """To four digits; JSON has no infinity."""

    def plain(value: Any) -> Any:
        if not isinstance(value, float):
            return value
        return float(f"{value:.4g}") if math.isfinite(value) else None

    return {name: plain(value) for name, value in fields.items()}
