"""The calls for many documents: one call per document, results as they come or all at once.

Rules:
- A wrong argument is refused here, once, and not once per document. Documents are read lazily.
- A document goes the way of every call (``calling``), and gets the answer that its call gets;
  ``call`` says which call.
- The maps hand requests to the core without a task per document (``maps``).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from json import loads
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

import anyio.lowlevel

from batchclient._calls.inputs import is_conversation
from batchclient._calls.make import LABELS
from batchclient._client.calling import Calling, Messages, structured
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request, Shape
from batchclient._maps.arrow import ArrowTable, Documents, documents_of
from batchclient._maps.progress import Ticker
from batchclient._maps.repairs import Repairs, answers_alike, check_retries, check_truncated
from batchclient._maps.results import Results, check_documents
from batchclient._maps.row_calls import KINDS, RowCall, RowCalls, RowForm, RowParams, known_names, merged
from batchclient._shell.callbacks import call_back
from batchclient._shell.runner import Runner
from batchclient.errors import ConfigError, TooManyBadRows
from batchclient.maps import Finish, Map, Row
from batchclient.templates import Prompt
from batchclient.types import NOT_GIVEN, Classification, Completion, Embedding, MapProgress, MapResults, NotGiven

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient._client.functions import RowClient
    from batchclient.journal import HeldJournal, Journal
    from batchclient.params import ChatMapParams, ClassificationMapParams, CompletionMapParams, EmbeddingMapParams

__all__ = ["MapMethods"]

_D = TypeVar("_D")
_T = TypeVar("_T")
_MAPPED = ("complete", "chat", "embed", "classify")
"""The calls that a map makes where its documents do not name their own."""


_LEAST_LOOK_AHEAD = 1024
_LIMITS_AHEAD = 4
"""Open rows per row in flight.

