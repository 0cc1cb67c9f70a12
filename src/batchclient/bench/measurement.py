"""The figures of one measurement: what a strategy did under a load, in one repetition.

Rules:
- ``scheduled = answered + failed + unanswered``, in every measurement.
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from batchclient.bench.calls import ANSWERED, Calls
from batchclient.bench.calls import FAILED as HAS_FAILED
from batchclient.bench.generator import Window
from batchclient.bench.intervals import Interval, quantile, quantile_interval
from batchclient.bench.marks import BEHIND, BUSY, LATE, MARKS, Mark, marks_for
from batchclient.bench.slo import Measure, Slo

__all__ = ["SHARES", "Figures", "Measurement", "Setting", "measurement_of", "that_count"]

SHARES = (0.5, 0.9, 0.95, 0.99)
"""The percentiles of a report, / 100."""
_RAMP_SHARE, _RAMP_S = 0.9, 2.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured.

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
class Measurement:
    """One setting in one repetition.

    Args:
        setting: what was measured.
        repetition: from 0.
        window_s: the length of the window.
        scheduled: calls that were to be made in the window.
        answered, unanswered: of those.
        failed: of those, by the class of the error.
        times: ``latency``, its parts ``late``, ``queued`` and ``server``, ``ttft``, ``tpot``; a
            time that nothing tells is absent.
        calls_per_s: answers that came in the window, per second; in a closed load in which all
            calls were answered, ``in_flight_mean`` / mean latency.
        tokens_per_s: the tokens of these calls, prompt and output.
        output_tokens_per_s: the output tokens of these calls.
        prompt_tokens_mean, output_tokens_mean: of an answered call, as the server counts.
        ramp_s: from the beginning until answers came at 90 % of ``calls_per_s``, seconds; ``None``:
            they never did.
        goodput: calls that met all objectives, per second of the window; without an objective all
            answered ones. In a closed load in which all calls were answered, the share of these
            calls times ``calls_per_s``.
        slo_shares: the share of the scheduled calls that met each objective, in the given order.
        slo_hits: those calls.
        in_flight_mean: calls between their scheduled time and their end, on the mean.
        list_sizes: how many requests carried how many prompts.
        cache_hit_share: prompt tokens that the server found in its prefix cache, as a share;
            ``None``: it does not say.
        client_cpu_share: CPU time of the measuring process, as a share of a core.
        server: what its metrics page says before and after.
        limit_changes: of the client's own limit: seconds since the beginning, and the limit from
            then on, the first one at 0; empty: the limit never changed.
        marks: the names of what makes the figures doubtful; empty: nothing seen.
        retried: scheduled calls that more than one request carried.
        bad: answered calls whose answer was empty or held back.
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
    bad: int = 0

    @property
    def measured_the_client(self) -> bool:
        """Whether the figures are the client's rather than the server's."""
        return LATE.name in self.marks or BUSY.name in self.marks

    @property
    def fell_behind(self) -> bool:
        """Whether calls arrived faster than they ended."""
        return BEHIND.name in self.marks

    @property
    def disqualified_by(self) -> list[Mark]:
        """The marks for which nothing is recommended from the figures."""
        return [mark for name, mark in MARKS.items() if name in self.marks and mark.disqualifies]

    @property
    def without_answer(self) -> int:
        """The scheduled calls that failed or were not answered in time."""
        return self.scheduled - self.answered


def that_count(measurements: Sequence[Measurement]) -> Sequence[Measurement]:
    """Return the repetitions of a setting that count: without those that measured the client.

    Where more than half measured the client, all count, and the setting measured the client. A
    repetition in which calls failed counts: the server failed them.
    """
    kept = [each for each in measurements if not each.measured_the_client]
    return kept if 2 * len(kept) >= len(measurements) else measurements


def measurement_of(
    setting: Setting,
    repetition: int,
    window: Window,
    slos: Sequence[Slo] = (),
    *,
    list_sizes: Mapping[int, int] | None = None,
    cache_hit_share: float | None = None,
    server: dict[str, dict[str, float]] | None = None,
    limit_changes: Sequence[tuple[float, int]] = (),
    others: bool = False,
    prefix_reuse: bool = False,
) -> Measurement:
    """Return the figures of a window.

    Args:
        setting, repetition: what was measured.
        window: its calls.
        slos: the objectives.
        list_sizes, cache_hit_share, server, limit_changes: see ``Measurement``.
        others: whether the server worked for somebody else.
        prefix_reuse: whether hits in the prefix cache were asked for.
    """
    calls, seconds = window.calls, window.ends - window.begins
    counted = [place for place, at in enumerate(calls.scheduled) if window.begins <= at < window.ends]
    answered = [place for place in counted if calls.outcomes[place] == ANSWERED]
    failed = Counter(calls.errors[place] for place in counted if calls.outcomes[place] == HAS_FAILED)
    times = {
        name: figures
        for name, read in _TIMES.items()
        if (figures := _figures([read(calls, place) for place in answered], _shares(name, slos)))
    }
    met = [[is_met(slo, calls, place) for place in answered] for slo in slos]
    hits = tuple(map(sum, met))
    all_met = sum(map(all, zip(*met, strict=True))) if met else len(answered)
    in_flight = _in_flight(window)
    came = [place for place, at in enumerate(calls.ended) if calls.outcomes[place] == ANSWERED and _within(window, at)]
    per_s, good_per_s = len(came) / seconds, all_met / seconds
    if setting.rate is None and answered and len(answered) == len(counted):
        # Callers in flight / mean latency (Little, 1961).
        came = answered
        latency_s = sum(_latency(calls, place) for place in answered) / len(answered)
        per_s = in_flight / latency_s if latency_s else 0.0
        good_per_s = per_s * all_met / len(answered)
    prompt_tokens = per_s * _mean([calls.prompt_tokens[place] for place in came])
    output_tokens = per_s * _mean([calls.output_tokens[place] for place in came])
    return Measurement(
        setting=setting,
        repetition=repetition,
        window_s=seconds,
        scheduled=len(counted),
        answered=len(answered),
        unanswered=len(counted) - len(answered) - failed.total(),
        failed=dict(failed),
        times=times,
        calls_per_s=per_s,
        tokens_per_s=prompt_tokens + output_tokens,
        output_tokens_per_s=output_tokens,
        prompt_tokens_mean=_mean([calls.prompt_tokens[place] for place in answered]),
        output_tokens_mean=_mean([calls.output_tokens[place] for place in answered]),
        ramp_s=_ramp_s(window, per_s),
        goodput=good_per_s,
        slo_shares=tuple(hit / len(counted) if counted else 0.0 for hit in hits),
        slo_hits=hits,
        in_flight_mean=in_flight,
        list_sizes=dict(sorted((list_sizes or {}).items())),
        cache_hit_share=cache_hit_share,
        client_cpu_share=window.cpu_share,
        server=server or {},
        limit_changes=tuple(limit_changes),
        marks=marks_for(
            window,
            counted,
            times["latency"].percentiles[0.5] if "latency" in times else seconds,
            None if setting.rate is None else in_flight,
            None if prefix_reuse else cache_hit_share,
            others=others,
        ),
        retried=sum(calls.attempts[place] > 1 for place in counted),
        bad=sum(calls.bad[place] for place in answered),
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
    """Return the percentiles of a time of a report, / 100."""
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
    """Return when answers first came at 90 % of a rate, over two seconds, from the beginning."""
    calls = window.calls
    ends = sorted(at for place, at in enumerate(calls.ended) if calls.outcomes[place] == ANSWERED and at < window.ends)
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
