"""Maps: many documents through one client, without a task per document and without reading them all.

Rules:
- A row is *open* from when its document is read until it is yielded. At most ``look_ahead`` rows are open; so memory is
  flat, and reading stops while results are not taken.
- A synchronous iterable is read when results are asked for, in slices of a few milliseconds, so that a slow one does not
  keep the event loop from the rows under way. An async iterable has a reader task of its own.
- A document that cannot be used is a row with an error; it stops nothing.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import anyio
import anyio.lowlevel

from batchclient._backend import Cancellable
from batchclient._core.messages import Cancelled, Request, RequestState
from batchclient._runner import Runner
from batchclient._seen import Occurrences
from batchclient.errors import ConfigError
from batchclient.types import Completion, MapResult

__all__ = ["Map"]

_SLICE_S = 0.004

MakeRequest = Callable[[Any, "_Row", Runner], Request]


class _Row:
    """One open row; it is the waiter of its request."""

    __slots__ = ("_map", "completion", "document", "error", "finished", "id", "index", "request")

    def __init__(self, owner: Map, index: int, document: Any) -> None:
        self._map = owner
        self.index = index
        self.document = document
        self.id = ""
        self.request: Request | None = None
        self.completion: Completion | None = None
        self.error: Exception | None = None
        self.finished = False

    def done(self) -> bool:
        return self.finished

    def set_result(self, completion: Completion) -> None:
        self.completion = completion
        self.finished = True
        self._map._on_finished(self)

    def set_exception(self, error: BaseException) -> None:
        assert isinstance(error, Exception)
        self.error = error
        self.finished = True
        self._map._on_finished(self)


class Map(AsyncIterator[MapResult]):
    """The rows of one map, as an async iterator. See ``BatchClient.stream_map``."""

    def __init__(
        self,
        documents: Iterable[Any] | AsyncIterable[Any],
        make_request: MakeRequest,
        start: Callable[[], Runner],
        look_ahead: int,
        *,
        ordered: bool,
    ) -> None:
        self._source = documents
        self._make_request = make_request
        self._start = start
        self._look_ahead = look_ahead
        self._ordered = ordered
        self._iterator: Iterator[Any] | None = None
        self._reader: Cancellable | None = None
        self._runner: Runner | None = None
        self._read = 0
        self._yielded = 0
        self._exhausted = False
        self._source_error: Exception | None = None
        self._rows: dict[int, _Row] = {}
        self._ready: deque[_Row] = deque()
        self._something: anyio.Event | None = None
        self._room: anyio.Event | None = None
        self._seen = Occurrences()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Map: {self._read} read, {self._yielded} yielded>"

    def __aiter__(self) -> Map:
        return self

    async def __anext__(self) -> MapResult:
        if self._closed:
            raise StopAsyncIteration
        try:
            return await self._next()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Cancel what is left. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._reader is not None:
            self._reader.cancel()
        runner = self._runner
        if runner is not None and not runner.ended:
            for row in self._rows.values():
                if row.request is not None and row.request.state is not RequestState.DONE:
                    runner.tell(Cancelled(row.request))
        self._rows.clear()
        self._ready.clear()

    async def _next(self) -> MapResult:
        if self._runner is None:
            self._begin()
        while True:
            if self._iterator is not None:
                self._read_slice()
            row = self._take()
            if row is not None:
                self._yielded += 1
                if self._room is not None:
                    self._room.set()
                return MapResult(row.id, row.index, row.document, row.completion, row.error)
            if self._exhausted and self._read == self._yielded:
                if self._source_error is not None:
                    raise self._source_error
                raise StopAsyncIteration
            if self._iterator is not None and not self._exhausted and self._read - self._yielded < self._look_ahead:
                # The slice was up: let the rows under way have their turn.
                await anyio.lowlevel.checkpoint()
                continue
            self._something = anyio.Event()
            await self._something.wait()

    def _begin(self) -> None:
        self._runner = self._start()
        if isinstance(self._source, AsyncIterable):
            self._reader = self._runner.backend.spawn(self._read_async, self._source)
        else:
            self._iterator = iter(self._source)

    def _take(self) -> _Row | None:
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

    def _on_finished(self, row: _Row) -> None:
        if not self._ordered:
            self._ready.append(row)
        if self._something is not None:
            self._something.set()

    # Reading -------------------------------------------------------------------------------------------------------

    def _read_slice(self) -> None:
        """Read documents until the look-ahead is full, the source is empty, or the time is up."""
        assert self._iterator is not None and self._runner is not None
        now = self._runner.backend.now
        until: float | None = None
        while not self._exhausted and self._read - self._yielded < self._look_ahead:
            try:
                document = next(self._iterator)
            except StopIteration:
                self._exhausted = True
                return
            except Exception as error:  # the user's iterable: what was read before is not lost
                self._exhausted = True
                self._source_error = error
                return
            self._open(document)
            if until is None:
                until = now() + _SLICE_S
            elif not self._read & 15 and now() > until:
                return

    async def _read_async(self, source: AsyncIterable[Any]) -> None:
        try:
            async for document in source:
                self._open(document)
                while self._read - self._yielded >= self._look_ahead:
                    self._room = anyio.Event()
                    await self._room.wait()
        except Exception as error:  # the user's iterable
            self._source_error = error
        self._exhausted = True
        if self._something is not None:
            self._something.set()

    def _open(self, document: Any) -> None:
        """Make a row of a document and submit it."""
        runner = self._runner
        assert runner is not None
        row = _Row(self, self._read, document)
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
        row.id = _own_id(document) or self._hash(request)
        row.request = request
        runner.submit(request, may_wait=True)

    def _hash(self, request: Request) -> str:
        """Name a document by prompt and parameters, numbering repeats: the same input has the same ids in every run."""
        digest = hashlib.sha256(request.shape.key)
        digest.update(request.prompt)
        name = digest.digest()[:8]
        number = self._seen.number(int.from_bytes(name, "big"))
        return f"{name.hex()}-{number}"


def _own_id(document: Any) -> str | None:
    if isinstance(document, Mapping):
        own = document.get("id")
        if isinstance(own, (str, int)) and own != "":
            return str(own)
    return None
