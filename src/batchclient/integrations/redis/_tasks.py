"""Tasks that end, although redis-py drops a cancellation that comes while it connects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

__all__ = ["LOOK_S", "end", "to_its_end"]

LOOK_S = 0.25
"""Seconds from one look to the next at something that tells no changes."""


async def end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=LOOK_S)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something also through cancellations, which are raised afterwards."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
