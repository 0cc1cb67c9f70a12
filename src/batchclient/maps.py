"""Maps: many documents through one client, without a task per document.

Rules:
- Documents are read lazily. A row is *open* from the reading of its document until the row is
  yielded. At most ``look_ahead`` rows are open: memory is flat, and reading stops while results are
  not taken.
- A synchronous iterable is read when results are asked for. An async iterable has a reader task of
  its own.
- After a few milliseconds of reading, or of handing out rows, the event loop has a turn.
- After as long of reading, ready rows are handed out for as long: neither a slow source nor a long
  look-ahead makes rows late.
- An unusable document is a row with an error; the map goes on.
- A map that is left, by ``aclose()`` or by a ``break`` that drops the map, cancels its open calls.
  So nothing but the user holds a map: rows and reader have weak references.
- While somebody waits for a row, the runner holds the map: an event loop knows tasks only weakly,
  and the waiting task may have no other holder.
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
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from batchclient._core.messages import Request
from batchclient._maps.occurrences import Occurrences
from batchclient._maps.reader import SLICE_S, read_documents, stop_reading
from batchclient._shell.runner import Runner
from batchclient.errors import ClientClosed, ConfigError
from batchclient.types import AnswerT, Completion, MapResult

__all__ = ["Finish", "Map", "Row"]

MakeRequest = Callable[[Any, "Row", Runner], Request]
Finish = Callable[[Completion], Completion]


class Row:
    """One open row; the row is the waiter of its request."""

    __slots__ = ("_map", "answer", "document", "error", "finish", "finished", "id", "index", "request")

    def __init__(self, owner: weakref.ref[Map[Any]], index: int, document: Any) -> None:
        self._map = owner
        self.finish: Finish | None = None
        """Makes the caller's answer of the server's."""
        self.index: int = index
        self.document: Any = document
        self.id: str = ""
        self.request: Request | None = None
        self.answer: Any = None
        self.error: Exception | None = None
        self.finished: bool = False

    def done(self) -> bool:
        return self.finished

    def set_result(self, answer: Any) -> None:
        try:
            self.answer = answer if self.finish is None else self.finish(answer)
        except Exception as error:  # a validator may be the user's code
            self.error = error
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        assert isinstance(error, Exception)
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.finished = True
        # The request holds its row: a circle would wait for the garbage collector.
        self.request = None
        owner = self._map()
        if owner is not None:
            owner._on_finished(self)


class Map(AsyncIterator[MapResult[AnswerT]]):
    """The rows of one map, as an async iterator. See ``BatchClient.stream_map``."""

    def __init__(
        self,
        documents: Iterable[Any] | AsyncIterable[Any],
        make_request: MakeRequest,
        start: Callable[[], Runner],
        look_ahead: Callable[[], int],
        *,
        ordered: bool,
        prepare: Callable[[Runner], Awaitable[None]] | None = None,
        slice_s: float = SLICE_S,
    ) -> None:
        self._slice_s = slice_s
        self._prepare = prepare
        """Awaited before the first document is read."""
        self._source: Iterable[Any] | AsyncIterable[Any] | None = documents
        self._make_request = make_request
        self._start = start
        self._look_ahead = look_ahead
        """How many rows may be open now: endpoints come and go, and limits change."""
        self._ordered = ordered
        self._iterator: Iterator[Any] | None = None
        self._stop_reader: Callable[[], object] | None = None
        self._runner: Runner | None = None
        self._read = 0
        self._yielded = 0
        self._turn_ends = math.inf
        self._may_read = True
        """Whether documents are read before a row that is ready is handed out."""
        self._exhausted = False
        self.source_error: Exception | None = None
        """The error that ended the reading of documents before their end."""
        self._rows: dict[int, Row] = {}
        self._ready: deque[Row] = deque()
        self._something: anyio.Event | None = None
        self._room: anyio.Event | None = None
        self._seen = Occurrences()
        self._closed = False
        self._weakly = weakref.ref(self)

    def __repr__(self) -> str:
        return f"<Map: {self._read} read, {self._yielded} yielded>"

    def __aiter__(self) -> Map[AnswerT]:
        return self

    async def __anext__(self) -> MapResult[AnswerT]:
        if self._closed:
            raise StopAsyncIteration
        try:
            return await self._next()
        except BaseException:
            await self.aclose()
            raise

    def finished(self) -> list[MapResult[AnswerT]]:
        """Return the finished rows not yielded yet, in input order; ``aclose`` drops such rows."""
        rows = [row for _, row in sorted(self._rows.items()) if row.finished]
        return [MapResult(row.id, row.index, row.document, row.answer, row.error) for row in rows]

    async def aclose(self) -> None:
        """Cancel every open call. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._runner is not None:
            _leave(self._runner, self._open_requests(), self._stop_reader)
        self._rows.clear()
        self._ready.clear()
        self._source = self._iterator = None
        if self._something is not None:
            # Somebody may still wait for a row.
            self._something.set()

    def __del__(self) -> None:
        runner = self._runner
        if self._closed or runner is None or runner.ended:
            return
        # This may run anywhere, within a step of the runner too. The loop may have gone.
        with suppress(RuntimeError):
            runner.backend.call_soon_threadsafe(partial(_leave, runner, self._open_requests(), self._stop_reader))

    def _open_requests(self) -> list[Request]:
        # Looked at once: the finalizer may run in another thread than the one where rows finish.
        return [request for row in self._rows.values() if (request := row.request) is not None]

    @property
    def room(self) -> int:
        """How many documents may be read now."""
        return self._look_ahead() - (self._read - self._yielded)

    def take(self) -> MapResult[AnswerT] | None:
        """Return the next row, if it has finished."""
        row = self._take()
        if row is None:
            return None
        self._yielded += 1
        if self._room is not None:
            self._room.set()
        return MapResult(row.id, row.index, row.document, row.answer, row.error)

    async def prepare(self) -> None:
        """Wait until a row can be sent: until the model is known, where the client was given none.

        Raises:
            ConfigError: the servers name no model, or several.
            BatchClientError: the servers cannot be asked.
        """
        if self._prepare is not None:
            await self._prepare(self._start())
            # Several may wait for the first row.
            self._prepare = None

    async def begin(self) -> None:
        """Begin to read, without waiting for a row."""
        await self.prepare()
        if self._runner is None and not self._closed:
            self._begin()

    async def _next(self) -> MapResult[AnswerT]:
        if self._runner is None:
            await self.begin()
        while not self._closed:
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
            if self._exhausted and self._read == self._yielded:
                if self.source_error is not None:
                    raise self.source_error
                raise StopAsyncIteration
            if not self._may_read:
                self._may_read = True
                continue
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

    def _begin(self) -> None:
        runner = self._start()
        source, self._source = self._source, None
        if isinstance(source, AsyncIterable):
            self._stop_reader = runner.start_reader(
                partial(read_documents, source, self._weakly, runner.backend.now), partial(stop_reading, self._weakly)
            )
        else:
            assert source is not None
            self._iterator = iter(source)
        self._runner = runner

    def _take(self) -> Row | None:
        if self._ordered:
            row = self._rows.get(self._yielded)
            if row is None or not row.finished:
                return None
        elif self._ready:
            row = self._ready.popleft()
        else:
            return None
        del self._rows[row.index]
        return row

    def _on_finished(self, row: Row) -> None:
        if not self._ordered:
            self._ready.append(row)
        if self._something is not None:
            self._something.set()

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
        for _ in range(room):
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
        return False

    def _wait_for_room(self) -> anyio.Event | None:
        """Return the event set when another document may be read; ``None``: there is room now."""
        if self.room > 0:
            return None
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
        row = Row(self._weakly, self._read, document)
        self._rows[row.index] = row
        self._read += 1
        try:
            request = self._make_request(document, row, runner)
        except ConfigError as error:
            row.id = _own_id(document) or f"row-{row.index}"
            named = ConfigError(f"document {row.index}: {error.message}", field=error.field)
            row.set_exception(named)
            return
        except Exception as error:  # the user's callable
            row.id = _own_id(document) or f"row-{row.index}"
            row.set_exception(error)
            return
        except BaseException:
            # It ends the map. A row that never finishes would keep its reader waiting.
            del self._rows[row.index]
            self._read -= 1
            raise
        row.id = _own_id(document) or self._hash(request)
        row.request = request
        runner.submit(request, may_wait=True)

    def _hash(self, request: Request) -> str:
        """Name a document by prompt and parameters, and number repeats: equal inputs, equal ids."""
        digest = hashlib.sha256(request.shape.answer_key)
        digest.update(request.prompt)
        name = digest.digest()[:8]
        number = self._seen.number(int.from_bytes(name, "big"))
        return f"{name.hex()}-{number}"


def _leave(runner: Runner, requests: list[Request], stop_reader: Callable[[], object] | None) -> None:
    """Cancel a map's open calls."""
    if stop_reader is not None:
        stop_reader()
    if not runner.ended:
        # The last first: a permit given back by the first request would be granted to a request
        # about to leave.
        for request in reversed(requests):
            runner.leave(request)


def _own_id(document: Any) -> str | None:
    if isinstance(document, Mapping):
        own = document.get("id")
        if isinstance(own, (str, int)) and own != "":
            return str(own)
    return None
