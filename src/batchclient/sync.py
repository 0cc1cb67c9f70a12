"""``SyncBatchClient``: the same calls for threads, by a ``BatchClient`` in another event loop.

Rules:
- No second client: every method is ``BatchClient``'s, called through the bridge, with the same
  arguments and docstring.
- Plain methods run while the event loop stands still. No plain method starts the loop.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import update_wrapper, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, Self, TypeVar, Unpack, cast, overload

from batchclient._client.maps import MapJob, count_of, make_map
from batchclient._maps.arrow import ArrowTable, documents_of
from batchclient._maps.repair import Repair
from batchclient._maps.results import Results, check_documents
from batchclient._maps.row_calls import RowCall, RowForm, RowParams
from batchclient._threads.bridge import Bridge
from batchclient._threads.iterators import Feed, SyncRowStream, SyncStream
from batchclient.client import BatchClient, RowClient
from batchclient.errors import ClientClosed, ConfigError, TooManyBadRows
from batchclient.maps import Map, map_of
from batchclient.stream import Stream
from batchclient.templates import Prompt
from batchclient.types import NOT_GIVEN, Classification, Completion, Embedding, MapProgress, MapResults, NotGiven

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient._calls.call import Messages
    from batchclient.journal import HeldJournal, Journal
    from batchclient.params import ChatMapParams, ClassificationMapParams, CompletionMapParams, EmbeddingMapParams

__all__ = ["SyncBatchClient", "SyncRowStream", "SyncStream"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_D = TypeVar("_D")
_Stub = Callable[["SyncBatchClient"], None]
"""Stands under a decorator that makes the whole method."""


def _as(
    constructor: Callable[Concatenate[BatchClient, _P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[SyncBatchClient, _P], None]]:
    """Give a constructor the signature of another, for readers, editors and type checkers."""
    return lambda own: update_wrapper(own, constructor, assigned=(), updated=())


def _blocking(
    pick: Callable[[BatchClient], Callable[_P, Coroutine[Any, Any, _T]]],
) -> Callable[[_Stub], Callable[Concatenate[SyncBatchClient, _P], _T]]:
    """Return the same method, made by the bridge together with other threads' calls."""
    return _through(Bridge.call, pick)


def _asking(
    pick: Callable[[BatchClient], Callable[_P, _T]],
) -> Callable[[_Stub], Callable[Concatenate[SyncBatchClient, _P], _T]]:
    """Return the same plain method, run while the event loop stands still."""
    return _through(Bridge.ask, pick)


def _streaming(
    pick: Callable[[BatchClient], Callable[_P, Stream]],
) -> Callable[[_Stub], Callable[Concatenate[SyncBatchClient, _P], SyncStream]]:
    """Return the same stream, for a thread."""
    return _through(lambda bridge, *call, **kwargs: SyncStream(bridge, bridge.ask(*call, **kwargs)), pick)


def _through(cross: Callable[..., Any], pick: Callable[[BatchClient], Any]) -> Callable[[_Stub], Any]:
    """Return a method that crosses the bridge to ``BatchClient``'s of the same name and docstring."""
    # The method of an instance has the signature for type checkers; the method of the class is
    # called.
    method = pick(cast("BatchClient", BatchClient))

    @wraps(method)
    def through(self: SyncBatchClient, /, *args: Any, **kwargs: Any) -> Any:
        return cross(self._bridge, method, self._client, *args, **kwargs)

    return lambda _stub: through


def _fed(docs: Any, name: str) -> tuple[Iterable[Any], Feed]:
    """Return documents that a thread reads, and what hands them to the event loop."""
    documents = documents_of(docs, name)
    if isinstance(documents, AsyncIterable):
        raise ConfigError(f"{name} is an ordinary iterable here; an async one is for BatchClient", field=name)
    return documents, Feed(is_table=documents is not docs)


