"""What a worker of a queue adds to the pages of its client: how messages ended, and what waits."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from batchclient.client import BatchClient

__all__ = ["WorkerNumbers", "attach_worker", "worker_numbers_of"]


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """A worker, now.

    Args:
        messages: how many messages ended, or were let go, by outcome.
        pending: messages that any worker of the group has.
        lag: messages that no worker has had; ``None``: not known.
        renewals: leases renewed.
    """

    messages: Mapping[str, int]
    pending: int
    lag: int | None
    renewals: int


def attach_worker(client: BatchClient, numbers: Callable[[], WorkerNumbers]) -> None:
    """Add a worker's numbers to the pages about its client.

    Args:
        client: the worker's.
        numbers: a method of the worker, called in the client's event loop. The worker is not kept
            alive.
    """
    client._worker_numbers = weakref.WeakMethod(numbers)


def worker_numbers_of(client: BatchClient) -> WorkerNumbers | None:
    """Return the numbers of a client's worker, if the client has one."""
    numbers = None if client._worker_numbers is None else client._worker_numbers()
    told: WorkerNumbers | None = None if numbers is None else numbers()
    return told
