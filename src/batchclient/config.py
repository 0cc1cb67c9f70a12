"""Settings of a client, checked: the presets, the defaults, and what each value may be.

Rules:
- The numbers of presets and defaults stand here alone.
- A group of arguments (``options``) is checked by the model that it becomes in the settings.
- An error names the argument, and within a group its field: ``batching.max_size``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from batchclient._core.settings import SchedulerSettings
from batchclient._shell.callbacks import Callbacks
from batchclient.errors import ConfigError
from batchclient.transport._addresses import check_headers, check_key, check_url

if TYPE_CHECKING:
    from batchclient.dialects._dialect import Dialect

__all__ = [
    "GROUPS",
    "PRESETS",
    "Checked",
    "CheckedBatching",
    "CheckedHttp",
    "CheckedLimit",
    "CheckedSchedule",
    "CheckedServer",
    "CheckedTelemetry",
    "Preset",
    "Settings",
    "check_group",
    "checked",
    "only_given",
    "path_of",
]

Preset = Literal["latency", "balanced", "throughput"]

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    # Each permit is granted as it comes free; lists form only where calls are made together.
    "latency": {
        "batching": {"max_size": 16, "linger_s": 0.0, "refill_s": 0.0, "refill_ratio": 0.0},
        "schedule": {"starvation_s": 1.0},
    },
    # A hold of at most 0.1 s on a busy server buys lists of an eighth of the limit.
    "balanced": {
        "batching": {"max_size": 32, "linger_s": 0.001, "refill_s": 0.1, "refill_ratio": 0.125},
        "schedule": {"starvation_s": 5.0},
    },
    # Refilling a quarter of the limit at once made lists of 24 to 36 at the same throughput on a
    # saturated vLLM. Below its knee a server loses the waiting permits, on average an eighth of the
    # limit.
    "throughput": {
        "batching": {"max_size": 64, "linger_s": 0.005, "refill_s": 0.5, "refill_ratio": 0.25},
        "schedule": {"starvation_s": 30.0},
    },
}
"""The numbers that a preset sets. Times in seconds."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Patience = Annotated[float, Field(ge=0, strict=True)]
"""``math.inf`` is no bound."""
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


