"""``BatchClient``: a client's settings, its calls for answers, and its life.

The folder ``_client`` has the other methods: calls for many documents (``map_methods``), calls for
vectors and scores (``scoring``), changes while a client runs (``control``). ``calling`` is the way
of every call; ``starting`` makes a runner per event loop.

Rules:
- Bad input is refused here, before anything is queued, with an error that names the argument.
- A client may be made anywhere. The first call starts the client, in the event loop of that call.
- A client serves one event loop at a time. After the loop has ended, the client starts afresh;
  while the loop is alive, a call from another loop is refused.
- After a fork the child starts afresh; the parent's sockets are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, Unpack

from batchclient._calls.make import CallMaker
from batchclient._checks import check_flag, refuse_unknown
from batchclient._client.calling import Messages, structured
from batchclient._client.connections import Connections, shown
from batchclient._client.control import ControlMethods
from batchclient._client.map_methods import MapMethods
from batchclient._client.scoring import ScoringMethods
from batchclient._client.starting import Starting
from batchclient._core.kinds import Kind
from batchclient._core.messages import Resumed
from batchclient._core.statistics import Statistics
from batchclient._shell.callbacks import Callbacks
from batchclient._shell.log import Decision
from batchclient._shell.servers import DialectChoice, ServerInfo
from batchclient.errors import ConfigError
from batchclient.retry import Backoff, RetryPolicy
from batchclient.stream import Stream
from batchclient.templates import Prompt
from batchclient.transport import Transport
from batchclient.types import NOT_GIVEN, Completion, NotGiven

if TYPE_CHECKING:
    import httpx
    import httpx2
    from pydantic import BaseModel

    from batchclient.options import AdaptiveLimit, Batching, Http, Queue, Server, Telemetry
    from batchclient.params import ChatParams, ChatStreamParams, CompletionParams, CompletionStreamParams

__all__ = ["BATCH_CLIENT_ARGUMENTS", "BatchClient"]

_KEY_HINT = "; no key was given: give api_key=… or set BATCHCLIENT_API_KEY (OPENAI_API_KEY is not read)"
_FOR_CALLS = (
    "anyio._backends._asyncio",
    "batchclient._calls.structured",
    "batchclient._client.make_limit",
    "batchclient._shell.model_question",
    "batchclient._shell.watcher",
    "concurrent.futures.thread",
    "batchclient.dialects._dialect",
)
"""What a call needs is imported with the client.

