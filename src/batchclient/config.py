"""Settings of a client: presets, and the check of every argument where it is given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from batchclient._core.messages import Adjustment
from batchclient._core.settings import SchedulerSettings
from batchclient._shell.batch_size import BatchSize
from batchclient.errors import ConfigError

if TYPE_CHECKING:
    from batchclient._shell.callbacks import Callbacks
    from batchclient.dialects import Dialect

__all__ = ["CHANGEABLE", "PRESETS", "Preset", "Settings", "changed", "check_base_url", "make_settings"]

Preset = Literal["latency", "balanced", "throughput"]

PRESETS: dict[str, dict[str, Any]] = {
    # Each permit is granted as it comes free; lists form only where calls are made together.
    "latency": {
        "limit": "auto", "max_list": 16, "linger_s": 0.0, "refill_s": 0.0, "refill_ratio": 0.0, "starvation_s": 1.0,
    },
    # A hold of at most 0.1 s on a busy server buys lists of an eighth of the limit.
    "balanced": {
        "limit": "auto", "max_list": 32, "linger_s": 0.001, "refill_s": 0.1, "refill_ratio": 0.125, "starvation_s": 5.0,
    },
    # Refilling a quarter of the limit at once made lists of 24 to 36 at the same throughput on a saturated vLLM; below
    # its knee a server loses the permits that wait, an eighth of the limit on average.
    "throughput": {
        "limit": "auto", "max_list": 64, "linger_s": 0.005, "refill_s": 0.5, "refill_ratio": 0.25, "starvation_s": 30.0,
    },
}  # fmt: skip
"""What a preset sets; every entry can be given as an argument of its own. Times in seconds."""

CHANGEABLE = frozenset(
    (
        "limit", "initial_limit", "max_limit", "p95_latency_s", "time_to_first_token_s", "max_list", "linger_s",
        "refill_s", "refill_ratio", "starvation_s", "max_queued", "singles_above_tokens", "batch_size", "length_reach",
    )
)  # fmt: skip
"""What ``BatchClient.retune`` takes."""

# RFC 9110, sections 5.1 and 5.5, without obs-text: what h11 and httpx let through.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN_NAME = re.compile(r"[A-Za-z]{1,16}(-[A-Za-z]{1,16}){0,4}")
"""Names that may be shown: they have no digits, which keys have."""
_HEADER_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")

_HOST = re.compile(r"[A-Za-z0-9._~-]+")
_FOUR_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+){3}")

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]


class Settings(BaseModel):
    """All settings of a client. See ``BatchClient`` for their meanings.

    A repr or a pickle of them has neither headers nor the URLs' queries: keys are in them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    base_url: tuple[str, ...]
    preset: Preset = "balanced"
    model: Annotated[str, Field(min_length=1)] | None = None
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    limit: Count | Literal["auto"]
    initial_limit: Count | None = None
    max_limit: Count = 1024
    p95_latency_s: PositiveSeconds | None = None
    time_to_first_token_s: PositiveSeconds | None = None
    max_list: Count
    linger_s: Seconds
    refill_s: Seconds
    refill_ratio: Annotated[float, Field(ge=0, le=1, strict=True)]
    starvation_s: Seconds
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    max_queued: Count = 16_384
    when_full: Literal["wait", "raise"] = "wait"
    singles_above_tokens: Count = 256
    order: Literal["fcfs", "shortest_first", "deadline"] = "fcfs"
    aging_s: PositiveSeconds = 300.0
    group_prefixes: Annotated[bool, Field(strict=True)] = True
    send_priority: Annotated[bool, Field(strict=True)] = False
    tenant_weights: Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]] = Field(
        default_factory=dict
    )
    batch_size: Callable[[int], int] | None = None
    length_reach: Annotated[int, Field(ge=0, strict=True)] | None = None
    timeout_s: PositiveSeconds | None = None
    outage_patience_s: Seconds = 30.0
    connect_timeout_s: PositiveSeconds = 5.0
    read_timeout_s: PositiveSeconds | None = 600.0
    max_response_bytes: Count = 64 * 1024 * 1024
    max_model_len: Count | None = None
    count_tokens: Callable[[str], int] | None = None
    render_chat: Callable[[Any], Any] | None = None
    single_flight: Annotated[bool, Field(strict=True)] = False
    on_adjustment: Callable[[Adjustment], object] | None = None
    http_backend: Literal["httpx", "httpx2", "aiohttp"] = "httpx"
    trust_env: Annotated[bool, Field(strict=True)] = False
    server_metrics: Annotated[bool, Field(strict=True)] | None = None
    detect: Annotated[bool, Field(strict=True)] | None = None

    @field_validator("limit", mode="before")
    @classmethod
    def _check_limit(cls, value: object) -> object:
        if (type(value) is int and value >= 1) or value == "auto":
            return value
        if value in ("knee", "aimd"):
            raise ValueError(f"{value!r} is 'auto' now, the default")
        raise ValueError("a whole number of at least 1, or 'auto' to have it found")

    @field_validator("on_adjustment")
    @classmethod
    def _check_hook(cls, value: Callable[[Adjustment], object] | None) -> Callable[[Adjustment], object] | None:
        if inspect.iscoroutinefunction(value):
            raise ValueError("a plain function: it is called, not awaited; it may start a task")
        return value

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        return {**state, "__dict__": {**state["__dict__"], "headers": {}, "base_url": self._shown_urls}}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, self._shown_urls if name == "base_url" else value

    @property
    def _shown_urls(self) -> tuple[str, ...]:
        return tuple(url.partition("?")[0] for url in self.base_url)

    @property
    def highest_limit(self) -> int:
        """The most sequences that may ever be in flight per endpoint."""
        return self.limit if isinstance(self.limit, int) else self.max_limit

    @property
    def heeds_time(self) -> bool:
        """Whether a limit rests on how long answers take."""
        return not (isinstance(self.limit, int) and self.p95_latency_s is None and self.time_to_first_token_s is None)

    @field_validator("base_url", mode="before")
    @classmethod
    def _check_urls(cls, value: object) -> tuple[str, ...]:
        urls = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
        if not urls:
            raise ValueError("a URL such as http://localhost:8000/v1, or a list of them")
        if len(urls) == 1:
            return (_check_url(urls[0]),)
        checked = tuple(_check_url(url, f"URL number {number}") for number, url in enumerate(urls, 1))
        for number, url in enumerate(checked, 1):
            first = checked.index(url) + 1
            if first != number:
                raise ValueError(
                    f"URL number {first} is there twice, as number {number}; each server has its own limit"
                )
        return checked

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for number, (name, text) in enumerate(value.items(), 1):
            # A name may be a key in the wrong place.
            shown = repr(name) if _PLAIN_NAME.fullmatch(name) else f"number {number}"
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"the name of header {shown} is none: letters, digits and hyphens, its value apart")
            if name.lower() in ("content-length", "transfer-encoding"):
                raise ValueError(f"{name!r} is not for you to give: each request has its own")
            if not _HEADER_VALUE.fullmatch(text):
                raise ValueError(
                    f"the value of the header {shown} is printable ASCII without spaces around it; a line break in it"
                    " would start another header"
                )
        # In one case: two spellings of one name would be sent as two headers.
        return {name.lower(): text for name, text in value.items()}

    def scheduler(self, dialect: Dialect, callbacks: Callbacks | None = None) -> SchedulerSettings:
        """The part of the settings that the core works with.

        Args:
            dialect: what is taken for granted of the servers at first.
            callbacks: guards the user's functions among them.
        """
        batch_size = self.batch_size
        if batch_size is not None and callbacks is not None:
            batch_size = callbacks.guard("batch_size", batch_size)
        return SchedulerSettings(
            linger_s=self.linger_s,
            refill_s=self.refill_s,
            refill_ratio=self.refill_ratio,
            starvation_s=self.starvation_s,
            max_list=self.max_list,
            max_queued=self.max_queued,
            raise_when_full=self.when_full == "raise",
            singles_above_tokens=self.singles_above_tokens,
            heeds_time=self.heeds_time,
            watches_first_tokens=self.time_to_first_token_s is not None,
            order=self.order,
            aging_s=self.aging_s,
            group_prefixes=self.group_prefixes,
            tenant_weights=self.tenant_weights,
            length_reach=dialect.length_reach if self.length_reach is None else self.length_reach,
            batch_size=None if batch_size is None else BatchSize(batch_size),
            known_caps=dialect.caps,
            is_known_server=dialect.is_known_server,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            outage_patience_s=self.outage_patience_s,
        )


