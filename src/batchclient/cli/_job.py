"""A running map job: rows from the client to the output, with a tick, signals and broken pipes.

Rules:
- Everything but the writing happens in the event loop; a signal only asks the job to stop.
- A row is taken once the one before is with the output. A slow reader of the output slows the
  reading of the input down.
- A job that stops early writes all finished rows first, also rows waiting for an earlier row. It
  leaves a pipe that nobody reads for half a second.
- A job that gives up (``_giving_up``) stops as a signal stops it: rows under way are left.
- The output is opened when a row can be sent: until then nothing is lost by refusing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from batchclient import BatchClient, Decision, MapResult, Statistics
from batchclient._maps.kinds import UNUSABLE, Kinds, is_unpaid
from batchclient._maps.progress import Counts
from batchclient._metrics.job import JobNumbers
from batchclient.cli._audit import Audit
from batchclient.cli._finish_by import manner_in_words
from batchclient.cli._giving_up import MOST_REFUSALS, OUT_OF_USE, GivingUp
from batchclient.cli._kept import Kept
from batchclient.cli._map_options import MapOptions
from batchclient.cli._pilot import Pilot, asks
from batchclient.cli._progress import JobProgress, Snapshot
from batchclient.cli._signals import on_signals
from batchclient.cli._words import say
from batchclient.errors import (
    AuthenticationFailed,
    ConnectFailed,
    DeadlineExceeded,
    JournalFailed,
    NotFound,
    TooManyBadRows,
)
from batchclient.jobs.forms import Writer
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.source import in_thread
from batchclient.jobs.statuses import Status, of_signal
from batchclient.maps import Map

__all__ = ["Job"]

_OF_THE_COMMAND = frozenset({AuthenticationFailed.__name__, NotFound.__name__})
"""These errors tell of the key and the model, which are the command's."""
_WITHOUT_SERVER = frozenset({ConnectFailed.__name__, DeadlineExceeded.__name__})
"""How every row fails where no server is there."""
_SLOW_S = 2.0
"""A server slower than this to name its model is worth a word, seconds."""
_ASKING = "waiting for the server to say which model it has (--model names one)"


