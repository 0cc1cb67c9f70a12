"""The calls of a client: each checks its arguments, makes a request of them, and waits for its answer.

Rules:
- Bad input is refused here, before anything is queued, with an error that names the argument.
- Every kind of call goes the same way: ``_call``. What differs is how its input is written and its answer read (``_inputs``, ``dialects``).
- The maps hand requests to the core without a task per document.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Any, Literal, overload

from batchclient._backend import Waiter
from batchclient._calls import CallMaker
from batchclient._core.kinds import Kind
from batchclient._core.messages import Cancelled, Request, RequestState
from batchclient._runner import Runner
from batchclient.config import Settings
from batchclient.errors import ConfigError
from batchclient.maps import Map
from batchclient.templates import Prompt, make_prompt
from batchclient.types import Completion

__all__ = ["CallMethods"]

_MAPPED = {
    "complete": Kind.COMPLETION,
    "chat": Kind.CHAT,
    "embed": Kind.EMBEDDING,
    "classify": Kind.CLASSIFICATION,
}
"""The calls that a map can make, one per document."""


class CallMethods:
    """What ``BatchClient`` can be asked for; it brings the runner."""

    _settings: Settings
    _calls: CallMaker
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
        **params: Any,
    ) -> Completion:
        """Complete one prompt.

        Args:
            prompt: a text, or a sequence of token ids.
            model: another model than the client's.
            timeout_s: this call's whole time; the client's by default.
            priority: the class, -100 to 100: higher ones go first and keep a reserve of permits.
            tenant: whom the call is for. Tenants get equal shares of tokens, and never share a request. The server is not told.
            params: the server's fields (``max_tokens``, ``temperature``, ``stop``, …), carried through untouched.

        Raises:
            ConfigError: the prompt or a parameter is wrong. Nothing was sent.
            BadRequest: the server refuses this call; its batch-mates are not concerned.
            DeadlineExceeded: ``timeout_s`` passed.
            BatchClientError: see ``batchclient.errors``.

        Cancellation: at any moment; the calls that share the request are left alone.
        """
        return await self._call(Kind.COMPLETION, prompt, model, timeout_s, params, priority, tenant)  # type: ignore[no-any-return]

    @overload
    async def batch_map(
        self,
        docs: Iterable[Any] | AsyncIterable[Any],
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["complete"] = "complete",
        return_exceptions: Literal[False] = False,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        **params: Any,
    ) -> list[Completion]: ...

    @overload
    async def batch_map(
        self,
        docs: Iterable[Any] | AsyncIterable[Any],
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["complete"] = "complete",
        return_exceptions: bool,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        **params: Any,
    ) -> list[Completion | Exception]: ...

    @overload
    async def batch_map(
        self,
        docs: Iterable[Any] | AsyncIterable[Any],
        prompt: str | Callable[[Any], Any],
        *,
        call: str,
        return_exceptions: bool = False,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        **params: Any,
    ) -> list[Any]: ...

    async def batch_map(
        self,
        docs: Iterable[Any] | AsyncIterable[Any],
        prompt: str | Callable[[Any], Any],
        *,
        call: str = "complete",
        return_exceptions: bool = False,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        **params: Any,
    ) -> list[Any]:
        """Make one call per document and return the answers in input order.

        Args:
            docs: any iterable or async iterable; read lazily.
            prompt: a template (``{}`` for a text, ``{name}`` for a mapping's field) or a callable of one document.
            call: which call is made: ``"complete"``, ``"chat"``, ``"embed"`` or ``"classify"``. For ``"chat"`` a text is one message of the
                user's, and a callable may return a list of messages.
            return_exceptions: put errors into the list instead of raising the first one.
            model, priority, tenant: as for ``complete``.
            timeout_s: each document's time, from when it is read.
            look_ahead: documents read ahead of the results, at most; by default 4 × limit, at least 1,024.
            params: as for ``complete``.

        Returns:
            One answer (or exception) per document: what the call gives, a ``Completion`` by default.

        Raises:
            BatchClientError: the first document's error; a note on it names the document. The rest is cancelled.
        """
        results: list[Any] = []
        rows = self.stream_map(
            docs,
            prompt,
            call=call,
            ordered=True,
            model=model,
            timeout_s=timeout_s,
            priority=priority,
            tenant=tenant,
            look_ahead=look_ahead,
            **params,
        )
        try:
            async for row in rows:
                if row.error is None:
                    results.append(row.answer)
                elif return_exceptions:
                    results.append(row.error)
                else:
                    row.error.add_note(f"document {row.index} (id {row.id})")
                    raise row.error
        finally:
            await rows.aclose()
        return results

    def stream_map(
        self,
        docs: Iterable[Any] | AsyncIterable[Any],
        prompt: str | Callable[[Any], Any],
        *,
        call: str = "complete",
        ordered: bool = False,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        **params: Any,
    ) -> Map:
        """Make one call per document and yield the results as they come.

        Memory stays flat: at most ``look_ahead`` documents are read ahead of what was yielded, and reading stops while
        results are not taken. A document that cannot be used yields a row with its error; it stops nothing.

        Args:
            docs, prompt, call, model, timeout_s, priority, tenant, look_ahead, params: as for ``batch_map``.
            ordered: yield in input order instead of completion order.

        Returns:
            An async iterator of ``MapResult``; ``aclose()`` cancels what is left.
        """
        if isinstance(docs, (str, bytes, Mapping)) or not isinstance(docs, (Iterable, AsyncIterable)):
            raise ConfigError(f"docs is an iterable of documents, not a {type(docs).__name__}", field="docs")
        if look_ahead is not None and (type(look_ahead) is not int or look_ahead < 1):
            raise ConfigError("look_ahead is a whole number of at least 1", field="look_ahead")
        render = make_prompt(prompt)
        kind = _MAPPED.get(call) if isinstance(call, str) else None
        if kind is None:
            raise ConfigError(f"call is one of {', '.join(_MAPPED)}, not {call!r:.40}", field="call")
        # Wrong parameters are refused here, not once per document.
        self._calls.check(model, timeout_s, params, priority, tenant, kind)

        def make_request(document: Any, waiter: Waiter, runner: Runner) -> Request:
            now = runner.backend.now()
            item: Any = render(document)
            if kind is Kind.CHAT and isinstance(item, str):
                item = [{"role": "user", "content": item}]
            return self._calls.make(item, model, timeout_s, params, waiter, now, priority, tenant, kind)

        return Map(
            docs, make_request, self._start, look_ahead or max(1024, 4 * self._settings.highest_limit), ordered=ordered
        )

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
        runner = self._runner
        # The test for "same loop as last time" is all that a call pays for loops, forks and trio.
        if runner is None or runner.ended or asyncio._get_running_loop() is not self._loop:
            runner = self._start()
        waiter = runner.backend.waiter()
        request = self._calls.make(item, model, timeout_s, params, waiter, runner.backend.now(), priority, tenant, kind)
        runner.submit(request)
        try:
            return await runner.backend.wait(waiter)
        except BaseException:
            if request.state is not RequestState.DONE:
                runner.tell(Cancelled(request))
            raise
