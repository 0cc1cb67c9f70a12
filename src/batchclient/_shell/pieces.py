"""The waiter of a streamed call: holds pieces of a reply between reader and caller.

Rules:
- Pieces come out in order, then the whole answer or the error.
- A new attempt begins with an empty sink. No attempt follows a taken piece (``Request.begun``).
- A reply which did not come as a stream is one piece per choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import anyio

from batchclient._core.messages import Request
from batchclient.types import Completion, Delta

__all__ = ["Pieces"]

_MOST_WAITING = 256
"""So many waiting pieces stop the reading of the reply; a single read may bring more."""


class Pieces:
    """Holds the pieces not yet taken by the caller.

    Attributes:
        request: the call; set by its maker.
        deltas: the waiting pieces.
        taken: the number of pieces taken.
        completion: the whole answer.
        error: the error that ended the call instead.
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
        """Take in the whole answer."""
        if not self._was_fed:
            self.deltas.extend(
                Delta(one.text, one.index, one.finish_reason, one.logprobs, one.token_ids, one.message)
                for one in completion.choices
            )
        self.completion = completion
        self._tell()

    def set_exception(self, error: BaseException) -> None:
        """Take in the call's failure."""
        self.error = error
        self._tell()

    # The runner's side, piece by piece -----------------------------------------------------------------------------

    def restart(self) -> None:
        """Forget the pieces of a failed attempt, unless some were taken or the call has ended."""
        if not self.taken and not self.done():
            self.deltas.clear()
            self._was_fed = False

    def put(self, deltas: Iterable[Delta]) -> None:
        """Take in more of the answer."""
        if not self._closed:
            self.deltas.extend(deltas)
            self._was_fed = True
            self._tell()

    async def wait_for_room(self) -> None:
        """Sleep until the caller has taken enough of the waiting pieces."""
        while len(self.deltas) >= _MOST_WAITING and not self._closed:
            self._room = anyio.Event()
            await self._room.wait()

    # The caller's side ---------------------------------------------------------------------------------------------

    def take(self) -> Delta:
        """Take the next piece: from now on the call cannot begin anew."""
        delta = self.deltas.popleft()
        self.taken += 1
        if self.request is not None:
            self.request.begun = True
        if self._room is not None and len(self.deltas) < _MOST_WAITING // 2:
            self._room.set()
        return delta

    async def wait(self) -> None:
        """Sleep until there is news."""
        self._news = anyio.Event()
        await self._news.wait()

    def close(self) -> None:
        """Note that the caller has gone."""
        self._closed = True
        self._tell()
        if self._room is not None:
            self._room.set()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
