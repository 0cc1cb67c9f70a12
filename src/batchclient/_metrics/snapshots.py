"""Snapshots of clients for other threads, also while a client's event loop is blocked.

Rules:
- A snapshot is made in the client's event loop, between its callbacks. A page of several clients
  asks all of them first, waits for half a second at most, and then has the last snapshots of those
  that were not answered, and their age.
- The lag of the event loop is the time between the question and its turn in the loop.
- A client that was dropped has no snapshot any more. Nothing here keeps a client alive.
- Nothing of the loop waits: a fault here costs a page, and no call.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchclient import BatchClient, Statistics
from batchclient._common.log import Recent, log
from batchclient._metrics.job import JobNumbers, numbers_of
from batchclient._metrics.worker import WorkerNumbers, worker_numbers_of

if TYPE_CHECKING:
    from batchclient import SyncBatchClient
    from batchclient._shell.runner import Runner

__all__ = ["Snapshot", "Snapshots", "core_of", "take_all"]

_WAIT_S = 0.5


def core_of(client: BatchClient | SyncBatchClient) -> BatchClient:
    """Return the client that has the event loop."""
    return client if isinstance(client, BatchClient) else client._client


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A client's statistics at a moment.

    Args:
        statistics: as the client has them.
        clock_s: the time on the client's clock then, seconds; ``None``: the client has no loop.
        preset: the client's preset.
        age_s: how old the statistics are, seconds.
        lag_s: how long the event loop left the question waiting, seconds.
        job: the numbers of the client's job, if the client has one.
        worker: the same of the client's worker.
        maps: maps under way: some of their rows have not ended.
    """

    statistics: Statistics
    clock_s: float | None
    preset: str
    age_s: float
    lag_s: float
    job: JobNumbers | None = None
    worker: WorkerNumbers | None = None
    maps: int = 0


def take_all(clients: Sequence[Snapshots]) -> list[Snapshot | None]:
    """Return a snapshot of each client, ``None`` where it was dropped or none could be made."""
    questions = [each.ask() for each in clients]
    until = time.monotonic() + _WAIT_S
    return [each.take(question, until) for each, question in zip(clients, questions, strict=True)]


class _Question:
    """A question that waits for its turn in the event loop of a runner."""

    __slots__ = ("answered", "asked_at", "lag_s", "runner")

    def __init__(self, runner: Runner) -> None:
        self.runner: Runner = runner
        self.asked_at: float = time.monotonic()
        self.lag_s: float = 0.0
        self.answered: threading.Event = threading.Event()


class Snapshots:
    """Makes snapshots of one client, from any thread.

    Args:
        client: the client; it is not kept alive.
    """

    def __init__(self, client: BatchClient | SyncBatchClient) -> None:
        self._client: Callable[[], BatchClient | SyncBatchClient | None] = weakref.ref(client)
        self._last: tuple[Statistics, float | None, JobNumbers | None, WorkerNumbers | None, int] | None = None
        self._taken_at = 0.0
        self._question: _Question | None = None
        self._recent = Recent()

    @property
    def client(self) -> BatchClient | None:
        """The client with the event loop; ``None`` once the client was dropped."""
        given = self._client()
        return None if given is None else core_of(given)

    def ask(self) -> _Question | None:
        """Have a snapshot made in the client's event loop, or here, where no other thread runs it."""
        client = self.client
        if client is None:
            return None
        runner = client._engine.runner
        # Where no loop runs, nothing changes the counts meanwhile.
        if runner is None or runner.ended or runner.backend.is_current() or not runner.backend.is_running():
            self._make(client, runner)
            return None
        question = self._question
        if question is not None and question.runner is runner and not question.answered.is_set():
            return question
        self._question = question = _Question(runner)

        def answer() -> None:
            question.lag_s = time.monotonic() - question.asked_at
            self._make(client, runner)
            question.answered.set()

        try:
            runner.backend.call_soon_threadsafe(answer)
        except RuntimeError:
            # The loop has just ended.
            self._make(client, runner)
            return None
        return question

    def take(self, question: _Question | None, until: float) -> Snapshot | None:
        """Return the snapshot that was asked for, or the last one once it is late.

        Args:
            question: from ``ask()``.
            until: how long to wait for the event loop: a time of ``time.monotonic()``.
        """
        client = self.client
        if client is None:
            return None
        lag_s = 0.0
        if question is not None:
            if question.answered.wait(max(0.0, until - time.monotonic())):
                lag_s = question.lag_s
            else:
                lag_s = time.monotonic() - question.asked_at
                if self._last is None:
                    # The blocked loop changes nothing meanwhile, as far as can be seen from here.
                    self._make(client, question.runner)
        if self._last is None:
            return None
        statistics, clock_s, job, worker, maps = self._last
        age_s = time.monotonic() - self._taken_at
        return Snapshot(statistics, clock_s, client._engine.settings.preset, age_s, lag_s, job, worker, maps)

    def _make(self, client: BatchClient, runner: Runner | None) -> None:
        try:
            statistics = client.statistics()
            clock_s = runner.backend.now() if runner is not None and runner.backend.is_current() else None
            job, worker = numbers_of(client), worker_numbers_of(client)
            maps = 0 if runner is None else sum(each.is_under_way for each in runner.maps)
        except Exception as error:  # a fault here must not reach the event loop, or a registry of others
            left_out = self._recent.left_out("statistics_unreadable", None, time.monotonic())
            if left_out is not None:
                kind, message = type(error).__name__, "the statistics could not be read for their page: %s"
                log("statistics_unreadable", message, kind, error=kind, left_out=left_out)
            return
        self._last = statistics, clock_s, job, worker, maps
        self._taken_at = time.monotonic()
