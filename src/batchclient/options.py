"""The grouped arguments of a client: its limit, batches, queue, requests, servers and spans.

Rules:
- Each object is frozen, and checks itself when it is made: a wrong value is refused with the
  argument and the field in the error (``batching.max_size``).
- A field with ``None`` as its default has the value that its docstring names, such as the preset's.
- A repr shows the fields that were given, and no key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from batchclient._checks import check_choice, check_count, check_flag, check_number, checked, refused, refuses_unknown
from batchclient.errors import ConfigError
from batchclient.price import Price
from batchclient.transport._addresses import check_headers, check_key, check_url
from batchclient.types import NOT_GIVEN, NotGiven

if TYPE_CHECKING:
    import httpx
    import httpx2
    from opentelemetry.trace import TracerProvider

    from batchclient.retry import RetryPolicy
    from batchclient.transport import Transport

__all__ = ["AdaptiveLimit", "Batching", "Http", "Queue", "Server", "SharingArguments", "Telemetry"]

_T = TypeVar("_T")
_LONGEST_NAME = 256


def _group(kind: type[_T]) -> type[_T]:
    """Let a dataclass show the given fields alone, and refuse the names of former ones."""

    def shown(self: Any) -> str:
        given = dict(given_of(self, secret=False))
        if "url" in given:
            # A query may hold a key.
            given["url"] = given["url"].partition("?")[0]
        return f"{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    kind.__repr__ = shown  # type: ignore[method-assign]
    return refuses_unknown(kind)


def given_of(group: Any, *, secret: bool = True) -> list[tuple[str, Any]]:
    """Return the fields of a group that are not at their default, with their values.

    Args:
        group: the object.
        secret: whether fields that may hold a key are among them.
    """
    return [
        (each.name, getattr(group, each.name))
        for each in fields(group)
        if getattr(group, each.name) != each.default and (secret or each.repr)
    ]


@_group
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveLimit:
    """A limit on the sequences in flight per server that is found while the client runs.

    Args:
        start: the limit at first; by default 256, or 64 with a latency objective, within what the
            server says it takes.
        max: the highest limit.
        p95_latency_s: lower the limit until 95 % of the answers take no longer than this, from
            sending to answer, seconds.
        time_to_first_token_s: the same for the time to the first token, where replies are streamed,
            seconds.
        guest: leave places to others: have in flight what the server was seen to run, less one and
            a half times what others have there (less than that where they have much); begin with
            16, or ``start``. It needs the server's metrics page: where that does not show what runs
            and what waits, calls go to another server that does, or end with ``ConfigError``.

    Raises:
        ConfigError: a value is wrong.
    """

    start: int | None = None
    max: int = 1024
    p95_latency_s: float | None = None
    time_to_first_token_s: float | None = None
    guest: bool = False

    def __post_init__(self) -> None:
        check_flag("limit.guest", self.guest)
        check_count("limit.max", self.max)
        if self.start is not None:
            check_count("limit.start", self.start)
            if self.start > self.max:
                raise refused("limit", f"start is {self.start}, above max, which is {self.max}")
        if self.p95_latency_s is not None:
            check_number("limit.p95_latency_s", self.p95_latency_s, above=0)
        if self.time_to_first_token_s is not None:
            check_number("limit.time_to_first_token_s", self.time_to_first_token_s, above=0)


@_group
@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How calls become batches: the calls that travel in one request.

    Args:
        max_size: prompts per request, at most; by default the preset's: 16 for ``"latency"``, 32
            for ``"balanced"``, 64 for ``"throughput"``. 1 sends every call by itself. Or a function
            that answers the number for a queue depth, such as
            ``lambda queue_depth: min(queue_depth, 16)``; the server's own cap holds. It is called
            for every look at the queue, so it must be quick.
        linger_s: how long a call may wait for company while permits are free and the server is
            busy, seconds; by default the preset's: 0, 0.001 or 0.005.
        list_tokens: calls expected to generate more tokens than this are sent by themselves; 256
            by default.
        chat_list_tokens: the same for calls whose lists cannot be streamed, as those of chats: such
            a list answers everyone when its slowest ends. 32 by default, and up to four times as
            many tokens where answers were seen to end together, at ``max_tokens``.
        single_flight: let equal calls under way share one generation: the same prompt, parameters
            and tenant, with ``temperature=0`` given; off by default.

    Raises:
        ConfigError: a value is wrong.
    """

    max_size: int | Callable[[int], int] | None = None
    linger_s: float | None = None
    list_tokens: int = 256
    chat_list_tokens: int = 32
    single_flight: bool = False

    def __post_init__(self) -> None:
        if self.max_size is not None and not callable(self.max_size):
            check_count("batching.max_size", self.max_size)
        if self.linger_s is not None:
            check_number("batching.linger_s", self.linger_s)
        check_count("batching.list_tokens", self.list_tokens)
        check_count("batching.chat_list_tokens", self.chat_list_tokens)
        check_flag("batching.single_flight", self.single_flight)


