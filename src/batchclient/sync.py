"""``SyncBatchClient``: the same calls for threads, by a ``BatchClient`` in another event loop.

Rules:
- No second client: every method calls ``BatchClient``'s through the bridge, and has its arguments
  and docstring at run time and for type checkers; what reads source alone finds a line.
- Plain methods run while the event loop stands still. No plain method starts the loop.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, Self, TypeVar, Unpack, overload

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
from batchclient.templates import Prompt
from batchclient.types import (
    NOT_GIVEN,
    Classification,
    Completion,
    Embedding,
    LogLikelihood,
    MapProgress,
    MapResults,
    NotGiven,
    RankedDocument,
    Score,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient._calls.call import Messages
    from batchclient._core.statistics import Statistics
    from batchclient._shell.log import Decision
    from batchclient._shell.servers import ServerInfo
    from batchclient.journal import HeldJournal, Journal
    from batchclient.options import Server
    from batchclient.params import ChatMapParams, ClassificationMapParams, CompletionMapParams, EmbeddingMapParams

__all__ = ["SyncBatchClient", "SyncRowStream", "SyncStream"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_D = TypeVar("_D")


def _as(
    method: Callable[Concatenate[BatchClient, _P], Any],
) -> Callable[[Callable[..., _T]], Callable[Concatenate[SyncBatchClient, _P], _T]]:
    """Give a method the arguments and the whole docstring of ``BatchClient``'s."""
    return lambda own: update_wrapper(own, method, assigned=("__doc__",), updated=())


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

    @_as(BatchClient.complete)
    def complete(self, prompt: Prompt, **arguments: Any) -> Completion:
        """Complete one prompt, as ``BatchClient.complete``."""
        return self._bridge.call(self._client.complete, prompt, **arguments)

    @_as(BatchClient.chat)
    def chat(self, messages: Messages, **arguments: Any) -> Completion:
        """Answer one conversation, as ``BatchClient.chat``."""
        return self._bridge.call(self._client.chat, messages, **arguments)

    @_as(BatchClient.embed)
    def embed(self, text: Prompt, **arguments: Any) -> Embedding:
        """Return one text's vector, as ``BatchClient.embed``."""
        return self._bridge.call(self._client.embed, text, **arguments)

    @_as(BatchClient.classify)
    def classify(self, text: Prompt, **arguments: Any) -> Classification:
        """Return one text's class, as ``BatchClient.classify``."""
        return self._bridge.call(self._client.classify, text, **arguments)

    @_as(BatchClient.score)
    def score(self, query: str, document: str, **arguments: Any) -> Score:
        """Say how well a document fits a query, as ``BatchClient.score``."""
        return self._bridge.call(self._client.score, query, document, **arguments)

    @_as(BatchClient.rerank)
    def rerank(self, query: str, documents: Iterable[str], **arguments: Any) -> list[RankedDocument]:
        """Order documents by how well they fit a query, as ``BatchClient.rerank``."""
        return self._bridge.call(self._client.rerank, query, documents, **arguments)

    @_as(BatchClient.log_likelihood)
    def log_likelihood(self, continuation: str | Sequence[int], **arguments: Any) -> LogLikelihood:
        """Say how likely a continuation is, as ``BatchClient.log_likelihood``."""
        return self._bridge.call(self._client.log_likelihood, continuation, **arguments)

    @_as(BatchClient.tokenize)
    def tokenize(self, text: str, **arguments: Any) -> list[int]:
        """Return a text's token ids, as ``BatchClient.tokenize``."""
        return self._bridge.call(self._client.tokenize, text, **arguments)

    @_as(BatchClient.stream)
    def stream(self, prompt: Prompt, **arguments: Any) -> SyncStream:
        """Complete one prompt piece by piece, as ``BatchClient.stream``."""
        return SyncStream(self._bridge, self._bridge.ask(self._client.stream, prompt, **arguments))

    @_as(BatchClient.stream_chat)
    def stream_chat(self, messages: Messages, **arguments: Any) -> SyncStream:
        """Answer one conversation piece by piece, as ``BatchClient.stream_chat``."""
        return SyncStream(self._bridge, self._bridge.ask(self._client.stream_chat, messages, **arguments))

    @_as(BatchClient.servers)
    def servers(self) -> list[ServerInfo]:
        """Ask each server what it is and how busy it is, as ``BatchClient.servers``."""
        return self._bridge.call(self._client.servers)

    @_as(BatchClient.statistics)
    def statistics(self) -> Statistics:
        """Return a snapshot of what the client does and has done, as ``BatchClient.statistics``."""
        return self._bridge.ask(self._client.statistics)

    @_as(BatchClient.story)
    def story(self) -> list[Decision]:
        """Return the client's last 512 decisions, as ``BatchClient.story``."""
        return self._bridge.ask(self._client.story)

    @_as(BatchClient.retune)
    def retune(self, **arguments: Any) -> None:
        """Change settings while the client runs, as ``BatchClient.retune``."""
        self._bridge.ask(self._client.retune, **arguments)

    @_as(BatchClient.pause)
    def pause(self) -> None:
        """Send nothing more until ``resume()``, as ``BatchClient.pause``."""
        self._bridge.ask(self._client.pause)

    @_as(BatchClient.resume)
    def resume(self) -> None:
        """Send again, as ``BatchClient.resume``."""
        self._bridge.ask(self._client.resume)

    @_as(BatchClient.add_endpoint)
    def add_endpoint(self, base_url: str | Server) -> None:
        """Send calls to another server, too, as ``BatchClient.add_endpoint``."""
        self._bridge.ask(self._client.add_endpoint, base_url)

    @_as(BatchClient.remove_endpoint)
    def remove_endpoint(self, base_url: str | Server, **arguments: Any) -> None:
        """Send nothing more to a server, as ``BatchClient.remove_endpoint``."""
        self._bridge.call(self._client.remove_endpoint, base_url, **arguments)

    @_as(BatchClient.abort)
    def abort(self) -> None:
        """End every call now with ``CallAborted``, as ``BatchClient.abort``."""
        self._bridge.ask(self._client.abort)

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