class SyncBatchClient:
    """A client for code without ``await``: calls of many threads share requests.

    The methods are ``BatchClient``'s, with the same arguments, answers and errors; each blocks the
    calling thread. Calls that threads make within about a millisecond travel together, as the calls
    of one ``asyncio.gather`` do. A single thread with one call after the other gains nothing: give
    the documents to ``batch_map``, or use more threads. For example::

        with SyncBatchClient("http://localhost:8000/v1") as client, ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(client.complete, prompts))

    The event loop runs in a daemon thread, which the first call starts. One client serves all
    threads: a client per thread would share no request.

    Args:
        **arguments: ``BatchClient``'s. Functions among the arguments (a ``max_size``, a retry
            policy) run in the background thread, and so does an ``httpx.AsyncClient`` given as
            ``http``.

    Raises:
        ConfigError: an argument is wrong; the error names the argument.
    """

    @_as(BatchClient.__init__)
    def __init__(self, *args: Any, **arguments: Any) -> None:
        self._client = BatchClient(*args, **arguments)
        self._bridge = Bridge(self._client.aclose)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._client)[1:]}"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client cannot be sent to another process or copied: make one there, or share this one between threads"
        )

    @_blocking(lambda client: client.complete)
    def complete(self) -> None: ...

    @_blocking(lambda client: client.chat)
    def chat(self) -> None: ...

    @_blocking(lambda client: client.embed)
    def embed(self) -> None: ...

    @_blocking(lambda client: client.classify)
    def classify(self) -> None: ...

    @_blocking(lambda client: client.score)
    def score(self) -> None: ...

    @_blocking(lambda client: client.rerank)
    def rerank(self) -> None: ...

    @_blocking(lambda client: client.log_likelihood)
    def log_likelihood(self) -> None: ...

    @_blocking(lambda client: client.tokenize)
    def tokenize(self) -> None: ...

    @_streaming(lambda client: client.stream)
    def stream(self) -> None: ...

    @_streaming(lambda client: client.stream_chat)
    def stream_chat(self) -> None: ...

    @_blocking(lambda client: client.servers)
    def servers(self) -> None: ...

    @_asking(lambda client: client.statistics)
    def statistics(self) -> None: ...

    @_asking(lambda client: client.story)
    def story(self) -> None: ...

    @_asking(lambda client: client.retune)
    def retune(self) -> None: ...

    @_asking(lambda client: client.pause)
    def pause(self) -> None: ...

    @_asking(lambda client: client.resume)
    def resume(self) -> None: ...

    @_asking(lambda client: client.add_endpoint)
    def add_endpoint(self) -> None: ...

    @_blocking(lambda client: client.remove_endpoint)
    def remove_endpoint(self) -> None: ...

    def view(
        self,
        *,
        priority: int = 0,
        tenant: str | None = None,
        preset: Literal["latency", "balanced", "throughput"] | None = None,
    ) -> Self:
        """Return a client over this one's limit, queue and servers; see ``BatchClient.view``.

        Raises:
            ConfigError: an argument is wrong.
        """
        view = object.__new__(type(self))
        view._client = self._client.view(priority=priority, tenant=tenant, preset=preset)
        view._bridge = self._bridge
        return view

    @_asking(lambda client: client.abort)
    def abort(self) -> None: ...

    # Maps ----------------------------------------------------------------------------------------------------------

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["complete"] = "complete",
        return_exceptions: Literal[False] = False,
        **params: Unpack[CompletionMapParams],
    ) -> MapResults[Completion]: ...

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["complete"] = "complete",
        return_exceptions: bool,
        **params: Unpack[CompletionMapParams],
    ) -> MapResults[Completion | Exception]: ...

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["chat"],
        return_exceptions: Literal[False] = False,
        **params: Unpack[ChatMapParams],
    ) -> MapResults[Completion]: ...

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["chat"],
        return_exceptions: bool,
        **params: Unpack[ChatMapParams],
    ) -> MapResults[Completion | Exception]: ...

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["embed"],
        return_exceptions: Literal[False] = False,
        **params: Unpack[EmbeddingMapParams],
    ) -> MapResults[Embedding]: ...

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["embed"],
        return_exceptions: bool,
        **params: Unpack[EmbeddingMapParams],
    ) -> MapResults[Embedding | Exception]: ...

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["classify"],
        return_exceptions: Literal[False] = False,
        **params: Unpack[ClassificationMapParams],
    ) -> MapResults[Classification]: ...

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["classify"],
        return_exceptions: bool,
        **params: Unpack[ClassificationMapParams],
    ) -> MapResults[Classification | Exception]: ...

    @overload
    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: Callable[[Any], RowCall] | None = None,
        *,
        rows: RowForm | None = None,
        row_params: RowParams | None = None,
        call: Literal["complete", "chat", "embed", "classify"] = "complete",
        return_exceptions: bool = False,
        **params: Any,
    ) -> MapResults[Any]: ...

    def batch_map(
        self,
        docs: Iterable[Any] | ArrowTable,
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
        session: str | None = None,
        look_ahead: int | None = None,
        order: Literal["longest_first"] | None = None,
        max_cost: float | None = None,
        response_model: type[BaseModel] | None = None,
        repair: Repair | None = None,
        fail_if: Sequence[str] = (),
        journal: str | os.PathLike[str] | Journal | HeldJournal | None = None,
        progress: Callable[[MapProgress], object] | None = None,
        finish_by_s: float | None = None,
        **params: Any,
    ) -> MapResults[Any]:
        """Make one call per document and return the answers in input order.

        ``docs`` and a ``prompt`` that is a function run in the calling thread.

        Args:
            docs: any iterable, or a table as for ``BatchClient``; read lazily. An async iterable
                needs a ``BatchClient``.
            prompt, rows, row_params, call, return_exceptions: as for ``BatchClient.batch_map``.
            model, timeout_s, priority, tenant, session, look_ahead, order: the same.
            max_cost, response_model, repair, fail_if, finish_by_s, params: the same.
            journal, progress: as for ``BatchClient.batch_map``; ``progress`` runs in the background
                thread.

        Returns:
            One answer (or exception) per document, as ``BatchClient.batch_map``.

        Raises:
            BatchMapFailed, TooManyBadRows, ConfigError, BatchClientError: as
                ``BatchClient.batch_map``.
        """
        job = MapJob(
            "batch_map", docs, prompt, call, rows, row_params, ordered=False, model=model, timeout_s=timeout_s,
            priority=priority, tenant=tenant, session=session, look_ahead=look_ahead, order=order,
            response_model=response_model, repair=repair or Repair(), fail_if=fail_if, journal=journal,
            progress=progress, finish_by_s=finish_by_s, params=params, max_cost=max_cost,
        )  # fmt: skip
        answered = self._make_map(job)
        if isinstance(docs, (list, tuple)) and not callable(prompt) and not return_exceptions:
            for _ in check_documents(docs, prompt, rows, row_params, call):
                pass
        results = Results(docs, call, params, return_exceptions=return_exceptions)
        try:
            for row in answered:
                results.add(row)
        except TooManyBadRows as error:
            raise results.into(error, answered.health) from None
        except Exception as error:
            if error is not answered._source.source_error:
                raise
        finally:
            answered.close()
        return results.all(answered.health, answered._source.source_error)

    @overload
    def stream_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["complete"] = "complete",
        ordered: bool = False,
        **params: Unpack[CompletionMapParams],
    ) -> SyncRowStream[Completion]: ...

    @overload
    def stream_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt | Messages],
        *,
        call: Literal["chat"],
        ordered: bool = False,
        **params: Unpack[ChatMapParams],
    ) -> SyncRowStream[Completion]: ...

    @overload
    def stream_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["embed"],
        ordered: bool = False,
        **params: Unpack[EmbeddingMapParams],
    ) -> SyncRowStream[Embedding]: ...

    @overload
    def stream_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: str | Callable[[Any], Prompt],
        *,
        call: Literal["classify"],
        ordered: bool = False,
        **params: Unpack[ClassificationMapParams],
    ) -> SyncRowStream[Classification]: ...

    @overload
    def stream_map(
        self,
        docs: Iterable[Any] | ArrowTable,
        prompt: Callable[[Any], RowCall] | None = None,
        *,
        rows: RowForm | None = None,
        row_params: RowParams | None = None,
        call: Literal["complete", "chat", "embed", "classify"] = "complete",
        ordered: bool = False,
        **params: Any,
    ) -> SyncRowStream[Any]: ...

    def stream_map(
        self,
        docs: Iterable[Any] | ArrowTable,
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
        session: str | None = None,
        look_ahead: int | None = None,
        order: Literal["longest_first"] | None = None,
        max_cost: float | None = None,
        response_model: type[BaseModel] | None = None,
        repair: Repair | None = None,
        fail_if: Sequence[str] = (),
        journal: str | os.PathLike[str] | Journal | HeldJournal | None = None,
        progress: Callable[[MapProgress], object] | None = None,
        finish_by_s: float | None = None,
        **params: Any,
    ) -> SyncRowStream[Any]:
        """Make one call per document and yield the results as they come.

        ``docs`` and a ``prompt`` that is a function run in the thread that takes the results,
        during the taking. Memory stays flat: at most ``look_ahead`` documents are read ahead of the
        rows yielded.

        Args:
            docs: any iterable; read lazily.
            prompt, rows, row_params, call, ordered: as for ``BatchClient.stream_map``.
            model, timeout_s, priority, tenant, session, look_ahead, order: the same.
            max_cost, response_model, repair, fail_if, finish_by_s, params: the same.
            journal, progress: as for ``batch_map``.

        Returns:
            An iterator of ``MapResult``; ``close()`` and the end of ``with`` cancel the calls left.

        Raises:
            ConfigError: an argument is wrong.
        """
        job = MapJob(
            "stream_map", docs, prompt, call, rows, row_params, ordered=ordered, model=model, timeout_s=timeout_s,
            priority=priority, tenant=tenant, session=session, look_ahead=look_ahead, order=order,
            response_model=response_model, repair=repair or Repair(), fail_if=fail_if, journal=journal,
            progress=progress, finish_by_s=finish_by_s, params=params, max_cost=max_cost,
        )  # fmt: skip
        return self._make_map(job)

    def _make_map(self, job: MapJob) -> SyncRowStream[Any]:
        """Make the map of ``BatchClient``; its documents and its prompt function stay in this thread."""
        # Before the documents are read: a relation of DuckDB tells no number beside an open result.
        count = None if job.finish_by_s is None else count_of(job.docs)
        documents, feed = _fed(job.docs, "docs")
        prompt = job.prompt if callable(job.prompt) else None
        fed = replace(job, docs=feed, count=count, prompt=job.prompt if prompt is None else feed.take_prompt)
        return self._taken(self._bridge.ask(make_map, self._client._engine, fed), feed, documents, prompt)

    def _taken(
        self, rows: Map[_T], feed: Feed, documents: Iterable[Any], prompt: Callable[[Any], Any] | None
    ) -> SyncRowStream[_T]:
        if isinstance(documents, (list, tuple)):
            rows.keep_documents()
        return SyncRowStream(self._bridge, rows, feed, documents, prompt)

    def run(
        self,
        function: Callable[[_D, RowClient], Awaitable[_T]],
        rows: Iterable[_D] | ArrowTable,
        *,
        ordered: bool = False,
        fail_if: Sequence[str] = (),
        journal: str | os.PathLike[str] | Journal | HeldJournal | None = None,
        progress: Callable[[MapProgress], object] | None = None,
    ) -> SyncRowStream[_T]:
        """Call a function of each row, and yield what it returns as it comes.

        As ``BatchClient.run``, whose docstring says that side effects happen again. ``rows`` are
        read in the thread that takes the results. The function is an ``async def`` one all the
        same: it runs in the background thread, and must not block.

        Args:
            function, ordered, fail_if, journal, progress: as for ``BatchClient.run``.
            rows: any iterable, or a table.

        Returns:
            An iterator of ``MapResult``; ``close()`` and the end of ``with`` cancel the functions
            that are left.

        Raises:
            ConfigError, TooManyBadRows, ClientClosed: as ``BatchClient.run``.
        """
        documents, feed = _fed(rows, "rows")
        begun = self._bridge.ask(
            self._client.run, function, feed, ordered=ordered, fail_if=fail_if, journal=journal, progress=progress
        )
        return self._taken(map_of(begun), feed, documents, None)

    # The end -------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more calls, wait for all to end, then close. A paused client is resumed first.

        An interrupted thread leaves the client draining; ``close()`` then ends every call left.
        """
        with suppress(ClientClosed):
            self._bridge.call_now(self._client.drain)
        self.close()

    def close(self) -> None:
        """End every call now with ``ClientClosed``; close connections and the background thread.

        Any thread may call ``close``.
        """
        self._bridge.close()
        # Where nothing was ever called there was no loop to close it in.
        self._client._engine.closed = True
        self._client._engine.end_attached()

    def __enter__(self) -> SyncBatchClient:
        if self._client._engine.closed:
            raise ClientClosed("the client is closed; make a new one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
