"""``run``: a function of each row, whose calls are remembered in a journal.

Rules:
- Each row has a task, in which the function runs from its top. Nothing of the function's own is
  stored: a later run calls it again, and answers its calls from the journal.
- A call that the journal has is not sent. One that was added or changed is.
- What ends with the client, or with the iterator, is nobody's result.
- The map is known weakly, as by any rows: an iterator that is dropped ends its tasks.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import weakref
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from batchclient._calls.call import Call
from batchclient._client.engine import Engine
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient._maps.arrow import ArrowTable, documents_of
from batchclient._maps.functions import FunctionCall, FunctionRow, FunctionTurns
from batchclient._maps.journaled import Journaled
from batchclient._maps.progress import Ticker
from batchclient._maps.repair import Repair
from batchclient._maps.repairs import Repairs
from batchclient._maps.row import Row
from batchclient._shell.callbacks import ends_task
from batchclient._shell.runner import Runner
from batchclient.errors import CallAborted, ClientClosed, ConfigError
from batchclient.maps import Finish, Map
from batchclient.types import NOT_GIVEN, MapProgress, Ranking

if TYPE_CHECKING:
    from batchclient.journal import HeldJournal, Journal

__all__ = ["RowCalling", "rows_of"]

_C = TypeVar("_C")
_D = TypeVar("_D")
_T = TypeVar("_T")
_LEAST_OPEN = 64
_LIMITS_OPEN = 4
"""Open rows for each call that may be in flight."""
_ENDED = "the rows of this function are not asked for any more"


class RowCalling:
    """The way of the calls of one row: what ``RowClient`` has behind its methods."""

    __slots__ = ("_engine", "_row", "_rows")

    def __init__(self, engine: Engine, row: FunctionRow, rows: weakref.ref[_FunctionMap[Any]]) -> None:
        self._engine = engine
        self._row = row
        self._rows = rows

    def __repr__(self) -> str:
        return f"<RowCalling of {self.name}>"

    @property
    def name(self) -> str:
        """The row in words."""
        return f"row {self._row.index}"

    async def call(self, call: Call) -> Any:
        """Make a call for the row, or take its answer from the journal."""
        engine, has_model = self._engine, call.response_model is not None
        call, finish = engine.in_form(call)
        if has_model and finish is not None:
            finish = engine.callbacks.guard("response_model", finish)
        if call.kind is Kind.RERANK and not call.item[1]:
            return Ranking((), ())
        runner = self._open_rows().runner
        if call.model is None:
            # A server that has come back with another model is asked for its name.
            await engine.find_model(runner)
        made = self._begin(runner, call, finish)
        try:
            return await runner.backend.wait(made.told)
        except BaseException:
            self._leave(made, runner)
            raise

    def _leave(self, call: FunctionCall, runner: Runner) -> None:
        # Not in a coroutine's own variables, which the traceback of a row's error would hold.
        rows = self._rows()
        if call.leave(runner) and rows is not None:
            rows.let_go()

    def tell(self, tell: Callable[[_FunctionMap[Any]], object]) -> None:
        """Tell the rows something, if they are still there."""
        rows = self._rows()
        if rows is not None:
            tell(rows)

    def _open_rows(self) -> _FunctionMap[Any]:
        rows = self._rows()
        if rows is None or rows.is_closed:
            raise ClientClosed(_ENDED)
        return rows

    def _begin(self, runner: Runner, call: Call, finish: Finish | None) -> FunctionCall:
        """Make a call's request, and send it or ask the journal for it; nothing is awaited."""
        # The map is in no variable here: the traceback of a row's error would hold it.
        row, calls = self._row, self._engine.calls
        made = FunctionCall(self._rows, row, self._open_rows().turns, runner.backend.waiter())
        made.finish = finish
        make = partial(calls.make, now=runner.backend.now(), from_grant=True)
        if call.kind is Kind.RERANK:
            from batchclient._maps.ranking import requests_of  # few functions rank

            request, *others = requests_of(call, made, runner, make)
            made.others = tuple(others)
            # How servers take pairs decides no answer.
            asked = [calls.check(call._replace(kind=Kind.SCORE)).answer_key, b"rerank", json.dumps(call.item).encode()]
        else:
            request = make(call, made)
            asked = [request.shape.answer_key, request.prompt]
            made.ask = self._engine.way_of_row(call)
        made.request = request
        made.key, made.n = row.key_of(*asked)
        row.asked += 1
        self._open_rows().enter(made, request)
        return made


