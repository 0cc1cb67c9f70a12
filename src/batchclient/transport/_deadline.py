"""A bound on a wait, on asyncio and trio; anyio's costs asyncio twenty times as much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

__all__ = ["deadline"]


def deadline(seconds: float | None) -> AbstractAsyncContextManager[object]:
    """Raise ``TimeoutError`` after a longer ``async with``; ``None``: no bound."""
    return asyncio.timeout(seconds) if asyncio._get_running_loop() is not None else _on_trio(seconds)


@asynccontextmanager
async def _on_trio(seconds: float | None) -> AsyncIterator[None]:
    with anyio.fail_after(seconds):
        yield
