"""A thread's call on the way over the bridge: ends exactly once, and wakes the thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from batchclient.errors import ClientClosed

__all__ = ["Crossing"]


class Crossing:
    """A thread's call; the thread sleeps on ``done``."""

    __slots__ = (
        "_answer", "_error", "_settled", "args", "context", "done", "function", "kwargs", "left", "plain", "refused",
        "task",
    )  # fmt: skip

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, plain: bool = False
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.plain = plain
        """Whether nothing is to be awaited."""
        self.context = copy_context()
        self.task: asyncio.Task[None] | None = None
        self.left = False
        """Whether nobody waits any more."""
        self.refused = False
        """Whether the loop ended first."""
        self._answer: Any = None
        self._error: BaseException | None = None
        self._settled = False
        # A bare lock costs a fraction of a concurrent.futures.Future. Free: the call has ended.
        self.done = threading.Lock()
        self.done.acquire()

    def outcome(self) -> Any:
        """Return the answer of an ended call, or raise its error."""
        error, self._error = self._error, None
        if error is None:
            return self._answer
        try:
            raise error
        finally:
            # The error's traceback holds this frame.
            del error

    def settle(self, answer: Any, error: BaseException | None = None) -> None:
        """End the call, unless it has ended."""
        if self._settled:
            return
        self._settled = True
        if not self.left:
            self._answer, self._error = answer, error
        self.done.release()

    def refuse(self, why: BaseException | None) -> None:
        """End the call, since the loop ends: by the error ``why``, or by ``close``."""
        self.refused = not self._settled
        self.settle(None, why or ClientClosed("the client was closed while the call was under way"))
