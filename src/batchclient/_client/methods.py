"""The calls of a client: each checks its arguments, makes a request of them, and waits for its answer.

Rules:
- Bad input is refused here, before anything is queued, with an error that names the argument.
- Every kind of call goes the same way: ``_call``. What differs is how its input is written and its answer read (``_inputs``, ``dialects``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from batchclient._calls.inputs import has_media, write_messages
from batchclient._calls.make import CallMaker
from batchclient._calls.rendering import as_chat, render
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient._shell.callbacks import Callbacks
from batchclient._shell.pieces import Sink
from batchclient._shell.runner import Runner
from batchclient.maps import Finish
from batchclient.stream import Stream
from batchclient.templates import Prompt
from batchclient.types import Completion

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient.config import Settings

__all__ = ["CallMethods", "Messages"]

Messages = Sequence[Mapping[str, Any]]
"""A conversation: messages with a ``role`` and most often a ``content`` each, as OpenAI's API has them."""


class CallMethods:
    """What ``BatchClient`` can be asked for; it brings the runner."""

    _settings: Settings
    _calls: CallMaker
    _callbacks: Callbacks
    _runner: Runner | None
    _loop: asyncio.AbstractEventLoop | None

    def _start(self) -> Runner:
        raise NotImplementedError

    async def complete(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Any,
    ) -> Completion:
        """Complete one prompt.

        Args:
            prompt: a text, or a sequence of token ids.
            model: another model than the client's.
            timeout_s: this call's whole time; the client's by default.
            priority: the class, -100 to 100: higher ones go first and keep a reserve of permits.
            tenant: whom the call is for. Tenants get equal shares of tokens, and never share a request. The server is not told.
            response_model: a pydantic model: its JSON schema is demanded of the server (``response_format``), and the answer has the validated
                instance in ``parsed``.
            params: the server's fields (``max_tokens``, ``temperature``, ``stop``, …), carried through untouched.

        Raises:
            ConfigError: the prompt or a parameter is wrong. Nothing was sent.
            BadRequest: the server refuses this call; its batch-mates are not concerned.
            AnswerInvalid: a choice does not fit ``response_model``; the answer is in the error's ``completion``.
            DeadlineExceeded: ``timeout_s`` passed.
            BatchClientError: see ``batchclient.errors``.

        Cancellation: at any moment; the calls that share the request are left alone.
        """
        if response_model is not None:
            params = _structured().demand(response_model, params)
        # What ``_call`` does, without a coroutine of its own: a twentieth of what a call costs.
        request = self._begin(Kind.COMPLETION, prompt, model, timeout_s, params, priority, tenant)
        if request is None:
            answer = await self._call(Kind.COMPLETION, prompt, model, timeout_s, params, priority, tenant)
        else:
            runner = self._runner
            assert runner is not None, "a call that has begun has a runner"
            try:
                answer = await runner.backend.wait(request.waiter)
            except BaseException:
                runner.leave(request)
                raise
        if response_model is not None:
            answer = _structured().parse(response_model)(answer)
        return answer  # type: ignore[no-any-return]

    async def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Any,
    ) -> Completion:
        """Answer one conversation.

        Chats with short answers share requests where the server takes lists of them (vLLM from 0.19); others, and those with ``tools``, ``n``
        above 1, images or audio, go by themselves. ``BatchClient(render_chat=…)`` lets chats of any length share streamed requests.

        Args:
            messages: the conversation, as OpenAI's API has it.
            model, timeout_s, priority, tenant, response_model: as for ``complete``.
            params: the server's fields, as for ``complete``; ``max_completion_tokens`` stands before ``max_tokens``.

        Returns:
            An answer whose ``message`` is what the server sent; ``text`` is its content. The prompt tokens of one
            that came in a list are a share of the list's, and ``usage.prompt_tokens_estimated`` says so.

        Raises:
            ConfigError, BadRequest, AnswerInvalid, DeadlineExceeded, BatchClientError: as ``complete``.

        Cancellation: at any moment; the calls that share the request are left alone.
        """
        if response_model is not None:
            params = _structured().demand(response_model, params)
        kind, item, fields = self._chat_or_rendered(messages, params)
        answer: Completion = await self._call(kind, item, model, timeout_s, fields, priority, tenant)
        if kind is not Kind.CHAT:
            answer = as_chat(answer)
        if response_model is not None:
            answer = _structured().parse(response_model)(answer)
        return answer

    def stream(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Any,
    ) -> Stream:
        """Complete one prompt and hand out the answer piece by piece, as the server makes it.

            async with client.stream("Once upon", max_tokens=200) as pieces:
                async for delta in pieces:
                    print(delta.text, end="")
            print(pieces.completion.usage)

        The call goes by itself, through the same queue, limit, fairness and retries as all others. It is sent again only while no piece was taken.
        Leaving the loop, ``aclose()`` and cancellation close the connection, so that the server stops. While pieces are not taken, no more than a few
        hundred are read ahead.

        Args:
            prompt, model, priority, tenant: as for ``complete``.
            response_model: as for ``complete``: the pieces are parts of a JSON text, and ``completion`` has the validated instance in ``parsed``.
            timeout_s: the whole call's time, from the first ``__anext__`` to the last piece, the caller's own time included.
            params: as for ``complete``, and ``stream_interval``: tokens per piece, where the server heeds it.

        Returns:
            An async iterator of ``Delta``, also an async context manager. It sends nothing before it is iterated. Afterwards its ``completion``
            is the whole answer.

        Raises:
            ConfigError: the prompt or a parameter is wrong. What the server says is raised by the iteration, and by its end ``AnswerInvalid``,
                where the whole does not fit ``response_model``.
        """
        return self._make_stream(Kind.COMPLETION, prompt, model, timeout_s, params, priority, tenant, response_model)

    def stream_chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Any,
    ) -> Stream:
        """Answer one conversation piece by piece; each ``Delta`` has the server's own delta in ``message``.

        Args:
            messages: as for ``chat``.
            model, timeout_s, priority, tenant, response_model, params: as for ``stream``.

        Returns:
            As ``stream``.

        Raises:
            ConfigError: as ``stream``.
        """
        return self._make_stream(Kind.CHAT, messages, model, timeout_s, params, priority, tenant, response_model)

    def _make_stream(
        self,
        kind: Kind,
        item: Any,
        model: str | None,
        timeout_s: float | None,
        params: Mapping[str, Any],
        priority: int,
        tenant: str | None,
        response_model: type[BaseModel] | None,
    ) -> Stream:
        finish: Finish | None = None
        if response_model is not None:
            params = _structured().demand(response_model, params)
            finish = _structured().parse(response_model)
        runner = self._runner
        now = 0.0 if runner is None or runner.ended else runner.backend.now()
        sink = Sink()

        def make(name: str | None, now: float) -> Request:
            return self._calls.make(item, name, timeout_s, params, sink, now, priority, tenant, kind, to_caller=True)

        async def make_when_known(runner: Runner, deadline: float | None) -> Request:
            await self._find_model(runner, deadline)
            return make(None, runner.backend.now())

        asks = model is None and self._calls.asks_model
        sink.request = request = make(self._calls.some_model if asks else model, now)
        deadline = partial(self._calls.deadline, timeout_s)
        return Stream(self._start, request, deadline, make_when_known if asks else None, finish)

    def _chat_or_rendered(self, messages: Any, params: Mapping[str, Any]) -> tuple[Kind, Any, Mapping[str, Any]]:
        """How a chat is sent: as one, or as a completion where the client has the template."""
        template = self._settings.render_chat
        if template is not None:
            write_messages(messages)
            if not has_media(messages):
                rendered = render(messages, params, template)
                if rendered is not None:
                    return Kind.COMPLETION, *rendered
        return Kind.CHAT, messages, params

    def _begin(
        self,
        kind: Kind,
        item: Any,
        model: str | None,
        timeout_s: float | None,
        params: Mapping[str, Any],
        priority: int,
        tenant: str | None,
    ) -> Request | None:
        """Submit one call to the runner; ``None``, and nothing was done, if the server must be asked for its model first."""
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
        timeout_s: float | None,
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
            # What is wrong is refused at once all the same; and the deadline is the call's, not the request's.
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

    async def _find_model(self, runner: Runner, deadline: float | None = None) -> None:
        """Ask the server for its model if that is what calls that name none need."""
        if self._calls.asks_model:
            await runner.model_question.wait(deadline)


def _structured() -> ModuleType:
    # Pydantic takes half as long to import as all the rest: it comes with the first client, not with batchclient.
    from batchclient._calls import structured as _structured

    return _structured
