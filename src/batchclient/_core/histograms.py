"""Histograms: how large requests were, how long calls and requests took, how many tokens they had.

Rules:
- An observation is one bisection into fixed bounds and two additions. No time is read here: the
  scheduler's time of the event is given.
- A bucket holds the values up to its bound, the bound included, and above the bound before.
- Counts and sums never decrease, so that a rate over time can be computed of them.
- A request, a call and an answer are observed once, at their ends; a call's time in the queue is
  observed when the call is first sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import add
from typing import Any

from batchclient._core.failures import Failure
from batchclient._core.requests import Batch, Request
from batchclient.types import Completion

__all__ = ["DURATIONS", "LABELS_OF_HISTOGRAMS", "SIZE_CLASSES", "Histogram", "Observations", "Recorder"]

DURATIONS = (
    0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68,
    655.36,
)  # fmt: skip
"""Seconds: the bounds of OpenTelemetry's conventions, and four for shorter and longer answers."""
_SIZES = tuple(2**power for power in range(10))
_TOKENS = tuple(4**power for power in range(9))
_BOUNDS_OF: Mapping[str, tuple[float, ...]] = {
    "batch_size": _SIZES,
    "request_duration_seconds": DURATIONS,
    "call_duration_seconds": DURATIONS,
    "queue_duration_seconds": DURATIONS,
    "time_to_first_token_seconds": DURATIONS,
    "time_per_output_token_seconds": DURATIONS,
    "prompt_tokens": _TOKENS,
    "completion_tokens": _TOKENS,
}
LABELS_OF_HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "batch_size": ("endpoint",),
    "request_duration_seconds": ("endpoint", "kind", "size"),
    "call_duration_seconds": ("kind", "outcome"),
    "queue_duration_seconds": ("kind",),
    "time_to_first_token_seconds": ("endpoint",),
    "time_per_output_token_seconds": ("endpoint",),
    "prompt_tokens": ("kind",),
    "completion_tokens": ("kind",),
}
"""By the name of a histogram: the parts of its keys."""
SIZE_CLASSES = ("1", "2-4", "5-8", "9-16", "17-32", "33-64", "65+")
"""The classes of requests, by their number of prompts."""
_LARGEST_OF_CLASS = (1, 4, 8, 16, 32, 64)
_MOST_MODELS = 32
_MOST_REMOVED = 64
_OTHER = "other"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values fell between fixed bounds.

    Args:
        bounds: the buckets' upper bounds, ascending; one more bucket holds all greater values.
        counts: the observations in each bucket, one more than bounds.
        sum: of all observed values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Estimate the value below which the share ``q`` of the observations lies.

        The estimate is linear within a bucket, as PromQL's ``histogram_quantile``. Above the
        greatest bound, the estimate is that bound. Without an observation it is NaN.

        Raises:
            ValueError: ``q`` is not between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q is between 0 and 1, not {q!r}")
        rank, below, lower = q * self.count, 0, 0.0
        for upper, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return lower + (upper - lower) * (rank - below) / count
            below += count
            lower = upper
        return self.bounds[-1] if self.counts[-1] else float("nan")


