"""``SyncBatchClient``: the same calls for threads. A ``BatchClient`` in an event loop of its own, and what blocks until it has answered.

Rules:
- No second client: every method is ``BatchClient``'s, called through the bridge, with its arguments and its docstring.
- Plain methods run where the event loop does nothing meanwhile. None of them starts it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import update_wrapper, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, TypeVar, cast, overload

from batchclient._calls.tables import refuse_frame
from batchclient._maps.results import Results, check_documents
from batchclient._threads.bridge import Bridge
from batchclient._threads.iterators import Feed, SyncMap, SyncStream
from batchclient.client import BatchClient
from batchclient.errors import ClientClosed, ConfigError
from batchclient.journal import Journal
from batchclient.journal.journal import RetryFailed
from batchclient.stream import Stream
from batchclient.templates import Prompt
from batchclient.types import Completion, MapProgress

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient._client.calling import Messages

__all__ = ["SyncBatchClient", "SyncStream"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _as(
    constructor: Callable[Concatenate[BatchClient, _P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[SyncBatchClient, _P], None]]:
    """Give a constructor the signature of another, for readers, editors and type checkers."""
    return lambda own: update_wrapper(own, constructor, assigned=(), updated=())


def _blocking(
    pick: Callable[[BatchClient], Callable[_P, Coroutine[Any, Any, _T]]],
) -> Callable[Concatenate[SyncBatchClient, _P], _T]:
    """The same method, made by the bridge together with other threads' calls."""
    return _through(Bridge.call, pick)


def _asking(
    pick: Callable[[BatchClient], Callable[_P, _T]],
) -> Callable[Concatenate[SyncBatchClient, _P], _T]:
    """The same plain method, where the event loop does nothing meanwhile."""
    return _through(Bridge.ask, pick)


def _streaming(
    pick: Callable[[BatchClient], Callable[_P, Stream]],
) -> Callable[Concatenate[SyncBatchClient, _P], SyncStream]:
    """The same stream, for a thread."""
    return _through(lambda bridge, *call, **kwargs: SyncStream(bridge, bridge.ask(*call, **kwargs)), pick)


def _through(cross: Callable[..., Any], pick: Callable[[BatchClient], Any]) -> Callable[..., Any]:
    """A method that crosses the bridge to ``BatchClient``'s, with its name and docstring."""
    # A method of an instance has the signature that type checkers can pass on; the one of the class is what is called.
    method = pick(cast("BatchClient", BatchClient))

    @wraps(method)
    def through(self: SyncBatchClient, /, *args: Any, **kwargs: Any) -> Any:
        return cross(self._bridge, method, self._client, *args, **kwargs)

    return through


