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
from dataclasses import dataclass
from functools import partial
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
from batchclient._maps.repair import Repair, answers_alike
from batchclient._maps.repairs import Repairs
from batchclient._maps.results import Results, check_documents
from batchclient._maps.row_calls import KINDS, RowCall, RowCalls, RowForm, RowParams, known_names, merged
from batchclient._shell.callbacks import call_back
from batchclient._shell.runner import Runner
from batchclient.errors import ConfigError, TooManyBadRows
from batchclient.maps import Finish, Map, Row, RowStream
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


_RENAMED = {
    "retry_invalid": "repair=Repair(invalid=…)",
    "retry_truncated": "repair=Repair(truncated=…)",
    "max_tokens_at_most": "repair=Repair(max_tokens=…)",
}
"""Arguments of before, and what stands for them."""


@dataclass(slots=True)
class MapJob:
    """The arguments of one map; see ``BatchClient.batch_map``. ``method`` names it in errors."""

    method: str
    docs: Any
    prompt: str | Callable[[Any], Any] | None
    call: str
    rows: RowForm | None
    row_params: RowParams | None
    ordered: bool
    model: str | None
    timeout_s: float | NotGiven | None
    priority: int
    tenant: str | None
    look_ahead: int | None
    response_model: type[BaseModel] | None
    repair: Repair
    fail_if: Sequence[str]
    journal: str | os.PathLike[str] | Journal | HeldJournal | None
    progress: Callable[[MapProgress], object] | None
    params: Mapping[str, Any]

    @property
    def is_function(self) -> bool:
        """Whether a function makes each call, and all fields of its documents are data."""
        return callable(self.prompt) and self.rows is None and self.row_params is None

    def check(self) -> Kind:
        """Check what needs no client; return the kind of the calls, where documents name no other.

        Raises:
            ConfigError: an argument is wrong.
        """
        for old, new in _RENAMED.items():
            if old in self.params:
                raise ConfigError(f"{old} is now {new}", field=old)
        if self.look_ahead is not None and (type(self.look_ahead) is not int or self.look_ahead < 1):
            raise ConfigError("look_ahead is a whole number of at least 1", field="look_ahead")
        if self.progress is not None and not callable(self.progress):
            raise ConfigError(f"progress is a function, not a {type(self.progress).__name__}", field="progress")
        if not isinstance(self.repair, Repair):
            raise ConfigError(f"repair is a Repair, not a {type(self.repair).__name__}", field="repair")
        kind = KINDS.get(self.call) if self.call in _MAPPED or self.is_function else None
        if kind is None:
            raise ConfigError(f"call is one of {', '.join(_MAPPED)}, not {self.call!r:.40}", field="call")
        truncated = {"repair.truncated": self.repair.truncated}
        _check_generates(kind, self.call, response_model=self.response_model, **truncated)
        return kind

    def reader(self, *, is_table: bool) -> Callable[[Any], RowCall]:
        """Return the function from a document to its call.

        Raises:
            ConfigError: prompt, form and ``row_params`` do not go together.
        """
        prompt = self.prompt
        template: Any = (lambda document: call_back("prompt", prompt, document)) if callable(prompt) else prompt
        if self.is_function:
            return lambda document: self._call_of(template(document))
        # A table's columns are data beside a template, as for ``batchclient map``.
        own = self.row_params or ("ignore" if is_table and isinstance(prompt, str) else None)
        return RowCalls(self.rows, call=self.call, template=template, row_params=own, is_table=is_table).read

    def _call_of(self, item: Any) -> RowCall:
        """Return the call that a function has made, or whose input it has made."""
        if isinstance(item, RowCall):
            return item
        if self.call == "chat" and isinstance(item, str):
            return RowCall("chat", [{"role": "user", "content": item}], {})
        return RowCall("chat" if self.call == "complete" and is_conversation(item) else self.call, item, {})

    def described(self, shape: Shape) -> dict[str, Any]:
        """Return what decides the answers, by name."""
        parameters = loads(shape.body)
        template = self.prompt if isinstance(self.prompt, str) else None
        return {"call": self.call, "model": parameters.pop("model"), "template": template, "parameters": parameters}


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
        prompt: Callable[[Any], RowCall] | None = None,
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
        repair: Repair | None = None,
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
                ids, or a conversation to be answered as ``chat`` does; or a whole ``RowCall``, with
                parameters of its own. Without it the documents are requests themselves.
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
            repair: a ``Repair``: what to do about answers that were cut off, or do not fit.
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
        job = MapJob(
            "batch_map", docs, prompt, call, rows, row_params, ordered=False, model=model, timeout_s=timeout_s,
            priority=priority, tenant=tenant, look_ahead=look_ahead, response_model=response_model,
            repair=repair or Repair(), fail_if=fail_if, journal=journal, progress=progress, params=params,
        )  # fmt: skip
        answered = self._make_map(job)
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
    ) -> RowStream[Completion]: ...

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["chat"],
        ordered: bool = False,
        **params: Unpack[ChatMapParams],
    ) -> RowStream[Completion]: ...

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["embed"],
        ordered: bool = False,
        **params: Unpack[EmbeddingMapParams],
    ) -> RowStream[Embedding]: ...

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["classify"],
        ordered: bool = False,
        **params: Unpack[ClassificationMapParams],
    ) -> RowStream[Classification]: ...

    @overload
    def stream_map(
        self,
        docs: Documents,
        prompt: Callable[[Any], RowCall] | None = None,
        *,
        rows: RowForm | None = None,
        row_params: RowParams | None = None,
        call: Literal["complete", "chat", "embed", "classify"] = "complete",
        ordered: bool = False,
        **params: Any,
    ) -> RowStream[Any]: ...

    def stream_map(
        self,
        docs: Documents,
        prompt: str | Callable[[Any], Any] | None = None,
        *,
        rows: RowForm | None = None,
        row_params: RowParams | None = None,
        call: Literal["complete", "chat", "embed", "classify"] = "complete",
        ordered: bool = False,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        look_ahead: int | None = None,
        response_model: type[BaseModel] | None = None,
        repair: Repair | None = None,
        fail_if: Sequence[str] = (),
        journal: str | os.PathLike[str] | Journal | HeldJournal | None = None,
        progress: Callable[[MapProgress], object] | None = None,
        **params: Any,
    ) -> RowStream[Any]:
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
            response_model, repair, fail_if, params: as for ``batch_map``.
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
        job = MapJob(
            "stream_map", docs, prompt, call, rows, row_params, ordered=ordered, model=model, timeout_s=timeout_s,
            priority=priority, tenant=tenant, look_ahead=look_ahead, response_model=response_model,
            repair=repair or Repair(), fail_if=fail_if, journal=journal, progress=progress, params=params,
        )  # fmt: skip
        return RowStream(self._make_map(job))

    def run(
        self,
        function: Callable[[_D, RowClient], Awaitable[_T]],
        rows: Iterable[_D] | AsyncIterable[_D] | ArrowTable,
        *,
        ordered: bool = False,
        fail_if: Sequence[str] = (),
        journal: str | os.PathLike[str] | Journal | HeldJournal | None = None,
        progress: Callable[[MapProgress], object] | None = None,
    ) -> RowStream[_T]:
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

        return RowStream(rows_of(self, function, rows, ordered, fail_if, journal, progress))

    def _make_map(self, job: MapJob) -> Map[Any]:
        """Check the arguments of a map, and make it.

        Raises:
            ConfigError: an argument is wrong.
        """
        documents, kind = documents_of(job.docs), job.check()
        bounds = None
        if job.fail_if:
            from batchclient._maps.fail_if import FailIf  # few maps have bounds

            bounds = FailIf(job.fail_if, job.call)
        fields = job.params
        if job.response_model is not None:
            fields = structured().demand(job.response_model, fields)
        job.repair.check(fields, job.response_model)
        is_table = documents is not job.docs or getattr(job.docs, "is_table", False)
        read = job.reader(is_table=is_table)
        check = partial(self._check_calls, job, kind, fields)
        # Wrong parameters are refused here, not once per document.
        check()
        make_request = self._requests_of(job, kind, fields, read)
        journaled = None
        if job.journal is not None:
            # Here, not above: most programs have no journal.
            from batchclient._maps.journaled import Journaled

            again = None if job.response_model is None else structured().parse(job.response_model)
            guarded = None if again is None else self._callbacks.guard("response_model", again)
            kept_again = None if guarded is None else (lambda _, answer: guarded(answer))
            journaled = Journaled(job.journal, lambda: job.described(check()), kept_again, ordered=job.ordered)
        more_ahead, look_ahead = 0 if journaled is None else journaled.more_ahead, job.look_ahead
        return Map(
            documents,
            make_request,
            self._start,
            (lambda: self._look_ahead() + more_ahead) if look_ahead is None else (lambda: look_ahead),
            ordered=job.ordered,
            prepare=partial(self._prepare, job) if job.model is None or job.repair.truncated else None,
            journaled=journaled,
            repairs=Repairs(job.repair, self._make_again),
            fail_if=bounds,
            ticker=None if job.progress is None else Ticker(self._callbacks.hook("progress", job.progress)),
        )

    def _check_calls(self, job: MapJob, kind: Kind, fields: Mapping[str, Any]) -> Shape:
        """Check the arguments that all calls of a map share; return their shape."""
        method = f"{job.method}()" if kind is Kind.COMPLETION else f'{job.method}(call="{job.call}")'
        fault: ConfigError | None = None
        # While the documents' form is not known, parameters are those of some call.
        for each in (kind, *KINDS.values()) if job.prompt is None else (kind,):
            try:
                return self._calls.check(job.model, job.timeout_s, fields, job.priority, job.tenant, each, method)
            except ConfigError as error:
                fault = fault or error
        assert fault is not None, "there is a kind"
        raise fault

    def _requests_of(
        self, job: MapJob, kind: Kind, params: Mapping[str, Any], read: Callable[[Any], RowCall]
    ) -> Callable[[Any, Row, Runner], Request]:
        """Return the function that makes the request of a document."""
        repair, seconds = job.repair, self._calls.deadline(job.timeout_s, 0.0)
        finish: Finish | None = None
        if job.response_model is not None:
            finish = self._callbacks.guard("response_model", self._parse(job.response_model))

        def make_request(document: Any, row: Row, runner: Runner) -> Request:
            made = read(document)
            own, item, fields = KINDS[made.call], made.item, params
            _check_generates(own, made.call, response_model=job.response_model)
            if own is not kind:
                known = known_names(made.call)
                fields = {name: value for name, value in params.items() if name in known or name == "extra_body"}
            if made.params:
                if job.response_model is not None:
                    structured().refuse_other_forms(made.params)
                fields = merged(fields, made.params)
                if repair.invalid and answers_alike(fields):
                    # Asked again it would answer the same.
                    row.retries = repair.invalid
                repair.check_bound(fields)
            row.finish = finish
            name = job.model if made.model is None else made.model
            priority = job.priority if made.priority is None else made.priority
            row_seconds = seconds if made.timeout_s is NOT_GIVEN else self._calls.deadline(made.timeout_s, 0.0)
            now, own_label = runner.backend.now(), not LABELS.isdisjoint(made.params)

            def make_one(item: Any, waiter: Any, kind: Kind) -> Request:
                request = self._calls.make(
                    item, name, None, fields, waiter, now, priority, job.tenant, kind,
                    own_label=own_label, tells_priority=made.priority is not None,
                )  # fmt: skip
                request.timeout_s = row_seconds
                return request

            if own in (Kind.SCORE, Kind.RERANK):
                from batchclient._maps.ranking import request_of_pairs  # few rows are such

                return request_of_pairs(item, row, runner, own, make_one)
            return make_one(item, row, own)

        return make_request

    async def _prepare(self, job: MapJob, runner: Runner) -> None:
        """Ask the servers what the first row needs to know."""
        # A row's time runs from its grant. Before the first row the same time bounds the question.
        try:
            if job.model is None:
                await self._find_model(runner, self._calls.deadline(job.timeout_s, runner.backend.now()))
        except ConfigError:
            # The servers have several; rows may name their own. Those that do not, fail.
            if job.is_function:
                raise
        if job.repair.truncated and self._connections.asks_first():
            # A chat that was cut off goes on only where its server is known, also the first.
            await runner.find_out_servers()

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
