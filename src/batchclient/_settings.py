"""From a client's arguments to its settings: presets, defaults, the environment.

Rules:
- A preset, over the preset the environment's URL, model and key, over both the arguments. ``None``
  stands for the default.
- A group (``options``) has checked itself; a field that it does not give has the preset's value.
- An argument that does not exist is refused with the right name in the error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from batchclient._checks import check_flag, check_number, checked, refused
from batchclient._core.settings import BatchingNumbers, SchedulerSettings
from batchclient._old_names import refuse_old
from batchclient._shell.callbacks import Callbacks
from batchclient.errors import ConfigError
from batchclient.options import AdaptiveLimit, Batching, Http, Queue, Server, Telemetry, given_of, headers_of
from batchclient.transport import Timeouts
from batchclient.transport._addresses import check_key, check_url
from batchclient.transport._libraries import is_of
from batchclient.types import NotGiven

if TYPE_CHECKING:
    from batchclient.dialects._dialect import Dialect

__all__ = [
    "PRESETS",
    "Sending",
    "Settings",
    "changed",
    "check_server",
    "check_servers",
    "from_environment",
    "make_settings",
    "only_given",
    "sending_of",
]


PRESETS = {
    # Each permit is granted as it comes free; lists form only where calls are made together.
    "latency": BatchingNumbers(max_size=16, linger_s=0.0, refill_s=0.0, refill_ratio=0.0, starvation_s=1.0),
    # A hold of at most 0.1 s on a busy server buys lists of an eighth of the limit.
    "balanced": BatchingNumbers(max_size=32, linger_s=0.001, refill_s=0.1, refill_ratio=0.125, starvation_s=5.0),
    # Refilling a quarter of the limit at once made lists of 24 to 36 at the same throughput on a
    # saturated vLLM. Below its knee a server loses the waiting permits, on average an eighth of the
    # limit.
    "throughput": BatchingNumbers(max_size=64, linger_s=0.005, refill_s=0.5, refill_ratio=0.25, starvation_s=30.0),
}

_CHANGEABLE = ("limit", "batching", "queue")
_CHANGEABLE_OF_QUEUE = ("max_calls", "when_full")
_VARIABLES = {
    "base_url": "BATCHCLIENT_BASE_URL",
    "model": "BATCHCLIENT_MODEL",
    "api_key": "BATCHCLIENT_API_KEY",
}
_TELEMETRY = "BATCHCLIENT_OTEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending(Http):
    """An ``Http``, and what the requests go over.

    Args:
        client: the user's own ``httpx.AsyncClient`` or ``httpx2.AsyncClient``.
        transport: the user's own way of sending: a function of a base URL and headers.
    """

    trust_env: bool = False
    client: Any = None
    transport: Callable[[str, Mapping[str, str]], Any] | None = None

    @property
    def given(self) -> str | None:
        """What the user has given to send by, in words; ``None``: the connections are our own."""
        return "client" if self.client is not None else None if self.transport is None else "transport"

    @property
    def timeouts(self) -> Timeouts:
        """The bounds of each request."""
        connect_s, read_s = self.connect_timeout_s, self.read_timeout_s
        return Timeouts(
            connect_s=5.0 if isinstance(connect_s, NotGiven) else connect_s,
            read_s=600.0 if isinstance(read_s, NotGiven) else read_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a client, checked. See ``BatchClient`` for their meanings."""

    base_url: tuple[Server, ...]
    preset: str
    limit: int | AdaptiveLimit
    batching: Batching
    queue: Queue
    http: Sending
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float | None = None
    dialect: str | None = None
    probe: bool | None = None
    wait_for_server_s: float = 0.0
    outage_patience_s: float = 60.0
    telemetry: Telemetry | None = None

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
        batching, queue, numbers = self.batching, self.queue, PRESETS[self.preset]
        max_size, size_for = batching.max_size, None
        if callable(max_size):
            size_for = (callbacks or Callbacks()).hook("max_size", partial(_size_of, max_size))
            max_size = None
        return SchedulerSettings(
            linger_s=numbers.linger_s if batching.linger_s is None else batching.linger_s,
            refill_s=numbers.refill_s,
            refill_ratio=numbers.refill_ratio,
            starvation_s=numbers.starvation_s,
            max_size=numbers.max_size if max_size is None else max_size,
            size_for=size_for,
            max_queued=queue.max_calls,
            raise_when_full=queue.when_full == "raise",
            list_tokens=batching.list_tokens,
            chat_list_tokens=batching.chat_list_tokens,
            heeds_time=not isinstance(self.limit, int),
            watches_first_tokens=not isinstance(self.limit, int) and self.limit.time_to_first_token_s is not None,
            order=queue.order,
            aging_s=queue.aging_s,
            group_prefixes=queue.group_prefixes is not False,
            max_wait_s=queue.max_wait_s,
            tenant_weights=queue.tenant_weights or {},
            length_reach=dialect.length_reach,
            known_caps=dialect.caps,
            outage_patience_s=self.outage_patience_s,
            wait_for_server_s=self.wait_for_server_s,
            trusts_lists=trusts_lists,
        )


