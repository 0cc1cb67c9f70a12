"""Streams and maps as plain iterators: a thread takes, the event loop works meanwhile.

Rules:
- The user's documents and prompt function run in the thread that takes the rows, never in the event
  loop: a generator may hold a thread's database cursor, and a slow one delays nobody else.
- A thread crosses to the loop once for all pieces or rows ready there, up to a bound.
- A row is open from the reading of the document to the yield, as in ``maps``. So documents are read
  only when no fetched row is left.
- An iterator holds the only reference to its stream or map, so ``close()``, or a ``break`` that
  drops the iterator, closes both. Begun before a fork, an iterator is refused in the child.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

from batchclient._shell.clock import now
from batchclient._threads.bridge import Bridge
from batchclient.errors import ClientClosed
from batchclient.health import Health
from batchclient.maps import Map
from batchclient.stream import Stream
from batchclient.types import AnswerT, Completion, Delta, MapProgress, MapResult

__all__ = ["Feed", "SyncRowStream", "SyncStream"]

_T = TypeVar("_T")

_SLICE_S = 0.004
"""How long a map reads before a look for ready rows; as in ``maps``."""
_OPENED_AT_ONCE = 64
"""Documents whose requests are made before the event loop has another turn."""


class _Fetched(Iterator[_T]):
    """Pieces or rows which a thread fetches from the event loop, all ready ones at once."""

    def __init__(self, bridge: Bridge, source: Stream | Map[Any]) -> None:
        self._bridge = bridge
        self._source = source
        self._ready: deque[_T] = deque()
        self._process: int | None = None
        """The id of the process of the first fetch."""
        self._over = False
        # Two threads may take turns, but not the same piece.
        self._taking = threading.Lock()

    def __repr__(self) -> str:
        return f"<Sync{repr(self._source)[1:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> _T:
        # Before the lock, which a thread of the parent may hold for ever.
        self._check_process()
        with self._taking:
            try:
                while not self._over and not self._ready:
                    if not self._fetch():
                        self._over = True
            except BaseException:
                self.close()
                raise
            if self._over:
                raise StopIteration
            return self._ready.popleft()

    def close(self) -> None:
        """End the iterator, and cancel its calls. Safe to call twice, and from another thread."""
        self._over = True
        if self._process == os.getpid():
            with suppress(ClientClosed):
                self._bridge.call_now(self._source.aclose)

    def _fetch(self) -> bool:
        """Put more into ``_ready``, if there was time; return whether more may come."""
        raise NotImplementedError

    def _check_process(self) -> None:
        process = os.getpid()
        if self._process is None:
            self._process = process
        if self._process != process:
            raise ClientClosed("what was begun before a fork belongs to the parent process")


class SyncStream(_Fetched[Delta]):
    """The pieces of an answer, as an iterator. See ``BatchClient.stream``.

    ``close()``, the end of ``with``, or a ``break`` that drops the iterator ends the stream. Some
    256 pieces at most are fetched ahead; behind them as many wait before the reply is not read on.
    """

    _source: Stream

    @property
    def completion(self) -> Completion | None:
        """The whole answer with its usage, once the last piece was taken; ``None`` before."""
        return self._source.completion

    def _fetch(self) -> bool:
        pieces = self._bridge.call_now(_next_pieces, self._source)
        self._ready.extend(pieces)
        return bool(pieces)


async def _next_pieces(stream: Stream) -> list[Delta]:
    """Wait for a piece; return all pieces ready by then; none: the answer is over."""
    try:
        pieces = [await anext(stream)]
    except StopAsyncIteration:
        return []
    sink = stream._sink
    while sink.deltas:
        pieces.append(sink.take())
    return pieces


class SyncRowStream(_Fetched[MapResult[AnswerT]]):
    """The rows of ``SyncBatchClient.stream_map`` or ``run``, as an iterator and a context manager.

    ``close()``, the end of ``with``, or a ``break`` that drops the iterator ends the map.
    """

    _source: Map[AnswerT]

    def __init__(
        self,
        bridge: Bridge,
        rows: Map[AnswerT],
        feed: Feed,
        documents: Iterable[Any],
        prompt: Callable[[Any], Any] | None,
        *,
        slice_s: float = _SLICE_S,
    ) -> None:
        super().__init__(bridge, rows)
        self._feed = feed
        self._documents = documents
        self._prompt = prompt
        self._slice_s = slice_s
        self._iterator: Iterator[Any] | None = None
        self._room = rows.room
        """Documents that may be read before the next row is taken."""

    def __repr__(self) -> str:
        return f"<SyncRowStream{repr(self._source)[4:]}"

    @property
    def counts(self) -> MapProgress:
        """How far it is now; as ``progress`` is told."""
        return self._bridge.ask(self._source.progress)

    @property
    def health(self) -> Mapping[Health, int]:
        """How many answers so far are of each health."""
        return self._source.health

    def close(self) -> None:
        """Cancel the rest. Safe to call twice, and from another thread."""
        super().close()
        self._documents = self._iterator = iter(())

    def _fetch(self) -> bool:
        """Read and hand over a slice; take ready rows, and wait for one if nothing can be read."""
        if self._iterator is None:
            self._iterator = iter(self._documents)
        read = _read_slice(self._iterator, self._room, self._prompt, self._slice_s)
        if read.ended:
            # A failed source is not asked again.
            self._documents = self._iterator = iter(())
        ready, self._room = self._bridge.call_now(_step, self._source, self._feed, read)
        self._ready.extend(ready or ())
        return ready is not None


class _Slice:
    """Documents read in a row.

    Attributes:
        documents: in order.
        prompts: for each the prompt function's result, or ``_Failed``; none without a function.
        ended: whether these documents are the last.
        failure: the source's own error behind them.
        pressed: whether there was no time for more.
    """

    __slots__ = ("documents", "ended", "failure", "pressed", "prompts")

    def __init__(self) -> None:
        self.documents: list[Any] = []
        self.prompts: list[Any] = []
        self.ended: bool = False
        self.failure: Exception | None = None
        self.pressed: bool = False


class _Failed:
    """Stands for the prompt of a document whose prompt function failed."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def _read_slice(iterator: Iterator[Any], room: int, prompt: Callable[[Any], Any] | None, slice_s: float) -> _Slice:
    """Read documents until there is no room, no document or no time."""
    read = _Slice()
    documents = read.documents
    until = now() + slice_s
    while len(documents) < room:
        try:
            document = next(iterator)
        except StopIteration:
            read.ended = True
            break
        except Exception as error:  # the user's iterable: what was read before is not lost
            read.ended, read.failure = True, error
            break
        documents.append(document)
        if prompt is not None:
            try:
                made = prompt(document)
            except Exception as error:  # the user's function: this document's alone
                made = _Failed(error)
            read.prompts.append(made)
        if now() > until:
            read.pressed = True
            break
    return read


