"""The settings of a worker, checked; and its statistics."""

from __future__ import annotations

from dataclasses import dataclass

from batchclient.errors import ConfigError
from batchclient.integrations.redis._names import Names, own_consumer

__all__ = ["RENEWALS", "WorkerSettings", "WorkerStatistics", "make_names", "make_settings"]

RENEWALS = 3
"""Renewals in the time of a lease, at least."""
_LONGEST_S = 1e7
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """What a worker is doing and has done.

    Args:
        held: messages that the worker has now.
        results: messages that ended with a result.
        dead: messages that ended as dead letters.
        left: deliveries after which a message was left to its lease, since its error may pass.
        released: messages handed back.
        lost: messages that another worker took, or ended, after the lease had run out.
        renewals: leases renewed.
        pending: messages that any worker of the group has, when last looked.
        lag: messages that nobody has had, when last looked; ``None`` where Redis cannot tell.
    """

    held: int
    results: int
    dead: int
    left: int
    released: int
    lost: int
    renewals: int
    pending: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """A worker's arguments, by the names of ``Worker``.

    Args:
        names: the stream, the group and the stream of dead letters.
        consumer: the worker's name.
        form: ``key``, ``stream`` or ``none``: the form of results.
        results: the stream of results, if there is one.
        result_ttl_s, lease_s, renew_s, max_deliveries, grace_s, look_ahead: as given, or else the
            default.
    """

    names: Names
    consumer: str
    form: str
    results: str | None
    result_ttl_s: int
    lease_s: float
    renew_s: float
    max_deliveries: int
    grace_s: float
    look_ahead: int | None


def make_settings(
    stream: str,
    group: str,
    consumer: str | None,
    results: str,
    result_ttl_s: int,
    dead: str | None,
    lease_s: float,
    renew_s: float | None,
    max_deliveries: int,
    grace_s: float,
    look_ahead: int | None,
) -> WorkerSettings:
    """Check the arguments of a worker.

    Raises:
        ConfigError: an argument is wrong.
    """
    names = Names.of(stream, group, dead)
    _check_seconds("lease_s", lease_s)
    renew_s = lease_s / RENEWALS if renew_s is None else renew_s
    _check_seconds("renew_s", renew_s)
    if renew_s <= 0 or lease_s < RENEWALS * renew_s * (1 - _ROUNDING):
        raise ConfigError(f"lease_s: at least {RENEWALS} times renew_s, and above 0", field="lease_s")
    _check_seconds("grace_s", grace_s)
    for name, value, least in (
        ("max_deliveries", max_deliveries, 1),
        ("look_ahead", look_ahead, 1),
        ("result_ttl_s", result_ttl_s, 0),
    ):
        if (type(value) is not int or value < least) and not (name == "look_ahead" and value is None):
            raise ConfigError(f"{name} is a whole number of at least {least}, not {value!r:.40}", field=name)
    if consumer is not None and (not isinstance(consumer, str) or not consumer):
        raise ConfigError("consumer is a name", field="consumer")
    form, results_stream = _results_from(results, names)
    for field, name in (("stream", names.stream), ("dead", names.dead)):
        if form == "key" and name.startswith(names.result_prefix):
            raise ConfigError(
                f"{field}: {name!r} may be the key of a result, since it begins with {names.result_prefix!r}",
                field=field,
            )
    return WorkerSettings(
        names,
        own_consumer() if consumer is None else consumer,
        form,
        results_stream,
        result_ttl_s,
        lease_s,
        renew_s,
        max_deliveries,
        grace_s,
        look_ahead,
    )


def make_names(stream: str, dead: str | None, results: str) -> tuple[Names, str, str | None]:
    """Check where results are: the names, the form of results, and their stream if there is one.

    Raises:
        ConfigError: a name is wrong.
    """
    names = Names.of(stream, dead=dead)
    return names, *_results_from(results, names)


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LONGEST_S:
        raise ConfigError(f"{name} is a number of seconds, at least 0, not {value!r:.40}", field=name)


def _results_from(results: str, names: Names) -> tuple[str, str | None]:
    """Read where results go: the form of outcomes, and the stream's name."""
    if results == "keys":
        return "key", None
    if results == "none":
        return "none", None
    kind, _, name = results.partition(":") if isinstance(results, str) else ("", "", "")
    if kind != "stream" or not name:
        raise ConfigError(f"results: keys, stream:NAME or none, not {results!r:.40}", field="results")
    if name in (names.stream, names.dead):
        raise ConfigError(f"results: {name!r} has messages or dead letters; name another stream", field="results")
    return "stream", name
