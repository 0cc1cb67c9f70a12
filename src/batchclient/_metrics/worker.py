"""What workers of queues add to the pages of their client: how messages ended, and what waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from batchclient import BatchClient, Histogram
from batchclient._core.histograms import DURATIONS, Recorder

__all__ = ["OUTCOMES", "Waiting", "WorkerCounts", "WorkerNumbers", "counts_of", "worker_numbers_of"]

OUTCOMES = ("results", "dead", "left", "released", "lost")


class Waiting(NamedTuple):
    """The messages of a consumer group, when last looked.

    Args:
        pending: those that any worker of the group has.
        lag: those that no worker has had; ``None``: not known.
    """

    pending: int
    lag: int | None


@dataclass(slots=True)
class WorkerCounts:
    """Counts of all workers that a client has had, and what waits for those at work.

    Args:
        messages: how many messages ended, or were let go, by outcome.
        renewals: leases renewed.
        waiting: by stream and group.
        durations: seconds from the delivery of a message to its stored outcome, by outcome.
    """

    messages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    renewals: int = 0
    waiting: dict[tuple[str, str], Waiting] = field(default_factory=dict)
    durations: dict[str, Recorder] = field(default_factory=lambda: {name: Recorder(DURATIONS) for name in OUTCOMES[:2]})


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """A client's workers, now: their sum.

    Args:
        messages: how many messages ended, or were let go, by outcome.
        pending: messages that any worker of their groups has.
        lag: messages that no worker has had; ``None``: not known.
        renewals: leases renewed.
        durations: seconds from the delivery of a message to its stored outcome, of results and dead
            letters.
    """

    messages: Mapping[str, int]
    pending: int
    lag: int | None
    renewals: int
    durations: Mapping[str, Histogram]


def counts_of(client: BatchClient) -> WorkerCounts:
    """Return the counts of a client's workers, for a worker to add to; the pages then have them."""
    if client._engine.worker_counts is None:
        client._engine.worker_counts = WorkerCounts()
    counts: WorkerCounts = client._engine.worker_counts
    return counts


def worker_numbers_of(client: BatchClient) -> WorkerNumbers | None:
    """Return the numbers of a client's workers, if the client has had any."""
    counts: WorkerCounts | None = client._engine.worker_counts
    if counts is None:
        return None
    waiting = list(counts.waiting.values())
    lags = [each.lag for each in waiting if each.lag is not None]
    durations = {outcome: recorder.snapshot() for outcome, recorder in counts.durations.items()}
    return WorkerNumbers(
        dict(counts.messages),
        sum(each.pending for each in waiting),
        sum(lags) if lags else None,
        counts.renewals,
        durations,
    )
