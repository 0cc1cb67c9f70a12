"""Maps: many documents through one client, without a task per document.

Rules:
- Documents are read lazily. A row is *open* from the reading of its document until the row is
  yielded or put aside. At most ``look_ahead`` rows are open: memory is flat, and reading stops
  while results are not taken.
- One slow row stops nothing, where there is a journal. While somebody waits for a row, and no more
  than half of the open rows are under way, the later half of those that wait for another row is
  put aside: finished rows of a map in order, and rows whose equal is under way. They come back,
  with their answers from the journal, when it is their turn.
- A synchronous iterable is read when results are asked for. An async iterable has a reader task of
  its own.
- After a few milliseconds of reading, or of handing out rows, the event loop has a turn.
- After as long of reading, ready rows are handed out for as long: neither a slow source nor a long
  look-ahead makes rows late.
- An unusable document is a row with an error; the map goes on.
- A map that is left, by ``aclose()``, by the end of ``async with`` or by a ``break`` that drops the
  map, cancels its open calls.
  So nothing but the user holds a map: rows and reader have weak references.
- While somebody waits for a row, the runner holds the map: an event loop knows tasks only weakly,
  and the waiting task may have no other holder.
- Rows whose model is refused, while those of others are answered, take no part of the look-ahead,
  up to 65,536 of them: the others are read and answered meanwhile.
- With a journal a row that has ended is finished, and can be taken, once the row is committed.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from contextvars import Context, copy_context
from copy import deepcopy
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from batchclient._core.histograms import Histogram
from batchclient._core.messages import Request
from batchclient._maps.aside import pack, unpack
from batchclient._maps.kinds import Kinds
from batchclient._maps.occurrences import Occurrences
from batchclient._maps.progress import Counts
from batchclient._maps.reader import SLICE_S, read_documents, stop_reading
from batchclient._maps.row import Finish, Row, leave, own_id_of
from batchclient._maps.turns import LongestFirst, TurnRow
from batchclient._shell.runner import Runner
from batchclient.errors import AnswerInvalid, CallAborted, ClientClosed, ConfigError
from batchclient.health import Health, is_cut_off
from batchclient.types import AnswerT, MapProgress, MapResult

if TYPE_CHECKING:
    from batchclient._core.requests import Budget
    from batchclient._maps.fail_if import FailIf
    from batchclient._maps.finish_by import FinishBy, Pace
    from batchclient._maps.journaled import Journaled
    from batchclient._maps.progress import Ticker
    from batchclient._maps.repairs import Repairs
    from batchclient.journal.rows import Record

__all__ = ["Finish", "Map", "Row", "RowStream", "map_of"]

_BACK_AT_ONCE = 512
"""Rows that come back from aside together, at most."""

_MOST_HELD_BACK = 65_536
"""Rows that wait for a refused model beside the look-ahead: 2 KB each, and their texts twice."""

MakeRequest = Callable[[Any, Row, Runner], Request]


class RowStream(AsyncIterator[MapResult[AnswerT]]):
    """The rows of ``stream_map`` or ``run``, as an async iterator and an async context manager.

    Leaving it, by ``aclose()``, the end of ``async with`` or a ``break`` that drops it, cancels
    what is under way.
    """

    __slots__ = ("__weakref__", "_rows")

    def __init__(self, rows: Map[AnswerT]) -> None:
        self._rows = rows

    def __repr__(self) -> str:
        return f"<RowStream{repr(self._rows)[4:]}"

    def __aiter__(self) -> RowStream[AnswerT]:
        return self

    def __anext__(self) -> Coroutine[Any, Any, MapResult[AnswerT]]:
        return self._rows.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def health(self) -> Mapping[Health, int]:
        """How many answers so far are of each health; as ``MapResults`` has them at the end."""
        return self._rows.health

    @property
    def counts(self) -> MapProgress:
        """How far it is now; as ``progress`` is told."""
        return self._rows.progress()

    async def aclose(self) -> None:
        """Cancel every open call; wait for the journal's last commit. Safe to call twice."""
        await self._rows.aclose()