A module that a thread imports during a fork stays locked in the child for ever.
"""
_NOT_SETTINGS = frozenset(("self", "preset", "retry", "unknown", "from_environment", "__class__"))
"""Names within the constructor that no setting has."""


class BatchClient(MapMethods, ScoringMethods, ControlMethods):
    """An async client that turns many small calls into few well-shaped requests.

    Calls made at the same time, with the same parameters, share requests; each caller gets its own
    answer, error, deadline and cancellation. One client per server and process: two clients do not
    know of each other's load.

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
            ``docs/reference/servers.md`` says what each has.
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
        from batchclient._core.limits.trial import Turn

        if unknown:
            refuse_unknown(unknown, BATCH_CLIENT_ARGUMENTS)
        check_flag("from_environment", from_environment)
        self._reads_environment = from_environment
        if from_environment:
            _settings.from_environment(arguments)
        self._settings = _settings.make_settings(preset, arguments)
        for name in _FOR_CALLS:
            import_module(name)
        self._connections = connections = Connections(self._settings)
        self._dialects = DialectChoice(dialect, connections.secrets, self._key_hint(key_given=api_key is not None))
        if retry is not None and (isinstance(retry, type) or not callable(getattr(retry, "decide", None))):
            raise ConfigError("retry is a RetryPolicy, such as Backoff() or TenacityRetry(…)", field="retry")
        self._callbacks = Callbacks()
        self._retry = self._callbacks.guard_policy(retry or Backoff())
        self._endpoints = [(server.url, place) for place, server in enumerate(self._settings.base_url)]
        self._calls = CallMaker(self._settings)
        self._context = copy_context()
        self._closed = False
        self._paused = False
        self._turn = Turn()
        Starting.__init__(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else repr(self._runner.core) if self._runner else "idle"
        urls = ", ".join(shown(url) for url, _ in self._endpoints)
        return f"<BatchClient for {urls}: {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be sent to another process or copied: make one there, or share this one")

    def _key_hint(self, *, key_given: bool) -> str:
        """Return the end of the message of a 401."""
        if not self._reads_environment:
            return ""
        if not self._connections.has_key:
            return _KEY_HINT
        if not self._connections.has_key_everywhere:
            return ""
        of_servers = any(server.api_key is not None for server in self._settings.base_url)
        if self._settings.api_key is not None and not key_given:
            return (
                "; the key that was sent was refused" if of_servers else "; the key of BATCHCLIENT_API_KEY was refused"
            )
        given = "the api_key" if key_given or of_servers else "the key in the headers"
        return f"; {given} that was given was refused"

    # Calls ---------------------------------------------------------------------------------------------------------

    async def complete(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
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
        fields: Mapping[str, Any] = params
        if response_model is not None:
            fields = structured().demand(response_model, fields)
        # What ``_call`` does, without a coroutine of its own: a twentieth of what a call costs.
        request = self._begin(Kind.COMPLETION, prompt, model, timeout_s, fields, priority, tenant)
        if request is None:
            answer = await self._call(Kind.COMPLETION, prompt, model, timeout_s, fields, priority, tenant)
        else:
            runner = self._runner
            assert runner is not None, "a call that has begun has a runner"
            try:
                answer = await runner.backend.wait(request.waiter)
            except BaseException:
                runner.leave(request)
                raise
        if response_model is not None:
            answer = self._parse(response_model)(answer)
        return answer  # type: ignore[no-any-return]

    async def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Unpack[ChatParams],
    ) -> Completion:
        """Answer one conversation.

        Chats with short answers share requests where the server takes lists of chats (vLLM from
        0.19). Chats with long answers go by themselves, and so do chats with ``tools``, ``n`` above
        1, images or audio.

        Args:
            messages: the conversation, as OpenAI's API has it.
            model, timeout_s, priority, tenant, response_model: as for ``complete``.
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
        fields: Mapping[str, Any] = params
        if response_model is not None:
            fields = structured().demand(response_model, fields)
        answer: Completion = await self._call(Kind.CHAT, messages, model, timeout_s, fields, priority, tenant)
        if response_model is not None:
            answer = self._parse(response_model)(answer)
        return answer

    def stream(
        self,
        prompt: Prompt,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Unpack[CompletionStreamParams],
    ) -> Stream:
        """Complete one prompt and hand out the answer piece by piece, as the server makes it.

            async with client.stream("Once upon", max_tokens=200) as pieces:
                async for delta in pieces:
                    print(delta.text, end="")
            print(pieces.completion.usage)

        The call goes by itself, through the same queue, limit, fairness and retries as all others.
        The call is sent again only while no piece was taken. Leaving the loop, ``aclose()`` and
        cancellation close the connection, so that the server stops. While pieces are not taken, no
        more than a few hundred are read ahead.

        Args:
            prompt, model, priority, tenant: as for ``complete``.
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
        return self._make_stream(Kind.COMPLETION, prompt, model, timeout_s, params, priority, tenant, response_model)

    def stream_chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        timeout_s: float | NotGiven | None = NOT_GIVEN,
        priority: int = 0,
        tenant: str | None = None,
        response_model: type[BaseModel] | None = None,
        **params: Unpack[ChatStreamParams],
    ) -> Stream:
        """Answer one conversation piece by piece.

        Each ``Delta`` has the server's own delta in ``message``.

        Args:
            messages: as for ``chat``.
            model, timeout_s, priority, tenant, response_model, params: as for ``stream``.

        Returns:
            As ``stream``.

        Raises:
            ConfigError: as ``stream``.
        """
        return self._make_stream(Kind.CHAT, messages, model, timeout_s, params, priority, tenant, response_model)

    # Its life ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of what the client is doing and has done: of one moment.

        Any thread may ask: at any moment each call made is queued, in flight or ended.
        """
        if self._runner is None:
            return self._make_core().statistics()
        runner = self._runner

        def read() -> Statistics:
            statistics = runner.core.statistics()
            health = statistics.health
            return replace(
                statistics,
                reused=runner.reused,
                wasted_tokens=statistics.wasted_tokens + runner.wasted_tokens,
                regained_tokens=runner.regained_tokens,
                health={**health, "ok": health["ok"] - runner.invalid, "invalid": runner.invalid},
            )

        return runner.between_steps(read)

    def story(self) -> list[Decision]:
        """Return the last 512 decisions of the client's own, oldest first: why is it as it is?

        For example ``(12.4, "http://a/v1", "limit 256 → 128", "queue stood at the server")``.
        """
        runner = self._runner
        return [] if runner is None else runner.between_steps(lambda: list(runner.story))

    async def servers(self) -> list[ServerInfo]:
        """Ask each server now what it is and how busy it is; return that in the order of the servers.

        A server is asked for its own pages, as when the client finds out which one it is, with the
        same short bound. One that does not answer is in the list with what is known of it.

        Raises:
            ClientClosed: the client is closed.
        """
        return await self._start().look_at_servers(self._calls.default_model)

    async def drain(self) -> None:
        """Take no more calls, wait for all to end, then close. A paused client is resumed first.

        Cancellation: leaves the client draining; ``aclose()`` ends what is left.
        """
        self._closed = True
        runner = self._runner
        if runner is not None and runner.backend.is_current():
            runner.tell(Resumed())
            try:
                await runner.drain()
            finally:
                await self._let_go(runner)
        self._end_attached()

    async def aclose(self) -> None:
        """End every call now with ``ClientClosed`` and close every connection of our own."""
        self._closed = True
        runner = self._runner
        if runner is not None and runner.backend.is_current():
            try:
                await runner.aclose()
            finally:
                await self._let_go(runner)
                self._end_attached()
        else:
            self._end_attached()


BATCH_CLIENT_ARGUMENTS = frozenset(signature(BatchClient.__init__).parameters) - {
    "self",
    "unknown",
    "from_environment",
}
"""The names of the settings that ``BatchClient`` takes."""
