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
from batchclient._metrics.job import JobNumbers
from batchclient.cli._cost import Cost
from batchclient.cli._durable import Durable
from batchclient.cli._outages import Outages
from batchclient.cli._progress import ProgressBar, ProgressLines, Snapshot, log_to
from batchclient.cli._refused import MOST_REFUSALS, Refused
from batchclient.cli._rows import to_line
from batchclient.cli._signals import ending_signals
from batchclient.cli._tally import Tally
from batchclient.errors import ConnectFailed, JournalFailed
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
_MARK_S = 1.0


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
        durable: what keeps the rows, if something does.
        patience_s: how long a full disk of the output is waited for.
        resolve: gives a row the answer of an equal row; ``None`` where that is not there.
        cost: the price of the work, and the bound; ``None``: the price is not known.
        refusals: the job gives up after so many rows refused alike, without a success.
        total: tells the rows expected, once they are known.
        repeat_s: the minute of ``repeats``.
        tick_s: seconds from one look at the job to the next.
        mark_s: seconds from one mark of the output's place to the next, at least.

    Attributes:
        tally: the rows.
        refused: the rows that are refused alike.
        journal_error: why the journal took no more rows, if so.
        signal: the signal behind the end, such as SIGINT for Ctrl-C; ``None`` after a job in full.
        fault: why the input failed, if so.
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
        durable: Durable | None = None,
        patience_s: float = 0.0,
        resolve: Callable[[MapResult], MapResult | None] | None = None,
        cost: Cost | None = None,
        refusals: int = MOST_REFUSALS,
        total: Callable[[], int | None] = lambda: None,
        repeat_s: float = _REPEAT_S,
        tick_s: float = _TICK_S,
        mark_s: float = _MARK_S,
    ) -> None:
        keep_going = keep_going or (durable is not None and durable.publishes)
        may_hold = durable is None or not durable.answered_before
        self.refused = Refused(refusals, keep_going=keep_going, may_hold=may_hold)
        self.tally = Tally()
        self._packed = packed
        self._columns = columns
        self._durable = durable
        self._mark_at = 0.0
        self._mark_s = mark_s
        self._tick_s = tick_s
        self._resolve = resolve
        self.journal_error: JournalFailed | None = None
        self._is_complete = False
        self.signal: int | None = None
        self.fault = ""
        self.statistics: Statistics | None = None
        self.spent: float | None = None
        self.is_too_dear = False
        self._cost = cost
        self._total = total
        self._started_at = 0.0
        self.out_of_use: list[str] = []
        self.is_cut_off = False
        self.no_server = ""
        self._outages = Outages(progress.say, patience_s=outage_patience_s, repeat_s=repeat_s if repeats else None)
        self._on_unreachable = on_unreachable
        self._on_asking = on_asking
        self.seconds = 0.0
        self._client = client
        self._results = results
        self._writer = Writer(output, patience_s=patience_s, on_full=self._on_full)
        self._progress = progress
        self._left: list[MapResult[Any]] = []
        self._task: asyncio.Task[None] | None = None
        self._may_cancel = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Job: {self.written} written, {self.tally.failures.total} failed>"

    @property
    def written(self) -> int:
        """Rows that the output has taken, failed rows included."""
        return self._writer.written

    @property
    def invalid(self) -> int:
        """Answers that did not fit the schema, whether they were asked again or not."""
        return self._results.invalid

    @property
    def leaves_rows(self) -> bool:
        """Whether the job has stopped for a reason of its own, before the end of the input."""
        return bool(self.refused.kind or self.no_server or self.is_too_dear)

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the input are in the output."""
        return self._is_complete and self.wrote_all

    @property
    def wrote_all(self) -> bool:
        """Whether the output has taken all rows given to it."""
        return self.output_error is None and not self._writer.is_given_up and not self.refused.is_holding

    @property
    def output_error(self) -> OSError | None:
        """Why the output took no more rows, if so."""
        return self._writer.error

    def numbers(self) -> JobNumbers:
        """Return the job's part of the pages about its client."""
        tally = self.tally
        return JobNumbers(tally.answered, tally.failed, tally.reused, self._total(), self._results.commits)

    def fail_to_end(self, error: OSError) -> None:
        """Take the reason why the end could not be written down."""
        self._writer.error = self._writer.error or error

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
        if self._durable is not None:
            # The journal is there before the output.
            await self._results.begin()
            self._durable.settle()
        await self._writer.open()
        if self._durable is not None:
            self.tally.covered, self.tally.covered_failed = self._durable.covered.rows, self._durable.failed_before
            self._durable.opened(self.tally)

    async def _map(self) -> None:
        self._tick()
        is_complete = False
        try:
            is_complete = await self._unless_stopped(self._write_all) and not (
                self.refused.kind or self.fault or self.journal_error is not None
            )
            await self._results.aclose()
            if self._durable is not None and not is_complete and not self.refused.kind:
                # In input order a row may be missing before these: a resume cuts them off.
                if not self.refused.is_holding:
                    self._durable.mark(self._writer, is_last=True)
                self._left = self._results.finished()
            for result in self._left:
                self._write(result)
            self._put(self.refused.end(self.tally.failures.by_type))
            self._is_complete = is_complete = is_complete and not self.refused.is_command
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
                if not result.reused and self.refused.is_one_too_many(result.error):
                    # In input order rows that succeeded may wait to be written.
                    if not self._client.statistics().succeeded:
                        self.refused.give_up()
                        self._left = [] if self._durable is not None else self._results.finished()
                        return
                    self._put(self.refused.go_on())
                if self._writer.is_full:
                    await self._writer.room()
                if self.output_error is not None:
                    return
        except JournalFailed as error:
            self.journal_error = error
        except OSError as error:  # only the input raises here: the error of a row is in the row
            self.fault = f"the input cannot be read any further: {reason_of(error)}"

    def _write(self, result: MapResult[Any]) -> None:
        """Count one row and hand the row to the output."""
        if self._resolve is not None:
            resolved = self._resolve(result)
            if resolved is None:
                return
            result = resolved
        if not self.tally.add(result):
            return
        if self._on_unreachable is not None and isinstance(result.error, ConnectFailed):
            self._on_unreachable()
            self._on_unreachable = None
        line = to_line(result, packed=self._packed, columns=self._columns)
        self._put(self.refused.lines_for(line, result.error))

    def _put(self, lines: list[bytes]) -> None:
        for line in lines:
            self._writer.put(line)

    def _on_full(self, reason: str) -> None:
        if reason:
            self._progress.say(f"the output cannot be written ({reason}): no further rows are read; it is tried again")
        else:
            self._progress.say("the output can be written again")

    # Every quarter of a second ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        statistics = self._client.statistics()
        self._show(statistics)
        self._watch_outages(statistics)
        now = time.monotonic()
        if self._durable is not None and now >= self._mark_at and not self.refused.is_holding:
            self._mark_at = now + self._mark_s
            self._durable.mark(self._writer)
        self._watch_cost()
        if self.output_error is not None:
            self._stop()
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

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
                done=self.written + self.tally.covered,
                failed=self.tally.failed_in_output,
                in_flight=statistics.in_flight,
                limit=sum(each.limit for each in statistics.endpoints),
                prompt_tokens=statistics.prompt_tokens,
                completion_tokens=statistics.completion_tokens,
                reused=self.tally.reused,
                cost=self.spent,
            )
        )

    def _watch_outages(self, statistics: Statistics) -> None:
        no_server = self._outages.look(statistics, time.monotonic())
        if no_server:
            if not self._is_stopped:
                self.no_server = no_server
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

        previous = [(number, signal.signal(number, handle)) for number in ending_signals()]
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
        if self.output_error is None and self._durable is None:
            # Cancelling the map drops its rows, also finished rows behind an unfinished one.
            self._left = self._results.finished()
        self._task.cancel()
