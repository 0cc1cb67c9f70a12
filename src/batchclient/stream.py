"""One answer, handed to its caller piece by piece.

Rules:
- The call goes alone, and like any other through queue, limit, fairness, retries and deadline.
- The call is tried again only while its caller has no piece; a failure after the first piece
  raises.
- At most 256 pieces wait for the caller. Then the reply is not read on, so that the server's own
  bounds hold; no other call waits meanwhile.
- An answer in the form of a model is validated when it is whole; a misfit raises after the last
  piece.
- A stream that is left, by ``aclose()``, by a ``break`` that drops the stream or by cancellation,
  closes its connection. So nothing but the user holds a stream: the runner knows only the sink.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType

import anyio
import anyio.lowlevel

from batchclient._core.messages import Request
from batchclient._shell.pieces import Pieces
from batchclient._shell.runner import Runner
from batchclient.types import Completion, Delta

__all__ = ["Stream"]


class Stream(AsyncIterator[Delta]):
    """The pieces of one answer, as an async iterator. See ``BatchClient.stream``.

    Attributes:
        completion: the whole answer with its usage, once the last piece was taken; ``None`` before.
    """

    def __init__(
        self,
        start: Callable[[], Runner],
        request: Request,
        deadline: Callable[[float], float | None],
        prepare: Callable[[Runner, float | None], Awaitable[Request]] | None = None,
        finish: Callable[[Completion], Completion] | None = None,
    ) -> None:
        self._start = start
        self._prepare = prepare
        """Makes the request anew when it is sent: once the model is known, and the session's server."""
        self._finish = finish
        """Makes the caller's answer of the server's whole answer."""
        self._request = request
        self._deadline = deadline
        self._sink: Pieces = request.waiter
        self._runner: Runner | None = None
        self._over = False
        self.completion: Completion | None = None

    def __repr__(self) -> str:
        state = "not begun" if self._runner is None else "over" if self._over else "under way"
        return f"<Stream: {state}, {self._sink.taken} pieces taken>"

    def __aiter__(self) -> Stream:
        return self

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        sink = self._sink
        try:
            if self._runner is None:
                await self._begin()
                if self._over:
                    raise StopAsyncIteration
            else:
                self._runner.check_process()
                # Pieces may be ready by the hundred, and others want their turn.
                await anyio.lowlevel.checkpoint()
            while not sink.deltas and not sink.done():
                await sink.wait()
        except BaseException:
            await self.aclose()
            raise
        if self._over:
            # Closed by somebody else meanwhile.
            raise StopAsyncIteration
        if sink.deltas:
            return sink.take()
        self._over = True
        if sink.error is not None:
            try:
                raise sink.error
            finally:
                # The error holds this frame: a circle would wait for the garbage collector.
                sink.error = None
        self.completion = sink.completion
        if self._finish is not None and self.completion is not None:
            # After every piece was taken: what does not fit is there to be seen.
            self._finish(self.completion)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the stream: the connection is closed, the permit comes back. Safe to call twice."""
        self._over = True
        self._sink.deltas.clear()
        if self._runner is not None:
            _leave(self._runner, self._request)
        self._sink.close()

    def __del__(self) -> None:
        runner = self._runner
        if self._over or runner is None or runner.ended:
            return
        # This may run anywhere, within a step of the runner too. The loop may have gone.
        with suppress(RuntimeError):
            runner.backend.call_soon_threadsafe(partial(_leave, runner, self._request))

    async def _begin(self) -> None:
        runner = self._start()
        deadline = self._deadline(runner.backend.now())
        if self._prepare is not None:
            request = await self._prepare(runner, deadline)
            if self._over or self._runner is not None:
                return
            self._request = self._sink.request = request
        self._runner = runner
        self._request.deadline = deadline
        runner.submit(self._request)


def _leave(runner: Runner, request: Request) -> None:
    if not runner.ended:
        runner.leave(request)