class Feed(AsyncIterator[Any]):
    """Documents between their reading thread and their map in the event loop, opened in turn.

    Args:
        is_table: whether they are a table's rows: nulls are gaps.
    """

    def __init__(self, *, is_table: bool = False) -> None:
        self.is_table = is_table
        self.documents: deque[Any] = deque()
        self._prompts: deque[Any] = deque()
        self._ended = False
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._turn = 0

    def put(self, read: _Slice) -> None:
        """Take in another slice."""
        self.documents.extend(read.documents)
        self._prompts.extend(read.prompts)
        self._ended = read.ended
        self._failure = self._failure or read.failure
        self._news.set()

    def take_prompt(self, _document: Any) -> Any:
        """Return, or raise, the user's function's result for the document opened now."""
        made = self._prompts.popleft()
        if isinstance(made, _Failed):
            raise made.error
        return made

    async def __anext__(self) -> Any:
        self._turn += 1
        if self._turn % _OPENED_AT_ONCE == 0:
            await asyncio.sleep(0)
        while not self.documents:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self.documents.popleft()


async def _step(rows: Map[Any], feed: Feed, read: _Slice) -> tuple[list[MapResult[Any]] | None, int]:
    """Return the ready rows, ``None`` after the last, and how many documents may be read now.

    There is a ready row, or a document may be read.
    """
    await rows.begin()
    feed.put(read)
    ready = []
    if read.pressed:
        # One turn, in which documents are opened and others have theirs.
        await asyncio.sleep(0)
    else:
        try:
            row = await rows.next_or(lambda: not read.ended and rows.room > len(feed.documents))
            ready += [] if row is None else [row]
        except StopAsyncIteration:
            return None, 0
    while (row := rows.take()) is not None:
        ready.append(row)
    return ready, rows.room - len(feed.documents)
