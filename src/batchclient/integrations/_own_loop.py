"""An event loop in a thread of its own, for work whose caller's event loop may stand still.

Rules:
- The thread starts with the first work. It keeps no process alive.
- The work of a caller that is cancelled is cancelled.
- After a fork the child starts a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from batchclient._common.forks import ForkLock, forget_in_child

__all__ = ["OwnLoop"]

_T = TypeVar("_T")


class OwnLoop:
    """Runs coroutines of other event loops. The coroutines must not block."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        forget_in_child(self)

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the thread's loop, and return its value or raise its error."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running()))

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="batchclient", daemon=True).start()
            return self._loop

    def _forget_parent(self) -> object:
        theirs, self._loop = self._loop, None
        return theirs
