"""Two reports side by side, in lines, and whether a bound is broken.

Rules:
- A report that is incomplete is named.
- Under a bound a setting that an incomplete second report lacks is a fault, forced or not: a server
  that went away passes no pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchclient.bench.compare import Bound, differences
from batchclient.bench.report import Report

__all__ = ["Compared", "compare_reports"]


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison.

    Args:
        lines: what was found, in words.
        is_broken: whether a bound is broken.
        has_common: whether both reports have a setting.
    """

    lines: tuple[str, ...]
    is_broken: bool
    has_common: bool


def compare_reports(first: Report, second: Report, bounds: Sequence[Bound]) -> Compared:
    """Compare every setting that both reports have.

    Args:
        first, second: the reports; ratios are second to first.
        bounds: of the ratios.
    """
    lines, is_broken = [], False
    for each in differences(first, second):
        broken = [bound.text for bound in bounds if bound.is_broken(each)]
        is_broken = is_broken or bool(broken)
        beyond = f"  beyond {', '.join(broken)}" if broken else ""
        lines.append(f"{each.setting}: {each.comparison.said_of(each.figure)}{beyond}")
    before, after = (dict.fromkeys(cell.setting for cell in report.cells) for report in (first, second))
    lines += [
        f"the {name} report is incomplete"
        for name, report in (("first", first), ("second", second))
        if not report.about["complete"]
    ]
    if bounds and not second.about["complete"]:
        is_broken = is_broken or any(setting not in after for setting in before)
    return Compared(tuple(lines), is_broken, any(setting in before for setting in after))
