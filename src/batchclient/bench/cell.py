"""The figures of one cell: what a strategy did under a load, in one repetition.

Rules:
- ``scheduled = answered + failed + unanswered``, in every cell.
- Percentiles are computed from all answered calls, never from histograms. A call that failed or is
  not back has no latency, and misses every objective.
- Throughput is that of the window: answers that came in it. Goodput counts the calls scheduled in
  the window that meet the objectives.
- In a closed load without a failed or unanswered call, throughput is that of Little's law: calls in
  flight / mean latency. A count would depend on where the window cuts the server's rounds. Goodput
  is the throughput times the share of calls that meet the objectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batchclient.bench.calls import Calls
from batchclient.bench.generator import Window
from batchclient.bench.intervals import Interval, quantile, quantile_interval
from batchclient.bench.marks import BEHIND, BUSY, CACHED, FAILED, LATE, OTHERS, RETRIED, marks_for
from batchclient.bench.slo import Measure, Slo

__all__ = [
    "BEHIND",
    "BUSY",
    "CACHED",
    "FAILED",
    "LATE",
    "OTHERS",
    "RETRIED",
    "SHARES",
    "Cell",
    "Figures",
    "Setting",
    "cell_of",
    "server_cells",
]

SHARES = (0.5, 0.9, 0.95, 0.99)
"""The percentiles of a report, / 100."""
_RAMP_SHARE, _RAMP_S = 0.9, 2.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a cell measures.

    Args:
        strategy: the client, by its name in ``strategies``.
        size: prompts per request, at most; ``None``: the strategy's own.
        concurrency: callers of a closed load; ``None``: an open one.
        rate: calls per second of an open load; ``None``: a closed one.
    """

    strategy: str
    size: int | None = None
    concurrency: int | None = None
    rate: float | None = None

    @property
    def load(self) -> str:
        """The load in words."""
        if self.rate is not None:
            return f"{self.rate:g} calls/s"
        return f"{self.concurrency} in flight"

    def __str__(self) -> str:
        size = "" if self.size is None else f" of {self.size}"
        return f"{self.strategy}{size}, {self.load}"


@dataclass(frozen=True, slots=True)
class Figures:
    """The distribution of a time over the answered calls, seconds.

    Args:
        percentiles: by their share: 0.5, 0.9, 0.95, 0.99, and those of the objectives.
        intervals: of the percentiles, with a confidence of 95 %.
        max: the longest.
    """

    percentiles: dict[float, float]
    intervals: dict[float, Interval]
    max: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting in one repetition.

    Args:
        setting: what was measured.
        repetition: from 0.
        window_s: the length of the window.
        scheduled: calls that were to be made in the window.
        answered, unanswered: of those.
        failed: of those, by the class of the error.
        retried: of those, the calls that more than one request carried.
        times: ``latency``, its parts ``late``, ``queued`` and ``server``, ``ttft``, ``tpot``; a
            time that nothing told is absent.
        calls_per_s: answers that came in the window, per second; in a closed load in which all
            calls were answered, ``in_flight_mean`` / mean latency.
        tokens_per_s: the tokens of these calls, prompt and output.
        output_tokens_per_s: the output tokens of these calls.
        prompt_tokens_mean, output_tokens_mean: of an answered call, as the server counts.
        ramp_s: from the cell's begin until answers came at 90 % of ``calls_per_s``, seconds;
            ``None``: they never did.
        goodput: calls that met all objectives, per second of the window; without an objective all
            answered ones. In a closed load in which all calls were answered, the share of these
            calls times ``calls_per_s``.
        slo_shares: the share of the scheduled calls that met each objective, in the given order.
        slo_hits: those calls.
        in_flight_mean: calls between their scheduled time and their end, on the mean.
        list_sizes: how many requests carried how many prompts.
        cache_hit_share: prompt tokens that the server found in its prefix cache, as a share;
            ``None``: it did not tell.
        client_cpu_share: CPU time of this process, as a share of a core.
        server: what its metrics page told before and after.
        limit_changes: of the client's own limit: seconds since the cell's begin, and the limit from
            then on, the first one at 0; empty: the limit never changed.
        marks: why the cell is not to be trusted; empty: nothing seen.
    """

    setting: Setting
    repetition: int
    window_s: float
    scheduled: int
    answered: int
    unanswered: int
    failed: dict[str, int]
    times: dict[str, Figures]
    calls_per_s: float
    tokens_per_s: float
    output_tokens_per_s: float
    prompt_tokens_mean: float
    output_tokens_mean: float
    ramp_s: float | None
    goodput: float
    slo_shares: tuple[float, ...]
    slo_hits: tuple[int, ...]
    in_flight_mean: float
    list_sizes: dict[int, int] = field(default_factory=dict)
    cache_hit_share: float | None = None
    client_cpu_share: float = 0.0
    server: dict[str, dict[str, float]] = field(default_factory=dict)
    limit_changes: tuple[tuple[float, int], ...] = ()
    marks: tuple[str, ...] = ()
    retried: int = 0

    @property
    def measured_the_client(self) -> bool:
        """Whether the figures are the client's rather than the server's."""
        return LATE in self.marks or BUSY in self.marks

    @property
    def calls_failed(self) -> bool:
        """Whether too many calls failed or were not answered in time."""
        return FAILED in self.marks

    @property
    def fell_behind(self) -> bool:
        """Whether calls arrived faster than they ended."""
        return BEHIND in self.marks

    @property
    def without_answer(self) -> int:
        """The scheduled calls that failed or were not answered in time."""
        return self.scheduled - self.answered


def server_cells(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Return the repetitions of a setting that count: without those that measured the client.

    Where more than half measured the client, all count, and the setting measured the client. A
    repetition in which calls failed counts: the server failed them.
    """
    kept = [cell for cell in cells if not cell.measured_the_client]
    return kept if 2 * len(kept) >= len(cells) else cells


