"""How a client's calls are made: a request of the arguments, the runner, the wait for the answer.

Rules:
- Bad input is refused before anything is queued, with an error that names the argument.
- Every kind of call goes the same way (``_call``). Kinds differ in how the input is written and the
  answer is read (``inputs``, ``dialects``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from batchclient._calls.make import CallMaker
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient._shell.callbacks import Callbacks
from batchclient._shell.pieces import Pieces
from batchclient._shell.runner import Runner
from batchclient.maps import Finish
from batchclient.stream import Stream
from batchclient.types import NotGiven

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient._client.connections import Connections
    from batchclient._settings import Settings

__all__ = ["Calling", "Messages", "structured"]

Messages = Sequence[Mapping[str, Any]]
"""A conversation: messages with a ``role`` and most often a ``content`` each, as OpenAI's API has.
"""


class Calling:
    """The common part of all calls of a ``BatchClient``; the client brings the runner."""

    _settings: Settings
    _calls: CallMaker
    _connections: Connections
    _callbacks: Callbacks
    _runner: Runner | None
    _loop: asyncio.AbstractEventLoop | None

    def _start(self) -> Runner:
        raise NotImplementedError

    def _make_stream(
        self,
        kind: Kind,
        item: Any,
        model: str | None,
        timeout_s: float | NotGiven | None,
        params: Mapping[str, Any],
        priority: int,
        tenant: str | None,
        response_model: type[BaseModel] | None,
    ) -> Stream:
        finish: Finish | None = None
        if response_model is not None:
            params = structured().demand(response_model, params)
            finish = self._parse(response_model)
        runner = self._runner
        now = 0.0 if runner is None or runner.ended else runner.backend.now()
        sink = Pieces()

        def make(name: str | None, now: float) -> Request:
            return self._calls.make(item, name, timeout_s, params, sink, now, priority, tenant, kind, to_caller=True)

        async def make_when_known(runner: Runner, deadline: float | None) -> Request:
            await self._find_model(runner, deadline)
            return make(None, runner.backend.now())

        asks = model is None and self._calls.asks_model
        sink.request = request = make(self._calls.some_model if asks else model, now)
        deadline = partial(self._calls.deadline, timeout_s)
        return Stream(self._start, request, deadline, make_when_known if asks else None, finish)

    def _begin(
        self,
        kind: Kind,
        item: Any,
        model: str | None,
        timeout_s: float | NotGiven | None,
        params: Mapping[str, Any],
        priority: int,
        tenant: str | None,
    ) -> Request | None:
        """Submit one call; return ``None``, with nothing done, where the server's model is unknown."""
        runner = self._runner
        # The test for "same loop as last time" is all that a call pays for loops, forks and trio.
        if runner is None or runner.ended or asyncio._get_running_loop() is not self._loop:
            runner = self._start()
        calls, backend = self._calls, runner.backend
        if model is None and calls.asks_model:
            return None
        waiter = backend.waiter()
        request = calls.make(item, model, timeout_s, params, waiter, backend.now(), priority, tenant, kind)
        runner.submit(request)
        return request

    async def _call(
        self,
        kind: Kind,
        item: Any,
        model: str | None,
        timeout_s: float | NotGiven | None,
        params: Mapping[str, Any],
        priority: int,
        tenant: str | None,
    ) -> Any:
        """Make one call and wait for its answer."""
        request = self._begin(kind, item, model, timeout_s, params, priority, tenant)
        runner = self._runner
        assert runner is not None, "a call that has begun has a runner"
        if request is None:
            calls, backend = self._calls, runner.backend
            now = backend.now()
            # A wrong argument is refused at once all the same; and the deadline is the call's, not
            # the request's.
            deadline = calls.check_call(item, timeout_s, params, now, priority, tenant, kind)
            await self._find_model(runner, deadline)
            waiter = backend.waiter()
            request = calls.make(item, None, timeout_s, params, waiter, now, priority, tenant, kind)
            runner.submit(request)
        try:
            return await runner.backend.wait(request.waiter)
        except BaseException:
            runner.leave(request)
            raise

    def _parse(self, response_model: type[BaseModel]) -> Finish:
        """Return ``parse`` of the model; what does not fit is counted."""
        return structured().parse(response_model, self._note_invalid)  # type: ignore[no-any-return]

    def _note_invalid(self) -> None:
        if self._runner is not None:
            self._runner.invalid += 1

    async def _find_model(self, runner: Runner, deadline: float | None = None) -> None:
        """Ask the server for its model, where calls that name none need the name."""
        if self._calls.asks_model:
            await runner.model_question.wait(deadline)


def structured() -> ModuleType:
    """Return the module of answers in the form of a pydantic model."""
    # Pydantic takes half as long to import as all the rest, and so comes with the first client.
    from batchclient._calls import structured as module

    return module