def map_of(rows: RowStream[AnswerT], id_column: str | None = None) -> Map[AnswerT]:
    """Return what is behind, which counts its rows by kind from now on: for the commands.

    ``id_column`` is the field that has the rows' ids, if that is another than ``id``.
    """
    made = rows._rows
    made.id_column = id_column
    made.kinds = made.kinds or Kinds()
    return made


class Map(AsyncIterator[MapResult[AnswerT]]):
    """The rows of one map, behind a ``RowStream``."""

    def __init__(
        self,
        documents: Iterable[Any] | AsyncIterable[Any],
        make_request: MakeRequest,
        start: Callable[[], Runner],
        look_ahead: Callable[[], int],
        *,
        ordered: bool,
        prepare: Callable[[Runner], Awaitable[None]] | None = None,
        journaled: Journaled | None = None,
        ticker: Ticker | None = None,
        repairs: Repairs,
        fail_if: FailIf | None = None,
        finish_by: FinishBy | None = None,
        longest_first: bool = False,
        slice_s: float = SLICE_S,
    ) -> None:
        self._slice_s = slice_s
        self._longest_first = longest_first
        self._turns: LongestFirst | None = None
        """Where rows wait that do not go in the order of the input."""
        self._prepare = prepare
        """Awaited before the first document is read."""
        self._prepared_for: Runner | None = None
        self._source: Iterable[Any] | AsyncIterable[Any] | None = documents
        self._make_request = make_request
        self._start = start
        self._look_ahead = look_ahead
        """How many rows may be open now: endpoints come and go, and limits change."""
        self._ordered = ordered
        self._iterator: Iterator[Any] | None = None
        self._stop_reader: Callable[[], object] | None = None
        self._runner: Runner | None = None
        self.caller: Context | None = None
        """The variables of whoever has begun the map: a row may be sent from another task."""
        self._read = 0
        self._yielded = 0
        self._began_at = 0.0
        self._turn_ends = math.inf
        self._may_read = True
        """Whether documents are read before a row that is ready is handed out."""
        self._exhausted = False
        self.source_error: Exception | None = None
        """The error that ended the reading of documents before their end."""
        self._rows: dict[int, Row] = {}
        """The open rows, by their numbers."""
        self._ready: deque[int] = deque()
        """Numbers of finished rows, in the order of their ends; of a map in order empty."""
        self._errors: dict[int, tuple[Exception, int]] = {}
        """Of rows that are aside, and whose equals have failed since: the error, and its attempts."""
        self._is_coming_back = False
        self._documents: dict[int, Any] | None = None
        """Of rows that are aside, where the caller has the documents; else they go aside, too."""
        self.on_finished: Callable[[Any], object] = lambda _: None
        """Told each document whose row has ended, or is put aside: its request is gone."""
        if isinstance(documents, (list, tuple)):
            self.keep_documents()
        self._something: anyio.Event | None = None
        self._room: anyio.Event | None = None
        self._seen = Occurrences()
        self._closed = False
        self._fault: Exception | None = None
        """Why the map ends early."""
        self._weakly = weakref.ref(self)
        self._journaled = journaled
        self._ticker = ticker
        self.repairs = repairs
        self._fail_if = fail_if
        self.finish_by = finish_by
        """Keeps the time by which the map has to end, if there is one."""
        self._counts = Counts()
        self.id_column: str | None = None
        self.budget: Budget | None = None
        """What it may still spend at servers with a price; ``None``: there is no bound."""
        self.kinds: Kinds | None = None
        """The rows handed out, where somebody wants to know of what kinds they are."""
        if journaled is not None:
            journaled.owner = self._weakly
        if ticker is not None:
            ticker.owner = self._weakly

    def __repr__(self) -> str:
        return f"<Map: {self._read} read, {self._yielded} yielded>"

    def __aiter__(self) -> Map[AnswerT]:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __anext__(self) -> MapResult[AnswerT]:
        row = await self.next_or(lambda: False)
        assert row is not None, "nothing is enough but a row"
        return row

    async def next_or(self, is_enough: Callable[[], bool]) -> MapResult[AnswerT] | None:
        """Return the next row; or ``None``, if the function says that somebody has waited enough.

        It is asked whenever something has happened to the map.

        Raises:
            StopAsyncIteration: there is no further row.
        """
        if self._closed:
            raise StopAsyncIteration
        try:
            return await self._next(is_enough)
        except GeneratorExit:
            # Nothing can be awaited any more.
            self._close()
            raise
        except BaseException:
            await self.aclose()
            raise

    def keep_documents(self) -> None:
        """Do not write documents aside: the caller has them."""
        self._documents = {}

    def finished(self) -> list[MapResult[AnswerT]]:
        """Hand out the finished rows that a map had not yielded, in input order; none that is aside."""
        return [self._handed_out(row) for _, row in sorted(self._rows.items()) if row.finished]

    async def aclose(self) -> None:
        """Cancel every open call; wait for the journal's last commit. Safe to call twice."""
        self._close()
        if self._journaled is not None:
            await self._journaled.closed()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._ticker is not None:
            self._ticker.stop()
        if self.finish_by is not None:
            self.finish_by.stop()
        if self._journaled is not None:
            self._journaled.close()
        if self._runner is not None:
            leave(self._runner, self._open_requests(), self._stop_tasks())
        # They can be asked for, with a journal after its last commit.
        self._rows = {index: row for index, row in self._rows.items() if row.ended}
        self._ready.clear()
        self._source = self._iterator = self.caller = None
        if self._something is not None:
            # Somebody may still wait for a row.
            self._something.set()

    def __del__(self) -> None:
        runner = self._runner
        if self._closed:
            return
        if self._journaled is not None:
            self._journaled.leave()
        if runner is None or runner.ended:
            return
        # This may run anywhere, within a step of the runner too. The loop may have gone.
        with suppress(RuntimeError):
            runner.backend.call_soon_threadsafe(partial(leave, runner, self._open_requests(), self._stop_tasks()))

    def _open_requests(self) -> list[Request]:
        # Looked at once: the finalizer may run in another thread than the one where rows finish.
        rows = self._rows.values()
        return [each for row in rows if (request := row.request) is not None for each in (request, *row.others)]

    def _may_join_a_group(self) -> int:
        """How many rows may be under way, of which a group of the journal is a part."""
        return self._look_ahead()

    def _waits_for_the_disk(self) -> bool:
        """Whether rows that have ended are still to be handed out before a fault is raised."""
        return False

    def _stop_tasks(self) -> Callable[[], object] | None:
        """Return what ends the map's tasks, and does not hold the map."""
        return self._stop_reader if self._turns is None else partial(_stop_both, self._stop_reader, self._turns)

    def hasten(self) -> None:
        """Send all open rows: the client takes no further calls."""
        if self._turns is not None:
            self._turns.let_go()

    @property
    def room(self) -> int:
        """How many documents may be read now."""
        if self._journaled is not None and self._journaled.holds_back:
            return 0
        return self._look_ahead() + self._held_back - len(self._rows)

    @property
    def _held_back(self) -> int:
        """How many rows, of the client's maps, wait for a refused model while others are answered."""
        return 0 if self._runner is None else min(_MOST_HELD_BACK, self._runner.core.held_back)

    @property
    def counts(self) -> Counts:
        """The rows read and finished so far."""
        counts, journaled = self._counts, self._journaled
        counts.read, counts.invalid = self._read, self.repairs.invalid
        counts.damaged = 0 if journaled is None else journaled.damaged
        return counts

    @property
    def health(self) -> Mapping[Health, int]:
        """How many answers so far are of each health; as ``MapResults`` has them at the end."""
        return self._counts.health.copy()

    @property
    def commits(self) -> Histogram | None:
        """Times of the journal's commits, seconds; ``None``: there is no journal."""
        return None if self._journaled is None else self._journaled.commits.snapshot()

    def progress(self) -> MapProgress:
        """How far the map is."""
        rows, runner = self.counts, self._runner
        pace = self.pace
        return MapProgress(
            read=rows.read,
            answered=rows.answered,
            failed=rows.failed,
            reused=rows.reused,
            damaged=rows.damaged,
            in_flight=0 if runner is None else runner.core.statistics().in_flight,
            limit=0 if runner is None else runner.core.total_limit,
            prompt_tokens=rows.prompt_tokens,
            completion_tokens=rows.completion_tokens,
            seconds=0.0 if runner is None else runner.backend.now() - self._began_at,
            invalid=rows.invalid,
            is_guest=None if pace is None else pace.is_guest,
            ends_s=None if pace is None or pace.ends is None else (pace.ends.low, pace.ends.high),
        )

    @property
    def pace(self) -> Pace | None:
        """How the map goes on, where it has to end in time."""
        return None if self.finish_by is None else self.finish_by.pace

    @property
    def all_ended(self) -> bool:
        """Whether every row of the input has its answer or its error."""
        counts = self._counts
        return self._exhausted and counts.answered + counts.failed + counts.reused == self._read

    @property
    def is_under_way(self) -> bool:
        """Whether some rows have not ended, of a map that nobody has closed."""
        return not (self._closed or self.all_ended)

    def take(self) -> MapResult[AnswerT] | None:
        """Return the next row, if it has finished."""
        row = self._take()
        if row is None:
            return None
        self._yielded += 1
        if self._room is not None:
            self._room.set()
        return self._handed_out(row)

    def _handed_out(self, row: Row) -> MapResult[AnswerT]:
        result: MapResult[AnswerT] = row.result()
        if self._fail_if is not None:
            self._fail_if.add(result)
        if self.kinds is not None:
            self.kinds.add(result)
        return result

    async def prepare(self) -> None:
        """Wait until a row can be sent: until the model is known, where the client was given none.

        Raises:
            ConfigError: the servers name no model, or several.
            BatchClientError: the servers cannot be asked.
        """
        if self._prepare is not None:
            runner = self._start()
            await self._prepare(runner)
            # Several may wait for the first row.
            self._prepare = None
            self._prepared_for = runner

    async def begin(self) -> None:
        """Begin to read, without waiting for a row."""
        await self.prepare()
        if self._runner is None and not self._closed:
            if self._journaled is not None:
                await self._journaled.open(self._runner_of_now(), self._may_join_a_group())
            # Several may have waited.
            self._begin()

    async def _next(self, is_enough: Callable[[], bool]) -> MapResult[AnswerT] | None:
        if self._runner is None:
            await self.begin()
        else:
            self._runner.check_process()
        while not self._closed:
            if self._fail_if is not None and self._fail_if.early is not None and not self.all_ended:
                raise self._fail_if.early
            assert self._runner is not None, "a map that has begun has a runner"
            clock = self._runner.backend.now
            if clock() >= self._turn_ends:
                await anyio.lowlevel.checkpoint()
                self._turn_ends = clock() + self._slice_s
                self._may_read = True
                continue
            if self._iterator is not None and self._may_read and self._read_slice():
                await anyio.lowlevel.checkpoint()
                self._turn_ends = clock() + self._slice_s
                self._may_read = False
            result = self.take()
            if result is not None:
                return result
            if self._make_room():
                continue
            if self._exhausted and self._read == self._yielded:
                if self.source_error is not None:
                    raise self.source_error
                if self._fail_if is not None and (broken := self._fail_if.at_end()) is not None:
                    raise broken
                raise StopAsyncIteration
            if not self._may_read:
                self._may_read = True
                continue
            if self._fault is not None and not self._waits_for_the_disk():
                raise self._fault
            if self._journaled is not None:
                self._journaled.nudge()
            if is_enough():
                return None
            if self._something is None or self._something.is_set():
                self._something = anyio.Event()
            waited_for = self._runner.waited_for
            waited_for.append(self)
            try:
                await self._something.wait()
            finally:
                waited_for.remove(self)
            self._turn_ends = clock() + self._slice_s
        raise StopAsyncIteration

    def _runner_of_now(self) -> Runner:
        """Return the runner that rows are sent by.

        The one for which the map was prepared serves a map of before a drain, as it serves calls of
        before that wait for their model; ``_start`` would refuse it.
        """
        runner = self._prepared_for
        if runner is None or runner.ended or not runner.backend.is_current():
            return self._start()
        return runner

    def _begin(self) -> None:
        if self._runner is not None or self._closed:
            return
        runner = self._runner_of_now()
        self.caller = copy_context()
        source, self._source = self._source, None
        if isinstance(source, AsyncIterable):
            self._stop_reader = runner.start_reader(
                partial(read_documents, source, self._weakly, runner.backend.now), partial(stop_reading, self._weakly)
            )
        else:
            assert source is not None
            self._iterator = iter(source)
        self._runner, self._began_at = runner, runner.backend.now()
        if self._longest_first:
            self._turns = LongestFirst(runner, self._look_ahead)
        runner.maps.add(self)
        if self._ticker is not None:
            self._ticker.start(runner)
        if self.finish_by is not None:
            self.finish_by.owner = self._weakly
            self.finish_by.start(runner)

    def _take(self) -> Row | None:
        if self._ordered:
            index = self._yielded
        elif self._ready:
            index = self._ready[0]
        else:
            return None
        row = self._rows.get(index)
        if row is None and index < self._read:
            self._call_back()
        if row is None or not row.finished:
            return None
        if not self._ordered:
            self._ready.popleft()
        return self._rows.pop(index)

    def _on_ended(self, row: Row) -> None:
        if self._turns is not None and isinstance(row.error, (CallAborted, ClientClosed)):
            # What ends the calls that were sent ends those that wait for their turns.
            for held in self._turns.clear():
                held.set_exception(type(row.error)(row.error.message))
        # A document that makes no request has no identity: nothing is sent, and nothing is kept.
        if self._journaled is not None and hasattr(row, "key"):
            self._journaled.on_ended(row)
        else:
            self._hand_out(row)

    def _ask_again(self, row: Row, error: AnswerInvalid) -> bool:
        """Take in an answer that does not fit; return whether its call goes again."""
        runner = self._runner
        assert runner is not None, "a row with an answer was sent"
        request = self.repairs.again(row, error, runner)
        if request is None:
            return False
        self._go_on(row, request)
        return True

    def _repair(self, row: Row, outcome: Any) -> Any:
        """Take in an answer or an error; return what the row ends with, ``None`` if it goes on."""
        assert self._runner is not None, "a row with an outcome was sent"
        after = self.repairs.after(row, outcome, self._runner)
        if not isinstance(after, Request):
            return after
        if self._journaled is not None and row.cut is not None and not isinstance(outcome, Exception):
            self._journaled.note(row, row.cut.answer)
        self._go_on(row, after)
        return None

    def _resume(self, row: Row, kept: Record) -> bool:
        """Go on with a row that a journal has cut off; return whether there is a way."""
        assert self._runner is not None, "a row that is looked up is read"
        is_whole = kept.health != "truncated" and (kept.completion is None or not is_cut_off(kept.completion))
        if not self.repairs.goes_on or is_whole:
            return False
        request = self.repairs.resume(row, kept.completion, self._runner)
        if request is not None:
            row.attempts = kept.attempts
            self._go_on(row, request)
        return request is not None

    def _go_on(self, row: Row, request: Request) -> None:
        assert self._runner is not None, "a row that goes on was sent"
        row.request = request
        # Not within the step that brought the answer.
        self._runner.backend.call_soon(partial(self._submit, row, request))

    def _submit(self, row: Row, request: Request) -> None:
        runner = self._runner
        if runner is not None and row.request is request and not self._closed:
            for each in (request, *row.others):
                runner.submit(each, may_wait=True)

    def _hand_out(self, row: Row) -> None:
        row.finished = True
        self._count(row.index, row, reused=row.reused)
        self.on_finished(row.document)

    def _hand_out_equal(self, index: int, row: Row) -> None:
        """Hand out a row that has waited for an equal one, which has ended."""
        equal = self._rows.get(index)
        if equal is not None:
            # No two callers share an answer.
            equal.reuse(deepcopy(row.answer), row.error, row.attempts)
            equal.finished = True
            self.on_finished(equal.document)
        elif row.error is not None:
            self._errors[index] = row.error, row.attempts
        self._count(index, row, reused=True)

    def _count(self, index: int, row: Row, *, reused: bool) -> None:
        self._counts.add(row, reused=reused)
        if self.finish_by is not None:
            self.finish_by.end(index, row, reused=reused)
        self._announce(index)

    def _announce(self, index: int) -> None:
        """Let a row be taken."""
        if self._closed:
            return
        if not self._ordered:
            self._ready.append(index)
        if self._something is not None:
            self._something.set()

    def _wake(self) -> None:
        """Let every waiter look again."""
        if self._room is not None:
            self._room.set()
        if self._something is not None:
            self._something.set()

    def _fail(self, error: Exception) -> None:
        """End the map once the ready rows are taken."""
        self._fault = error
        self._wake()

    # Aside ---------------------------------------------------------------------------------------------------------

    def _make_room(self) -> bool:
        """Put rows aside that wait for an earlier one, if too few are under way; return whether one was."""
        journaled = self._journaled
        if journaled is None or self._exhausted or self.room > 0 or journaled.holds_back:
            return False
        if 2 * (journaled.under_way - self._held_back) > self._look_ahead():
            return False
        waiting = sorted(index for index, row in self._rows.items() if (row.finished or row.waits) and not row.stays)
        gone: list[tuple[Row, bytes]] = []
        for index in waiting[len(waiting) // 2 :]:
            row = self._rows[index]
            packed = pack(row, keeps_document=self._documents is None)
            if packed is None:
                row.stays = True
                continue
            if self._documents is not None:
                self._documents[index] = row.document
            if not row.finished:
                row.request, row.others = None, ()  # it holds its row
                self.on_finished(row.document)
            del self._rows[index]
            gone.append((row, packed))
        if gone:
            journaled.put_aside(gone)
            if self._room is not None:
                self._room.set()
        return bool(gone)

    def _call_back(self) -> None:
        """Let the next rows come back that were put aside, and have finished."""
        if self._is_coming_back or self._closed:
            return
        assert self._journaled is not None, "without a journal no row is aside"
        # In order, a row that waits for an equal one stands behind it.
        turns = range(self._yielded, self._read) if self._ordered else self._ready
        most = min(_BACK_AT_ONCE, self._look_ahead() // 2 + 1)
        numbers = list(takewhile(lambda index: index not in self._rows, islice(turns, most)))
        self._is_coming_back = True
        self._journaled.call_back(numbers)

    def _come_back(self, rows: list[tuple[int, bytes, Record | None]]) -> None:
        """Take rows back: the number of each, what is left of it, and its record."""
        assert self._journaled is not None, "without a journal no row is aside"
        documents = self._documents
        self._is_coming_back = False
        for index, packed, kept in rows:
            if self._closed:
                return
            row = unpack(packed, partial(self._make_row, index))
            if documents is not None:
                row.document = documents.pop(index)
            if index in self._errors:
                row.error, row.attempts = self._errors.pop(index)
            elif row.error is None:
                self._journaled.answer(row, kept)
            row.finished = True
            self._rows[index] = row
        self._wake()

    def _make_row(self, index: int, document: Any) -> Row:
        if self._turns is not None:
            return TurnRow(self._weakly, index, document, self._turns)
        return Row(self._weakly, index, document)

    # Reading -------------------------------------------------------------------------------------------------------

    def _read_slice(self) -> bool:
        """Read for a slice of time; return whether the time was up first.

        Reading ends earlier where the look-ahead is full or the source is empty.
        """
        assert self._iterator is not None and self._runner is not None
        room = self.room
        if self._exhausted or room <= 0:
            return False
        if self._runner.ended:
            self._on_exhausted(ClientClosed("the client was closed before all documents were read"))
            return False
        now = self._runner.backend.now
        until = now() + self._slice_s
        while room > 0:
            try:
                document = next(self._iterator)
            except StopIteration:
                self._exhausted = True
                return False
            except Exception as error:  # the user's iterable: what was read before is not lost
                self._exhausted = True
                self.source_error = error
                return False
            self._open(document)
            if now() > until:
                return True
            room -= 1
            if not room:
                room = self.room  # what was read may wait for a refused model
        return False

    def _wait_for_room(self) -> anyio.Event | None:
        """Return the event set when another document may be read; ``None``: there is room now."""
        if self.room > 0:
            return None
        if self._something is not None:
            # Whoever waits for a row makes room.
            self._something.set()
        self._room = anyio.Event()
        return self._room

    def _on_exhausted(self, error: Exception | None) -> None:
        if self._exhausted:
            return
        self.source_error = error
        self._exhausted = True
        if self._something is not None:
            self._something.set()

    def _open(self, document: Any) -> None:
        """Make a row of a document and submit the row's call."""
        runner = self._runner
        assert runner is not None
        row = self._make_row(self._read, document)
        self._rows[row.index] = row
        self._read += 1
        try:
            self._prepare_row(row, runner)
        except Exception as error:  # also of the user's callable
            if isinstance(error, ConfigError):
                placed = type(error)(f"document {row.index}: {error.message}", field=error.field)
                placed.retryable = error.retryable
                error = placed
            row.id = own_id_of(document, self.id_column) or f"row-{row.index}"
            row.set_exception(error)
            return
        except BaseException:
            # It ends the map. A row that never finishes would keep its reader waiting.
            del self._rows[row.index]
            self._read -= 1
            raise
        self._begin_row(row, runner)

    def _prepare_row(self, row: Row, runner: Runner) -> None:
        """Make the row's request, with the user's code. An error is the row's."""
        row.request = self._make_request(row.document, row, runner)

    def _begin_row(self, row: Row, runner: Runner) -> None:
        """Send a row, or ask the journal for it."""
        request = row.request
        assert request is not None, "the row was prepared"
        if self.finish_by is not None:
            self.finish_by.begin(row)
        row.own_id = own_id_of(row.document, self.id_column)
        if self._journaled is not None or row.own_id is None:
            row.key, row.n = self._identify(row, request)
        # Equal inputs have equal ids.
        row.id = row.own_id or f"{row.key[:8].hex()}-{row.n}"
        self._enter(row, request, runner)

    def _enter(self, row: Row, request: Request, runner: Runner) -> None:
        if self._journaled is None:
            row.send(runner, request)
        else:
            self._journaled.enter(row, request)

    def _identify(self, row: Row, request: Request) -> tuple[bytes, int]:
        """Return a hash of prompt and parameters, and how many documents before have the same."""
        digest = hashlib.sha256(request.shape.answer_key)
        digest.update(request.prompt)
        for other in row.others:
            digest.update(other.prompt)
        digest.update(row.identity)
        key = digest.digest()[:16]
        return key, self._seen.number(int.from_bytes(key[:8], "big"))


def _stop_both(stop_reader: Callable[[], object] | None, turns: LongestFirst) -> None:
    """End the reading of a map that is left; no row that waits for its turn is sent."""
    if stop_reader is not None:
        stop_reader()
    turns.clear()