def cell_of(
    setting: Setting,
    repetition: int,
    window: Window,
    slos: Sequence[Slo] = (),
    *,
    list_sizes: dict[int, int] | None = None,
    cache_hit_share: float | None = None,
    server: dict[str, Any] | None = None,
    limit_changes: Sequence[tuple[float, int]] = (),
    others: bool = False,
    prefix_reuse: bool = False,
) -> Cell:
    """Return the figures of a window.

    Args:
        setting, repetition: what was measured.
        window: its calls.
        slos: the objectives.
        list_sizes, cache_hit_share, server, limit_changes: see ``Cell``.
        others: whether the server worked for somebody else.
        prefix_reuse: whether hits in the prefix cache were asked for.
    """
    calls = window.calls
    counted = [place for place, at in enumerate(calls.scheduled) if window.begins <= at < window.ends]
    answered = [place for place in counted if calls.outcomes[place] == 1]
    failed: dict[str, int] = {}
    for place in counted:
        if calls.outcomes[place] == 2:
            name = calls.errors[place]
            failed[name] = failed.get(name, 0) + 1
    seconds = window.ends - window.begins
    times = {
        name: figures
        for name, read in _TIMES.items()
        if (figures := _figures([read(calls, p) for p in answered], _shares(name, slos)))
    }
    came = [place for place, at in enumerate(calls.ended) if calls.outcomes[place] == 1 and _within(window, at)]
    met = [[is_met(slo, calls, place) for place in answered] for slo in slos]
    hits = tuple(map(sum, met))
    all_met = sum(map(all, zip(*met, strict=True))) if met else len(answered)
    rates = _Rates(
        len(came) / seconds,
        sum(calls.prompt_tokens[place] for place in came) / seconds,
        sum(calls.output_tokens[place] for place in came) / seconds,
        all_met / seconds,
    )
    in_flight = _in_flight(window)
    if setting.rate is None and answered and len(answered) == len(counted):
        rates = _by_littles_law(calls, in_flight, answered, all_met)
    return Cell(
        setting,
        repetition,
        seconds,
        len(counted),
        len(answered),
        len(counted) - len(answered) - sum(failed.values()),
        failed,
        times,
        rates.calls,
        rates.prompt_tokens + rates.output_tokens,
        rates.output_tokens,
        _mean([calls.prompt_tokens[place] for place in answered]),
        _mean([calls.output_tokens[place] for place in answered]),
        _ramp_s(window, rates.calls),
        rates.good,
        tuple(hit / len(counted) if counted else 0.0 for hit in hits),
        hits,
        in_flight,
        dict(sorted((list_sizes or {}).items())),
        cache_hit_share,
        window.cpu_share,
        server or {},
        tuple(limit_changes),
        marks_for(
            window,
            counted,
            times["latency"].percentiles[0.5] if "latency" in times else seconds,
            in_flight if setting.rate is not None else None,
            None if prefix_reuse else cache_hit_share,
            others=others,
        ),
        sum(calls.attempts[place] > 1 for place in counted),
    )


