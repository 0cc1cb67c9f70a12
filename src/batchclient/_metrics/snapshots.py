"""Snapshots of a client for other threads, also while the client's event loop is blocked.

Rules:
- A snapshot is made in the client's event loop, between its callbacks. A thread waits for half a
  second at most, and then has the last snapshot and its age.
- The lag of the event loop is the time between the question and its turn in the loop.
- A client that was dropped has no snapshot any more. Nothing here keeps a client alive.
- Nothing of the loop waits: a fault here costs a page, and no call.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchclient._core.statistics import Statistics
from batchclient._metrics.job import JobNumbers, numbers_of
from batchclient._metrics.worker import WorkerNumbers, worker_numbers_of
from batchclient._shell.log import Recent, log
from batchclient.client import BatchClient

if TYPE_CHECKING:
    from batchclient._shell.runner import Runner
    from batchclient.sync import SyncBatchClient

__all__ = ["Snapshot", "Snapshots", "core_of"]

_PATIENCE_S = 0.5


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
    """

    statistics: Statistics
    clock_s: float | None
    preset: str
    age_s: float
    lag_s: float
    job: JobNumbers | None = None
    worker: WorkerNumbers | None = None


class _Question:
    """A question that waits for its turn in the event loop of a runner."""

    __slots__ = ("answered", "asked_at", "runner")

    def __init__(self, runner: Runner) -> None:
        self.runner: Runner = runner
        self.asked_at: float = time.monotonic()
        self.answered: threading.Event = threading.Event()


class Snapshots:
    """Makes snapshots of one client, from any thread.

    Args:
        client: the client; it is not kept alive.
        patience_s: how long to wait for the event loop, seconds.
    """

    def __init__(self, client: BatchClient | SyncBatchClient, patience_s: float = _PATIENCE_S) -> None:
        self._client: Callable[[], BatchClient | SyncBatchClient | None] = weakref.ref(client)
        self._patience_s = patience_s
        self._last: tuple[Statistics, float | None, JobNumbers | None, WorkerNumbers | None] | None = None
        self._taken_at = 0.0
        self._lag_s = 0.0
        self._question: _Question | None = None
        self._recent = Recent()

    @property
    def client(self) -> BatchClient | None:
        """The client with the event loop; ``None`` once the client was dropped."""
        given = self._client()
        return None if given is None else core_of(given)

    def take(self) -> Snapshot | None:
        """Return a snapshot; ``None`` once the client was dropped, or if none could be made."""
        client = self.client
        if client is None:
            return None
        runner = client._runner
        # Where no loop runs, nothing changes the counts meanwhile.
        if runner is None or runner.ended or runner.backend.is_current() or not runner.backend.is_running():
            self._lag_s = 0.0
            self._make(client, runner)
        else:
            self._ask(client, runner)
        now = time.monotonic()
        if self._last is None:
            return None
        statistics, clock_s, job, worker = self._last
        return Snapshot(statistics, clock_s, client._settings.preset, now - self._taken_at, self._lag_s, job, worker)

    def _ask(self, client: BatchClient, runner: Runner) -> None:
        """Have a snapshot made in the client's event loop, and wait for it for some time."""
        question = self._question
        if question is None or question.runner is not runner or question.answered.is_set():
            self._question = question = _Question(runner)
            asked = question

            def answer() -> None:
                self._lag_s = time.monotonic() - asked.asked_at
                self._make(client, runner)
                asked.answered.set()

            try:
                runner.backend.call_soon_threadsafe(answer)
            except RuntimeError:
                # The loop has just ended.
                self._make(client, runner)
                return
        if not question.answered.wait(self._patience_s):
            self._lag_s = time.monotonic() - question.asked_at
            if self._last is None:
                # The blocked loop changes nothing meanwhile, as far as can be seen from here.
                self._make(client, runner)

    def _make(self, client: BatchClient, runner: Runner | None) -> None:
        try:
            statistics = client.statistics()
            clock_s = runner.backend.now() if runner is not None and runner.backend.is_current() else None
            job, worker = numbers_of(client), worker_numbers_of(client)
        except Exception as error:  # a fault here must not reach the event loop, or a registry of others
            left_out = self._recent.left_out("statistics_unreadable", None, time.monotonic())
            if left_out is not None:
                kind, message = type(error).__name__, "the statistics could not be read for their page: %s"
                log("statistics_unreadable", message, kind, error=kind, left_out=left_out)
            return
        self._last = statistics, clock_s, job, worker
        self._taken_at = time.monotonic()