class SyncBatchClient:
    """A client for code without ``await``: many threads call it, and their calls share requests.

    The methods are ``BatchClient``'s, with the same arguments, answers and errors; each blocks the thread that calls it. Calls that threads make
    within about a millisecond travel together, as those of one ``asyncio.gather`` do. A single thread that makes one call after the other
    gains nothing: give its documents to ``batch_map``, or use more threads.

        with SyncBatchClient("http://localhost:8000/v1") as client, ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(client.complete, prompts))

    The event loop runs in a daemon thread that the first call starts. Not to be confused with a client per thread: share one.

    Args:
        **arguments: ``BatchClient``'s. Functions among them (``on_adjustment``, ``count_tokens``, ``render_chat``, ``size_for``) run in the
            background thread, and so does an ``http_client``, an ``httpx.AsyncClient``.

    Raises:
        ConfigError: an argument is wrong; the error names it.
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

    complete = _blocking(lambda client: client.complete)
    chat = _blocking(lambda client: client.chat)
    embed = _blocking(lambda client: client.embed)
    classify = _blocking(lambda client: client.classify)
    score = _blocking(lambda client: client.score)
    rerank = _blocking(lambda client: client.rerank)
    log_likelihood = _blocking(lambda client: client.log_likelihood)
    tokenize = _blocking(lambda client: client.tokenize)
    stream = _streaming(lambda client: client.stream)
    stream_chat = _streaming(lambda client: client.stream_chat)

    statistics = _asking(lambda client: client.statistics)
    retune = _asking(lambda client: client.retune)
    pin = _asking(lambda client: client.pin)
    unpin = _asking(lambda client: client.unpin)
    pause = _asking(lambda client: client.pause)
    resume = _asking(lambda client: client.resume)
    add_endpoint = _asking(lambda client: client.add_endpoint)
    remove_endpoint = _blocking(lambda client: client.remove_endpoint)
    abort = _asking(lambda client: client.abort)

    # Maps ----------------------------------------------------------------------------------------------------------

    @overload
    def batch_map(
        self,
        docs: Iterable[Any],
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
    def batch_map(
        self,
        docs: Iterable[Any],
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
    def batch_map(
        self,
        docs: Iterable[Any],
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

    def batch_map(
        self,
        docs: Iterable[Any],
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

        ``docs`` and a ``prompt`` that is a function run in this thread.

        Args:
            docs: any iterable; read lazily. An async one is ``BatchClient``'s business.
            prompt, call, return_exceptions, model, timeout_s, priority, tenant, look_ahead, response_model, params: as for
                ``BatchClient.batch_map``.
            journal, resume, retry_failed, accept_changed, progress: as for ``BatchClient.batch_map``; ``progress``
                runs in the background thread.

        Returns:
            One answer (or exception) per document: what the call gives, a ``Completion`` by default.

        Raises:
            BatchMapFailed, ConfigError, BatchClientError: as ``BatchClient.batch_map``.
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
                pass
        results = Results(return_exceptions=return_exceptions)
        try:
            for row in rows:
                results.add(row)
        except Exception as error:
            if error is not rows.source_error:
                raise
        finally:
            rows.close()
        return results.all(rows.source_error)

    def stream_map(
        self,
        docs: Iterable[Any],
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
    ) -> SyncMap:
        """Make one call per document and yield the results as they come.

        ``docs`` and a ``prompt`` that is a function run in the thread that takes the results, while it takes them. Memory stays flat: at most
        ``look_ahead`` documents are read ahead of what was yielded.

        Args:
            docs: any iterable; read lazily.
            prompt, call, ordered, model, timeout_s, priority, tenant, look_ahead, response_model, params: as for ``BatchClient.stream_map``.
            journal, resume, retry_failed, accept_changed, progress: as for ``BatchClient.batch_map``; ``progress``
                runs in the background thread.

        Returns:
            An iterator of ``MapResult``; ``close()`` cancels what is left.

        Raises:
            ConfigError: an argument is wrong.
        """
        if isinstance(docs, AsyncIterable):
            raise ConfigError("docs is an ordinary iterable here; an async one is for BatchClient", field="docs")
        refuse_frame(docs, "docs")
        if isinstance(docs, (str, bytes, Mapping)) or not isinstance(docs, Iterable):
            raise ConfigError(f"docs is an iterable of documents, not a {type(docs).__name__}", field="docs")
        feed = Feed()
        rows = self._bridge.ask(
            self._client.stream_map,
            feed,
            feed.take_prompt if callable(prompt) else prompt,
            call=call,
            ordered=ordered,
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
        return SyncMap(self._bridge, rows, feed, docs, prompt if callable(prompt) else None)

    # The end -------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more calls, wait for all to end, then close. A paused client is resumed first.

        A thread that is interrupted meanwhile leaves the client draining; ``close()`` ends what is left.
        """
        with suppress(ClientClosed):
            self._bridge.call_now(self._client.drain)
        self.close()

    def close(self) -> None:
        """End every call now with ``ClientClosed``, close every connection of our own, and end the background thread. From any thread."""
        self._bridge.close()
        # Where nothing was ever called there was no loop to close it in.
        self._client._closed = True

    def __enter__(self) -> SyncBatchClient:
        if self._client._closed:
            raise ClientClosed("the client is closed; make a new one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
