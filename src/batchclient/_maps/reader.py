"""The reader of a map's async documents: a task of the runner's, with a weak reference to the map.

Rules:
- The reader waits while the look-ahead is full. If the source never waits, the reader lets the
  event loop have a turn.
- Any end of the reader is told to the map, so that nobody waits for a document in vain.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from batchclient.errors import ClientClosed

__all__ = ["SLICE_S", "read_documents", "stop_reading"]

SLICE_S = 0.004
"""How long documents are checked or read, or rows handed out, before the event loop has a turn."""


class Reading(Protocol):
    """A map, as seen by its reader."""

    _exhausted: bool
    """Whether no more documents will come."""

    def _open(self, document: Any) -> None: ...

    def _wait_for_room(self) -> anyio.Event | None: ...

    def _on_exhausted(self, error: Exception | None) -> None: ...


Owner = Callable[[], Reading | None]
"""A weak reference to the map."""


async def read_documents(source: AsyncIterable[Any], owner: Owner, clock: Callable[[], float]) -> None:
    """Read an async iterable for as long as its map exists.

    Args:
        source: the documents.
        owner: the map.
        clock: monotonic seconds.
    """
    failure: Exception | None = None
    turn_ends = clock() + SLICE_S
    try:
        async for document in source:
            rows = owner()
            if rows is None:
                return
            rows._open(document)
            room = rows._wait_for_room()
            while room is not None:
                del rows
                await room.wait()
                rows = owner()
                if rows is None:
                    return
                room = rows._wait_for_room()
            del rows
            # The source itself may never wait.
            if clock() >= turn_ends:
                await anyio.lowlevel.checkpoint()
                turn_ends = clock() + SLICE_S
    except Exception as error:  # the user's iterable
        failure = error
    except GeneratorExit:
        # The event loop has gone; nothing can be awaited any more.
        raise
    except BaseException as error:
        # The end of map or client; or the source's own error, which must not hang the map.
        rows = owner()
        if rows is not None and not rows._exhausted:
            ended = ClientClosed("the documents' source was cancelled before all were read")
            ended.__cause__ = error
            rows._on_exhausted(ended)
        del rows
        if isinstance(source, AsyncGenerator):
            with anyio.CancelScope(shield=True):
                await source.aclose()
        raise
    rows = owner()
    if rows is not None:
        rows._on_exhausted(failure)


def stop_reading(owner: Owner) -> None:
    """Read no more documents: the client is closed."""
    rows = owner()
    if rows is not None:
        rows._on_exhausted(ClientClosed("the client was closed before all documents were read"))