class _Rates(NamedTuple):
    """Per second: answered calls, their tokens, and the calls that met all objectives."""

    calls: float
    prompt_tokens: float
    output_tokens: float
    good: float


def _by_littles_law(calls: Calls, in_flight: float, answered: Sequence[int], met: int) -> _Rates:
    """Return the rates of a closed load: callers in flight / mean latency (Little, 1961)."""
    latency_s = sum(_latency(calls, place) for place in answered) / len(answered)
    if not latency_s:
        return _Rates(0.0, 0.0, 0.0, 0.0)
    per_s = in_flight / latency_s
    return _Rates(
        per_s,
        per_s * _mean([calls.prompt_tokens[place] for place in answered]),
        per_s * _mean([calls.output_tokens[place] for place in answered]),
        per_s * met / len(answered),
    )


def is_met(slo: Slo, calls: Calls, place: int) -> bool:
    """Whether an answered call is within an objective; a time that is unknown is not.

    An answer of one token has no second one to wait for, and so no time per output token.
    """
    if slo.measure == "tpot" and calls.output_tokens[place] == 1:
        return True
    return _TIMES[slo.measure](calls, place) <= slo.bound_s


def _latency(calls: Calls, place: int) -> float:
    return calls.ended[place] - calls.scheduled[place]


def _late(calls: Calls, place: int) -> float:
    return calls.begun[place] - calls.scheduled[place]


def _queued(calls: Calls, place: int) -> float:
    return calls.sent[place] - calls.begun[place]


def _server(calls: Calls, place: int) -> float:
    return calls.ended[place] - calls.sent[place]


def _ttft(calls: Calls, place: int) -> float:
    return calls.first[place] - calls.scheduled[place]


def _tpot(calls: Calls, place: int) -> float:
    later = calls.output_tokens[place] - 1
    return (calls.ended[place] - calls.first[place]) / later if later > 0 else math.nan


_TIMES: dict[Measure | str, Callable[[Calls, int], float]] = {
    "latency": _latency,
    "late": _late,
    "queued": _queued,
    "server": _server,
    "ttft": _ttft,
    "tpot": _tpot,
}


def _shares(name: str, slos: Sequence[Slo]) -> list[float]:
    """Return the percentiles of a time that are told, / 100."""
    return sorted({*SHARES, *(slo.share for slo in slos if slo.measure == name)})


def _figures(values: Sequence[float], shares: Sequence[float]) -> Figures | None:
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return None
    return Figures(
        {share: quantile(known, share) for share in shares},
        {share: quantile_interval(known, share) for share in shares},
        known[-1],
    )


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _ramp_s(window: Window, per_s: float) -> float | None:
    """Return when answers first came at 90 % of a rate, over two seconds, from the cell's begin."""
    calls = window.calls
    ends = sorted(at for place, at in enumerate(calls.ended) if calls.outcomes[place] == 1 and at < window.ends)
    wanted = max(1, math.ceil(_RAMP_SHARE * per_s * _RAMP_S))
    for last in range(wanted - 1, len(ends)):
        if ends[last] - ends[last - wanted + 1] <= _RAMP_S:
            return ends[last] - min(calls.scheduled)
    return None


def _within(window: Window, at: float) -> bool:
    return window.begins <= at < window.ends


def _in_flight(window: Window) -> float:
    """Return the mean number of calls that were waited for in the window."""
    calls, total = window.calls, 0.0
    for begun, ended in zip(calls.scheduled, calls.ended, strict=True):
        until = window.ends if math.isnan(ended) else min(ended, window.ends)
        total += max(0.0, until - max(begun, window.begins))
    return total / (window.ends - window.begins)