def _size_of(choose: Callable[[int], int], queue_depth: int) -> int:
    size = choose(queue_depth)
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"max_size answers a {type(size).__name__}, not a whole number")
    return size


def make_settings(preset: str, arguments: Mapping[str, Any]) -> Settings:
    """Combine a preset with the arguments given, and check the result.

    Args:
        preset: its name.
        arguments: ``BatchClient``'s, by name. ``None`` stands for the default.

    Raises:
        ConfigError: an argument is wrong; its name is in ``field``.
    """
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(f"preset is one of {', '.join(PRESETS)}, not {preset!r:.40}", field="preset")
    given = only_given(arguments)
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is not None:
            check(name, value)
    made = {
        "base_url": check_servers(given.get("base_url")),
        "limit": _limit(given.get("limit", "auto")),
        "batching": _group(Batching, given.get("batching")),
        "queue": _group(Queue, given.get("queue")),
        "http": sending_of(given.get("http")),
    }
    if "headers" in given:
        made["headers"] = headers_of(given["headers"])
    if "telemetry" in given:
        made["telemetry"] = _group(Telemetry, given["telemetry"])
    return Settings(**{**given, **made, "preset": preset})


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return settings with changes made while a client runs.

    Args:
        settings: the present ones.
        changes: arguments by name; ``None`` stands for the present value. A group replaces the
            present group as a whole.

    Raises:
        ConfigError: a value is wrong, or the setting cannot be changed while running.
    """
    given = only_given(changes)
    refuse_old(given)
    for name in given:
        if name not in _CHANGEABLE:
            message = f"{name} cannot be changed while running; these can: {', '.join(_CHANGEABLE)}"
            raise ConfigError(message, field=name)
    made: dict[str, Any] = {}
    if "limit" in given:
        made["limit"] = _limit(given["limit"])
    if "batching" in given:
        made["batching"] = _group(Batching, given["batching"])
        if made["batching"].single_flight != settings.batching.single_flight:
            raise refused("batching.single_flight", "it cannot be changed while running")
    if "queue" in given:
        made["queue"] = queue = _group(Queue, given["queue"])
        for each in fields(Queue):
            is_fixed = each.name not in _CHANGEABLE_OF_QUEUE
            if is_fixed and getattr(queue, each.name) != getattr(settings.queue, each.name):
                can = " and ".join(_CHANGEABLE_OF_QUEUE)
                raise refused(f"queue.{each.name}", f"it cannot be changed while running; {can} can")
    return replace(settings, **made)


def check_server(server: object) -> Server:
    """Return a URL or a ``Server`` in the form of the settings.

    Raises:
        ConfigError: the argument is neither.
    """
    return check_servers(server if isinstance(server, (str, Server)) else [server])[0]


def check_servers(value: object) -> tuple[Server, ...]:
    """Return a ``base_url`` in the form of the settings.

    Raises:
        ConfigError: the argument is neither a server nor a list of different servers.
    """
    given = [value] if isinstance(value, (str, Server)) else list(value) if isinstance(value, (list, tuple)) else []
    if not given:
        why = f"a URL such as http://localhost:8000/v1, or a list of them; or set {_VARIABLES['base_url']}"
        raise refused("base_url", why)
    which = ["the URL"] if len(given) == 1 else [f"URL number {number}" for number in range(1, len(given) + 1)]
    servers = tuple(
        one if isinstance(one, Server) else Server(checked("base_url", partial(check_url, one, name)))
        for one, name in zip(given, which, strict=True)
    )
    urls = [server.url for server in servers]
    for number, url in enumerate(urls):
        if urls.index(url) != number:
            message = f"URL number {urls.index(url) + 1} is there twice, as number {number + 1}"
            raise refused("base_url", f"{message}; each server has its own limit")
    return servers


def from_environment(arguments: dict[str, Any]) -> None:
    """Fill in the URL, the model, the key and the telemetry that are absent, from the environment.

    ``BATCHCLIENT_BASE_URL`` may name several servers, with spaces between them. A key from the
    environment does not replace an ``Authorization`` header, of the arguments or of the user's own
    HTTP client. ``BATCHCLIENT_OTEL=1`` stands for ``Telemetry()``.

    Args:
        arguments: the client's, to be filled in.

    Raises:
        ConfigError: a variable has a wrong value, or needs an extra.
    """
    sources = (arguments.get("headers"), getattr(arguments.get("http"), "headers", None))
    headers = {str(name).lower() for source in sources if isinstance(source, Mapping) for name in source}
    for name, variable in _VARIABLES.items():
        value = os.environ.get(variable, "").strip()
        if arguments.get(name) is not None or not value:
            continue
        if name == "api_key" and "authorization" in headers:
            continue
        arguments[name] = value.split() if name == "base_url" else value
    switch = os.environ.get(_TELEMETRY, "").strip()
    if switch not in ("", "0", "1"):
        raise ConfigError(f"{_TELEMETRY} is 1 for spans, or 0, not {switch!r:.40}", field="telemetry")
    if switch == "1" and arguments.get("telemetry") is None:
        arguments["telemetry"] = Telemetry()


def only_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not ``None``, which stands for the default."""
    return {name: value for name, value in arguments.items() if value is not None}