def _check_url(url: object, which: str = "the URL") -> str:
    """Return a URL in the form it is kept in. No complaint shows any of it: a key may be in the wrong place."""
    if not isinstance(url, str):
        raise ValueError(f"{which} is a string, not {type(url).__name__}")
    url = url.strip()
    path, question, query = url.partition("?")
    if "@" in path:
        raise ValueError(f"{which} has a user or password in it; give api_key or headers")
    if any(ord(character) < 33 or ord(character) == 127 for character in url):
        raise ValueError(f"{which} has a space or line break in it")
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"{which} does not begin with http:// or https://, as http://localhost:8000/v1 does")
    if not _has_host(url):
        raise ValueError(f"{which} has no host that can be read, as http://localhost:8000/v1 has")
    if not _has_port(url):
        raise ValueError(f"{which} has no port between 0 and 65535")
    if "#" in url:
        raise ValueError(f"{which} has a #fragment, which is never sent")
    scheme, colon, rest = path.partition(":")
    return scheme.lower() + colon + rest.rstrip("/") + question + query


def _has_host(url: str) -> bool:
    """Whether a URL has a name or an address that an HTTP library reads, too."""
    try:
        host = urlsplit(url).hostname or ""
        if "[" in urlsplit(url).netloc:
            return ip_address(host).version == 6
        if _FOUR_NUMBERS.fullmatch(host):
            ip_address(host)
        return _HOST.fullmatch(host.encode("idna").decode("ascii")) is not None
    except ValueError:
        return False


