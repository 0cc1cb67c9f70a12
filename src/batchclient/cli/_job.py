"""A running map job: rows from the client to the output, with a tick, Ctrl-C and broken pipes.

Rules:
- Everything happens in the event loop; a signal only asks the job to stop.
- The output is flushed with each tick, so finished rows are written soon, however slow the rest is.
- A job with a working output writes all finished rows before it stops early, also rows waiting for
  an earlier row.
- A job gives up where one row after the other is refused alike and none has succeeded. The fault is
  then in the command, such as a parameter unknown to the server.
- The output is opened when the client has started: until then nothing is lost by refusing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, BinaryIO

from batchclient import BatchClient, MapResult
from batchclient.cli._progress import ProgressBar
from batchclient.cli._rows import message_of, to_line
from batchclient.errors import AuthenticationFailed, BadRequest, ConnectFailed, NotFound
from batchclient.maps import Map

__all__ = ["Job"]

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SLOW_S = 2.0
"""A server slower than this to name its model is worth a word, seconds."""
_TICK_S = 0.25
_REFUSALS_TO_GIVE_UP = 256
"""After so many rows refused alike, and none successful, no later row would do better."""
_OF_EVERY_ROW = (AuthenticationFailed, NotFound, ConnectFailed)
"""Errors of these kinds are alike whatever their words are, other refusals by equal words."""


class Job:
    """One run of ``batchclient map``.

    Args:
        client: not started yet.
        results: of that client's ``stream_map``.
        open_output: called once.
        progress: told of each tick.
        on_unreachable: called when a row first fails for want of a connection.
        on_asking: called where the server takes long to name its model.
        keep_going: never give up.
        packed: write vectors as base64.
        columns: the fields of the input to write beside ``id``; ``None``: all.
        resolve: gives a row the answer of an equal row; ``None`` where that is not there.
        refusals: the job gives up after so many rows refused alike, without a success.

    Attributes:
        refusals: the argument.
        written: rows written, failed rows included.
        failures: how many rows failed, by kind of error.
        first_failure: the message of the first failure.
        signal: the signal behind the end, such as SIGINT for Ctrl-C; ``None`` after a job in full.
        fault: why input or output failed, if so; empty where the reader of the output went away.
        stopped_by: the kind of error behind giving up, if so.
        requests: sent.
        out_of_use: servers out of use at the end, with the reason.
    """

    def __init__(
        self,
        client: BatchClient,
        results: Map[Any],
        open_output: Callable[[], BinaryIO],
        progress: ProgressBar,
        *,
        on_unreachable: Callable[[], None] | None = None,
        on_asking: Callable[[], None] | None = None,
        keep_going: bool = False,
        packed: bool = False,
        columns: Collection[str] | None = None,
        resolve: Callable[[MapResult], MapResult | None] | None = None,
        refusals: int = _REFUSALS_TO_GIVE_UP,
    ) -> None:
        self.refusals = refusals
        self._packed = packed
        self._columns = columns
        self._resolve = resolve
        self.written = 0
        self.failures: Counter[str] = Counter()
        self.first_failure = ""
        self.signal: int | None = None
        self.fault: str | None = None
        self.requests = 0
        self.out_of_use: list[str] = []
        self.stopped_by = ""
        self._on_unreachable = on_unreachable
        self._on_asking = on_asking
        self._keep_going = keep_going
        self._refusal: tuple[str, ...] | None = None
        self._refused_alike = 0
        self.seconds = 0.0
        self._client = client
        self._results = results
        self._open_output = open_output
        self._progress = progress
        self._output: BinaryIO
        self._left: list[MapResult[Any]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Job: {self.written} written, {self.failures.total()} failed>"

    async def run(self) -> None:
        """Map all rows. The attributes tell how the job ended.

        Raises:
            ConfigError: the client cannot start, or no model was given and the server has several.
                Nothing was opened.
            BatchClientError: no model was given, and the server cannot be asked for its model.
                Nothing was opened.
            Refusal: the output cannot be opened. No row was sent.
        """
        with self._on_interrupt():
            async with self._client:
                self._task = asyncio.current_task()
                started = time.monotonic()
                try:
                    if await self._is_prepared():
                        await self._map()
                finally:
                    self._task = None
                    self.seconds = time.monotonic() - started

    async def _map(self) -> None:
        self._output = self._open_output()
        self._tick()
        try:
            await self._write_all()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            statistics = self._client.statistics()
            self.requests = statistics.batches
            self.out_of_use = [
                f"{each.base_url} was {each.state} ({each.reason})"
                for each in statistics.endpoints
                if each.state in ("ejected", "probing")
            ]
            self._close()

    async def _is_prepared(self) -> bool:
        """Wait until the first row can be sent; return whether nobody interrupted the wait."""
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._on_asking) if self._on_asking is not None else None
        try:
            await self._results.prepare()
        except asyncio.CancelledError:
            if self.signal is None:
                raise
            assert self._task is not None
            self._task.uncancel()
            return False
        finally:
            if slow is not None:
                slow.cancel()
        return True

    async def _write_all(self) -> None:
        try:
            async for result in self._results:
                if not self._write(result):
                    return
                if not self._keep_going and self._is_hopeless(result.error):
                    await self._give_up()
                    break
        except asyncio.CancelledError:
            if not (self.signal is not None or self.fault is not None):
                raise
            # Asked for by ``_stop``: the job ends in good order.
            assert self._task is not None
            self._task.uncancel()
        except OSError as error:  # only the input raises here: the error of a row is in the row
            self.fault = f"the input cannot be read any further: {error.strerror or error}"
        for result in self._left:
            if not self._write(result):
                return

    def _write(self, result: MapResult[Any]) -> bool:
        """Write one row; return whether the output took the row."""
        if self._resolve is not None:
            resolved = self._resolve(result)
            if resolved is None:
                return True
            result = resolved
        if result.error is not None:
            self.failures[type(result.error).__name__] += 1
            self.first_failure = self.first_failure or message_of(result)
            if self._on_unreachable is not None and isinstance(result.error, ConnectFailed):
                self._on_unreachable()
                self._on_unreachable = None
        try:
            self._output.write(to_line(result, packed=self._packed, columns=self._columns))
        except OSError as error:
            self._on_broken_output(error)
            return False
        self.written += 1
        return True

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

    async def _give_up(self) -> None:
        """Stop taking rows; finished rows are still written."""
        assert self._refusal is not None
        self._left = self._results.finished()
        await self._results.aclose()
        self.stopped_by = self._refusal[0]

    # Every quarter of a second ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        try:
            self._output.flush()
        except OSError as error:
            self._on_broken_output(error)
            self._stop()
            return
        in_flight = self._client.statistics().in_flight
        self._progress.update(done=self.written, in_flight=in_flight, failed=self.failures.total())
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    # Ending ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _on_interrupt(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) stops the job, the second one the process."""
        loop = asyncio.get_running_loop()

        def handle(number: int, _frame: FrameType | None) -> None:
            if self.signal is not None:
                self._progress.close()
                os._exit(128 + number)
            self.signal = number
            loop.call_soon_threadsafe(self._stop)

        previous = [signal.signal(number, handle) for number in _ENDING_SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(_ENDING_SIGNALS, previous, strict=True):
                signal.signal(number, handler)

    def _stop(self) -> None:
        if self._task is None:
            return
        if self.fault is None:
            # Cancelling the map drops its rows, also finished rows behind an unfinished one.
            self._left = self._results.finished()
        self._task.cancel()

    def _on_broken_output(self, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            # A reader that has seen enough, such as head, is no fault worth words.
            self.fault = ""
            # Python would write the rest of its buffers at its end, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            self.fault = f"the output cannot be written: {error.strerror or error}"

    def _close(self) -> None:
        self._progress.update(done=self.written, in_flight=0, failed=self.failures.total())
        self._progress.close()
        try:
            self._output.close()
        except OSError as error:
            if self.fault is None:
                self._on_broken_output(error)