@_group
@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Which queued call goes first, and how many there may be.

    Args:
        order: ``"fcfs"`` (first come, first served), ``"shortest_first"`` (expected tokens, with
            aging) or ``"deadline"`` (the earliest end of ``timeout_s``).
        max_calls: calls in the queue, at most, per priority class and tenant; further calls wait
            outside the queue.
        when_full: ``"wait"``, or ``"raise"`` to refuse calls over ``max_calls`` with ``QueueFull``.
        aging_s: the head start of one priority class over the next, seconds: a call of a lower
            class waits at most this much longer.
        tenant_weights: shares of the tenants that get more or less than others, by name; 1 for the
            rest.
        group_prefixes: let calls whose prompts begin alike (256 bytes and more) go next to each
            other, so that the server's prefix cache serves them; by default with
            ``order="fcfs"``, which it needs.
        tell_server: pass the calls' priorities on to the server; vLLM heeds them with
            ``--scheduling-policy priority``.
        max_wait_s: how long a call without a ``timeout_s`` may wait for a cheaper server, before it
            goes to a dearer one, seconds (``Server.price``); ``math.inf``: as long as it takes. By
            default 30, and for rows of maps, which are read ahead, as long as it takes.

    Raises:
        ConfigError: a value is wrong.
    """

    order: Literal["fcfs", "shortest_first", "deadline"] = "fcfs"
    max_calls: int = 16_384
    when_full: Literal["wait", "raise"] = "wait"
    aging_s: float = 300.0
    tenant_weights: Mapping[str, float] | None = None
    group_prefixes: bool | None = None
    tell_server: bool = False
    max_wait_s: float | None = None

    def __post_init__(self) -> None:
        check_choice("queue.order", self.order, ("fcfs", "shortest_first", "deadline"))
        check_count("queue.max_calls", self.max_calls)
        check_choice("queue.when_full", self.when_full, ("wait", "raise"))
        check_number("queue.aging_s", self.aging_s, above=0)
        if self.tenant_weights is not None:
            if not isinstance(self.tenant_weights, Mapping):
                raise refused("queue.tenant_weights", "numbers by the tenants' names")
            for name, weight in self.tenant_weights.items():
                if not isinstance(name, str):
                    raise refused("queue.tenant_weights", "numbers by the tenants' names")
                check_number("queue.tenant_weights", weight, above=0)
            # What the caller changes later has not been checked.
            object.__setattr__(self, "tenant_weights", dict(self.tenant_weights))
        if self.group_prefixes is not None:
            check_flag("queue.group_prefixes", self.group_prefixes)
            if self.group_prefixes and self.order != "fcfs":
                raise refused("queue.group_prefixes", f"it needs order='fcfs', and order is {self.order!r}")
        check_flag("queue.tell_server", self.tell_server)
        if self.max_wait_s is not None:
            check_number("queue.max_wait_s", self.max_wait_s, endless=True)


@_group
@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """How requests are sent.

    Args:
        connect_timeout_s: for a connection, seconds; 5 by default, ``None``: no bound.
        read_timeout_s: the longest silence of the server within a request, seconds; 600 by default,
            ``None``: no bound.
            A streamed answer is silent until its first token, and then for 256 tokens at most, so
            this bounds no generation that goes on.
        backend: the library that carries every request: ``"httpx"``, or its fork ``"httpx2"``, with
            the extra of that name. By default requests go over connections of batchclient's own,
            at a fifth of the CPU, and over httpx where a mock, instrumentation, httpcore's debug
            log, a proxy or trio needs it.
        trust_env: whether proxies and certificates may come from environment variables; off by
            default, and on in the drop-in for openai, as openai's own is.

    Raises:
        ConfigError: a value is wrong.
    """

    connect_timeout_s: float | NotGiven | None = NOT_GIVEN
    read_timeout_s: float | NotGiven | None = NOT_GIVEN
    backend: Literal["httpx", "httpx2"] | None = None
    trust_env: bool | NotGiven = NOT_GIVEN

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "read_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and seconds is not NOT_GIVEN:
                check_number(f"http.{name}", seconds, above=0)
        if self.backend is not None:
            check_choice("http.backend", self.backend, ("httpx", "httpx2"))
        if self.trust_env is not NOT_GIVEN:
            check_flag("http.trust_env", self.trust_env)


@_group
@dataclass(frozen=True, slots=True)
class Server:
    """A server with a key, headers, rates, a model or a price of its own.

    Args:
        url: its OpenAI-style root, with its ``/v1``.
        model: its name of the one model that it is asked for. It gets the calls that name no model,
            and those that name this one. By default it gets all calls, by the names that they give.
        price: of its tokens, ``Price(input=…, output=…)``; by default a call costs nothing. Each
            call goes to the cheapest server that is expected to answer it in time.
        api_key: sent to this server as a bearer token, instead of the client's.
        headers: sent to this server, beside the client's and before them.
        session_header: the name of the header that tells this server the ``session`` of a call,
            such as ``"X-Session-ID"``: a gateway then sends each session to one machine.
        one_model_at_a_time: whether the server has to load a model before it answers calls for it,
            and drops the one before: llama-swap, llama-server's router, an Ollama with little
            memory. Calls go model by model then. By default the client finds out.
        model_wait_s: how long calls for another model wait at such a server while calls for the
            loaded one come; 30 s by default. A call with less time left, or of a higher priority,
            does not wait.
        requests_per_minute: a batch is one request. At most a tenth of a minute's worth at once.
            Any number by default.
        tokens_per_minute: prompt and output tokens, by estimate until the server says; else the
            same.

    Raises:
        ConfigError: a value is wrong.
    """

    url: str
    model: str | None = field(default=None, kw_only=True)
    price: Price | None = field(default=None, kw_only=True)
    api_key: str | None = field(default=None, kw_only=True, repr=False)
    headers: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False)
    session_header: str | None = field(default=None, kw_only=True)
    one_model_at_a_time: bool | None = field(default=None, kw_only=True)
    model_wait_s: float = field(default=30.0, kw_only=True)
    requests_per_minute: float | None = field(default=None, kw_only=True)
    tokens_per_minute: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", checked("base_url", lambda: check_url(self.url)))
        checked("api_key", lambda: check_key(self.api_key))
        if self.model is not None and not (isinstance(self.model, str) and self.model):
            raise refused("model", "the server's name of its model")
        if self.price is not None and not isinstance(self.price, Price):
            raise refused("price", f"a Price(input=…, output=…), not a {type(self.price).__name__}")
        if self.price is not None and self.price.per_hour is not None:
            raise refused("price", "per_hour: a call costs none of it; a server that is paid by the hour has no price")
        if self.headers is not None:
            object.__setattr__(self, "headers", headers_of(self.headers))
        if self.session_header is not None:
            given = self.session_header
            if not isinstance(given, str):
                raise refused("session_header", "a header's name")
            checked("session_header", lambda: check_headers({given: ""}))
        if self.one_model_at_a_time is not None and not isinstance(self.one_model_at_a_time, bool):
            raise refused("one_model_at_a_time", "True, False or None")
        if self.one_model_at_a_time and self.model is not None:
            raise refused("one_model_at_a_time", "not given beside model=: the server is asked for that one alone")
        check_number("model_wait_s", self.model_wait_s)
        if self.requests_per_minute is not None:
            check_number("requests_per_minute", self.requests_per_minute, above=0)
        if self.tokens_per_minute is not None:
            check_number("tokens_per_minute", self.tokens_per_minute, above=0)


def headers_of(headers: object) -> Mapping[str, str]:
    """Return headers in their stored form: a copy, with names in lower case.

    Raises:
        ConfigError: they are none.
    """
    if not isinstance(headers, Mapping) or not all(isinstance(text, str) for each in headers.items() for text in each):
        raise refused("headers", "texts by the headers' names")
    return checked("headers", lambda: check_headers(headers))


@_group
@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Spans for OpenTelemetry, of calls and of requests; needs the extra ``otel``.

    No span holds a prompt, an answer, a key or a header, and no switch changes this.

    Args:
        tracer_provider: makes the tracer; the global provider by default.
        client_name: a name for the client, in every span.

    Raises:
        ConfigError: a value is wrong, or OpenTelemetry is not installed.
    """

    tracer_provider: TracerProvider | None = None
    client_name: str | None = None

    def __post_init__(self) -> None:
        if self.client_name is not None and not (
            isinstance(self.client_name, str) and 0 < len(self.client_name) <= 256
        ):
            raise refused("telemetry.client_name", f"a name of 1 to {_LONGEST_NAME} characters")
        try:
            # Here, not above: only clients with telemetry load OpenTelemetry.
            import batchclient._telemetry.sending
            import batchclient._telemetry.traced  # noqa: F401  # a call imports nothing
            from batchclient._telemetry.spans import check_provider
        except ModuleNotFoundError as error:
            message = "telemetry: spans need opentelemetry, of the extra batchclient[otel]"
            raise ConfigError(message, field="telemetry") from error
        if self.tracer_provider is not None:
            checked("telemetry", lambda: check_provider(self.tracer_provider))


class SharingArguments(TypedDict, total=False):
    """``BatchClient``'s arguments that the drop-in for openai and the HTTP transports take, too.

    The servers, keys and headers are those of the requests. ``BatchClient`` says what each argument
    means.
    """

    retry: RetryPolicy
    limit: int | Literal["auto"] | AdaptiveLimit
    preset: Literal["latency", "balanced", "throughput"]
    batching: Batching
    queue: Queue
    http: Http | httpx.AsyncClient | httpx2.AsyncClient | Callable[[str, Mapping[str, str]], Transport]
    dialect: Literal["vllm", "sglang", "tgi", "llamacpp", "trtllm", "tei", "openai"]
    probe: bool
    wait_for_server_s: float
    outage_patience_s: float
    telemetry: Telemetry
