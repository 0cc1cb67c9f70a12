"""From a client's arguments to its settings.

Rules:
- A preset, over the preset the environment's URL, model and key, over both the arguments. ``None``
  stands for the default.
- A group (``options``) replaces the preset's values for the fields that the group gives.
- An argument that does not exist is refused with the right name in the error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from batchclient._old_names import refuse_old
from batchclient.config import (
    PRESETS,
    Checked,
    CheckedBatching,
    CheckedHttp,
    CheckedLimit,
    CheckedSchedule,
    CheckedServer,
    CheckedTelemetry,
    Settings,
    checked,
    only_given,
)
from batchclient.errors import ConfigError
from batchclient.options import AdaptiveLimit, Batching, Http, Schedule, Server, Telemetry
from batchclient.transport._addresses import check_url

__all__ = [
    "CHANGEABLE",
    "changed",
    "check_server",
    "check_servers",
    "filled_in",
    "from_environment",
    "make_settings",
    "refuse_old",
    "refuse_unknown",
]

CHANGEABLE = frozenset(("limit", "batching", "max_queued"))
"""The arguments that ``BatchClient.retune`` takes."""

_VARIABLES = {
    "base_url": "BATCHCLIENT_BASE_URL",
    "model": "BATCHCLIENT_MODEL",
    "api_key": "BATCHCLIENT_API_KEY",
}
_TELEMETRY = "BATCHCLIENT_OTEL"


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
    values = {
        **given,
        "preset": preset,
        "base_url": check_servers(given.get("base_url")),
        "limit": _limit(given.get("limit", "auto")),
        "batching": _group(Batching, CheckedBatching, given.get("batching"), preset),
        "schedule": _group(Schedule, CheckedSchedule, given.get("schedule"), preset),
        "http": _group(Http, CheckedHttp, given.get("http"), preset),
    }
    if "telemetry" in given:
        values["telemetry"] = _group(Telemetry, CheckedTelemetry, given["telemetry"], preset)
    return _check_grouping(checked(Settings, values))


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
    for name in given.keys() - CHANGEABLE:
        these = ", ".join(sorted(CHANGEABLE))
        raise ConfigError(f"{name} cannot be changed while running; these can: {these}", field=name)
    values = {name: getattr(settings, name) for name in Settings.model_fields} | given
    if "limit" in given:
        values["limit"] = _limit(given["limit"])
    if "batching" in given:
        values["batching"] = _group(Batching, CheckedBatching, given["batching"], settings.preset)
    return _check_grouping(checked(Settings, values))


def check_server(server: object) -> CheckedServer:
    """Return a URL or a ``Server`` in the form of the settings.

    Raises:
        ConfigError: the argument is neither.
    """
    return check_servers(server if isinstance(server, (str, Server)) else [server])[0]


def check_servers(value: object) -> tuple[CheckedServer, ...]:
    """Return a ``base_url`` in the form of the settings.

    Raises:
        ConfigError: the argument is neither a server nor a list of different servers.
    """
    given = [value] if isinstance(value, (str, Server)) else list(value) if isinstance(value, (list, tuple)) else []
    if not given:
        message = f"a URL such as http://localhost:8000/v1, or a list of them; or set {_VARIABLES['base_url']}"
        raise ConfigError(f"base_url: {message}", field="base_url")
    which = ["the URL"] if len(given) == 1 else [f"URL number {number}" for number in range(1, len(given) + 1)]
    servers = tuple(_server(one, name) for one, name in zip(given, which, strict=True))
    urls = [server.url for server in servers]
    for number, url in enumerate(urls):
        if urls.index(url) != number:
            message = f"URL number {urls.index(url) + 1} is there twice, as number {number + 1}"
            raise ConfigError(f"base_url: {message}; each server has its own limit", field="base_url")
    return servers


def refuse_unknown(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that do not exist; the error has the right name.

    Args:
        arguments: names without a parameter.
        known: the parameters.

    Raises:
        ConfigError: there is such an argument.
    """
    refuse_old(arguments)
    for name in arguments:
        names = sorted(known)
        near = get_close_matches(name, names, 1) or [one for one in names if name in one]
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
        raise ConfigError(f"there is no argument {name}; {hint}", field=name)


def from_environment(arguments: dict[str, Any], http_client: Any = None) -> None:
    """Fill in the URL, the model, the key and the telemetry that are absent, from the environment.

    ``BATCHCLIENT_BASE_URL`` may name several servers, with spaces between them. A key from the
    environment does not replace an ``Authorization`` header. ``BATCHCLIENT_OTEL=1`` stands for
    ``Telemetry()``.

    Args:
        arguments: the client's, to be filled in.
        http_client: the user's own, whose headers go with every request.

    Raises:
        ConfigError: a variable has a wrong value, or needs an extra.
    """
    sources = (arguments.get("headers"), getattr(http_client, "headers", None))
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


def filled_in(http: Http | None, **defaults: Any) -> Http:
    """Return an ``Http`` with other defaults than the preset's.

    Raises:
        ConfigError: the argument is no ``Http``.
    """
    if http is not None and not isinstance(http, Http):
        raise ConfigError(f"http: an Http(…), not a {type(http).__name__}", field="http")
    return Http(**(defaults | ({} if http is None else http._given())))


def _server(given: object, which: str) -> CheckedServer:
    values = given._given() if isinstance(given, Server) else {"url": given}
    try:
        check_url(values["url"], which)
    except ValueError as error:
        said = str(error)
    else:
        return checked(CheckedServer, values)
    # Not raised while that error is handled, which would be its context.
    raise ConfigError(f"base_url: {said}", field="base_url")


def _limit(given: object) -> int | CheckedLimit:
    if given == "auto":
        return CheckedLimit()
    if isinstance(given, AdaptiveLimit):
        return checked(CheckedLimit, given._given(), "limit.")
    if type(given) is int and given >= 1:
        return given
    message = "a whole number of at least 1, or 'auto' or an AdaptiveLimit(…) to have it found"
    raise ConfigError(f"limit: {message}", field="limit")


_C = TypeVar("_C", bound=Checked)


def _group(kind: type[Any], model: type[_C], given: Any, preset: str) -> _C:
    name = kind.__name__.lower()
    if given is not None and not isinstance(given, kind):
        raise ConfigError(f"{name}: a {kind.__name__}(…), not a {type(given).__name__}", field=name)
    own = {} if given is None else given._given()
    return checked(model, {**PRESETS[preset].get(name, {}), **own}, name + ".")


def _check_grouping(settings: Settings) -> Settings:
    """Refuse a given ``group_prefixes=True`` where the other settings leave it without effect."""
    field, schedule = "schedule.group_prefixes", settings.schedule
    if not (schedule.group_prefixes and "group_prefixes" in schedule.model_fields_set):
        return settings
    if settings.schedule.order != "fcfs":
        raise ConfigError(f"{field}: it needs order='fcfs', and order is {settings.schedule.order!r}", field=field)
    return settings