class Checked(BaseModel):
    """Values that have been checked."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True
    )


class CheckedLimit(Checked):
    """An ``AdaptiveLimit`` with all its values."""

    start: Count | None = None
    max: Count = 1024
    p95_latency_s: PositiveSeconds | None = None
    time_to_first_token_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _check_order(self) -> CheckedLimit:
        if self.start is not None and self.start > self.max:
            raise ValueError(f"start is {self.start}, above max, which is {self.max}")
        return self


class CheckedBatching(Checked):
    """A ``Batching`` with all its values."""

    max_size: Count
    linger_s: Seconds
    refill_s: Seconds
    refill_ratio: Annotated[float, Field(ge=0, le=1, strict=True)]
    alone_above_tokens: Count = 256
    size_for: Callable[[int], int] | None = None


class CheckedSchedule(Checked):
    """A ``Schedule`` with all its values."""

    order: Literal["fcfs", "shortest_first", "deadline"] = "fcfs"
    aging_s: PositiveSeconds = 300.0
    starvation_s: Seconds
    tenant_weights: Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]] = Field(
        default_factory=dict
    )
    group_prefixes: Flag = True
    send_priority: Flag = False


class CheckedHttp(Checked):
    """An ``Http`` with all its values."""

    connect_timeout_s: PositiveSeconds | None = 5.0
    read_timeout_s: PositiveSeconds | None = 600.0
    max_response_bytes: Count = 64 * 1024 * 1024
    backend: Literal["httpx", "httpx2"] | None = None
    trust_env: Flag = False

    @field_validator("backend", mode="before")
    @classmethod
    def _check_backend(cls, value: object) -> object:
        if value == "aiohttp":
            raise ValueError(
                "'aiohttp' is gone: without a backend, requests go over connections of batchclient's own, which take"
                " a third of its CPU"
            )
        return value


class CheckedServer(Checked):
    """A ``Server`` in the form that it is kept in. A repr or a pickle has no key."""

    url: str
    api_key: str | None = Field(default=None, repr=False)
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)

    @field_validator("url", mode="before")
    @classmethod
    def _check_url(cls, value: object) -> str:
        return check_url(value)

    @field_validator("api_key", mode="before")
    @classmethod
    def _check_key(cls, value: object) -> object:
        return check_key(value)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        return check_headers(value)

    @property
    def shown(self) -> str:
        """Its URL as it may be shown: a query may hold a key."""
        return self.url.partition("?")[0]

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        return {**state, "__dict__": {"url": self.shown, "api_key": None, "headers": {}}}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield "url", self.shown


class CheckedTelemetry(Checked):
    """A ``Telemetry`` with all its values."""

    tracer_provider: Any = None
    client_name: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _check_provider(self) -> CheckedTelemetry:
        try:
            # Here, not above: only clients with telemetry load OpenTelemetry.
            import batchclient._telemetry.sending
            import batchclient._telemetry.traced  # noqa: F401  # a call imports nothing
            from batchclient._telemetry.spans import check_provider
        except ModuleNotFoundError as error:
            raise ValueError("spans need opentelemetry, of the extra batchclient[otel]") from error
        if self.tracer_provider is not None:
            check_provider(self.tracer_provider)
        return self


GROUPS: dict[str, type[Checked]] = {
    "limit": CheckedLimit,
    "batching": CheckedBatching,
    "schedule": CheckedSchedule,
    "http": CheckedHttp,
    "server": CheckedServer,
    "telemetry": CheckedTelemetry,
}
"""The groups of arguments by name."""


class Settings(Checked):
    """All settings of a client. See ``BatchClient`` for their meanings.

    A repr or a pickle of them has neither keys, headers nor the URLs' queries.
    """

    base_url: tuple[CheckedServer, ...]
    preset: Preset = "balanced"
    model: Annotated[str, Field(min_length=1)] | None = None
    api_key: str | None = Field(default=None, repr=False)
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    limit: Count | CheckedLimit
    batching: CheckedBatching
    schedule: CheckedSchedule
    http: CheckedHttp
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    max_queued: Count = 16_384
    when_full: Literal["wait", "raise"] = "wait"
    timeout_s: PositiveSeconds | None = None
    outage_patience_s: Patience = 60.0
    wait_for_server_s: Patience = 0.0
    single_flight: Flag = False
    server_metrics: Flag | None = None
    detect: Flag | None = None
    telemetry: CheckedTelemetry | None = None

    @field_validator("api_key", mode="before")
    @classmethod
    def _check_key(cls, value: object) -> object:
        return check_key(value)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        return check_headers(value)

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        return {**state, "__dict__": {**state["__dict__"], "headers": {}, "api_key": None}}

    @property
    def highest_limit(self) -> int:
        """The most sequences that may ever be in flight per endpoint."""
        return self.limit if isinstance(self.limit, int) else self.limit.max

    def scheduler(
        self, dialect: Dialect, callbacks: Callbacks | None = None, trusts_lists: Callable[[], bool] = bool
    ) -> SchedulerSettings:
        """The part of the settings that the core works with.

        Args:
            dialect: what is taken for granted of the servers at first.
            callbacks: guards the user's functions among them.
            trusts_lists: whether servers that do not say which they are get lists without a proof.
        """
        batching, schedule = self.batching, self.schedule
        size_for: Callable[[int], int | None] | None = batching.size_for
        if batching.size_for is not None:
            size_for = (callbacks or Callbacks()).hook("size_for", partial(_size_of, batching.size_for))
        return SchedulerSettings(
            linger_s=batching.linger_s,
            refill_s=batching.refill_s,
            refill_ratio=batching.refill_ratio,
            starvation_s=schedule.starvation_s,
            max_size=batching.max_size,
            max_queued=self.max_queued,
            raise_when_full=self.when_full == "raise",
            alone_above_tokens=batching.alone_above_tokens,
            heeds_time=not isinstance(self.limit, int),
            watches_first_tokens=not isinstance(self.limit, int) and self.limit.time_to_first_token_s is not None,
            order=schedule.order,
            aging_s=schedule.aging_s,
            group_prefixes=schedule.group_prefixes,
            tenant_weights=schedule.tenant_weights,
            length_reach=dialect.length_reach,
            size_for=size_for,
            known_caps=dialect.caps,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            outage_patience_s=self.outage_patience_s,
            wait_for_server_s=self.wait_for_server_s,
            trusts_lists=trusts_lists,
        )


def _size_of(choose: Callable[[int], int], queue_depth: int) -> int:
    size = choose(queue_depth)
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"size_for answers a {type(size).__name__}, not a whole number")
    return size


_C = TypeVar("_C", bound=Checked)


def check_group(name: str, values: Mapping[str, Any]) -> Checked:
    """Check the values of a group of arguments, over those of the preset ``balanced``.

    Args:
        name: of the group.
        values: by field; those that are not given are absent.

    Raises:
        ConfigError: a value is wrong; ``field`` is its path, such as ``batching.max_size``.
    """
    return checked(GROUPS[name], {**PRESETS["balanced"].get(name, {}), **values}, path_of(name))


def path_of(group: str) -> str:
    """Return the beginning of an error's field; a server's fields are named as the client's own."""
    return "" if group == "server" else group + "."


def only_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not ``None``, which stands for the default."""
    return {name: value for name, value in arguments.items() if value is not None}


def checked(model: type[_C], values: Mapping[str, Any], prefix: str = "") -> _C:
    """Make a model, and name what is wrong by its path."""
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    # Raised after the handling of that error, which shows the given values, keys too, and would be
    # the context of this error.
    field = prefix + str(first["loc"][0]) if first["loc"] else prefix.rstrip(".")
    field = "base_url" if field == "url" else field
    message = first["msg"].removeprefix("Value error, ")
    raise ConfigError(f"{field}: {message}", field=field)