def rows_of(
    engine: Engine,
    make_client: Callable[[Callable[[Call], Awaitable[Any]], str], _C],
    function: Callable[[_D, _C], Awaitable[_T]],
    rows: Iterable[_D] | AsyncIterable[_D] | ArrowTable,
    ordered: bool,  # noqa: FBT001  # the arguments of ``run``, in order
    fail_if: Sequence[str],
    journal: str | os.PathLike[str] | Journal | HeldJournal | None,
    progress: Callable[[MapProgress], object] | None,
) -> Map[_T]:
    """Return the rows of a function.

    Args:
        engine: the client's.
        make_client: makes the client of a row, of the way of its calls and the row's name.
        function, rows, ordered, fail_if, journal, progress: those of ``BatchClient.run``.

    Raises:
        ConfigError: an argument is wrong.
    """
    if not _is_async(function):
        raise ConfigError("function is an `async def` function of a row and a client", field="function")
    documents = documents_of(rows, "rows")
    bounds = None
    if fail_if:
        from batchclient._maps.fail_if import FailIf  # few have bounds

        bounds = FailIf(fail_if, "function")
    journaled = None
    if journal is not None:
        journaled = Journaled(journal, lambda: {"call": "function"}, _again, ordered=ordered)
        if journaled.settings.dedupe:
            message = "dedupe is for maps: equal calls of a function have an answer each"
            raise ConfigError(message, field="journal")
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress is a function, not a {type(progress).__name__}", field="progress")

    async def prepare(runner: Runner) -> None:
        try:
            await engine.find_model(runner, engine.calls.deadline(NOT_GIVEN, runner.backend.now()))
        except ConfigError:
            # The servers have several. Calls may name their own; those that do not, fail.
            return

    return _FunctionMap(
        engine,
        lambda row, calling: function(row, make_client(calling.call, calling.name)),
        documents,
        ordered=ordered,
        prepare=prepare,
        journaled=journaled,
        fail_if=bounds,
        ticker=None if progress is None else Ticker(engine.callbacks.hook("progress", progress)),
    )


def _again(call: Row, answer: Any) -> Any:
    """Make of a journal's answer the function's."""
    return answer if call.finish is None else call.finish(answer)


