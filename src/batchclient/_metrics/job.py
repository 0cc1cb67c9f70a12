"""What a job adds to the pages of its client: its rows, and how long its commits took."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

from batchclient import BatchClient, Histogram

__all__ = ["JobNumbers", "attach", "numbers_of"]


@dataclass(frozen=True, slots=True)
class JobNumbers:
    """A job, now.

    Args:
        answered, failed: rows that this run sent and has handed to the output.
        reused: rows that the journal had, failed ones included.
        expected: rows of the input; ``None``: not known (yet).
        commits: times of the journal's commits; ``None``: the job has no journal.
    """

    answered: int
    failed: int
    reused: int
    expected: int | None
    commits: Histogram | None


def attach(client: BatchClient, numbers: Callable[[], JobNumbers]) -> None:
    """Add a job's numbers to the pages about its client.

    Args:
        client: the job's.
        numbers: a method of the job, called in the client's event loop. The job is not kept alive.
    """
    client._engine.job_numbers = weakref.WeakMethod(numbers)


def numbers_of(client: BatchClient) -> JobNumbers | None:
    """Return the numbers of a client's job, if the client has one."""
    numbers = None if client._engine.job_numbers is None else client._engine.job_numbers()
    taken: JobNumbers | None = None if numbers is None else numbers()
    return taken