def _has_port(url: str) -> bool:
    """Whether a URL's port is one, or it has none."""
    try:
        urlsplit(url).port  # noqa: B018  # it is the look that raises
    except ValueError:
        return False
    return True


def check_base_url(base_url: object) -> str:
    """Return a server's base URL in the form the client keeps it in.

    Raises:
        ConfigError: it is none.
    """
    try:
        return _check_url(base_url)
    except ValueError as error:
        said = str(error)
    # Not raised while that error is handled, which would be its context.
    raise ConfigError(f"base_url: {said}", field="base_url")


def make_settings(preset: str, arguments: Mapping[str, Any]) -> Settings:
    """Combine a preset with the arguments given, and check them.

    Raises:
        ConfigError: an argument is wrong; its name is in ``field``.
    """
    chosen = PRESETS.get(preset) if isinstance(preset, str) else None
    if chosen is None:
        raise ConfigError(f"preset is one of {', '.join(PRESETS)}, not {preset!r:.40}", field="preset")
    named = only_given(arguments)
    values = {"preset": preset, **chosen, **named}
    return _in_agreement(_checked(values), named)


def only_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not ``None``, which stands for the default."""
    return {name: value for name, value in arguments.items() if value is not None}


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with some of them changed while a client runs.

    Raises:
        ConfigError: a value is wrong, or the setting cannot be changed while running.
    """
    for name in changes:
        if name not in CHANGEABLE:
            raise ConfigError(
                f"{name} cannot be changed while running; these can: {', '.join(sorted(CHANGEABLE))}", field=name
            )
    values = {name: getattr(settings, name) for name in Settings.model_fields} | dict(changes)
    return _in_agreement(_checked(values), changes)


def _in_agreement(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Refuse what was given and would do nothing beside the rest."""
    limit = settings.limit
    for name in ("initial_limit", "max_limit"):
        if name in given and isinstance(limit, int):
            raise ConfigError(f"{name}: it is for a limit that is found, and limit={limit} is a number", field=name)
    start = settings.initial_limit
    if isinstance(limit, str) and start is not None and start > settings.max_limit:
        if "max_limit" in given:
            message, name = f"at least initial_limit, which is {start}", "max_limit"
        else:
            message, name = f"at most max_limit, which is {settings.max_limit}; give a higher one, too", "initial_limit"
        raise ConfigError(f"{name}: {message}", field=name)
    if given.get("group_prefixes"):
        name = "group_prefixes"
        if settings.order != "fcfs":
            raise ConfigError(f"{name}: it needs order='fcfs', and order is {settings.order!r}", field=name)
        if settings.length_reach is not None:
            raise ConfigError(f"{name}: it needs lists of any lengths, and length_reach is given", field=name)
    return settings


def _checked(values: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    # Not raised while that error is handled: it shows what was given, keys and all, and would be our error's context.
    field = str(first["loc"][0]) if first["loc"] else None
    known = ", ".join(sorted(Settings.model_fields))
    hint = f"; there are: {known}" if first["type"] == "extra_forbidden" else ""
    message = first["msg"].removeprefix("Value error, ")
    raise ConfigError(f"{field}: {message}{hint}", field=field)