def _is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # an object may have an ``async def __call__``
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class _FunctionMap(Map[_T]):
    """The rows of a function, as an async iterator."""

    def __init__(
        self,
        engine: Engine,
        function: Callable[[Any, RowCalling], Awaitable[_T]],
        documents: Iterable[Any] | AsyncIterable[Any],
        *,
        ordered: bool,
        **parts: Any,
    ) -> None:
        repairs, own = Repairs(Repair(), _no_request), weakref.ref(self)

        def look_ahead() -> int:
            rows = own()
            return _LEAST_OPEN if rows is None else rows.most_open() + rows.unwritten

        super().__init__(documents, _no_request, engine.start, look_ahead, ordered=ordered, repairs=repairs, **parts)
        self._engine = engine
        self._function = function
        self._tasks: dict[int, Callable[[], bool]] = {}
        """Of each row at work: ends its task, and says whether it had not begun."""
        self._none_left: anyio.Event | None = None
        self.unwritten: int = 0
        """Rows whose functions have ended, and whose answers are not all on the disk."""
        self.turns: FunctionTurns
        self.runner: Runner

    def most_open(self) -> int:
        """How many rows may be at work."""
        return max(_LEAST_OPEN, _LIMITS_OPEN * (0 if self._runner is None else self._runner.core.total_limit))

    @property
    def is_closed(self) -> bool:
        """Whether no more calls are made."""
        return self._closed

    async def aclose(self) -> None:
        """Cancel the functions that are left, and wait for their ends. Safe to call twice."""
        await super().aclose()
        with anyio.CancelScope(shield=True):
            while self._tasks and not self.runner.ended:
                if self._none_left is None or self._none_left.is_set():
                    self._none_left = anyio.Event()
                await self._none_left.wait()

    def enter(self, call: FunctionCall, request: Request) -> None:
        """Send a call, or ask the journal for it."""
        self.turns.open[call] = None
        self._enter(call, request, self.runner)

    def let_go(self) -> None:
        """A function waits no more for a call that was under way."""
        if self._journaled is not None:
            self._journaled.let_go()

    # A row -----------------------------------------------------------------------------------------------------------

    def _make_row(self, index: int, document: Any) -> Row:
        row = FunctionRow(self._weakly, index, document)
        row.is_cut = isinstance(self._fault, ClientClosed)
        return row

    def _begin(self) -> None:
        if self._runner is None and not self._closed:
            self.runner, journaled = self._start(), self._journaled
            self.turns = FunctionTurns(self.runner, lambda: journaled is not None and journaled.holds_back)
        super()._begin()

    def _prepare_row(self, row: Row, runner: Runner) -> None:
        assert isinstance(row, FunctionRow)
        row.identify(self._seen, needs_key=self._journaled is not None)

    def _begin_row(self, row: Row, runner: Runner) -> None:
        assert isinstance(row, FunctionRow)
        calling = RowCalling(self._engine, row, cast("weakref.ref[_FunctionMap[Any]]", self._weakly))
        work = partial(_work, self._function, calling, row)
        on_stop = partial(calling.tell, lambda rows: rows.cut_short("the client was closed before all rows had ended"))
        self._tasks[row.index] = runner.start_reader(work, on_stop, self.caller)

    def _on_ended(self, row: Row) -> None:
        """Take in a call or a row that has its answer or its error."""
        if not isinstance(row, FunctionCall):
            assert isinstance(row, FunctionRow)
            self.unwritten += 1
            if not row.unwritten:
                self._hand_out(row)
            return
        row.of.attempts += row.attempts
        row.of.unwritten += 1
        self._counts.add_answer(row, reused=False)
        if isinstance(row.error, ClientClosed):
            # What a function makes of it is no result.
            self._fail(row.error)
        elif isinstance(row.error, CallAborted):
            for held in self.turns.clear():
                held.set_exception(CallAborted(row.error.message))
        if self._journaled is not None:
            self._journaled.on_ended(row)
        else:
            self._hand_out(row)

    def _hand_out(self, row: Row) -> None:
        """Take in a call that is on the disk, or was found there; hand out its row once that is all."""
        if isinstance(row, FunctionCall):
            call, row = row, row.of
            if call.reused:
                row.kept += 1
                row.attempts += call.attempts
                self._counts.add_answer(call, reused=True)
                call.tell()
            else:
                row.unwritten -= 1
            if not row.ended or row.unwritten or row.finished:
                return
        self.unwritten -= 1
        assert isinstance(row, FunctionRow)
        if not row.is_cut:
            super()._hand_out(row)

    def _count(self, index: int, row: Row, *, reused: bool) -> None:
        self._counts.end_row(row, reused=reused)
        self._announce(index)

    def _make_room(self) -> bool:
        # A row that waits for an earlier one stays where it is.
        return False

    # The end ---------------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ClientClosed):
            for row in self._rows.values():
                row.is_cut = not row.ended  # type: ignore[attr-defined]  # it is a ``FunctionRow``
        super()._fail(error)

    def _wake(self) -> None:
        super()._wake()
        if self._runner is not None:
            self.turns.look_soon()

    def _waits_for_the_disk(self) -> bool:
        rows = [row for row in self._rows.values() if row.ended and not row.finished]
        return bool(rows) and self._journaled is not None and self._journaled.is_writing

    def cut_short(self, why: str) -> None:
        """Rows cannot end: the iterator raises, once those that have ended are taken."""
        if self._fault is None and not self._closed:
            self._fail(ClientClosed(why))
        if self._none_left is not None:
            self._none_left.set()

    def task_ended(self, index: int) -> None:
        """The task of a row is over."""
        self._tasks.pop(index, None)
        if not self._tasks and self._none_left is not None:
            self._none_left.set()

    def _stop_tasks(self) -> Callable[[], object] | None:
        return partial(_stop_all, self._stop_reader, self._tasks, self.turns)

    def _open_requests(self) -> list[Request]:
        # They are left with the functions.
        return []

    def _may_join_a_group(self) -> int:
        # Functions have their answers before the group is written, and go on.
        return sys.maxsize


async def _work(function: Callable[[Any, RowCalling], Awaitable[Any]], calling: RowCalling, row: FunctionRow) -> None:
    """Call the function of a row; what it returns or raises is the row's."""
    try:
        row.end(await function(row.document, calling), None)
    except Exception as error:
        row.end(None, error)
    except BaseException as error:
        if not ends_task(error):
            # Nobody is cancelled: it is an error like any other.
            raised = RuntimeError(f"the function raised {type(error).__name__}")
            raised.__cause__ = error
            row.end(None, raised)
            return
        calling.tell(lambda rows: rows.cut_short("the function of a row was cancelled, or ended the program"))
        raise
    finally:
        calling.tell(lambda rows: rows.task_ended(row.index))


def _stop_all(
    stop_reader: Callable[[], object] | None, tasks: dict[int, Callable[[], bool]], turns: FunctionTurns
) -> None:
    """End the tasks and the calls of an iterator that is left."""
    if stop_reader is not None:
        stop_reader()
    for index, cancel in list(tasks.items()):
        if cancel():
            tasks.pop(index, None)
    turns.end(ClientClosed(_ENDED))


def _no_request(*_: Any) -> Any:
    raise NotImplementedError("a function makes its own calls")
