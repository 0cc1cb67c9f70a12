"""The calls for many documents: one call per document, read lazily, results as they come or all at once.

Rules:
- Everything that is wrong with the arguments is refused here, once, and not once per document.
- A document goes the way of every call (``calling``), and has its answer as that call would; which call it is, ``call`` says.
- The maps hand requests to the core without a task per document (``maps``).
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, overload

import anyio.lowlevel

from batchclient._calls.inputs import is_conversation
from batchclient._calls.rendering import as_chat
from batchclient._calls.tables import refuse_frame
from batchclient._client.calling import Calling, Messages, structured
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient._maps.progress import Ticker
from batchclient._maps.results import Results, check_documents
from batchclient._shell.callbacks import call_back
from batchclient._shell.runner import Runner
from batchclient.errors import ConfigError
from batchclient.journal import Journal
from batchclient.journal.journal import RetryFailed, journal_of
from batchclient.maps import Finish, Map, Row
from batchclient.templates import Prompt, make_prompt
from batchclient.types import Completion, MapProgress

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient._maps.journaled import Journaled

__all__ = ["MapMethods"]

_MAPPED = {
    "complete": Kind.COMPLETION,
    "chat": Kind.CHAT,
    "embed": Kind.EMBEDDING,
    "classify": Kind.CLASSIFICATION,
}
"""The calls that a map can make, one per document."""


_LEAST_LOOK_AHEAD = 1024
_LIMITS_AHEAD = 4
"""Open rows per row in flight: some wait for company, and some, in a map in order, for one before them."""


class MapMethods(Calling):
    """What ``BatchClient`` can be asked for many documents at once."""

    @overload
    async def batch_map(
        self,
        docs: Iterable[Any] | AsyncIterable[Any],
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["complete"] = "complete",
        return_exceptions: Literal[False] = False,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        response_model: type[BaseModel] | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        resume: bool = False,
        retry_failed: RetryFailed = "transient",
        accept_changed: bool = False,
        progress: Callable[[MapProgress], object] | None = None,
        **params: Any,
    ) -> list[Completion]: ...

    @overload
    async def batch_map(
        self,
        docs: Iterable[Any] | AsyncIterable[Any],
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["complete"] = "complete",
        return_exceptions: bool,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        response_model: type[BaseModel] | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        resume: bool = False,
        retry_failed: RetryFailed = "transient",
        accept_changed: bool = False,
        progress: Callable[[MapProgress], object] | None = None,
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
        response_model: type[BaseModel] | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        resume: bool = False,
        retry_failed: RetryFailed = "transient",
        accept_changed: bool = False,
        progress: Callable[[MapProgress], object] | None = None,
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
        response_model: type[BaseModel] | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        resume: bool = False,
        retry_failed: RetryFailed = "transient",
        accept_changed: bool = False,
        progress: Callable[[MapProgress], object] | None = None,
        **params: Any,
    ) -> list[Any]:
        """Make one call per document and return the answers in input order.

        Args:
            docs: any iterable or async iterable; read lazily.
            prompt: a template (``{}`` for a text, ``{name}`` for a mapping's field) or a callable of one document, which returns a text, token
                ids, or a conversation to be answered as ``chat`` does.
            call: which call is made: ``"complete"``, ``"chat"``, ``"embed"`` or ``"classify"``. For ``"chat"`` a text is one message of the
                user's.
            return_exceptions: return the list with errors in their documents' places, instead of raising.
            model, priority, tenant: as for ``complete``.
            timeout_s: each document's time, from when it is read.
            look_ahead: documents read ahead of the results, at most; by default 4 × the limits of all endpoints
                together, at least 1,024, and at least 4 × ``AdaptiveLimit.max`` where the limit is found.
            response_model: as for ``complete``; a row whose answer does not fit fails with ``AnswerInvalid``.
            journal: a file, or a ``Journal``, in which rows are kept as they finish. It is opened when the first row
                is asked for.
            resume: take the rows that the journal has from there, and send the others; begin if it has none. Without
                it a journal with rows is refused.
            retry_failed: which failed rows of the journal are sent again: ``"transient"``, those that may succeed now;
                ``"none"``; or ``"all"``.
            accept_changed: resume also where template, parameters or model are others than the journal's.
            progress: called with a ``MapProgress`` in the event loop, at most four times a second, and at the end.
            params: as for ``complete``.

        Returns:
            One answer (or exception) per document: what the call gives, a ``Completion`` by default.

        Raises:
            BatchMapFailed: a document failed, or reading them did. All others were run; answers and errors are in
                ``results``.
            ConfigError: an argument is wrong, or the journal cannot be used. Nothing was sent. A template that cannot be filled with a document of
                a list or tuple is such an argument, unless ``return_exceptions`` is given. Elsewhere it is the
                document's own failure.
            JournalFailed: the journal cannot be written. What was answered before is in it.
            BatchClientError: the server was to be asked for its model, and that failed.
        """
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
            response_model=response_model,
            journal=journal,
            resume=resume,
            retry_failed=retry_failed,
            accept_changed=accept_changed,
            progress=progress,
            **params,
        )
        if isinstance(docs, (list, tuple)) and isinstance(prompt, str) and not return_exceptions:
            for _ in check_documents(docs, prompt):
                await anyio.lowlevel.checkpoint()
        results = Results(return_exceptions=return_exceptions)
        try:
            async for row in rows:
                results.add(row)
        except Exception as error:
            if error is not rows.source_error:
                raise
        finally:
            await rows.aclose()
        return results.all(rows.source_error)

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
        response_model: type[BaseModel] | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        resume: bool = False,
        retry_failed: RetryFailed = "transient",
        accept_changed: bool = False,
        progress: Callable[[MapProgress], object] | None = None,
        **params: Any,
    ) -> Map:
        """Make one call per document and yield the results as they come.

        Memory stays flat: at most ``look_ahead`` documents are read ahead of what was yielded, and reading stops while
        results are not taken. A document that cannot be used yields a row with its error; it stops nothing.

        Args:
            docs, prompt, call, model, timeout_s, priority, tenant, look_ahead, response_model, params: as for ``batch_map``.
            journal, resume, retry_failed, accept_changed, progress: as for ``batch_map``. With a journal a row is
                yielded after its commit.
            ordered: yield in input order instead of completion order.

        Returns:
            An async iterator of ``MapResult``; ``aclose()`` cancels what is left.

        Raises:
            ConfigError: an argument is wrong. What is wrong with the journal is raised with the first row.
        """
        refuse_frame(docs, "docs")
        if isinstance(docs, (str, bytes, Mapping)) or not isinstance(docs, (Iterable, AsyncIterable)):
            raise ConfigError(f"docs is an iterable of documents, not a {type(docs).__name__}", field="docs")
        if look_ahead is not None and (type(look_ahead) is not int or look_ahead < 1):
            raise ConfigError("look_ahead is a whole number of at least 1", field="look_ahead")
        kept_in = journal_of(journal, resume=resume, retry_failed=retry_failed, accept_changed=accept_changed)
        if progress is not None and not callable(progress):
            raise ConfigError(f"progress is a function, not a {type(progress).__name__}", field="progress")
        make = make_prompt(prompt)
        finish: Finish | None = None
        finish_rendered: Finish = as_chat
        if response_model is not None:
            params = structured().demand(response_model, params)
            finish = own = self._callbacks.guard("response_model", structured().parse(response_model))
            finish_rendered = lambda completion: own(as_chat(completion))  # noqa: E731
        kind = _MAPPED.get(call) if isinstance(call, str) else None
        if kind is None:
            raise ConfigError(f"call is one of {', '.join(_MAPPED)}, not {call!r:.40}", field="call")
        if response_model is not None and kind not in (Kind.COMPLETION, Kind.CHAT):
            raise ConfigError(
                f"response_model is for texts that are generated, not for call={call!r}", field="response_model"
            )
        # Wrong parameters are refused here, not once per document.
        self._calls.check(model, timeout_s, params, priority, tenant, kind)

        def make_request(document: Any, row: Row, runner: Runner) -> Request:
            item: Any = call_back("prompt", make, document)
            own = kind
            fields: Mapping[str, Any] = params
            row.finish = finish
            if own is Kind.CHAT and isinstance(item, str):
                item = [{"role": "user", "content": item}]
            if own is Kind.CHAT or (own is Kind.COMPLETION and is_conversation(item)):
                own, item, fields = self._chat_or_rendered(item, params)
                row.finish = finish if own is Kind.CHAT else finish_rendered
            now = runner.backend.now()
            return self._calls.make(item, model, timeout_s, fields, row, now, priority, tenant, own)

        journaled: Journaled | None = None
        if kept_in is not None:
            from batchclient._maps.journaled import Journaled

            def describe() -> tuple[str, str]:
                shape = self._calls.check(model, timeout_s, params, priority, tenant, kind)
                made_by = json.dumps([call, prompt if isinstance(prompt, str) else None]).encode()
                return sha256(made_by + shape.answer_key).hexdigest(), shape.model

            journaled = Journaled(
                kept_in,
                resume=resume,
                retry_failed=retry_failed,
                accept_changed=accept_changed,
                describe=describe,
                by_template=isinstance(prompt, str),
                again=finish,
            )
        more_ahead = 0 if journaled is None else journaled.more_ahead
        return Map(
            docs,
            make_request,
            self._start,
            (lambda: self._look_ahead() + more_ahead) if look_ahead is None else (lambda: look_ahead),
            ordered=ordered,
            prepare=self._find_model if model is None else None,
            journaled=journaled,
            ticker=None if progress is None else Ticker(self._callbacks.guard("progress", progress)),
        )

    def _look_ahead(self) -> int:
        """How many rows of a map may be open, unless the caller says: enough to keep every server busy."""
        runner = self._runner
        together = 0 if runner is None else runner.core.total_limit
        return max(_LEAST_LOOK_AHEAD, _LIMITS_AHEAD * max(self._settings.highest_limit, together))
