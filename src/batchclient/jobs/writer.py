"""Rows to an output, in a thread: no slow disk and no slow reader holds up the event loop.

Rules:
- The queue is bounded, in rows and in bytes. Whoever puts rows waits for ``room``; a map takes no
  new rows meanwhile, and so no row's deadline runs while the row waits for a reader.
- Rows travel to the thread together: 256 of them, or those of 50 ms. The thread writes them at
  once and without a buffer, so ``tail -f`` shows a row within a second.
- An error ends the writing. A file then ends with its last whole row. A full disk is an error once
  the patience is over: until then the bytes are tried again every two seconds.
- ``mark`` asks how far the file is on the disk: its size and its hash, at that place of the queue.
- Whoever is in a hurry does not wait for a reader that takes nothing for half a second. A disk is
  waited for.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import queue
import select
import stat
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from batchclient.jobs.output import Output, reason_of, sync

try:
    import fcntl
    import termios
except ImportError:  # a system without them
    fcntl = termios = None  # type: ignore[assignment]

__all__ = ["Writer"]

_MOST_ROWS = 1024
_MOST_BYTES = 16 * 1024 * 1024
_TOGETHER_ROWS = 256
_TOGETHER_BYTES = 1024 * 1024
_LINGER_S = 0.05
_PIECE_BYTES = 64 * 1024
"""Bytes of one write into a pipe: as many as a pipe holds, so that progress is seen."""
_STALL_S = 0.5
"""A reader that takes nothing for so long is given up by whoever is in a hurry, seconds."""
_LOOK_S = 0.05
_RETRY_S = 2.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Writer:
    """Writes rows to an output, in a thread of its own.

    Args:
        output: opened by the thread.
        most_rows: rows in the queue, at most, before ``is_full``.
        patience_s: how long a full disk is waited for, seconds.
        on_full: told the reason when the disk of a file is full, and ``""`` once there is room.
        retry_s: the pause before a full disk is tried again, seconds.

    Attributes:
        written: rows that the output has taken whole.
        error: why the output takes no more rows, if so.
        is_given_up: whether rows were left unwritten, for a reader that takes none.
    """

    def __init__(
        self,
        output: Output,
        *,
        most_rows: int = _MOST_ROWS,
        patience_s: float = 0.0,
        on_full: Callable[[str], None] | None = None,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._output = output
        self._patience_s = patience_s
        self._on_full = on_full
        self._retry_s = retry_s
        self._hurry = threading.Event()
        self._most_rows = most_rows
        self._loop: asyncio.AbstractEventLoop
        self._work: queue.SimpleQueue[list[bytes] | Callable[[int, str], None] | bool] = queue.SimpleQueue()
        """Rows for the thread, and who asks how far the file is; at last whether they are all."""
        self._together: list[bytes] = []
        self._together_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._put = 0
        self._queued_bytes = 0
        self._changed: asyncio.Event
        self._opened: asyncio.Future[None]
        self._has_ended = False
        self._file = -1
        # Written by the thread alone:
        self._taken = 0
        self._moved_bytes = 0
        self._is_regular = True
        self.written: int = 0
        self.error: OSError | None = None
        self.is_given_up: bool = False

    def __repr__(self) -> str:
        return f"<Writer to {self._output.name}: {self.written} written>"

    async def open(self) -> None:
        """Open the output, in the thread: a pipe may have no reader yet.

        Raises:
            ConfigError: the output cannot be opened.
        """
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._opened = self._loop.create_future()
        # A daemon: a write or an opening that never ends keeps no process alive.
        thread = threading.Thread(target=self._run, daemon=True, name="batchclient-writer")
        thread.start()
        try:
            await self._opened
        except asyncio.CancelledError:
            self._work.put(False)
            if self._output.is_file:
                # An empty file may have been made, and is removed while the output has its owner.
                thread.join(_STALL_S)
            raise

    def put(self, line: bytes) -> None:
        """Queue a row, however full the queue is."""
        if self.error is not None:
            return
        self._put += 1
        self._queued_bytes += len(line)
        self._together.append(line)
        self._together_bytes += len(line)
        if len(self._together) >= _TOGETHER_ROWS or self._together_bytes >= _TOGETHER_BYTES:
            self._hand_over()
        elif self._timer is None:
            self._timer = self._loop.call_later(_LINGER_S, self._hand_over)

    def mark(self, on_marked: Callable[[int, str], None]) -> None:
        """Sync the file behind the rows put so far; told are its size in bytes and its SHA-256."""
        self._hand_over()
        self._work.put(on_marked)

    @property
    def is_full(self) -> bool:
        """Whether the next row should wait for ``room``."""
        return self._put - self._taken >= self._most_rows or self._queued_bytes >= _MOST_BYTES

    async def room(self) -> None:
        """Wait until the queue has room, or the output has failed."""
        while self.is_full and self.error is None:
            self._hand_over()
            self._changed.clear()
            await self._changed.wait()

    async def close(self, *, is_complete: bool, in_a_hurry: Callable[[], bool]) -> None:
        """Write the queued rows, sync and close the output.

        Args:
            is_complete: whether these are all rows, so that the output takes its place.
            in_a_hurry: whether to leave a reader that takes no rows; asked again and again.
        """
        self._hand_over()
        self._work.put(is_complete)
        moved, since = -1, time.monotonic()
        while not self._has_ended:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _LOOK_S)
            except TimeoutError:
                now = time.monotonic()
                if in_a_hurry():
                    self._hurry.set()
                if moved != (moved := self._moved()) or not in_a_hurry() or self._is_regular:
                    since = now
                elif now - since >= _STALL_S:
                    self.is_given_up = True
                    return

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._together:
            self._work.put(self._together)
            self._together, self._together_bytes = [], 0

    def _moved(self) -> int:
        """Return a number that changes whenever the output has taken bytes."""
        waiting = array.array("i", [0])
        if fcntl is not None and not self._is_regular:
            try:
                fcntl.ioctl(self._file, termios.FIONREAD, waiting)
            except OSError:  # a device that does not tell
                return self._moved_bytes
        return self._moved_bytes + (1 << 32) * waiting[0]

    def _on_progress(self, freed_bytes: int) -> None:
        self._queued_bytes -= freed_bytes
        self._changed.set()

    def _on_end(self) -> None:
        self._has_ended = True
        self._changed.set()

    def _on_opened(self, error: Exception | None) -> None:
        if self._opened.done():  # nobody waits any more
            return
        if error is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(error)

    # In the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._file = self._output.open()
            self._is_regular = stat.S_ISREG(os.fstat(self._file).st_mode)
        except Exception as error:  # raised where the opening is awaited
            self._tell(self._on_opened, error)
            return
        self._tell(self._on_opened, None)
        while not isinstance(work := self._work.get(), bool):
            try:
                if callable(work):
                    self._mark(work)
                    continue
                if self.error is None:
                    self._write(work)
            except Exception as error:  # whatever it is, somebody waits for the end
                self.error = OSError(errno.EIO, f"{type(error).__name__}: {error}")
            if callable(work):
                continue
            self._taken += len(work)
            self._tell(self._on_progress, sum(map(len, work)))
        try:
            self._output.close(is_complete=work and self.error is None)
        except OSError as error:
            self.error = self.error or error
        self._tell(self._on_end)

    def _mark(self, on_marked: Callable[[int, str], None]) -> None:
        """Sync the file, and tell how far it is."""
        if self.error is None and self._is_regular:
            try:
                sync(self._file)
                size = os.lseek(self._file, 0, os.SEEK_CUR)
            except OSError as error:
                # After a failed fsync the file is not trusted: the system may have dropped pages.
                self.error = error
                return
            self._tell(on_marked, size, self._output.sha256.hexdigest())

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop has gone, and with it whoever wanted to know
            return

    def _write(self, lines: list[bytes]) -> None:
        """Write lines, or the whole ones that fit."""
        data = memoryview(b"".join(lines))
        size, done, before = len(data), 0, self.written
        ends: list[int] | None = None
        try:
            while done < size:
                piece = data[done:] if self._is_regular else data[done : done + _PIECE_BYTES]
                count = self._write_piece(piece)
                if self._is_regular:
                    self._output.sha256.update(piece[:count])
                done += count
                if done < size:
                    ends = ends or list(accumulate(map(len, lines)))
                    self.written = before + bisect_right(ends, done)
            self.written = before + len(lines)
        except OSError as error:
            ends = ends or list(accumulate(map(len, lines)))
            whole = bisect_right(ends, done)
            self._cut(done - (ends[whole - 1] if whole else 0))
            self.error = error

    def _write_piece(self, piece: memoryview) -> int:
        full_since: float | None = None
        while True:
            try:
                count = os.write(self._file, piece)
            except BlockingIOError:
                # Somebody else has set the pipe not to block.
                select.select([], [self._file], [])
                continue
            except OSError as error:
                if error.errno not in _FULL or not self._is_regular:
                    raise
                now = time.monotonic()
                if full_since is None:
                    full_since = now
                    self._tell_full(reason_of(error))
                if self._hurry.is_set() or now - full_since >= self._patience_s:
                    raise
                self._hurry.wait(self._retry_s)
                continue
            if full_since is not None:
                self._tell_full("")
            self._moved_bytes += count
            return count

    def _tell_full(self, reason: str) -> None:
        if self._on_full is not None and self._patience_s:
            self._tell(self._on_full, reason)

    def _cut(self, partial_bytes: int) -> None:
        """Take the beginning of a row off the end of a file, where nobody else has written."""
        if not partial_bytes or not self._is_regular:
            return
        try:
            end = os.lseek(self._file, 0, os.SEEK_CUR)
            if os.fstat(self._file).st_size == end:
                os.ftruncate(self._file, end - partial_bytes)
        except OSError:
            return