Some rows wait for company, and some, in a map in order, for an earlier row.
"""


class MapMethods(Calling):
    """The methods of ``BatchClient`` that take many documents."""

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["complete"] = "complete",
        return_exceptions: Literal[False] = False,
        **params: Unpack[CompletionMapParams],
    ) -> MapResults[Completion]: ...

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["complete"] = "complete",
        return_exceptions: bool,
        **params: Unpack[CompletionMapParams],
    ) -> MapResults[Completion | Exception]: ...

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["chat"],
        return_exceptions: Literal[False] = False,
        **params: Unpack[ChatMapParams],
    ) -> MapResults[Completion]: ...

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["chat"],
        return_exceptions: bool,
        **params: Unpack[ChatMapParams],
    ) -> MapResults[Completion | Exception]: ...

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["embed"],
        return_exceptions: Literal[False] = False,
        **params: Unpack[EmbeddingMapParams],
    ) -> MapResults[Embedding]: ...

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["embed"],
        return_exceptions: bool,
        **params: Unpack[EmbeddingMapParams],
    ) -> MapResults[Embedding | Exception]: ...

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["classify"],
        return_exceptions: Literal[False] = False,
        **params: Unpack[ClassificationMapParams],
    ) -> MapResults[Classification]: ...

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["classify"],
        return_exceptions: bool,
        **params: Unpack[ClassificationMapParams],
    ) -> MapResults[Classification | Exception]: ...

    @overload
    async def batch_map(
        self,
        docs: Documents,
        prompt: None = None,
        *,
        rows: RowForm | None = None,
        row_params: RowParams | None = None,
        call: Literal["complete", "chat", "embed", "classify"] = "complete",
        return_exceptions: bool = False,
        **params: Any,
    ) -> MapResults[Any]: ...

    async def batch_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Any] | None = None,
        *,
        rows: RowForm | None = None,
        row_params: RowParams | None = None,
        call: Literal["complete", "chat", "embed", "classify"] = "complete",
        return_exceptions: bool = False,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        response_model: type[BaseModel] | None = None,
        retry_invalid: int = 0,
        retry_truncated: int = 0,
        max_tokens_at_most: int | None = None,
        fail_if: Sequence[str] = (),
        journal: str | os.PathLike[str] | Journal | HeldJournal | None = None,
        progress: Callable[[MapProgress], object] | None = None,
        **params: Any,
    ) -> MapResults[Any]:
        """Make one call per document and return the answers in input order.

        Args:
            docs: any iterable or async iterable, or a table with Arrow's stream (pandas, polars,
                pyarrow, DuckDB; by pyarrow, extra ``data``), whose rows are dicts; read lazily.
            prompt: a template (``{}`` for a text, ``{name}`` for a mapping's field, ``{name!j}``
                for the field as JSON) or a callable of one document, which returns a text, token
                ids, or a conversation to be answered as ``chat`` does. Without it the documents are
                requests themselves.
            rows: the form of such documents: ``"messages"``, ``"prompt"``, ``"conversations"``
                (ShareGPT) or ``"batch"`` (lines of an OpenAI Batch file, which name their call).
                By default the first document tells it.
            row_params: whether fields with the name of a parameter are the document's own
                parameters (``"take"``) or data (``"ignore"``). By default a document that has such
                a field is refused; beside a template a table's columns are data, and beside a
                function every field is. An object in a field ``params``, and the body of a Batch
                line, are taken without a word.
            call: the call that is made: ``"complete"``, ``"chat"``, ``"embed"`` or ``"classify"``.
                For ``"chat"`` a text is one message of the user's; a document that is a chat needs
                no word of it.
            return_exceptions: return the list with errors in their documents' places, instead of
                raising.
            model, priority, tenant: as for ``complete``.
            timeout_s: each document's time, seconds, from the first request with it that a server
                takes on: retries count, the queue does not. ``None``: no bound.
            look_ahead: rows that are open at a time, at most: read, and without an answer or error;
                by default 4 × the limits of all endpoints together, at least 1,024, and at least
                4 × ``AdaptiveLimit.max`` where the limit is found; 2,048 more with a journal.
            response_model: as for ``complete``; a row whose answer does not fit fails with
                ``AnswerInvalid``.
            retry_invalid: ask a row again whose answer does not fit ``response_model``, up to so
                many times, unless the answer was cut off. Refused with ``temperature=0`` or a
                ``seed``: the answer would be the same.
            retry_truncated: go on with a row's answer that was cut off at its bound, up to so many
                times: where it was cut, or anew with twice the bound where the server cannot go on,
                and with structured output, tools, reasoning, logprobs, ``stop`` or penalties. A
                journal's answers that were cut off are gone on with, too. Not after a loop, nor
                with ``n`` above 1. Before the first row the servers are asked which they are.
            max_tokens_at_most: output tokens of such a row in all, which the last try may use, no
                less than ``max_tokens``; by default ``max_tokens``, doubled for each try.
            fail_if: bounds on the shares of rows that are none, such as ``["truncated>1%",
                "failed>5%"]``: kinds of ``health``, and ``failed``. Past one the map ends with
                ``TooManyBadRows``, early where 50 rows or more make that certain (99.9 %, for rows
                in random order).
            journal: a file, or a ``Journal``, in which rows are kept as they finish. Rows that it
                has are taken from there, and not sent. It is opened when the first row is asked
                for.
            progress: called with a ``MapProgress`` in the event loop, at most four times a second,
                and at the end. An error of the function is logged once, and ends nothing.
            params: as for the call.

        Returns:
            One answer (or exception) per document: a ``Completion``, an ``Embedding`` for
                ``"embed"``, a ``Classification`` for ``"classify"``; and in ``health`` how many of
                them are of each health.

        Raises:
            BatchMapFailed: a document failed, or reading the documents did. All others were run;
                answers and errors are in ``results``.
            TooManyBadRows: a bound of ``fail_if`` is broken; ``results`` has all rows so far.
            ConfigError: an argument is wrong, or the journal is in use, another job's, or no
                journal. Nothing was sent. A template that cannot be filled with a document of a
                list or tuple is a wrong argument, unless ``return_exceptions`` is given. Elsewhere
                such a template is the document's own failure.
            JournalFailed: the journal cannot be written. The answers handed out before are in it.
            BatchClientError: the server was to be asked for its model, and that failed.
        """
        answered = self._make_map(
            docs, prompt, rows, row_params, call, False, model, timeout_s, priority, tenant, look_ahead,
            response_model, (retry_invalid, retry_truncated, max_tokens_at_most), fail_if, journal, progress, params,
            "batch_map",
        )  # fmt: skip
        if isinstance(docs, (list, tuple)) and not callable(prompt) and not return_exceptions:
            for _ in check_documents(docs, prompt, rows, row_params, call):
                await anyio.lowlevel.checkpoint()
        results = Results(return_exceptions=return_exceptions)
        try:
            async for row in answered:
                results.add(row)
        except TooManyBadRows as error:
            raise results.into(error, answered.health) from None
        except Exception as error:
            if error is not answered.source_error:
                raise
        finally:
            await answered.aclose()
        return results.all(answered.health, answered.source_error)

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["complete"] = "complete",
        ordered: bool = False,
        **params: Unpack[CompletionMapParams],
    ) -> Map[Completion]: ...

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["chat"],
        ordered: bool = False,
        **params: Unpack[ChatMapParams],
    ) -> Map[Completion]: ...

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["embed"],
        ordered: bool = False,
        **params: Unpack[EmbeddingMapParams],
    ) -> Map[Embedding]: ...

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["classify"],
        ordered: bool = False,
        **params: Unpack[ClassificationMapParams],
    ) -> Map[Classification]: ...

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: None = None,
        *,
        rows: RowForm | Callable[[Any], RowCall] | None = None,
        row_params: RowParams | None = None,
        call: Literal["complete", "chat", "embed", "classify"] = "complete",
        ordered: bool = False,
        **params: Any,
    ) -> Map[Any]: ...

    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Any] | None = None,
        *,
        rows: RowForm | Callable[[Any], RowCall] | None = None,
        row_params: RowParams | None = None,
        call: Literal["complete", "chat", "embed", "classify"] = "complete",
        ordered: bool = False,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        response_model: type[BaseModel] | None = None,
        retry_invalid: int = 0,
        retry_truncated: int = 0,
        max_tokens_at_most: int | None = None,
        fail_if: Sequence[str] = (),
        journal: str | os.PathLike[str] | Journal | HeldJournal | None = None,
        progress: Callable[[MapProgress], object] | None = None,
        **params: Any,
    ) -> Map[Any]:
        """Make one call per document and yield the results as they come.

        Memory stays flat: at most ``look_ahead`` documents are read ahead of the rows yielded, and
        reading stops while results are not taken. A document that cannot be used yields a row with
        an error; the map goes on.

        In order, with a journal, a finished row behind a slow one is put aside on the disk, and
        does not count. Without one it counts: once ``look_ahead`` rows wait behind a slow one,
        nothing is sent until that one ends.

        Args:
            docs, prompt, rows, row_params, call, model, timeout_s, priority, tenant: as for
                ``batch_map``.
            response_model, retry_invalid, retry_truncated, max_tokens_at_most, fail_if, params: as
                for ``batch_map``.
            look_ahead: documents read ahead of the rows yielded, at most; the default is that of
                ``batch_map``.
            journal, progress: as for ``batch_map``. With a journal an answer is yielded once it is
                on the disk.
            ordered: yield in input order instead of completion order.

        Returns:
            An async iterator of ``MapResult``; ``aclose()`` and the end of ``async with`` cancel
            the calls that are left.

        Raises:
            ConfigError: an argument is wrong. A journal that cannot be used is refused with the
                first row.
            TooManyBadRows: from the iterator: a bound of ``fail_if`` is broken.
        """
        return self._make_map(
            docs, prompt, rows, row_params, call, ordered, model, timeout_s, priority, tenant, look_ahead,
            response_model, (retry_invalid, retry_truncated, max_tokens_at_most), fail_if, journal, progress, params,
            "stream_map",
        )  # fmt: skip

    def run(
        self,
        function: Callable[[_D, RowClient], Awaitable[_T]],
        rows: Iterable[_D] | AsyncIterable[_D] | ArrowTable,
        *,
        ordered: bool = False,
        fail_if: Sequence[str] = (),
        journal: str | os.PathLike[str] | Journal | HeldJournal | None = None,
        progress: Callable[[MapProgress], object] | None = None,
    ) -> Map[_T]:
        """Call a function of each row, and yield what it returns as it comes.

            async def review(row, client):
                draft = await client.chat(ask(row), max_tokens=400)
                verdict = await client.chat(judge(row, draft.text), max_tokens=1)
                return draft.text if verdict.text == "good" else None

            async for result in client.run(review, rows, journal="reviews.journal"):
                print(result.id, result.answer, result.error)

        **Side effects happen again.** A later run with the same journal calls the function anew for
        every row. What the function asks ``client`` in the same words is answered from the journal,
        and nothing is sent; whatever else it does (files, other servers, prints) it does again. No
        step needs a name, and nothing has to be deterministic: a step that was added, or asks
        something else than before, is sent.

        A row is known by its ``id``, else by its JSON; equal rows, and equal calls of a row such as
        five votes, have an answer each. At most 64 rows are open, or 4 for each call that may be in
        flight. Calls of rows begun earlier go first.

        Args:
            function: an ``async def`` function of a row and a ``RowClient``. It runs in the event
                loop, with the variables (``contextvars``) of whoever takes the first result; it
                must not block.
            rows: any iterable or async iterable, or a table, as for ``batch_map``; read lazily.
            ordered: yield in input order instead of the order in which rows end.
            fail_if: a bound on rows that fail, such as ``["failed>5%"]``; see ``batch_map``.
            journal: a file, or a ``Journal``, in which each call's answer is kept. The function has
                an answer at once; its row is yielded when all its answers are on the disk. Errors
                that would come again are kept, and raised again; ``Journal(retry_failed=True)``
                asks anew. ``Journal(dedupe=True)`` is for maps.
            progress: as for ``batch_map``; tokens are those of all calls.

        Returns:
            An async iterator of ``MapResult``: in ``answer`` what the function returned, or in
            ``error`` what it raised. ``attempts`` are those of its calls; ``reused`` says that all
            its calls were answered from the journal. ``aclose()`` and the end of ``async with``
            cancel the functions that are left.

        Raises:
            ConfigError: an argument is wrong. A journal that cannot be used is refused with the
                first row. With a journal a row that has no ``id`` and is no JSON fails.
            TooManyBadRows: from the iterator: a bound of ``fail_if`` is broken.
            ClientClosed: from the iterator: the client was closed. No row that it cut short has a
                result.
        """
        from batchclient._client.functions import rows_of  # few programs have functions

        return rows_of(self, function, rows, ordered=ordered, fail_if=fail_if, journal=journal, progress=progress)

    def _make_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Any] | None,
        rows: RowForm | Callable[[Any], RowCall] | None,
        row_params: RowParams | None,
        call: str,
        ordered: bool,  # noqa: FBT001  # the arguments of ``stream_map``, in order
        model: str | None,
        timeout_s: float | NotGiven | None,
        priority: int,
        tenant: str | None,
        look_ahead: int | None,
        response_model: type[BaseModel] | None,
        retries: tuple[int, int, int | None],
        fail_if: Sequence[str],
        journal: str | os.PathLike[str] | Journal | HeldJournal | None,
        progress: Callable[[MapProgress], object] | None,
        params: Mapping[str, Any],
        method: str,
    ) -> Map[Any]:
        documents = documents_of(docs)
        if look_ahead is not None and (type(look_ahead) is not int or look_ahead < 1):
            raise ConfigError("look_ahead is a whole number of at least 1", field="look_ahead")
        # What a function makes of a document is its prompt; the document's fields are data, unless
        # somebody says otherwise.
        has_rows = not (callable(prompt) and rows is None and row_params is None)
        finish: Finish | None = None
        if response_model is not None:
            params = structured().demand(response_model, params)
            finish = self._callbacks.guard("response_model", self._parse(response_model))
        kind = KINDS.get(call) if isinstance(call, str) and (call in _MAPPED or callable(rows)) else None
        if kind is None:
            raise ConfigError(f"call is one of {', '.join(_MAPPED)}, not {call!r:.40}", field="call")
        retry_invalid, retry_truncated, _ = retries
        _check_generates(kind, call, response_model=response_model, retry_truncated=retry_truncated)
        check_retries(retry_invalid, response_model, params)
        check_truncated(*retries[1:], params)
        bounds = None
        if fail_if:
            from batchclient._maps.fail_if import FailIf  # few maps have bounds

            bounds = FailIf(fail_if, call)
        read: Callable[[Any], RowCall] | None = None
        is_sure = True
        if callable(rows):
            read = rows
        elif has_rows:
            is_table = documents is not docs or getattr(docs, "is_table", False)
            if is_table and isinstance(prompt, str):
                # Columns are data, as for ``batchclient map``.
                row_params = row_params or "ignore"
            calls = RowCalls(
                rows,
                call=call,
                template=(lambda document: call_back("prompt", prompt, document)) if callable(prompt) else prompt,
                row_params=row_params,
                is_table=is_table,
            )
            read, is_sure = calls.read, prompt is not None
        # Wrong parameters are refused here, not once per document.
        called = f"{method}()" if kind is Kind.COMPLETION else f'{method}(call="{call}")'

        def check() -> Shape:
            fault: ConfigError | None = None
            # While the documents' form is not known, parameters are those of some call.
            for each in (kind,) if is_sure else (kind, *KINDS.values()):
                try:
                    return self._calls.check(model, timeout_s, params, priority, tenant, each, called)
                except ConfigError as error:
                    fault = fault or error
            assert fault is not None, "there is a kind"
            raise fault

        check()
        seconds = self._calls.deadline(timeout_s, 0.0)

        def make_request(document: Any, row: Row, runner: Runner) -> Request:
            fields, name, row_priority, row_seconds = params, model, priority, seconds
            own_label = tells_priority = False
            if read is None:
                assert callable(prompt), "all else is read"
                item: Any = call_back("prompt", prompt, document)
                own = kind
                if own is Kind.CHAT and isinstance(item, str):
                    item = [{"role": "user", "content": item}]
                elif own is Kind.COMPLETION and is_conversation(item):
                    own = Kind.CHAT
            else:
                made = read(document)
                own, item = KINDS[made.call], made.item
                if own is not kind:
                    known = known_names(made.call)
                    fields = {name: value for name, value in params.items() if name in known or name == "extra_body"}
                if made.own:
                    if response_model is not None:
                        structured().refuse_other_forms(made.params)
                    fields = merged(fields, made.params)
                    name = model if made.model is None else made.model
                    tells_priority = made.priority is not None
                    row_priority = priority if made.priority is None else made.priority
                    own_label = not LABELS.isdisjoint(made.own)
                    if made.timeout_s is not NOT_GIVEN:
                        row_seconds = self._calls.deadline(made.timeout_s, 0.0)
                    if retry_invalid and answers_alike(fields):
                        # Asked again it would answer the same.
                        row.retries = retry_invalid
                    check_truncated(*retries[1:], fields)
                _check_generates(own, made.call, response_model=response_model)
            row.finish = finish
            now = runner.backend.now()

            def make_one(item: Any, waiter: Any, kind: Kind) -> Request:
                request = self._calls.make(
                    item, name, None, fields, waiter, now, row_priority, tenant, kind,
                    own_label=own_label, tells_priority=tells_priority,
                )  # fmt: skip
                request.timeout_s = row_seconds
                return request

            if own in (Kind.SCORE, Kind.RERANK):
                from batchclient._maps.ranking import request_of_pairs  # few rows are such

                return request_of_pairs(item, row, runner, own, make_one)
            return make_one(item, row, own)

        journaled = None
        if journal is not None:
            # Here, not above: most programs have no journal.
            from batchclient._maps.journaled import Journaled

            template = prompt if isinstance(prompt, str) else None
            again = None if response_model is None else structured().parse(response_model)
            guarded = None if again is None else self._callbacks.guard("response_model", again)

            def describe() -> dict[str, Any]:
                parameters = loads(check().body)
                return {"call": call, "model": parameters.pop("model"), "template": template, "parameters": parameters}

            kept_again = None if guarded is None else (lambda _, answer: guarded(answer))
            journaled = Journaled(journal, describe, kept_again, ordered=ordered)

        async def prepare(runner: Runner) -> None:
            # A row's time runs from its grant. Before the first row the same time bounds the
            # question.
            try:
                if model is None:
                    await self._find_model(runner, self._calls.deadline(timeout_s, runner.backend.now()))
            except ConfigError:
                # The servers have several; rows may name their own. Those that do not, fail.
                if read is None or callable(rows):
                    raise
            if retry_truncated and self._connections.asks_first():
                # A chat that was cut off goes on only where its server is known, also the first.
                await runner.find_out_servers()

        if progress is not None and not callable(progress):
            raise ConfigError(f"progress is a function, not a {type(progress).__name__}", field="progress")
        more_ahead = 0 if journaled is None else journaled.more_ahead
        return Map(
            documents,
            make_request,
            self._start,
            (lambda: self._look_ahead() + more_ahead) if look_ahead is None else (lambda: look_ahead),
            ordered=ordered,
            prepare=prepare if model is None or retry_truncated else None,
            journaled=journaled,
            repairs=Repairs(*retries, make=self._make_again),
            fail_if=bounds,
            ticker=None if progress is None else Ticker(self._callbacks.hook("progress", progress)),
        )

    def _make_again(self, request: Request, item: Any, fields: dict[str, Any]) -> Request:
        """Make a row's request of another input and other fields."""
        shape, runner = request.shape, self._runner
        assert runner is not None, "a row with a request has a runner"
        fields |= {**loads(b"{%b}" % request.solo_fields), "runaway": shape.guarded}
        made = self._calls.make(
            item, fields.pop("model"), None, {"extra_body": fields}, request.waiter, runner.backend.now(),
            shape.priority, shape.tenant, shape.kind,
            own_label=shape.alone_reason == "labels", tells_priority=shape.tells_priority,
        )  # fmt: skip
        made.deadline, made.timeout_s = request.deadline, request.timeout_s
        return made

    def _look_ahead(self) -> int:
        """Return how many rows of a map may be open, unless the caller says a number.

        The rows are enough to keep every server busy.
        """
        runner = self._runner
        together = 0 if runner is None else runner.core.total_limit
        return max(_LEAST_LOOK_AHEAD, _LIMITS_AHEAD * max(self._settings.highest_limit, together))


def _check_generates(kind: Kind, call: str, **arguments: object) -> None:
    given = next((name for name, value in arguments.items() if value), None)
    if given is not None and kind not in (Kind.COMPLETION, Kind.CHAT):
        raise ConfigError(f"{given} is for texts that are generated, not for call={call!r}", field=given)
