"""What makes the figures of a measurement doubtful."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from batchclient.bench.calls import ANSWERED, Calls
from batchclient.bench.generator import Window
from batchclient.bench.intervals import quantile

__all__ = ["BAD", "BEHIND", "BUSY", "CACHED", "FAILED", "LATE", "MARKS", "OTHERS", "RETRIED", "Mark", "marks_for"]

_LATE_S, _LATE_SHARE, _BUSY_SHARE = 0.005, 0.02, 0.85
_MOST = 0.01
"""The share of calls, or of prompt tokens, from which on a mark tells it."""
_BEHIND_SHARE, _BEHIND_ERRORS = 0.02, 3.0
"""Of a window's calls, and in standard errors: growth of the calls under way that may be chance."""


class Mark(NamedTuple):
    """Something seen in a measurement.

    Args:
        name: as reports and the terminal have it.
        meaning: in a sentence or two.
        disqualifies: whether nothing is recommended from the figures.
    """

    name: str
    meaning: str
    disqualifies: bool


FAILED = Mark(
    "calls failed",
    "More than 1 % of the calls failed or were not answered in time. The answered ones may be those that are soon "
    "answered: nothing is recommended from the figures.",
    disqualifies=True,
)
BAD = Mark(
    "answers were bad",
    "More than 1 % of the answers were empty, or held back by the server. Such a server is quick for nothing: "
    "nothing is recommended from the figures.",
    disqualifies=True,
)
BEHIND = Mark(
    "calls arrived faster than they were answered",
    "More calls were under way at the window's end than at its begin, by more than chance: a longer window would "
    "have longer latencies, without end. Nothing is recommended from the figures.",
    disqualifies=True,
)
LATE = Mark(
    "this process was late",
    "Calls were handed to the client later than scheduled, or the event loop was late, by more than 5 ms and 2 % of "
    "the median latency (99th percentile). The figures are the client's: nothing is recommended from them.",
    disqualifies=True,
)
BUSY = Mark(
    "this process was busy",
    "The measuring process used more than 85 % of a core. The figures are the client's: nothing is recommended from "
    "them.",
    disqualifies=True,
)
RETRIED = Mark(
    "calls needed another attempt",
    "More than 1 % of the calls needed another request: the server failed or refused some, or took too long for "
    "them. The time of all attempts is in the latency.",
    disqualifies=False,
)
CACHED = Mark(
    "the server's prefix cache answered",
    "More than 1 % of the prompt tokens were found in the server's prefix cache, and no reuse was asked for. A load "
    "of new prompts is slower.",
    disqualifies=False,
)
OTHERS = Mark(
    "the server had other work",
    "The server had sequences running that were not part of the measurement. The figures are those of a part of the "
    "server.",
    disqualifies=False,
)
MARKS = {mark.name: mark for mark in (FAILED, BAD, BEHIND, LATE, BUSY, RETRIED, CACHED, OTHERS)}
"""All marks by their names, in the order of a measurement."""


def marks_for(
    window: Window,
    counted: Sequence[int],
    median_s: float,
    open_in_flight: float | None,
    hit_share: float | None,
    *,
    others: bool,
) -> tuple[str, ...]:
    """Return the names of the marks of a measurement.

    Args:
        window: its calls.
        counted: the places of those that count.
        median_s: of the latency; the window's length where none is known.
        open_in_flight: calls under way on the mean of an open load; ``None``: the load is closed.
        hit_share: of the server's prefix cache; ``None``: not known, or hits were asked for.
        others: whether the server worked for somebody else.
    """
    calls = window.calls
    answered = [place for place in counted if calls.outcomes[place] == ANSWERED]
    is_late = _latest_s(window, counted) > max(_LATE_S, _LATE_SHARE * median_s)
    is_busy = window.cpu_share > _BUSY_SHARE
    seen = {
        FAILED: len(counted) - len(answered) > _MOST * len(counted),
        BAD: sum(calls.bad[place] for place in answered) > _MOST * len(answered),
        # Behind a late generator stands its own backlog.
        BEHIND: open_in_flight is not None
        and not (is_late or is_busy)
        and _falls_behind(window, counted, open_in_flight),
        LATE: is_late,
        BUSY: is_busy,
        RETRIED: sum(calls.attempts[place] > 1 for place in counted) > _MOST * len(counted),
        CACHED: hit_share is not None and hit_share > _MOST,
        OTHERS: others,
    }
    return tuple(mark.name for mark, is_seen in seen.items() if is_seen)


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
