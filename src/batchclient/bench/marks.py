"""What makes the figures of a cell doubtful, in the words of its marks.

Rules:
- A cell whose generator or event loop was late, or whose process was busy, measured the client. The
  cell is marked, and recommends nothing.
- A cell in which more than 1 % of the calls failed or were not answered in time is marked, too, and
  recommends nothing.
- A cell of an open load in which calls arrived faster than they ended is marked, and recommends
  nothing: a longer window would have longer latencies, without end.
- A cell in which more than 1 % of the calls needed another attempt is marked: the client hides the
  server's failures from its caller, and the cell does not hide them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from batchclient.bench.calls import Calls
from batchclient.bench.generator import Window
from batchclient.bench.intervals import quantile

__all__ = ["BEHIND", "BUSY", "CACHED", "FAILED", "LATE", "OTHERS", "RETRIED", "marks_for"]

LATE = "this process was late"
BUSY = "this process was busy"
CACHED = "the server's prefix cache answered"
OTHERS = "the server had other work"
FAILED = "calls failed"
BEHIND = "calls arrived faster than they were answered"
RETRIED = "calls needed another attempt"

_LATE_S, _LATE_SHARE, _BUSY_SHARE = 0.005, 0.02, 0.85
_HIT_SHARE = 0.01
_FAILED_SHARE = _RETRIED_SHARE = 0.01
_BEHIND_SHARE, _BEHIND_ERRORS = 0.02, 3.0
"""Of a window's calls, and in standard errors: growth of the calls under way that may be chance."""


def marks_for(
    window: Window,
    counted: Sequence[int],
    median_s: float,
    open_in_flight: float | None,
    hit_share: float | None,
    *,
    others: bool,
) -> tuple[str, ...]:
    """Return the marks of a cell.

    Args:
        window: its calls.
        counted: the places of those that count.
        median_s: of the latency; the window's length where none is known.
        open_in_flight: calls under way on the mean of an open load; ``None``: the load is closed.
        hit_share: of the server's prefix cache; ``None``: not told, or hits were asked for.
        others: whether the server worked for somebody else.
    """
    calls, marks = window.calls, list[str]()
    if sum(calls.outcomes[place] != 1 for place in counted) > _FAILED_SHARE * len(counted):
        marks.append(FAILED)
    if sum(calls.attempts[place] > 1 for place in counted) > _RETRIED_SHARE * len(counted):
        marks.append(RETRIED)
    latest_s = _latest_s(window, counted)
    if latest_s > max(_LATE_S, _LATE_SHARE * median_s):
        marks.append(LATE)
    if window.cpu_share > _BUSY_SHARE:
        marks.append(BUSY)
    # Behind a late generator stands its own backlog.
    if open_in_flight is not None and not {LATE, BUSY} & {*marks} and _falls_behind(window, counted, open_in_flight):
        marks.append(BEHIND)
    if hit_share is not None and hit_share > _HIT_SHARE:
        marks.append(CACHED)
    if others:
        marks.append(OTHERS)
    return tuple(marks)


def _latest_s(window: Window, counted: Sequence[int]) -> float:
    """Return the 99th percentile of how late this process was: its calls, or its event loop."""
    calls = window.calls
    late = (calls.begun[place] - calls.scheduled[place] for place in counted)
    # Also of calls without an answer; one that was never begun is later than any other.
    of_calls = sorted(math.inf if math.isnan(at) else at for at in late)
    return max(quantile(each, 0.99) if each else 0.0 for each in (of_calls, sorted(window.lags)))


def _falls_behind(window: Window, counted: Sequence[int], in_flight: float) -> bool:
    """Whether more calls are under way at the window's end than at its begin, by more than chance."""
    calls = window.calls
    if not counted:
        return False
    grown = _under_way(calls, window.ends) - _under_way(calls, window.begins)
    # Where answers take longer than the warm-up, some calls are still missing at the begin.
    first = sorted(counted, key=calls.scheduled.__getitem__)[: math.ceil(len(counted) / 10)]
    warm_up_s, seconds = window.begins - min(calls.scheduled), window.ends - window.begins
    beyond = (calls.ended[place] - calls.scheduled[place] - warm_up_s for place in first)
    missing_s = sum(seconds if math.isnan(at) else max(0.0, min(seconds, at)) for at in beyond) / len(first)
    expected = missing_s * len(counted) / seconds
    # What is under way varies by its root, at the begin and at the end.
    error = math.sqrt(2 * in_flight)
    return grown - expected > _BEHIND_SHARE * len(counted) + _BEHIND_ERRORS * error


def _under_way(calls: Calls, at: float) -> int:
    # A time that has not come is not smaller than any other.
    return sum(due <= at and not ended <= at for due, ended in zip(calls.scheduled, calls.ended, strict=True))
