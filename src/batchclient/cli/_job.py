"""A running map job: rows from the client to the output, with a tick, signals and broken pipes.

Rules:
- Everything but the writing happens in the event loop; a signal only asks the job to stop.
- Rows are taken while the output has room for them. A slow reader of the output slows the reading
  of the input down, and no row's deadline runs while the row waits for the reader.
- A job with a working output writes all finished rows before it stops early, also rows waiting for
  an earlier row. A pipe that nobody reads is left after half a second.
- A job gives up where one row after the other is refused alike and none has succeeded. The fault is
  then in the command, such as a parameter unknown to the server. A job with a patience also gives
  up where every server has been away for so long.
- A job with a bound on its cost stops there as a signal stops it: rows under way are left.
- The output is opened when the client has started: until then nothing is lost by refusing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from batchclient import BatchClient, MapResult, Statistics
from batchclient.cli._cost import Cost
from batchclient.cli._failures import Failures
from batchclient.cli._progress import ProgressBar, ProgressLines, Snapshot, log_to
from batchclient.cli._rows import to_line
from batchclient.errors import AuthenticationFailed, BadRequest, ConnectFailed, NotFound
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.statuses import of_signal
from batchclient.jobs.writer import Writer
from batchclient.maps import Map

__all__ = ["Job"]

_SLOW_S = 2.0
"""A server slower than this to name its model is worth a word, seconds."""
_TICK_S = 0.25
_REPEAT_S = 60.0
"""Seconds from one word about an outage to the next."""
_REFUSALS_TO_GIVE_UP = 256
"""After so many rows refused alike, and none successful, no later row would do better."""
_OF_EVERY_ROW = (AuthenticationFailed, NotFound, ConnectFailed)
"""Errors of these kinds are alike whatever their words are, other refusals by equal words."""


class Job:
    """One run of ``batchclient map``.

    Args:
        client: not started yet.
        results: of that client's ``stream_map``.
        output: checked and not opened yet.
        progress: told of each tick, and of what is worth a line.
        outage_patience_s: the job gives up when every server has been away for so long, seconds;
            ``None``: never.
        on_unreachable: called when a row first fails for want of a connection.
        on_asking: called where the server takes long to name its model.
        keep_going: never give up because of refusals.
        packed: write vectors as base64.
        repeats: whether an outage is told again every minute.
        columns: the fields of the input to write beside ``id``; ``None``: all.
        resolve: gives a row the answer of an equal row; ``None`` where that is not there.
        cost: the price of the work, and the bound; ``None``: the price is not known.
        refusals: the job gives up after so many rows refused alike, without a success.
        repeat_s: the minute of ``repeats``.

    Attributes:
        refusals: the argument.
        failures: the rows that failed.
        succeeded: rows that did not.
        reused: rows of both kinds that were taken from a journal.
        signal: the signal behind the end, such as SIGINT for Ctrl-C; ``None`` after a job in full.
        fault: why the input failed, if so.
        stopped_by: the kind of error behind giving up, if so.
        no_server: the outage that outlasted the patience, in a sentence, if so.
        statistics: the client's at the end.
        spent: the cost, if the price is known.
        is_too_dear: whether the bound on the cost stopped the job.
        out_of_use: servers out of use at the end, with the reason.
        is_cut_off: whether these were all servers.
    """

    def __init__(
        self,
        client: BatchClient,
        results: Map[Any],
        output: Output,
        progress: ProgressBar | ProgressLines,
        *,
        outage_patience_s: float | None = None,
        on_unreachable: Callable[[], None] | None = None,
        on_asking: Callable[[], None] | None = None,
        keep_going: bool = False,
        packed: bool = False,
        repeats: bool = True,
        columns: Collection[str] | None = None,
        resolve: Callable[[MapResult], MapResult | None] | None = None,
        cost: Cost | None = None,
        refusals: int = _REFUSALS_TO_GIVE_UP,
        repeat_s: float = _REPEAT_S,
    ) -> None:
        self.refusals = refusals
        self._packed = packed
        self._columns = columns
        self._resolve = resolve
        self.failures = Failures()
        self.succeeded = 0
        self.reused = 0
        self.signal: int | None = None
        self.fault = ""
        self.statistics: Statistics | None = None
        self.spent: float | None = None
        self.is_too_dear = False
        self._cost = cost
        self._started_at = 0.0
        self.out_of_use: list[str] = []
        self.is_cut_off = False
        self.stopped_by = ""
        self.no_server = ""
        self._outage_patience_s = outage_patience_s
        self._away_since: float | None = None
        self._repeat_s = repeat_s if repeats else None
        self._tell_again_at: dict[int, float] = {}
        self._on_unreachable = on_unreachable
        self._on_asking = on_asking
        self._keep_going = keep_going
        self._refusal: tuple[str, ...] | None = None
        self._refused_alike = 0
        self.seconds = 0.0
        self._client = client
        self._results = results
        self._writer = Writer(output)
        self._progress = progress
        self._left: list[MapResult[Any]] = []
        self._task: asyncio.Task[None] | None = None
        self._may_cancel = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Job: {self.written} written, {self.failures.total} failed>"

    @property
    def written(self) -> int:
        """Rows that the output has taken, failed rows included."""
        return self._writer.written

    @property
    def invalid(self) -> int:
        """Answers that did not fit the schema, whether they were asked again or not."""
        return self._results.invalid

    @property
    def output_error(self) -> OSError | None:
        """Why the output took no more rows, if so."""
        return self._writer.error

    @property
    def reader_is_gone(self) -> bool:
        """Whether the reader of the output has seen enough, such as ``head``."""
        return self.output_error is not None and self.output_error.errno == errno.EPIPE

    async def run(self) -> None:
        """Map all rows. The attributes tell how the job ended.

        Raises:
            ConfigError: the client cannot start, or no model was given and the server has several;
                or the output cannot be opened. No row was sent.
            BatchClientError: no model was given, and the server cannot be asked for its model.
                Nothing was opened.
        """
        with self._on_signals(), log_to(self._progress.say):
            try:
                async with self._client:
                    self._task = asyncio.current_task()
                    self._started_at = time.monotonic()
                    try:
                        if await self._unless_stopped(self._prepare):
                            await self._map()
                    finally:
                        self._task = None
                        self.seconds = time.monotonic() - self._started_at
            finally:
                self._progress.close()

    async def _prepare(self) -> None:
        """Wait until the first row can be sent and written."""
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._on_asking) if self._on_asking is not None else None
        try:
            await self._results.prepare()
        finally:
            if slow is not None:
                slow.cancel()
        await self._writer.open()

    async def _map(self) -> None:
        self._tick()
        is_complete = False
        try:
            is_complete = await self._unless_stopped(self._write_all) and not (self.stopped_by or self.fault)
            await self._results.aclose()
            for result in self._left:
                self._write(result)
        finally:
            self.statistics = statistics = self._client.statistics()
            self.out_of_use = [
                f"{each.base_url} was {each.state} ({each.reason})"
                for each in statistics.endpoints
                if each.state in ("ejected", "probing")
            ]
            self.is_cut_off = len(self.out_of_use) == len(statistics.endpoints)
            await self._writer.close(is_complete=is_complete, in_a_hurry=lambda: self.signal is not None)
            if self._timer is not None:
                self._timer.cancel()
            self._show(self._client.statistics())

    async def _unless_stopped(self, work: Callable[[], Any]) -> bool:
        """Do a part of the job; return whether ``_stop`` has not ended that part."""
        assert self._task is not None
        self._may_cancel = True
        try:
            if self.signal is None:
                await work()
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
            self._task.uncancel()
        finally:
            self._may_cancel = False
        return not self._is_stopped

    @property
    def _is_stopped(self) -> bool:
        return self.signal is not None or self.no_server != "" or self.is_too_dear or self.output_error is not None

    async def _write_all(self) -> None:
        try:
            async for result in self._results:
                self._write(result)
                # A reused row says nothing about the command of today.
                if not self._keep_going and not result.reused and self._is_hopeless(result.error):
                    assert self._refusal is not None
                    self._left = self._results.finished()
                    self.stopped_by = self._refusal[0]
                    return
                if self._writer.is_full:
                    await self._writer.room()
                if self.output_error is not None:
                    return
        except OSError as error:  # only the input raises here: the error of a row is in the row
            self.fault = f"the input cannot be read any further: {reason_of(error)}"

    def _write(self, result: MapResult[Any]) -> None:
        """Count one row and hand the row to the output."""
        if self._resolve is not None:
            resolved = self._resolve(result)
            if resolved is None:
                return
            result = resolved
        self.reused += result.reused
        if result.error is None:
            self.succeeded += 1
        else:
            self.failures.add(result)
            if self._on_unreachable is not None and isinstance(result.error, ConnectFailed):
                self._on_unreachable()
                self._on_unreachable = None
        self._writer.put(to_line(result, packed=self._packed, columns=self._columns))

    def _is_hopeless(self, error: Exception | None) -> bool:
        """Whether a row's error is one refusal too many; asked for each written row."""
        refusal: tuple[str, ...]
        if isinstance(error, _OF_EVERY_ROW):
            refusal = (type(error).__name__,)
        elif isinstance(error, BadRequest):
            refusal = (type(error).__name__, str(error))
        else:
            return False
        self._refused_alike = self._refused_alike + 1 if refusal == self._refusal else 1
        self._refusal = refusal
        if self._refused_alike < self.refusals:
            return False
        # In input order rows that succeeded may wait to be written.
        self._keep_going = self._client.statistics().succeeded > 0
        return not self._keep_going

    # Every quarter of a second ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        statistics = self._client.statistics()
        self._show(statistics)
        self._watch_outages(statistics)
        self._watch_cost()
        if self.output_error is not None:
            self._stop()
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _watch_cost(self) -> None:
        if self._cost is None or self.spent is None or not self._cost.is_reached(self.spent):
            return
        if self._may_cancel and not self._is_stopped:
            self.is_too_dear = True
            self._stop()

    def _show(self, statistics: Statistics) -> None:
        if self._cost is not None:
            self.spent = self._cost.of(statistics, time.monotonic() - self._started_at)
        self._progress.update(
            Snapshot(
                done=self.written,
                failed=self.failures.total,
                in_flight=statistics.in_flight,
                limit=sum(each.limit for each in statistics.endpoints),
                prompt_tokens=statistics.prompt_tokens,
                completion_tokens=statistics.completion_tokens,
                reused=self.reused,
                cost=self.spent,
            )
        )

    def _watch_outages(self, statistics: Statistics) -> None:
        """Tell of outages that last (the log tells of their beginnings and ends), and give up."""
        now = time.monotonic()
        endpoints = [each for each in statistics.endpoints if each.state != "leaving"]
        away = {each.id: each.outage for each in endpoints if each.outage}
        if self._repeat_s is not None:
            self._tell_again_at = {id_: self._tell_again_at.get(id_, now + self._repeat_s) for id_ in away}
            for id_, at in self._tell_again_at.items():
                if now >= at:
                    self._tell_again_at[id_] = now + self._repeat_s
                    self._progress.say(away[id_])
        if len(away) < len(endpoints):
            self._away_since = None
            return
        if self._away_since is None:
            self._away_since = now
        if self._outage_patience_s is not None and now - self._away_since >= self._outage_patience_s:
            if not self._is_stopped:
                self.no_server = "; ".join(away.values())
            self._stop()

    # Ending ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _on_signals(self) -> Iterator[None]:
        """The first Ctrl-C, SIGTERM or SIGHUP stops the job, the second one the process."""
        loop = asyncio.get_running_loop()

        def handle(number: int, _frame: FrameType | None) -> None:
            if self.signal is not None:
                self._progress.close()
                os._exit(of_signal(number))
            self.signal = number
            loop.call_soon_threadsafe(self._stop)

        previous = [(number, signal.signal(number, handle)) for number in _ending_signals()]
        try:
            yield
        finally:
            for number, handler in previous:
                signal.signal(number, handler)

    def _stop(self) -> None:
        """End the part of the job that takes rows; finished rows are still written."""
        if self._task is None or not self._may_cancel:
            return
        self._may_cancel = False
        if self.output_error is None:
            # Cancelling the map drops its rows, also finished rows behind an unfinished one.
            self._left = self._results.finished()
        self._task.cancel()


def _ending_signals() -> list[signal.Signals]:
    """Return the signals that end a job. ``nohup`` has a hangup ignored, and so it is."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)
    return numbers
