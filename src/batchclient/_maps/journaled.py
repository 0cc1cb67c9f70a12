"""A map's side of its journal, in the event loop: which rows are sent, when they are handed out.

Rules:
- With a journal that has rows, a row waits for a lookup before it is sent. Lookups go to the
  journal's thread in batches: what one turn has read, 256 rows at most.
- What has ended in a turn of the event loop is written at once: a kill loses no more. Its rows join
  the group, which is synced when it is full, when its first row has waited for 0.2 s, or when no
  open row is left that could join it.
- A row is handed out when its group is on the disk. A row that the client's end cut short is handed
  out at once: nothing is known of it, and it is not written down. So is a row that was never sent,
  because its model was refused for longer than rows wait.
- Rows that fail before the first answer of the run are handed out at once, too, and written down
  with that answer: where all are refused alike, the fault is not the rows'.
- While eight groups wait, no document is read.
- With ``dedupe`` a row whose equal is under way waits until that one is handed out, and takes its
  outcome. It is not under way itself: no group waits for it. Later equal rows are looked up.
- A row that the map puts aside is in the journal's temporary table, whose rows take no memory: what
  is left of it, and by which key its answer is found when it comes back.
- The map is known weakly, as by its rows. The client's end ends the thread.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from batchclient._core.histograms import DURATIONS, Recorder
from batchclient._maps.row import Row
from batchclient.errors import BadRequest, BatchClientError, CallAborted, ClientClosed, JournalFailed
from batchclient.journal import Journal
from batchclient.journal.held import Aside, HeldJournal
from batchclient.journal.rows import ANSWERED, FAILED, Record, Sending, line_of_row
from batchclient.journal.thread import JournalThread
from batchclient.types import Completion

if TYPE_CHECKING:
    from batchclient._core.messages import Request
    from batchclient._shell.backend import Cancellable
    from batchclient._shell.runner import Runner

__all__ = ["Journaled"]

_NOT_KEPT = (ClientClosed, CallAborted)
"""The caller ended the call: nothing is known of the row."""
_LOOKED_UP_AT_ONCE = 256
_GROUP_ROWS = 1024
GROUP_S = 0.2
_MOST_GROUPS = 8
_GROUPS_OPEN = 3
"""A group is a third of the look-ahead at most: rows are under way while it is written."""
_MOST_EARLY = 8192
"""More than are open: where all rows are refused, whoever takes them stops before so many."""
_maps = count()
_CLOSING_S = 30.0
"""How long the end of a map waits for its last group, seconds."""


class _Owner(Protocol):
    def _hand_out(self, row: Any) -> None: ...

    def _hand_out_equal(self, index: int, row: Any) -> None: ...

    def _come_back(self, rows: list[tuple[int, bytes, Record | None]]) -> None: ...

    def _resume(self, row: Any, kept: Record) -> bool: ...

    def _fail(self, error: Exception) -> None: ...

    def _wake(self) -> None: ...


class Journaled:
    """The rows of one map on their way into its journal, or out of it.

    Args:
        journal: the map's argument.
        describe: returns what decides the answers, by name, once the model is known.
        again: makes of a row's kept answer the caller's, such as its ``parsed``.
        ordered: whether rows are handed out in order, and so may come back from aside.

    Attributes:
        owner: a weak reference to the map.
        damaged: lines of the journal that are damaged.
        commits: times of the syncs of groups, seconds.

    Raises:
        ConfigError: ``journal`` is neither a path nor a journal.
    """

    owner: Callable[[], _Owner | None]
    more_ahead = (_GROUPS_OPEN - 1) * _GROUP_ROWS
    """How many rows more than without a journal are to be open, unless the caller says."""

    def __init__(
        self,
        journal: object,
        describe: Callable[[], dict[str, Any]],
        again: Callable[[Row, Any], Any] | None,
        *,
        ordered: bool,
    ) -> None:
        # What is neither a path nor a journal is refused by ``Journal``.
        is_one = isinstance(journal, (Journal, HeldJournal))
        self._given: Journal | HeldJournal = journal if is_one else Journal(journal)  # type: ignore[arg-type, assignment]
        self._describe = describe
        self._again = again
        self._ordered = ordered
        self._number = next(_maps)
        self.commits: Recorder = Recorder(DURATIONS)
        self._held: HeldJournal | None = None
        self._thread: JournalThread | None = None
        self._opened: anyio.Event | None = None
        self._closed: anyio.Event
        self._fault: BatchClientError | None = None
        """Why nothing more can be written."""
        self._runner: Runner
        self._epoch_s: float
        """The Unix time at which the runner's clock was at 0."""
        self._wanted: tuple[str, ...] = ()
        """States of rows that are taken as they are in the journal."""
        self._dedupes = False
        self._waiting: dict[bytes, array[int]] = {}
        """With ``dedupe``, by the key of each row under way: the numbers of its equals."""
        self.under_way: int = 0
        """Open rows that have not ended, and wait for no equal one."""
        self._asked: list[Row] = []
        self._rows: list[Row] = []
        self._at: list[int] = []
        """Which of the group's lines these rows have."""
        self._lines: list[bytes] = []
        """Those that are not written yet."""
        self._places: list[tuple[int, int]] = []
        """Place and size of the group's lines in the file, as the thread writes them."""
        self._written = 0
        """Lines of the group that the thread has been given."""
        self._early: list[bytes] | None = []
        """Lines of rows that failed before the first answer; ``None``: there has been one."""
        self._group_rows = _GROUP_ROWS
        self._writes = False
        """Whether lines are written at the end of this turn."""
        self._timer: Cancellable | None = None
        self._tasks = 0
        """Groups, and rows for aside, that wait for the thread."""

    @property
    def settings(self) -> Journal:
        """The caller's."""
        return self._given if isinstance(self._given, Journal) else self._given.journal

    @property
    def holds_back(self) -> bool:
        """Whether no document is to be read now."""
        return self._tasks >= _MOST_GROUPS or self._fault is not None

    @property
    def is_writing(self) -> bool:
        """Whether rows wait for the disk, and it has not failed."""
        return self._fault is None and (self._tasks > 0 or bool(self._rows))

    @property
    def damaged(self) -> int:
        return 0 if self._held is None else self._held.damaged_count

    async def open(self, runner: Runner, look_ahead: int) -> None:
        """Open the journal, in its thread.

        Raises:
            ConfigError: the journal is in use, another job's, or no journal, or its place is wrong.
            JournalFailed: the disk failed.
        """
        if self._opened is None:
            settings = self.settings
            self._wanted = (ANSWERED,) if settings.retry_failed else (ANSWERED, FAILED)
            self._dedupes = settings.dedupe
            self._opened, self._closed, self._runner = anyio.Event(), anyio.Event(), runner
            self._epoch_s = time.time() - runner.backend.now()
            self._group_rows = max(1, min(_GROUP_ROWS, look_ahead // _GROUPS_OPEN))
            job = {**self._describe(), "settings": settings.settings}
            self._thread = JournalThread(self._given, runner.backend.call_soon_threadsafe, self._give_up)
            self._thread.do(lambda held: held.begin(job), self._on_opened)
            runner.start_reader(self._until_closed, self.close)
        await self._opened.wait()
        if self._fault is not None:
            raise self._fault

    def _on_opened(self, held: HeldJournal) -> None:
        assert self._opened is not None
        self._held = held
        self._opened.set()

    async def _until_closed(self) -> None:
        """Keep the client's end waiting for the last group."""
        try:
            await self._closed.wait()
        finally:
            self.close()
            await self.closed()

    # Rows in ---------------------------------------------------------------------------------------------------------

    def enter(self, row: Row, request: Request) -> None:
        """Send a row, or look it up first; or let it wait for an equal row."""
        is_repeat = self._dedupes and row.n > 0
        if self._dedupes:
            row.n = 0
            if row.key in self._waiting:
                self._waiting[row.key].append(row.index)
                row.waits = True
                return
            self._waiting[row.key] = array("Q")
        self.under_way += 1
        if not is_repeat and (self._held is None or not self._held.rows):
            row.send(self._runner, request)
            return
        self._asked.append(row)
        if len(self._asked) >= _LOOKED_UP_AT_ONCE:
            self._ask()
        elif len(self._asked) == 1:
            self._runner.backend.call_soon(self._ask)

    def _ask(self) -> None:
        rows, self._asked = self._asked, []
        if rows and self._thread is not None:
            wanted = [(row.key, row.n) for row in rows]
            self._thread.do(lambda held: held.find(wanted), partial(self._on_found, rows))
        else:
            self._on_found(rows, [None] * len(rows))

    def _on_found(self, rows: list[Row], found: list[Record | None]) -> None:
        owner = self.owner()
        if owner is None or self._fault is not None:
            return
        for row, kept in zip(rows, found, strict=True):
            request = row.request
            if request is None:
                # The map was closed.
                continue
            if kept is not None and owner._resume(row, kept):
                self._end_early()
            elif kept is not None and kept.state in self._wanted and self._revive(row, kept):
                self.under_way -= 1
                self._runner.reused += 1
                if kept.failure is None:
                    self._end_early()
                self._hand_out(owner, row)
            else:
                row.send(self._runner, request)

    def _revive(self, row: Row, kept: Record) -> bool:
        answer = kept.answer
        try:
            # A validator may be the user's code: the row is asked again.
            given = answer if answer is None or self._again is None else self._again(row, answer)
        except Exception:
            return False
        row.reuse(given, kept.failure, kept.attempts)
        return True

    # Rows out --------------------------------------------------------------------------------------------------------

    def on_ended(self, row: Row) -> None:
        """Take in a row that has its answer or its error."""
        self.under_way -= 1
        owner = self.owner()
        if isinstance(row.error, _NOT_KEPT) or _has_waited_in_vain(row):
            if owner is not None:
                self._hand_out(owner, row)
        elif self._fault is None:
            self._join(row)
        if self.under_way <= 0 and owner is not None:
            # Perhaps nothing more comes.
            owner._wake()

    def let_go(self) -> None:
        """Nobody waits for a row any more that was under way."""
        self.under_way -= 1

    def note(self, row: Row, answer: Any) -> None:
        """Write down an answer with which its row goes on: so does a later run, if this one is killed."""
        if self._fault is None:
            self._end_early()
            self._lines.append(line_of_row(row.key, row.n, row.own_id, answer, None, row.attempts))
            self._flush_soon()

    def _join(self, row: Row) -> None:
        try:
            sending = self._sending_of(row)
            line = line_of_row(row.key, row.n, row.own_id, row.answer, row.error, row.attempts, sending)
        except Exception as error:  # an answer that no server of today gives
            failed = JournalFailed(f"an answer cannot be written to a journal: {type(error).__name__}")
            failed.__cause__ = error
            self._give_up(failed)
            return
        if self._early is not None and row.error is not None:
            # Further ones are not kept: they run again.
            self._early += [line] if len(self._early) < _MOST_EARLY else []
            owner = self.owner()
            if owner is not None:
                self._hand_out(owner, row)
            return
        self._end_early()
        self._rows.append(row)
        self._at.append(self._written + len(self._lines))
        self._lines.append(line)
        if len(self._rows) >= self._group_rows or self._runner.ended:
            # On trio nothing can be started once the client has ended.
            self._flush()
        else:
            self._flush_soon()

    def _sending_of(self, row: Row) -> Sending | None:
        """When a row was sent; ``None``: it has no answer, or one that is made of several."""
        answer, request = row.answer, row.request
        if request is None or row.error is not None or row.cut is not None or row.retries:
            return None
        if not isinstance(answer, Completion) or answer.queued_s is None:
            return None
        sent_at = request.queued_at + answer.queued_s
        seconds = round(self._runner.backend.now() - sent_at, 4)
        return Sending(round(self._epoch_s + sent_at, 4), seconds, request.in_flight, len(request.prompt))

    def _flush_soon(self) -> None:
        backend = self._runner.backend
        if not self._writes:
            self._writes = True
            backend.call_soon(self._write)
        if self._timer is None:
            self._timer = backend.call_at(backend.now() + GROUP_S, self._flush)

    def _write(self) -> None:
        self._writes = False
        lines, self._lines = self._lines, []
        if lines and self._thread is not None:
            self._written += len(lines)
            self._thread.do_alone(partial(_put, lines, self._places))

    def _end_early(self) -> None:
        """There is an answer: the failures before it are failures of their rows."""
        if self._early is not None:
            self._lines, self._early = [*self._early, *self._lines], None

    def nudge(self) -> None:
        """Write the group, if no open row is left that could join it: nothing more is read now."""
        if self.under_way <= 0:
            self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._write()
        rows, self._rows = self._rows, []
        at, self._at = self._at, []
        places, self._places, written, self._written = self._places, [], self._written, 0
        if written and self._thread is not None:
            self._tasks += 1
            self._thread.do(_sync, partial(self._on_committed, rows, at, places))

    def _on_committed(self, rows: list[Row], at: list[int], places: list[tuple[int, int]], seconds: float) -> None:
        if self._ordered:
            for row, each in zip(rows, at, strict=True):
                row.place = places[each]
        self._tasks -= 1
        self.commits.observe(seconds)
        owner = self.owner()
        if owner is not None:
            for row in rows:
                self._hand_out(owner, row)
            owner._wake()

    def _hand_out(self, owner: _Owner, row: Row) -> None:
        """Hand out a row, and its equals that wait."""
        owner._hand_out(row)
        for index in self._waiting.pop(row.key, ()):
            self._runner.reused += 1
            owner._hand_out_equal(index, row)

    def _give_up(self, error: BatchClientError) -> None:
        if self._fault is None:
            self._fault = error
            if self._opened is not None:
                self._opened.set()
            owner = self.owner()
            if owner is not None:
                owner._fail(error)

    # Aside -----------------------------------------------------------------------------------------------------------

    def put_aside(self, rows: list[tuple[Row, bytes]]) -> None:
        """Keep what is left of rows; the answer of one is in the journal, or comes there."""
        assert self._thread is not None, "the map is not closed"
        left: list[Aside] = [
            (row.index, packed, *((None, 0) if row.error is not None else (row.key, row.n)), *(row.place or (None, 0)))
            for row, packed in rows
        ]
        self._tasks += 1
        self._thread.do(lambda held: held.put_aside(self._number, left), self._on_put_aside)

    def _on_put_aside(self, _: None) -> None:
        self._tasks -= 1
        owner = self.owner()
        if owner is not None:
            owner._wake()

    def call_back(self, indices: list[int]) -> None:
        """Let rows come back that were put aside."""
        if self._thread is not None:
            self._thread.do(lambda held: held.take_back(self._number, indices), partial(self._on_back, indices))

    def _on_back(self, indices: list[int], found: list[tuple[bytes, Record | None]]) -> None:
        owner = self.owner()
        if owner is not None and self._fault is None:
            owner._come_back([(index, *each) for index, each in zip(indices, found, strict=True)])

    def answer(self, row: Row, kept: Record | None) -> None:
        """Give a row that comes back its answer, or the error that its record has."""
        if kept is None:
            self._give_up(JournalFailed(f"row {row.index} of the journal was damaged; the same map asks it again"))
            return
        row.error, row.answer, row.attempts = kept.failure, kept.answer, kept.attempts
        if row.answer is not None and self._again is not None:
            try:
                row.answer = self._again(row, row.answer)
            except Exception as error:  # a validator may be the user's code, and may not say the same twice
                row.answer, row.error = None, error

    # The end ---------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Close the journal from a finalizer, which may run in any thread."""
        if self._thread is not None:
            # The next map waits for the journal.
            self._thread.leave()
            try:
                self._runner.backend.call_soon_threadsafe(self.close)
            except RuntimeError:
                self.close()

    def close(self) -> None:
        """Write what has ended, and close the journal, in its thread. Safe to call twice."""
        self._flush()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(self._closed.set)

    async def closed(self) -> None:
        """Wait for the last group, and for the journal to be free."""
        if self._opened is not None:
            with anyio.move_on_after(_CLOSING_S, shield=True):
                await self._closed.wait()


def _has_waited_in_vain(row: Row) -> bool:
    """Whether a row was never sent, since others were refused for a model that was served."""
    return row.attempts == 0 and isinstance(row.error, BadRequest) and row.error.retryable


def _put(lines: Sequence[bytes], places: list[tuple[int, int]], held: HeldJournal) -> None:
    """Write lines, and tell where each of them is, and its size."""
    sizes = [len(line) for line in lines]
    places += zip(accumulate(sizes, initial=held.put(lines)), sizes, strict=False)


def _sync(held: HeldJournal) -> float:
    """Sync a group; return the seconds that it took."""
    began = time.monotonic()
    held.sync()
    return time.monotonic() - began