class Job:
    """One run of ``batchclient map``.

    Args:
        client: not started yet.
        results: of that client's ``stream_map``.
        output: checked and not opened yet.
        progress: told of each tick.
        options: of the command.
        writer: makes the output's bytes.
        kept: what keeps the answers, if something does.
        total: tells the rows expected, once they are known.
        pilot: goes before the job, if there is one.
        audit: comes after it, if there is one.
        refusals: the job gives up after so many rows refused alike, without a success.
        tick_s: seconds from one look at the job to the next.

    Attributes:
        pilot, audit: the arguments.
        kinds: the rows that were taken, those of the journal included.
        failures: the rows of which the failed ones are told: until a pilot has run, its rows.
        giving_up: decides whether the job goes on.
        broken: the bound of ``--fail-if`` that is broken by a job that has tried all rows.
        journal_error: why the journal took no more rows, if so.
        output_error: why the output took no more rows, if so.
        signal: the signal behind the end, such as SIGINT for Ctrl-C; ``None`` after a job in full.
        fault: why the input failed, if so.
        statistics, story: the client's at the end.
        seconds: that the job took.
        worked_s: of them, those since the first request to a server that is there.
        spent: the cost, if the price is known.
        is_whole: whether all rows of the input are in the output.
    """

    def __init__(
        self,
        client: BatchClient,
        results: Map[Any],
        output: Output,
        progress: JobProgress,
        options: MapOptions,
        writer: Writer,
        *,
        kept: Kept | None = None,
        total: Callable[[], int | None] = lambda: None,
        pilot: Pilot | None = None,
        audit: Audit | None = None,
        refusals: int = MOST_REFUSALS,
        tick_s: float = 0.25,
    ) -> None:
        self.kinds: Kinds = results.kinds or Kinds()
        self.failures: Kinds = self.kinds if pilot is None else pilot.taken
        self.giving_up = GivingUp(options, refusals)
        self.broken: TooManyBadRows | None = None
        self.journal_error: JournalFailed | None = None
        self.output_error: OSError | None = None
        self.signal: int | None = None
        self.fault = ""
        self.statistics: Statistics | None = None
        self.story: Sequence[Decision] = ()
        self.seconds = self.worked_s = 0.0
        self.spent: float | None = None
        self.is_whole = False
        self._client = client
        self._results = results
        self._output = output
        output.in_a_hurry = lambda: self.signal is not None
        self._progress = progress
        self._options = options
        self._writer = writer
        self._kept = kept
        self._total = total
        self.pilot = pilot
        self.audit = audit
        self._tick_s = tick_s
        self._started_at = 0.0
        self._worked_since: float | None = None
        self._asked_s = 0.0
        """How long somebody has been asked, while nothing was sent."""
        self._idle_at = self._now()
        self._task: asyncio.Task[None] | None = None
        self._may_cancel = False
        self._watch_error: Exception | None = None

    def _now(self) -> float:
        """Seconds of a clock that stood while somebody was asked."""
        return time.monotonic() - self._asked_s

    def __repr__(self) -> str:
        return f"<Job: {self.kinds.rows} rows, {self.kinds.failed} failed>"

    @property
    def has_answers(self) -> bool:
        """Whether a row has an answer, of this run or from the journal."""
        return self.kinds.failed < self.kinds.rows

    @property
    def is_command(self) -> bool:
        """Whether key or model were refused for all rows of the job that could be sent."""
        refusals = self.kinds.types.keys() - UNUSABLE
        return bool(refusals) and refusals <= _OF_THE_COMMAND and not self.has_answers

    @property
    def reader_is_gone(self) -> bool:
        """Whether the reader of the output has seen enough, such as ``head``."""
        return self.output_error is not None and self.output_error.errno == errno.EPIPE

    @property
    def out_of_use(self) -> list[str]:
        """The servers that were out of use at the end, with the reason."""
        # A server that was sent nothing may be there all the same.
        endpoints = () if self.statistics is None or not self.statistics.batches else self.statistics.endpoints
        lost = [each for each in endpoints if each.state in OUT_OF_USE]
        return [f"{each.base_url} was {each.state} ({each.reason})" for each in lost]

    @property
    def status(self) -> int:
        """The command's exit status."""
        if self.signal is not None and not self.is_whole:
            return of_signal(self.signal)
        if self.journal_error is not None or (self.output_error is not None and not self.reader_is_gone):
            return Status.DISK_FULL
        end, failed = self.giving_up.end, self.failures
        if self.kinds.refusal:
            return Status.USAGE
        if end is not None and end.status != Status.FAILED:
            return end.status
        # Rows that make no request say nothing about the servers.
        types, statistics = failed.types.keys() - UNUSABLE, self.statistics
        is_cut_off = statistics is not None and len(self.out_of_use) == len(statistics.endpoints)
        if types and types <= _WITHOUT_SERVER and is_cut_off and not self.counts.answered:
            return Status.NO_SERVER
        if self.broken is not None:
            return Status.STOPPED
        return Status.FAILED if failed.failed or end or self.fault or self.reader_is_gone else Status.OK

    @property
    def is_done(self) -> bool:
        """Whether the same command, without ``--new``, would have nothing to do."""
        return self.is_whole and self.signal is None and not self.kinds.may_be_tried

    @property
    def counts(self) -> Counts:
        """The rows of the map."""
        return self._results.counts

    @property
    def expected(self) -> int | None:
        """Rows of the input, if they are known."""
        return self._total()

    def numbers(self) -> JobNumbers:
        """Return the job's part of the pages about its client."""
        counts = self.counts
        return JobNumbers(counts.answered, counts.failed, counts.reused, self._total(), self._results.commits)

    async def run(self) -> None:
        """Map all rows. The attributes tell how the job ended.

        Raises:
            ConfigError: the client cannot start, or no model was given and the server has several;
                or the output cannot be opened. No row was sent.
            BatchClientError: no server was there in time, or none could be asked for its model.
                Nothing was opened.
            Refusal: no server is there, or it refuses the key.
        """
        loop = asyncio.get_running_loop()

        def on_signal(number: int) -> None:
            self.signal = number
            loop.call_soon_threadsafe(self._stop)

        with on_signals(on_signal):
            try:
                async with self._client:
                    self._task = asyncio.current_task()
                    self._started_at = self._now()
                    try:
                        if self.pilot is None or await self._goes_on(self.pilot):
                            with self._progress.running():
                                if await self._unless_stopped(self._prepare):
                                    await self._map()
                        else:
                            await self._leave()
                    finally:
                        self._task = None
                        self.seconds = self.seconds or self._now() - self._started_at
            finally:
                self._output.close(keeps_rows=self.has_answers)

    async def _goes_on(self, pilot: Pilot) -> bool:
        """Let the pilot go first; return whether the job goes on."""
        try:
            with self._progress.running(), self._watching():
                is_done = await self._unless_stopped(lambda: pilot.run(partial(self._is_refused, of=pilot.size)))
        except JournalFailed as error:
            self.journal_error, is_done = error, False
        if self._watch_error is not None:
            raise self._watch_error
        if not is_done or self.giving_up.end is not None:
            return False
        if self._results.budget is not None:
            self._results.budget.spent = sum(self._client.statistics().costs.values())
        self.failures = self.kinds  # the job finds its rows in the journal, or tries again
        lines = pilot.forecast()
        tokens = {"prompt_tokens": pilot.prompts, "completion_tokens": pilot.answers}
        self._say(*lines, event="pilot", others=pilot.to_send, seconds=pilot.seconds, **tokens)
        if self._kept is not None and any(pilot.seconds):
            row_s = [each / pilot.to_send for each in pilot.seconds]
            await in_thread(partial(self._kept.journal.note, "pilot", row_s))
        if self._options.yes or not pilot.to_send:
            return True
        answer = None
        if not self._options.quiet:
            asked_at, asking = time.monotonic(), asyncio.ensure_future(asks())
            answer = await self._unless_stopped(lambda: asking) and asking.result()
            self._asked_s += time.monotonic() - asked_at
        if answer is False:
            self.giving_up.decline()
        elif answer is None and (broken := pilot.broken) is not None:
            self.giving_up.break_bound(broken)
        return self.giving_up.end is None

    def _is_refused(self, result: MapResult[Any], *, of: int | None = None) -> bool:
        """Whether no row will succeed. ``of``: the rows of the pilot, if the row is one of them."""
        if result.error is not None:
            self.giving_up.add(result, self._client.statistics(), of)
        return self.giving_up.is_refused

    async def _prepare(self) -> None:
        """Wait until the first row can be sent and written."""
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._say, _ASKING)
        try:
            await self._results.prepare()
        finally:
            slow.cancel()
        token = ""
        if self._kept is not None:
            # The journal is there before the output.
            await self._results.begin()
            token = await in_thread(self._kept.begin)
        await self._output.open(token)

    async def _map(self) -> None:
        with self._watching():
            is_complete = await self._unless_stopped(self._write_all) and not (
                self.giving_up.end or self.fault or self.journal_error
            )
            await self._results.aclose()
            # What was refused is asked again.
            if not (is_complete or self.output_error or (self.giving_up.is_refused and self._kept)):
                for result in self._results.finished():
                    await self._take(result)
        await self._end(is_complete=is_complete)
        if self._watch_error is not None:
            raise self._watch_error
        self.seconds = self._now() - self._started_at
        if self.audit is not None and is_complete and self.output_error is None:
            is_audited = await self._unless_stopped(self.audit.run)
            if is_audited and self._kept is not None:
                await in_thread(self._kept.audited)

    async def _end(self, *, is_complete: bool) -> None:
        """Write what is left, and put the output in its place, if these are all rows."""
        try:
            if self.output_error is None:
                await self._output.end(self._writer.end())
                self._show(self._client.statistics())
                is_refused = bool(self.is_command or self.kinds.refusal) and self._output.is_file
                self.is_whole = is_complete and not self._output.is_given_up and not is_refused
            if self.is_whole:
                await self._output.finish(self._note, self._writer.head)
                if self._kept is not None:
                    await in_thread(self._kept.settle)
                return
        except OSError as error:
            self.output_error, self.is_whole = error, False
        except JournalFailed as error:
            self.journal_error, self.is_whole = error, False
        await self._leave()

    async def _leave(self) -> None:
        """Note what was spent on rows that are not all in their place."""
        self._show(self._client.statistics())
        if self._kept is not None:
            await in_thread(partial(self._kept.leave, self.worked_s, self._paid))

    @property
    def _paid(self) -> float:
        """What this run has cost at servers with a price of their own."""
        return sum(self._client.statistics().costs.values())

    def _note(self, file: os.stat_result | None) -> None:
        """Note an output that is whole, before it is put in its place."""
        if self._kept is not None:
            counts, kinds = self.counts, self.kinds
            self._kept.end(
                file,
                self.worked_s,
                self._paid,
                read=kinds.rows,
                answered=counts.answered,
                failed=kinds.failed,
                may_be_tried=kinds.may_be_tried,
                not_sent=kinds.not_sent,
                reused=counts.reused,
                status=int(self.status),
                broken=str(self.broken or ""),
                bad=kinds.bad,
            )

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
        if self.output_error is not None or self._watch_error is not None or self.signal is not None:
            return True
        return self.giving_up.end is not None and not self.giving_up.is_refused

    async def _write_all(self) -> None:
        try:
            async for result in self._results:
                self._is_refused(result)
                await self._take(result)
                if self.giving_up.end is not None or self.output_error is not None:
                    return
        except TooManyBadRows as error:
            if error.is_early:
                self.giving_up.break_bound(error)
            else:
                self.broken = error
        except JournalFailed as error:
            self.journal_error = error
        except OSError as error:  # only the input raises here: the error of a row is in the row
            self.fault = f"the input cannot be read any further: {reason_of(error)}"

    async def _take(self, result: MapResult[Any]) -> None:
        """Hand a row to the output, unless the job left it out for its cost."""
        if is_unpaid(result):
            return
        if self.audit is not None:
            self.audit.add(result)
        try:
            await self._output.put(self._writer.add(result), self._writer.beside(result))
        except OSError as error:
            self.output_error = error

    # Every quarter of a second ---------------------------------------------------------------------------------------

    @contextmanager
    def _watching(self) -> Iterator[None]:
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            self.statistics, self.story = self._client.statistics(), self._client.story()

    async def _watch(self) -> None:
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._tick_s)
        except Exception as error:  # unwatched a job has no bound on its cost
            self._watch_error = error
            self._stop()

    async def _look(self) -> None:
        statistics = self._client.statistics()
        if self._may_cancel and not self._is_stopped:
            self.giving_up.look(statistics, self.spent or 0.0, self._now())
        try:
            await self._output.flush()
        except OSError as error:
            self.output_error = error
        self._show(statistics)
        if self._is_stopped:
            self._stop()

    def _show(self, statistics: Statistics) -> None:
        now, is_there = self._now(), any(each.state != "awaited" for each in statistics.endpoints)
        if not (is_there and (statistics.batches or statistics.in_flight)):
            self._worked_since, self._idle_at = None, now
        elif self._worked_since is None:
            # The first request went since the look before, which may be all that a short job takes.
            self._worked_since = self._idle_at
        self.worked_s = 0.0 if self._worked_since is None else now - self._worked_since
        if self._options.cost is not None:
            self.spent = self._options.cost.of(statistics, self.worked_s)
        # While all servers are away, the rate says nothing of the time that is left.
        is_away = bool(statistics.endpoints) and all(each.outage for each in statistics.endpoints)
        spread = (1.0,) if self.pilot is None else self.pilot.spread
        self._progress.update(
            Snapshot(
                done=self._output.written,
                failed=self.failures.failed,
                in_flight=statistics.in_flight,
                limit=sum(each.limit for each in statistics.endpoints),
                prompt_tokens=statistics.prompt_tokens,
                completion_tokens=statistics.completion_tokens,
                reused=self.counts.reused,
                cost=self.spent,
                bad=", ".join(f"{count:,} {kind}" for kind, count in self.kinds.bad.most_common()),
                manner=manner_in_words(self._results.pace, self._options.finish_by),
                spread=() if is_away else spread,
            )
        )

    def _say(self, *lines: str, event: str = "notice", **fields: Any) -> None:
        if not self._options.quiet:
            say(*lines, event=event, **fields)

    def _stop(self) -> None:
        """End the part of the job that takes rows; finished rows are still written."""
        if self._task is None or not self._may_cancel:
            return
        self._may_cancel = False
        self._task.cancel()
