"""How a report says figures, settings and marks, and what its words mean."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batchclient.bench.html.svg import number
from batchclient.bench.intervals import Interval
from batchclient.bench.marks import BEHIND, BUSY, CACHED, FAILED, LATE, OTHERS, RETRIED
from batchclient.bench.summary import Figure, Summary

__all__ = [
    "DEFINITIONS",
    "MARKS",
    "MEASURES",
    "STRATEGY_WORDS",
    "Unit",
    "bounds",
    "marks_of",
    "share",
    "unit_of",
    "with_bounds",
]

_IN_SECONDS_FROM = 10.0
"""From this duration on a column is in seconds."""

MARKS = {
    FAILED: "More than 1 % of the calls failed or were not answered in time. The answered ones may be those that are "
    "soon answered: nothing is recommended from the figures.",
    BEHIND: "Calls arrived faster than they were answered: a longer window would have longer latencies, without end. "
    "Nothing is recommended from the figures.",
    RETRIED: "More than 1 % of the calls needed another request: the server failed or refused some, or took them for "
    "too long. The time of all attempts is in the latency.",
    LATE: "Calls were handed to the client later than scheduled, or the event loop was late, by more than 5 ms and 2 % "
    "of the median latency (99th percentile). The figures are the client's: nothing is recommended from them.",
    BUSY: "The measuring process used more than 85 % of a core. The figures are the client's: nothing is recommended "
    "from them.",
    CACHED: "More than 1 % of the prompt tokens were found in the server's prefix cache, and no reuse was asked for. "
    "A load of new prompts is slower.",
    OTHERS: "The server had sequences running that were not part of the measurement. The figures are those of a part "
    "of the server.",
}
"""The meaning of each mark."""

MEASURES = {
    "latency": "latency",
    "late": "late",
    "queued": "queued",
    "server": "server",
    "ttft": "time to first token",
    "tpot": "time per output token",
}
"""The name of each time."""

STRATEGY_WORDS = {
    "adaptive": "BatchClient as it is: it finds the limit of calls in flight itself.",
    "fixed": "BatchClient with a fixed limit.",
    "lists": "BatchClient with a fixed limit; plain lists of the given size, answered when their last prompt ends.",
    "streamed": "BatchClient with a fixed limit; the same lists, streamed: each prompt is answered when it ends.",
    "singles": "BatchClient with a fixed limit; every call is a request of its own.",
    "async-openai": "openai.AsyncOpenAI without retries, behind a semaphore.",
}

_MEANINGS = """
Concurrency: the callers of a closed load, each of whom makes the next call when the last one is
    answered. A closed load says nothing about an arrival rate. Lists have as many more callers as
    their size: a list forms only where calls wait, and the wait is part of their latency.
Arrival rate: of an open load, whose arrivals come at random and wait for nobody. Their times are
    drawn beforehand.
Latency: from a call's scheduled time to its answer. A call of a closed load is scheduled when its
    caller has the last answer. A latency has three parts, late, queued and server. They add up for
    each call; their percentiles do not.
Late: from the scheduled time until the call is handed to the client.
Queued: from there until the first request with the call is sent.
Server: from there until the answer, with the network and with retries.
Time to first token (ttft): from a call's scheduled time to the first token of its answer.
Time per output token (tpot): from the first token of an answer to its last, divided by its tokens
    less one. There is no time between two tokens: a streamed list sends two events for a prompt.
Scheduled, answered, failed, unanswered: the calls that were scheduled in the window, and their
    ends. Unanswered calls were not back at the end of the grace time. Unanswered and failed calls
    have no latency, and miss every objective. With another attempt are those that more than one
    request carried.
Calls/s, tokens/s: answers that came in the window, per second; their prompt and output tokens, as
    the server counts them.
Within an objective: the share of the scheduled calls that met the objective.
Goodput: the calls that met all objectives, per second of the window. Without an objective these
    are all answered calls.
Figures and intervals: a figure is the median of the repetitions. One that measured the client is
    in no figure, unless more than half of a setting's did. In brackets stands its interval,
    with a confidence of 95 %. For percentiles that of order statistics, over all repetitions; for
    shares Wilson's; for rates Student's over the repetitions, of which there must be three. A dash
    is an end that so few calls do not tell; its bar goes on to the picture's edge. Where the
    intervals of two settings overlap, no difference was seen.
Knee: the smallest load that reaches 97 % of the highest throughput. Where the highest load alone
    does, the throughput may still grow, and there is none.
"""
DEFINITIONS = tuple(
    (word, meaning[0].upper() + " ".join(meaning.split())[1:])
    for word, meaning in re.findall(r"^(\S.*?): (.*(?:\n    .*)*)", _MEANINGS, re.MULTILINE)
)
"""Words and their meanings, in the order of a report."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a column of durations.

    Args:
        name: ``ms`` or ``s``.
        per_s: how many make a second.
    """

    name: str
    per_s: float

    def shown(self, seconds: float) -> str:
        """Return a duration without its unit."""
        return number(seconds * self.per_s) if math.isfinite(seconds) else "–"

    def with_name(self, seconds: float) -> str:
        """Return a duration with its unit."""
        return f"{self.shown(seconds)} {self.name}"


def unit_of(durations: Iterable[float]) -> Unit:
    """Return the unit for some durations, seconds."""
    return Unit("s", 1) if max(durations, default=0.0) >= _IN_SECONDS_FROM else Unit("ms", 1000)


def bounds(interval: Interval | None, unit: Unit | None = None) -> str:
    """Return an interval in brackets; nothing where there is none.

    Args:
        interval: of a rate, or of a duration in seconds.
        unit: of a duration.
    """
    if interval is None:
        return ""
    ends = [
        "–" if not math.isfinite(end) else number(max(0.0, end)) if unit is None else unit.shown(end)
        for end in interval
    ]
    return f"[{ends[0]}, {ends[1]}]"


def with_bounds(figure: Figure | None, unit: Unit | None = None) -> str:
    """Return a figure and its interval as text."""
    if figure is None:
        return "–"
    shown = number(figure.value) if unit is None else unit.with_name(figure.value)
    return f"{shown} {bounds(figure.interval, unit)}".rstrip()


def share(value: float) -> str:
    """Return a share as a percentage; 100 % and 0 % are said of all and none alone."""
    percent = f"{value * 100:.1f}"
    if percent == "100.0":
        return "100 %" if value >= 1 else "99.9 %"
    if percent == "0.0":
        return "0 %" if value <= 0 else "0.1 %"
    return f"{percent} %"


def marks_of(summary: Summary) -> Sequence[tuple[str, int]]:
    """Return the marks of a setting, and in how many repetitions each was seen."""
    return [(mark, sum(mark in cell.marks for cell in summary.cells)) for mark in summary.marks]
