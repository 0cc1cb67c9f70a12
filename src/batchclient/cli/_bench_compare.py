"""Two reports side by side, in lines, and whether a bound is broken.

Rules:
- A setting whose figure is gone in the second report breaks a bound of the figure: a server that
  answers nothing has no ratio, and passes no pipeline.
- A setting that one report alone has is named. Under a bound that is a fault where the second
  report is incomplete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from batchclient.bench.cell import Setting
from batchclient.bench.compare import FIGURES, Bound, differences
from batchclient.bench.report import Report
from batchclient.bench.summary import Summary, summaries_of

__all__ = ["Compared", "compare_reports"]


@dataclass(slots=True)
class Compared:
    """The result of a comparison.

    Args:
        lines: what was found, in words.
        is_broken: whether a bound is broken.
        has_common: whether both reports have a setting.
    """

    lines: list[str] = field(default_factory=list)
    is_broken: bool = False
    has_common: bool = False


def compare_reports(first: Report, second: Report, bounds: Sequence[Bound]) -> Compared:
    """Compare every setting that both reports have.

    Args:
        first, second: the reports; ratios are second to first.
        bounds: of the ratios.
    """
    told = Compared()
    before, after = ({each.setting: each for each in summaries_of(report.cells)} for report in (first, second))
    common = [setting for setting in after if setting in before]
    told.has_common = bool(common)
    by_setting: dict[Setting, set[str]] = {setting: set() for setting in common}
    lines: dict[Setting, list[str]] = {setting: [] for setting in common}
    for each in differences(first, second):
        by_setting[each.setting].add(each.figure)
        broken = [bound.text for bound in bounds if bound.is_broken(each)]
        told.is_broken = told.is_broken or bool(broken)
        beyond = f"  beyond {', '.join(broken)}" if broken else ""
        lines[each.setting].append(f"{each.setting}: {each.comparison.said_of(each.figure)}{beyond}")
    for setting in common:
        told.lines += lines[setting]
        for figure in FIGURES:
            if figure not in by_setting[setting]:
                there, still = (_share_with(figure, each[setting]) for each in (before, after))
                broken = [bound.text for bound in bounds if bound.text.strip().startswith(figure) and still < there]
                told.is_broken = told.is_broken or bool(broken)
                beyond = f"  beyond {', '.join(broken)}" if broken else ""
                lacking = [name for name, share in (("first", there), ("second", still)) if share < 1]
                told.lines.append(f"{setting}: no ratio of {figure}: none in the {' and the '.join(lacking)}{beyond}")
    for name, one, other in (("first", before, after), ("second", after, before)):
        told.lines += [f"{setting}: in the {name} report alone" for setting in one if setting not in other]
    for name, report in (("first", first), ("second", second)):
        if not report.about["complete"]:
            told.lines.append(f"the {name} report is incomplete")
    if bounds and not second.about["complete"]:
        told.is_broken = told.is_broken or any(setting not in after for setting in before)
    return told


def _share_with(figure: str, summary: Summary) -> float:
    """Return the share of a setting's measurements that have a figure, above 0."""
    return fmean(bool(FIGURES[figure](cell)) for cell in summary.cells)
