"""The grouped arguments of a client: forming batches, queueing, sending, tracing.

Rules:
- Each object is frozen. A field that is not given, or ``None`` but for
  ``Http``'s timeouts, has the value of the client's preset.
- A wrong value is refused when the object is made, with the argument and the field in the error.
- An object says what its fields mean; the numbers of the presets are ``config.PRESETS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

from batchclient.types import NOT_GIVEN, NotGiven

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from batchclient.retry import RetryPolicy

__all__ = ["AdaptiveLimit", "Batching", "Http", "Schedule", "Server", "SharingArguments", "Telemetry"]


@dataclass(frozen=True, slots=True)
class _Group:
    """An object whose fields are checked when it is made."""

    _name: ClassVar[str]

    def __post_init__(self) -> None:
        # Pydantic comes with it, which takes as long to import as all the rest of batchclient.
        from batchclient.config import check_group

        check_group(self._name, self._given())

    def _given(self) -> dict[str, Any]:
        """Return the fields that were given."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {each.name: values[each.name] for each in fields(self) if values[each.name] is not each.default}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveLimit(_Group):
    """A limit on the sequences in flight per server that is found while the client runs.

    Args:
        start: the limit at first. By default it depends on the preset and on the server.
        max: the highest limit; 1,024 by default.
        p95_latency_s: lower the limit until 95 % of the answers take no longer than this, from
            sending to answer, seconds.
        time_to_first_token_s: the same for the time to the first token, where replies are streamed,
            seconds.

    Raises:
        ConfigError: a value is wrong.
    """

    _name = "limit"

    start: int | None = None
    max: int | None = None
    p95_latency_s: float | None = None
    time_to_first_token_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching(_Group):
    """How calls become batches: the calls that travel in one request.

    Args:
        max_size: prompts per request, at most; 1 sends every call by itself.
        linger_s: how long a call may wait for company while permits are free and the server is
            busy, seconds.
        alone_above_tokens: calls expected to generate more tokens than this are sent by themselves;
            256 by default. A list that cannot be streamed, as one of chats, answers everyone when
            its slowest ends. Its calls are sent by themselves above an eighth of this (32), or
            above half of it (128) where answers were seen to end together, at ``max_tokens``.
        size_for: prompts per request for a queue depth, such as ``lambda queue_depth:
            min(queue_depth, 16)``, instead of ``max_size``; the server's own cap holds. It is
            called for every look at the queue, so it must be quick.

    Raises:
        ConfigError: a value is wrong.
    """

    _name = "batching"

    max_size: int | None = None
    linger_s: float | None = None
    alone_above_tokens: int | None = None
    size_for: Callable[[int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(_Group):
    """Which queued call goes first.

    Args:
        order: ``"fcfs"`` (first come, first served; the default), ``"shortest_first"`` (expected
            tokens, with aging) or ``"deadline"`` (the earliest end of ``timeout_s``).
        aging_s: the head start of one priority class over the next, seconds: a call of a lower
            class waits at most this much longer; 300 by default.
        tenant_weights: shares of the tenants that get more or less than others, by name; 1 for the
            rest.
        group_prefixes: let calls whose prompts begin alike (256 bytes and more) go next to each
            other, so that the server's prefix cache serves them; on by default, with
            ``order="fcfs"``.
        send_priority: pass the calls' priorities on to the server; vLLM heeds them with
            ``--scheduling-policy priority``.

    Raises:
        ConfigError: a value is wrong.
    """

    _name = "schedule"

    order: Literal["fcfs", "shortest_first", "deadline"] | None = None
    aging_s: float | None = None
    tenant_weights: Mapping[str, float] | None = None
    group_prefixes: bool | None = None
    send_priority: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Http(_Group):
    """How requests are sent.

    Args:
        connect_timeout_s: for a connection, seconds; 5 by default, ``None``: no bound.
        read_timeout_s: the longest silence of the server within a request, seconds; 600 by default,
            ``None``: no bound.
            A streamed answer is silent until its first token, and then for 256 tokens at most, so
            this bounds no generation that goes on.
        max_response_bytes: the largest decoded response, bytes; 64 MiB by default.
        backend: the library that carries every request: ``"httpx"``, or its fork ``"httpx2"``, with
            the extra of that name. By default requests go over connections of batchclient's own,
            at a fifth of the CPU, and over httpx where a mock, instrumentation, httpcore's debug
            log, a proxy or trio needs it.
        trust_env: whether proxies and certificates may come from environment variables; off by
            default.

    Raises:
        ConfigError: a value is wrong.
    """

    _name = "http"

    connect_timeout_s: float | NotGiven | None = NOT_GIVEN
    read_timeout_s: float | NotGiven | None = NOT_GIVEN
    max_response_bytes: int | None = None
    backend: Literal["httpx", "httpx2"] | None = None
    trust_env: bool | None = None


@dataclass(frozen=True, slots=True)
class Server(_Group):
    """A server with a key or headers of its own.

    Args:
        url: its OpenAI-style root, with its ``/v1``.
        api_key: sent to this server as a bearer token, instead of the client's.
        headers: sent to this server, beside the client's and before them.

    Raises:
        ConfigError: a value is wrong.
    """

    _name = "server"

    url: str
    api_key: str | None = field(default=None, kw_only=True, repr=False)
    headers: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry(_Group):
    """Spans for OpenTelemetry, of calls and of requests; needs the extra ``otel``.

    No span holds a prompt, an answer, a key or a header, and no switch changes this.

    Args:
        tracer_provider: makes the tracer; the global provider by default.
        client_name: a name for the client, in every span.

    Raises:
        ConfigError: a value is wrong, or OpenTelemetry is not installed.
    """

    _name = "telemetry"

    tracer_provider: TracerProvider | None = None
    client_name: str | None = None


class SharingArguments(TypedDict, total=False):
    """``BatchClient``'s arguments that the drop-in for openai and the HTTP transports take, too.

    The servers, keys and headers are those of the requests. ``BatchClient`` says what each argument
    means.
    """

    preset: Literal["latency", "balanced", "throughput"]
    limit: int | Literal["auto"] | AdaptiveLimit
    batching: Batching
    schedule: Schedule
    http: Http
    outage_patience_s: float
    wait_for_server_s: float
    retry: RetryPolicy
    max_queued: int
    when_full: Literal["wait", "raise"]
    requests_per_minute: float
    tokens_per_minute: float
    dialect: Literal["vllm", "sglang", "tgi", "llamacpp", "trtllm", "tei", "openai"]
    detect: bool
    server_metrics: bool
    single_flight: bool
    telemetry: Telemetry
