"""``BatchClient``: every method that a program calls.

The bodies are short: a call becomes a ``Call``, the one record of it, and goes to the ``Engine``
(``_client/engine``), which has the event loop, the runner and the way of every call. The folder
``_client`` has the rest, too: maps, functions of rows, connections, changes while a client runs.

Rules:
- Bad input is refused before anything is queued, with an error that names the argument.
- A client may be made anywhere. The first call starts the client, in the event loop of that call.
- A client serves one event loop at a time. After the loop has ended, the client starts afresh;
  while the loop is alive, a call from another loop is refused.
- After a fork the child starts afresh; the parent's sockets are left alone.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, Self, TypeVar, Unpack, overload

from batchclient._calls.call import STREAMED, Call, Messages
from batchclient._checks import check_flag, refuse_unknown
from batchclient._client import control
from batchclient._client.engine import Engine
from batchclient._client.maps import MapJob, gather, make_map
from batchclient._core.kinds import Kind
from batchclient._core.statistics import Statistics
from batchclient._maps.arrow import ArrowTable, Documents
from batchclient._maps.repair import Repair
from batchclient._maps.row_calls import RowCall, RowForm, RowParams
from batchclient._shell.log import Decision
from batchclient._shell.servers import ServerInfo
from batchclient.errors import ConfigError
from batchclient.maps import RowStream
from batchclient.retry import Backoff, RetryPolicy
from batchclient.stream import Stream
from batchclient.templates import Prompt
from batchclient.transport import Transport
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
    import httpx
    import httpx2
    from pydantic import BaseModel

    from batchclient.journal import HeldJournal, Journal
    from batchclient.options import AdaptiveLimit, Batching, Http, Queue, Server, Telemetry
    from batchclient.params import (
        ChatMapParams,
        ChatParams,
        ChatStreamParams,
        ClassificationMapParams,
        ClassificationParams,
        CompletionMapParams,
        CompletionParams,
        CompletionStreamParams,
        EmbeddingMapParams,
        EmbeddingParams,
        LikelihoodParams,
        ScoreParams,
        TokenizeParams,
    )

__all__ = ["BATCH_CLIENT_ARGUMENTS", "BatchClient", "RowClient"]

_D = TypeVar("_D")
_T = TypeVar("_T")
_NOT_SETTINGS = frozenset(("self", "preset", "retry", "unknown", "from_environment", "__class__"))
"""Names within the constructor that no setting has."""


class _Calls:
    """The calls that a ``BatchClient`` has, and the client of a row."""

    __slots__ = ("_call",)

    _call: Callable[[Call], Awaitable[Any]]

    async def complete(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Unpack[CompletionParams],
    ) -> Completion:
        """Complete one prompt.

        Args:
            prompt: a text, or a sequence of token ids.
            model: another model than the client's.
            timeout_s: the call's whole time, seconds; the client's by default, ``None``: no bound.
            priority: the class, -100 to 100: higher classes go first and keep a reserve of permits.
            tenant: whom the call is for. Tenants get equal shares of tokens, and never share a
                request. The server is not told.
            session: the conversation that the call belongs to, 1 to 256 printable ASCII characters.
                Of several servers the same one gets its calls, while it is healthy. A ``Server``
                with a ``session_header`` is told instead; then calls share requests within their
                session alone.
            response_model: a pydantic model: its JSON schema is demanded of the server
                (``response_format``), and the answer has the validated instance in ``parsed``.
            params: the server's fields (``max_tokens``, ``temperature``, ``stop``, …): see
                ``batchclient.params``. Any other field goes in ``extra_body``, whatever its
                name.

        Raises:
            ConfigError: the prompt or a parameter is wrong, or no server is known to have the
                parameter. Nothing was sent.
            BadRequest: the server refuses this call; the other calls of the batch are not
                concerned.
            AnswerInvalid: a choice does not fit ``response_model``; the answer is in the error's
                ``completion``.
            DeadlineExceeded: ``timeout_s`` passed.
            BatchClientError: see ``batchclient.errors``.

        Cancellation: at any moment; the calls that share the request are left alone.
        """
        return await self._call(  # type: ignore[no-any-return]
            Call(Kind.COMPLETION, prompt, params, model, timeout_s, priority, tenant, session, response_model)
        )

    async def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Unpack[ChatParams],
    ) -> Completion:
        """Answer one conversation.

        Chats with short answers share requests where the server takes lists of chats (vLLM from
        0.19). Chats with long answers go by themselves, and so do chats with ``tools``, ``n`` above
        1, images or audio.

        Args:
            messages: the conversation, as OpenAI's API has it.
            model, timeout_s, priority, tenant, session, response_model: as for ``complete``.
            params: the server's fields, as for ``complete``; ``max_completion_tokens`` stands
                before ``max_tokens``.

        Returns:
            An answer whose ``message`` is the server's own; ``text`` is the message's content. Of a
            chat that came in a list, the prompt tokens are a share of the list's, and
            ``usage.prompt_tokens_estimated`` says so.

        Raises:
            ConfigError, BadRequest, AnswerInvalid, DeadlineExceeded, BatchClientError: as
                ``complete``.

        Cancellation: at any moment; the calls that share the request are left alone.
        """
        return await self._call(  # type: ignore[no-any-return]
            Call(Kind.CHAT, messages, params, model, timeout_s, priority, tenant, session, response_model)
        )

    async def embed(
        self,
        text: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        **params: Unpack[EmbeddingParams],
    ) -> Embedding:
        """Return one text's vector.

        Vectors travel as base64 of 32-bit floats where the server writes that form;
        ``encoding_format`` chooses another.

        Args:
            text: a text, or a sequence of token ids.
            model, timeout_s, priority, tenant, session: as for ``complete``.
            params: the server's fields (``dimensions``, ``truncate_prompt_tokens``, …): see
                ``batchclient.params``. Any other field goes in ``extra_body``, as it is.

        Raises:
            ConfigError: the text or a parameter is wrong, or no server is known to have the
                parameter. Nothing was sent.
            BadRequest: the server refuses this call (a text too long, for instance); the other
                calls of the batch are not concerned.
            DialectError: the server sent no vector, or a vector with NaN or infinity.
            BatchClientError: see ``batchclient.errors``.
        """
        return await self._call(  # type: ignore[no-any-return]
            Call(Kind.EMBEDDING, text, params, model, timeout_s, priority, tenant, session)
        )

    async def classify(
        self,
        text: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        **params: Unpack[ClassificationParams],
    ) -> Classification:
        """Return one text's class and the probabilities of all.

        Args:
            text: a text, or a sequence of token ids.
            model, timeout_s, priority, tenant, session: as for ``complete``.
            params: the server's fields, as for ``embed``.

        Raises:
            ConfigError, BadRequest, DialectError, BatchClientError: as for ``embed``.
            NotFound: the server has no classifier.
        """
        call = Call(Kind.CLASSIFICATION, text, params, model, timeout_s, priority, tenant, session)
        return await self._call(call)  # type: ignore[no-any-return]

    async def score(
        self,
        query: str,
        document: str,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        **params: Unpack[ScoreParams],
    ) -> Score:
        """Say how well a document fits a query.

        Where the server scores any pairs (vLLM), pairs with different queries share requests.

        Args:
            query, document: texts.
            model, timeout_s, priority, tenant, session: as for ``complete``.
            params: the server's fields (``truncate_prompt_tokens``, ``instruction``, …), as for
                ``embed``.

        Raises:
            ConfigError, BadRequest, DialectError, BatchClientError: as for ``embed``.
            NotFound: the server scores nothing.
        """
        call = Call(Kind.SCORE, (query, document), params, model, timeout_s, priority, tenant, session)
        return await self._call(call)  # type: ignore[no-any-return]

    async def rerank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        top_n: int | None = None,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        **params: Unpack[ScoreParams],
    ) -> list[RankedDocument]:
        """Order documents by how well they fit a query, the best first.

        Documents with equal scores keep their order. Each document is scored as ``score`` would,
        and each counts as one sequence.

        Args:
            query: a text.
            documents: texts.
            top_n: the number of documents returned, the best; all by default.
            model, timeout_s, priority, tenant, session: as for ``complete``.
            params: as for ``score``.

        Raises:
            ConfigError: an argument is wrong. Nothing was sent.
            BatchClientError: a document's error; a note on the error says which. The other
                documents' scores are dropped.
        """
        from batchclient._maps.ranking import rank  # few programs rank

        call = Call(Kind.RERANK, (query, documents, top_n), params, model, timeout_s, priority, tenant, session)
        return await rank(call, self._call)


class BatchClient(_Calls):
    """An async client that turns many small calls into few well-shaped requests.

    Calls made at the same time, with the same parameters, share requests; each caller gets its own
    answer, error, deadline and cancellation. One client per server and process: two clients do not
    know of each other's load. For example::

        client = BatchClient("http://localhost:8000/v1", model="m")
        answer = await client.complete("Summarise: …", max_tokens=64)

    Args:
        base_url: the server's OpenAI-style root, with its ``/v1``; or a ``Server`` with a key or
            rates of its own; or a list of both, each with a limit of its own. By default
            ``BATCHCLIENT_BASE_URL``.
        model: the server's name of the model; a call may name another. By default
            ``BATCHCLIENT_MODEL``, or else the server is asked once, before the first call that
            names none, and must then serve one model.
        api_key: sent as a bearer token to the servers of ``base_url``; by default
            ``BATCHCLIENT_API_KEY``. A server of another host that joins later (``add_endpoint``)
            gets a key of its own or none.
        headers: sent with every request, headers with a key like ``api_key``.
        timeout_s: a call's whole time, queue and retries included, seconds; none by default. A call
            may give its own. In maps it is each document's, and does not count the queue.
        retry: when to try again; ``Backoff()`` by default, ``TenacityRetry(…)`` for tenacity's
            strategies.
        limit: sequences (prompts × n) in flight per server, at most: a number, or ``"auto"`` (the
            default) for a search while the client runs, or an ``AdaptiveLimit`` with bounds or
            objectives.
        preset: ``"latency"``, ``"balanced"`` or ``"throughput"``: how long calls wait for company.
        batching: a ``Batching``: how calls become batches.
        queue: a ``Queue``: which queued call goes first, and how many there may be.
        http: an ``Http``: timeouts, library and proxies of the requests. Or your own
            ``httpx.AsyncClient`` or ``httpx2.AsyncClient``, used unchanged and never closed. Or
            another way of sending: a function of a base URL and of the headers for every request
            that returns a ``batchclient.transport.Transport``. The function is called once per
            server and event loop (twice with ``wait_for_server_s``); the transport is closed with
            the client.
        dialect: the server's language: ``"vllm"``, ``"sglang"``, ``"tgi"``, ``"llamacpp"``,
            ``"trtllm"``, ``"tei"`` or ``"openai"``, which is any other with OpenAI's API.
            The page *Servers* of the documentation says what each has.
        probe: whether to ask servers for pages of theirs beside the calls. At most three GETs find
            out which server each is, and so its dialect, its limits and its model's length, unless
            a ``dialect`` is given; they leave with the first call, and the first list waits for
            them, 0.25 s at most. Its ``/metrics`` page is read while calls are under way, to try a
            lower limit where calls queue there. On by default, except with a ``dialect`` or an HTTP
            client or transport of your own.
        wait_for_server_s: how long calls wait for a server that is not there yet, seconds; 0 by
            default: they do not; ``math.inf``: as long as it takes. A server is there once it
            answers the GETs of ``probe``, and not with 502, 503 or 504. If none has answered in
            this time from the first call on, the waiting calls fail with ``NoServerAnswered``. Of
            several servers each gets calls from its own first answer on.
        outage_patience_s: how long a call waits while every server that has ever answered is away,
            seconds; 60 by default, ``math.inf`` for as long as it takes. Calls of maps wait as long
            as their deadlines allow, and so many seconds for a key or a model that a server has
            served, and refuses.
        telemetry: a ``Telemetry``: spans for OpenTelemetry. None by default, unless
            ``BATCHCLIENT_OTEL`` is 1.
        from_environment: whether ``BATCHCLIENT_BASE_URL`` and the other variables stand for absent
            arguments. Set this to ``False`` in a library, so that its users' environment variables
            do not change its client.

    Raises:
        ConfigError: an argument is wrong; the error names the argument.
    """

    _make_engine: type[Engine] = Engine

    def __init__(
        self,
        /,
        base_url: str | Server | Sequence[str | Server] | None = None,
        *,
        model: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        retry: RetryPolicy | None = None,
        limit: int | Literal["auto"] | AdaptiveLimit | None = None,
        preset: Literal["latency", "balanced", "throughput"] = "balanced",
        batching: Batching | None = None,
        queue: Queue | None = None,
        http: Http
        | httpx.AsyncClient
        | httpx2.AsyncClient
        | Callable[[str, Mapping[str, str]], Transport]
        | None = None,
        dialect: Literal["vllm", "sglang", "tgi", "llamacpp", "trtllm", "tei", "openai"] | None = None,
        probe: bool | None = None,
        wait_for_server_s: float | None = None,
        outage_patience_s: float | None = None,
        telemetry: Telemetry | None = None,
        from_environment: bool = True,
        **unknown: Never,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in _NOT_SETTINGS}
        from batchclient import _settings

        if unknown:
            refuse_unknown(unknown, BATCH_CLIENT_ARGUMENTS)
        check_flag("from_environment", from_environment)
        if from_environment:
            _settings.from_environment(arguments)
        if retry is not None and (isinstance(retry, type) or not callable(getattr(retry, "decide", None))):
            raise ConfigError("retry is a RetryPolicy, such as Backoff() or TenacityRetry(…)", field="retry")
        self._engine = self._make_engine(
            _settings.make_settings(preset, arguments),
            retry or Backoff(),
            key_given=api_key is not None,
            reads_environment=from_environment,
        )
        self._call = self._engine.call

    def __repr__(self) -> str:
        return repr(self._engine)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be sent to another process or copied: make one there, or share this one")

    async def __aenter__(self) -> Self:
        await self._engine.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        finally:
            await self._engine.leave()

    # Other calls ---------------------------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Unpack[CompletionStreamParams],
    ) -> Stream:
        """Complete one prompt and hand out the answer piece by piece, as the server makes it.

        For example::

            async with client.stream("Once upon", max_tokens=200) as pieces:
                async for delta in pieces:
                    print(delta.text, end="")
            print(pieces.completion.usage)

        The call goes by itself, through the same queue, limit, fairness and retries as all others.
        The call is sent again only while no piece was taken. Leaving the loop, ``aclose()`` and
        cancellation close the connection, so that the server stops. While pieces are not taken, no
        more than a few hundred are read ahead.

        Args:
            prompt, model, priority, tenant, session: as for ``complete``.
            response_model: as for ``complete``: the pieces are parts of a JSON text, and
                ``completion`` has the validated instance in ``parsed``.
            timeout_s: the whole call's time, seconds, from the first ``__anext__`` to the last
                piece, the caller's own time included.
            params: as for ``complete``, and ``stream_interval``: tokens per piece, where the server
                heeds the field.

        Returns:
            An async iterator of ``Delta``, also an async context manager. Nothing is sent before
            the iteration begins. After the last piece, ``completion`` is the whole answer.

        Raises:
            ConfigError: the prompt or a parameter is wrong. The iteration raises the server's
                errors, and at its end ``AnswerInvalid`` where the whole does not fit
                ``response_model``.
        """
        call = Call(
            Kind.COMPLETION, prompt, params, model, timeout_s, priority, tenant, session, response_model, STREAMED
        )
        return self._engine.stream(call)

    def stream_chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Unpack[ChatStreamParams],
    ) -> Stream:
        """Answer one conversation piece by piece.

        Each ``Delta`` has the server's own delta in ``message``.

        Args:
            messages: as for ``chat``.
            model, timeout_s, priority, tenant, session, response_model, params: as for ``stream``.

        Returns:
            As ``stream``.

        Raises:
            ConfigError: as ``stream``.
        """
        call = Call(Kind.CHAT, messages, params, model, timeout_s, priority, tenant, session, response_model, STREAMED)
        return self._engine.stream(call)

    async def log_likelihood(
        self,
        continuation: str | Sequence[int],
        *,
        given: str | Sequence[int] = "",
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        **params: Unpack[LikelihoodParams],
    ) -> LogLikelihood:
        """Say how likely a continuation is, and whether greedy decoding would write the same.

        Evaluation harnesses ask such questions in lists. With nothing given, a model that puts no
        token of its own before a prompt cannot tell the first token's likelihood: the total leaves
        that token out. A token that lies across the boundary between the two texts counts whole;
        give token ids where the boundary matters.

        Args:
            continuation: a text, or token ids.
            given: the text or token ids before the continuation, of the same kind.
            model, timeout_s, priority, tenant, session: as for ``complete``. ``timeout_s`` is each
                request's where two are needed.
            params: the server's fields, as for ``embed``.

        Raises:
            ConfigError: an argument is wrong. Nothing was sent.
            DialectError: the server does not echo prompts with log-probabilities.
            BadRequest, BatchClientError: as for ``complete``.
        """
        # Few programs ask for likelihoods, and every one imports this module.
        from batchclient._calls.likelihood import log_likelihood

        call = Call(Kind.COMPLETION, (given, continuation), params, model, timeout_s, priority, tenant, session)
        return await log_likelihood(self._engine, call)

    async def tokenize(
        self,
        text: str | Messages,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        session: str | None = None,
        **params: Unpack[TokenizeParams],
    ) -> list[int]:
        """Return a text's token ids, as the server's model reads the text.

        A tokenizer in the caller's process is faster.

        Args:
            text: a text; of vLLM and llama.cpp also a conversation, as its template writes it.
            model, timeout_s, priority, tenant, session: as for ``complete``.
            params: the server's fields (``add_special_tokens``, …), as for ``embed``.

        Raises:
            ConfigError, BadRequest, BatchClientError: as for ``complete``.
        """
        call = Call(Kind.TOKENS, text, params, model, timeout_s, priority, tenant, session)
        return await self._engine.tokenize(call)

    # Maps ----------------------------------------------------------------------------------------------------------

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
            model, priority, tenant, session: as for ``complete``.
            timeout_s: each document's time, seconds, from the first request with it that a server
                takes on: retries count, the queue does not. ``None``: no bound.
            look_ahead: rows that are open at a time, at most: read, and without an answer or error;
                by default 4 × the limits of all endpoints together, at least 1,024, and at least
                4 × ``AdaptiveLimit.max`` where the limit is found; 2,048 more with a journal. With
                ``order`` four times as many.
            order: ``"longest_first"``: of the open rows those go first whose answers are expected
                to be the longest, by ``expected_tokens`` or by what came of such prompts, so that
                no long answer is left alone at the end. By default rows go in input order.
            max_cost: what the map may spend at servers with a price, at most, in the currency of
                the prices; any number by default. A row beyond it waits for a cheaper server, and
                fails with ``ConfigError`` where none takes it.
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
            finish_by_s: seconds from the map's beginning in which it is to end. The client leaves
                places at the servers to others (as ``AdaptiveLimit(guest=True)``), as long as the
                forecast of each minute, by its 90 % bound, keeps that time; else it goes on as
                usual. ``progress`` is told which, and when the map ends. All calls of the client
                are concerned; of several such maps one that has no time is enough. The number of
                documents has to be known, by ``len()``, and ``limit`` is to be left to the client.
                Where a server does not show its load, or the time is less than five minutes, the
                map goes as usual.
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
                such a template is the document's own failure; an empty field (``None``, NaN) is so
                everywhere.
            JournalFailed: the journal cannot be written. The answers handed out before are in it.
            BatchClientError: the server was to be asked for its model, and that failed.
        """
        job = MapJob(
            "batch_map", docs, prompt, call, rows, row_params, ordered=False, model=model, timeout_s=timeout_s,
            priority=priority, tenant=tenant, session=session, look_ahead=look_ahead, order=order,
            response_model=response_model, repair=repair or Repair(), fail_if=fail_if, journal=journal,
            progress=progress, finish_by_s=finish_by_s, params=params, max_cost=max_cost,
        )  # fmt: skip
        return await gather(self._engine, job, return_exceptions=return_exceptions)

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
    ) -> RowStream[Any]:
        """Make one call per document and yield the results as they come.

        Memory stays flat: at most ``look_ahead`` documents are read ahead of the rows yielded, and
        reading stops while results are not taken. A document that cannot be used yields a row with
        an error; the map goes on.

        In order, with a journal, a finished row behind a slow one is put aside on the disk, and
        does not count. Without one it counts: once ``look_ahead`` rows wait behind a slow one,
        nothing is sent until that one ends.

        Args:
            docs, prompt, rows, row_params, call: as for ``batch_map``.
            model, timeout_s, priority, tenant, session: as for ``batch_map``.
            max_cost, response_model, repair, fail_if, params: as for ``batch_map``.
            look_ahead: documents read ahead of the rows yielded, at most; the default is that of
                ``batch_map``.
            order: as for ``batch_map``; needs ``ordered=False`` or a ``journal``.
            journal, progress, finish_by_s: as for ``batch_map``. With a journal an answer is
                yielded once it is on the disk. While results are not taken, no time is won.
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
            priority=priority, tenant=tenant, session=session, look_ahead=look_ahead, order=order,
            response_model=response_model, repair=repair or Repair(), fail_if=fail_if, journal=journal,
            progress=progress, finish_by_s=finish_by_s, params=params, max_cost=max_cost,
        )  # fmt: skip
        return RowStream(make_map(self._engine, job))

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

        For example::

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

        return RowStream(rows_of(self._engine, RowClient, function, rows, ordered, fail_if, journal, progress))

    # Changes while it runs -----------------------------------------------------------------------------------------

    def retune(
        self,
        /,
        *,
        limit: int | Literal["auto"] | AdaptiveLimit | None = None,
        batching: Batching | None = None,
        queue: Queue | None = None,
        **unknown: Never,
    ) -> None:
        """Change settings while the client runs. Calls under way go on.

        Args:
            limit: as for the client; a limit that is given anew starts its search anew.
            batching: replaces the present ``Batching`` as a whole: fields that are not given have
                the preset's values.
            queue: replaces the present ``Queue``; another ``max_calls`` and ``when_full`` hold from
                now on, and the other fields cannot be changed.

        Raises:
            ConfigError: a setting is wrong, or cannot be changed while running; nothing was
                changed.
        """
        control.retune(self._engine, {"limit": limit, "batching": batching, "queue": queue, **unknown})

    def pause(self) -> None:
        """Send nothing more until ``resume()``.

        Requests in flight go on, and their answers reach their callers. Calls may still be made:
        they wait in the queue, with their places, and their ``timeout_s`` runs on. Retries wait,
        too. Maps and functions of rows under way stand still once what they had in flight has
        ended. Pausing a paused client changes nothing. A client that no call has started yet is
        paused from its first call on. From another thread use
        ``loop.call_soon_threadsafe(client.pause)``, or a ``SyncBatchClient``.

        Raises:
            ConfigError: another running event loop uses the client.
        """
        self._engine.pause(paused=True)

    def resume(self) -> None:
        """Send again, after ``pause()``: queued calls go in the order in which they would have gone.

        What was in flight all the while was not touched. On a client that is not paused nothing
        changes.

        Raises:
            ConfigError: another running event loop uses the client.
        """
        self._engine.pause(paused=False)

    def add_endpoint(self, base_url: str | Server) -> None:
        """Send calls to another server, too. The server has a limit of its own, like the others.

        Args:
            base_url: a URL, or a ``Server``. The client's key is sent where the host is among the
                hosts of the client's own ``base_url``; a server of another host needs its own.

        Raises:
            ConfigError: the URL is wrong, or belongs to the client already; the environment's proxy
                for the URL cannot be used; or another running event loop uses the client.
            ClientClosed: the client is closed.
        """
        control.add_endpoint(self._engine, base_url)

    async def remove_endpoint(self, base_url: str | Server, *, drain: bool = True) -> None:
        """Send nothing more to a server, and wait until no call is left there.

        Args:
            base_url: as the URL was given.
            drain: let the server finish its calls; else its connections are closed now and the
                calls go to the other servers, which costs the calls no retry. With ``drain=False``,
                the calls left at a server that is leaving already may be ended, too.

        Raises:
            ConfigError: the client has no such server, or no other; or another running event loop
                uses the client.

        Cancellation: the server leaves all the same.
        """
        await control.remove_endpoint(self._engine, base_url, drain=drain)

    def abort(self) -> None:
        """End every call now, queued or in flight, with ``CallAborted``; close the connections.

        The servers see their requests disconnect, and stop working on them. The client stays open,
        and calls made from now on are sent, unless the client is paused. Of a map under way the
        rows whose calls were made fail with ``CallAborted``, and the map goes on with its other
        documents: close its stream, or cancel its task, to end it. No journal keeps these failures:
        a later run asks for those rows again.

        Raises:
            ConfigError: another running event loop uses the client.
        """
        self._engine.abort()

    def view(
        self,
        *,
        priority: int = 0,
        tenant: str | None = None,
        preset: Literal["latency", "balanced", "throughput"] | None = None,
    ) -> Self:
        """Return a client over this one's limit, queue and servers, for another kind of work.

        A view is the same client in all but three things, and lives as long: to close either is to
        close both. For example::

            bulk = client.view(preset="throughput")
            chat = client.view(priority=1, preset="latency")

        Args:
            priority: the class of the view's calls that say none but 0.
            tenant: whom its calls are for that name nobody.
            preset: how its calls become batches, by the numbers of a preset; the client's by
                default. Its calls share requests among themselves alone.

        Raises:
            ConfigError: an argument is wrong.
        """
        from batchclient._client.views import EngineOfView

        view = object.__new__(type(self))
        view._engine = EngineOfView(self._engine, priority, tenant, preset)
        view._call = view._engine.call
        return view

    # Its life ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of what the client is doing and has done: of one moment.

        Any thread may ask: at any moment each call made is queued, in flight or ended.
        """
        return self._engine.statistics()

    def story(self) -> list[Decision]:
        """Return the last 512 decisions of the client's own, oldest first: why is it as it is?

        For example ``(12.4, "http://a/v1", "limit 256 → 128", "queue stood at the server")``.
        """
        runner = self._engine.runner
        return [] if runner is None else runner.between_steps(lambda: list(runner.story))

    async def servers(self) -> list[ServerInfo]:
        """Ask each server now what it is and how busy it is; return that in the order of the servers.

        A server is asked for its own pages, as when the client finds out which one it is, with the
        same short bound: 2 s for each. One that hangs takes 4 to 6 s, since two are asked for; one
        that refuses takes no time. One that does not answer is in the list with what was known of
        it, and ``answered`` is False. A service is ready if ``any(each.answered is not False for
        each in await client.servers())``: it is None for a server that is not to be asked.

        Raises:
            ClientClosed: the client is closed.
        """
        engine = self._engine
        return await engine.start().look_at_servers(engine.calls.default_model)

    async def drain(self) -> None:
        """Take no more calls, wait for all to end, then close. A paused client is resumed first.

        Calls made meanwhile fail with ``ClientClosed``. Queued calls are still sent, with their
        retries, so draining takes as long as the calls do: a ``timeout_s`` bounds each,
        ``asyncio.timeout`` bounds the whole.

        Cancellation: leaves the client draining; ``aclose()`` ends what is left.
        """
        await self._engine.drain()

    async def aclose(self) -> None:
        """End every call now with ``ClientClosed`` and close every connection of our own."""
        await self._engine.aclose()


class RowClient(_Calls):
    """The client of a function that ``BatchClient.run`` calls: its calls are the row's.

    The methods are ``BatchClient``'s, with the same arguments, answers and errors. With a journal a
    call that an earlier run has made for this row is answered from there, and so is an error that
    would come again. A call's ``timeout_s`` runs from the first request with it that a server takes
    on. Calls share requests with those of other rows.
    """

    __slots__ = ("_row",)

    def __init__(self, call: Callable[[Call], Awaitable[Any]], row: str) -> None:
        self._call = call
        self._row = row

    def __repr__(self) -> str:
        return f"<RowClient of {self._row}>"


BATCH_CLIENT_ARGUMENTS = frozenset(signature(BatchClient.__init__).parameters) - {
    "self",
    "unknown",
    "from_environment",
}
"""The names of the settings that ``BatchClient`` takes."""