def sending_of(http: object, **defaults: Any) -> Sending:
    """Return an argument ``http`` in the form of the settings.

    Args:
        http: the argument.
        defaults: values for fields that it does not give.

    Raises:
        ConfigError: the argument is none of its kinds.
    """
    given: dict[str, Any] = {}
    if isinstance(http, Http):
        given = dict(given_of(http))
    elif is_of(type(http), "AsyncClient"):
        given = {"client": http}
    elif callable(http) and not isinstance(http, type):
        given = {"transport": http}
    elif http is not None:
        kinds = "an Http(…), an AsyncClient of httpx or httpx2, or a function that makes a transport"
        raise refused(
            "http", f"{kinds}, not a {type(http).__name__}; httpx's transports go into an AsyncClient(transport=…)"
        )
    sending = Sending(**{**defaults, **given})
    if sending.client is not None and sending.transport is not None:
        raise refused("http", "a client and a transport are two ways of sending: give one")
    return sending


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise refused(name, "a name")


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "model": _check_name,
    "api_key": lambda name, value: checked(name, lambda: check_key(value)),
    "timeout_s": partial(check_number, above=0),
    "outage_patience_s": partial(check_number, endless=True),
    "wait_for_server_s": partial(check_number, endless=True),
    "probe": check_flag,
}


def _limit(given: object) -> int | AdaptiveLimit:
    if given == "auto":
        return AdaptiveLimit()
    if isinstance(given, AdaptiveLimit) or (type(given) is int and given >= 1):
        return given
    raise refused("limit", "a whole number of at least 1, or 'auto' or an AdaptiveLimit(…) to have it found")


def _group(kind: type[Any], given: Any) -> Any:
    if given is None:
        return kind()
    name = kind.__name__.lower()
    if not isinstance(given, kind):
        raise refused(name, f"a {kind.__name__}(…), not a {type(given).__name__}")
    return given
