"""Between a reply that is being read and the caller who takes its pieces; the waiter of a streamed call.

Rules:
- What is put in comes out in order, then the whole answer or the error.
- A new attempt begins with an empty sink, and there is none once a piece was taken (``Request.begun``).
- A reply that did not come as a stream is one piece per choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import anyio

from batchclient._core.messages import Request
from batchclient.types import Completion, Delta

__all__ = ["Pieces"]

_MOST_WAITING = 256
"""Pieces that wait for their caller, before the reply is not read on; one read may bring more."""


class Pieces:
    """Holds the pieces that its caller has not taken yet.

    Attributes:
        request: the call; set by whoever made it.
        deltas: what waits to be taken.
        taken: how many were.
        completion: the whole answer.
        error: what ended it instead.
    """

    __slots__ = ("_closed", "_news", "_room", "_was_fed", "completion", "deltas", "error", "request", "taken")

    def __init__(self) -> None:
        self.request: Request | None = None
        self.deltas: deque[Delta] = deque()
        self.taken = 0
        self.completion: Completion | None = None
        self.error: BaseException | None = None
        self._was_fed = False
        self._closed = False
        self._news: anyio.Event | None = None
        self._room: anyio.Event | None = None

    # The runner's side, as a waiter --------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether nothing more will come."""
        return self._closed or self.completion is not None or self.error is not None

    def set_result(self, completion: Completion) -> None:
        """The answer is whole."""
        if not self._was_fed:
            self.deltas.extend(
                Delta(one.text, one.index, one.finish_reason, one.logprobs, one.token_ids, one.message)
                for one in completion.choices
            )
        self.completion = completion
        self._tell()

    def set_exception(self, error: BaseException) -> None:
        """The call has failed."""
        self.error = error
        self._tell()

    # The runner's side, piece by piece -----------------------------------------------------------------------------

    def restart(self) -> None:
        """Forget what came of an attempt that failed, if its caller has none of it and it brought no whole answer."""
        if not self.taken and not self.done():
            self.deltas.clear()
            self._was_fed = False

    def put(self, deltas: Iterable[Delta]) -> None:
        """More of the answer has come."""
        if not self._closed:
            self.deltas.extend(deltas)
            self._was_fed = True
            self._tell()

    async def wait_for_room(self) -> None:
        """Sleep until the caller has taken enough of what waits."""
        while len(self.deltas) >= _MOST_WAITING and not self._closed:
            self._room = anyio.Event()
            await self._room.wait()

    # The caller's side ---------------------------------------------------------------------------------------------

    def take(self) -> Delta:
        """Take the next piece: from now on the call cannot be begun anew."""
        delta = self.deltas.popleft()
        self.taken += 1
        if self.request is not None:
            self.request.begun = True
        if self._room is not None and len(self.deltas) < _MOST_WAITING // 2:
            self._room.set()
        return delta

    async def wait(self) -> None:
        """Sleep until there is something."""
        self._news = anyio.Event()
        await self._news.wait()

    def close(self) -> None:
        """The caller has gone."""
        self._closed = True
        self._tell()
        if self._room is not None:
            self._room.set()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