class Recorder:
    """A histogram that is being filled."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: tuple[float, ...] = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.sum: float = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, other: Recorder) -> None:
        """Count what another has counted."""
        self.counts = list(map(add, self.counts, other.counts))
        self.sum += other.sum

    def snapshot(self) -> Histogram:
        """Freeze the histogram."""
        return Histogram(self.bounds, tuple(self.counts), self.sum)


class _Family(dict[tuple[str, ...], Recorder]):
    """The histograms of one name, by key; a missing key gets an empty histogram."""

    __slots__ = ("bounds",)

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self.bounds = bounds

    def __missing__(self, key: tuple[str, ...]) -> Recorder:
        self[key] = recorder = Recorder(self.bounds)
        return recorder


class Observations:
    """A scheduler's histograms, and the counts that have the same labels."""

    def __init__(self) -> None:
        self._families = {name: _Family(bounds) for name, bounds in _BOUNDS_OF.items()}
        self._batch_sizes = self._families["batch_size"]
        self._request_durations = self._families["request_duration_seconds"]
        self._call_durations = self._families["call_duration_seconds"]
        self._queue_durations = self._families["queue_duration_seconds"]
        self._first_tokens = self._families["time_to_first_token_seconds"]
        self._token_durations = self._families["time_per_output_token_seconds"]
        self._prompt_tokens = self._families["prompt_tokens"]
        self._completion_tokens = self._families["completion_tokens"]
        self._models: set[str] = set()
        self._removed: dict[str, None] = {}
        """The servers that have gone and have counts of their own, the earliest first."""
        self.list_sizes: Counter[int] = Counter()
        """Requests that ended, by their number of prompts."""
        self.alone: Counter[str] = Counter()
        """Those with one prompt, by the reason."""
        self.outcomes: Counter[tuple[str, ...]] = Counter()
        """Requests that ended, by endpoint, kind and outcome."""
        self.tokens: Counter[tuple[str, ...]] = Counter()
        """Tokens by endpoint, model and direction."""
        self.costs: defaultdict[tuple[str, ...], float] = defaultdict(float)
        """What the answers of servers with a price have cost, by endpoint."""
        self.overflows: Counter[tuple[str, ...]] = Counter()
        """Calls sent to a server though another is cheaper, by endpoint and reason."""
        self.changes: Counter[tuple[str, ...]] = Counter()
        """Changes of limits and list caps, by endpoint, setting and direction."""

    def snapshot(self) -> dict[str, dict[tuple[str, ...], Histogram]]:
        """Freeze the histograms."""
        return {
            name: {key: recorder.snapshot() for key, recorder in family.items()}
            for name, family in self._families.items()
        }

    def sent(self, batch: Batch) -> None:
        """A batch has been granted; calls that were in another batch before are not observed again."""
        recorder = self._queue_durations[(batch.shape.kind._value_,)]
        counts, bounds, now, total = recorder.counts, recorder.bounds, batch.sent_at, 0.0
        for request in batch.requests:
            if request.endured is None:
                waited = now - request.queued_at
                counts[bisect_left(bounds, waited)] += 1
                total += waited
        recorder.sum += total

    def of_answers(self, kind: str) -> tuple[Recorder, Recorder, Recorder]:
        """Return what the answers of a kind fill: prompt tokens, output tokens, times of calls."""
        key = (kind,)
        return self._prompt_tokens[key], self._completion_tokens[key], self._call_durations[kind, "succeeded"]

    def served(self, server: str, model: str, prompt_tokens: int, output_tokens: int) -> None:
        """A server has counted tokens."""
        if model not in self._models:
            model = self._name_of(model)
        tokens = self.tokens
        tokens[server, model, "prompt"] += prompt_tokens
        tokens[server, model, "completion"] += output_tokens

    def streamed(self, batch: Batch, server: str, answers: Iterable[tuple[int, Completion]], now: float) -> None:
        """Some answers of a batch came as a stream: note when their tokens came."""
        weight, request_s, key = batch.shape.weight, now - batch.sent_at, (server,)
        for _, completion in answers:
            first_s = completion.time_to_first_token_s
            if first_s is not None:
                self._first_tokens[key].observe(first_s)
                later = (completion.output_tokens or 0) / weight - 1
                if later > 0:
                    self._token_durations[key].observe(max(0.0, request_s - first_s) / later)

    def request_ended(self, batch: Batch, server: str, now: float, failure: Failure | None = None) -> None:
        """A request that was sent has ended; ``failure``: why it failed, if it did."""
        size, kind = len(batch.requests), batch.shape.kind._value_
        self.list_sizes[size] += 1
        if batch.alone:
            self.alone[batch.alone] += 1
        size_class = SIZE_CLASSES[bisect_left(_LARGEST_OF_CLASS, size)]
        self._batch_sizes[(server,)].observe(size)
        self._request_durations[server, kind, size_class].observe(now - batch.sent_at)
        self.outcomes[server, kind, "answered" if failure is None else _outcome(batch, failure)] += 1

    def calls_ended(self, requests: Iterable[Request], outcome: str, now: float) -> None:
        """Some calls have ended."""
        for request in requests:
            whole = now - request.queued_at
            # Whose clock this is may be a moment behind; a sum never decreases.
            self._call_durations[request.shape.kind._value_, outcome].observe(whole if whole > 0 else 0.0)

    def server_comes(self, server: str) -> None:
        """A server is there, perhaps again."""
        self._removed.pop(server, None)

    def server_goes(self, server: str) -> None:
        """A server has gone: of many that went, only the last keep counts of their own."""
        self._removed[server] = None
        if len(self._removed) <= _MOST_REMOVED:
            return
        first = next(iter(self._removed))
        del self._removed[first]
        for name, labels in LABELS_OF_HISTOGRAMS.items():
            family = self._families[name]
            for key in [key for key in family if key[0] == first and labels[0] == "endpoint"]:
                family[_OTHER, *key[1:]].add(family.pop(key))
        of_all: tuple[dict[tuple[str, ...], Any], ...] = (
            self.outcomes, self.tokens, self.changes, self.costs, self.overflows,
        )  # fmt: skip
        for counts in of_all:
            for key in [key for key in counts if key[0] == first]:
                counts[_OTHER, *key[1:]] += counts.pop(key)

    def _name_of(self, model: str) -> str:
        """Return a model's label: its name, or that of all others once there are many."""
        if len(self._models) >= _MOST_MODELS:
            return _OTHER
        self._models.add(model)
        return model


def _outcome(batch: Batch, failure: Failure) -> str:
    is_ours = batch.ended_for is None and (batch.aborting or batch.moving)
    return "cancelled" if is_ours else failure.counted
