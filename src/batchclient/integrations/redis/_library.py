"""redis-py, and the texts and errors that it has in several forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from batchclient.errors import ConfigError

try:
    from redis.asyncio import Redis, RedisCluster
    from redis.exceptions import (
        AuthenticationError,
        AuthorizationError,
        ClusterDownError,
        ConnectionError,  # noqa: A004  # redis-py's name
        MasterDownError,
        ReadOnlyError,
        RedisError,
        ResponseError,
        TimeoutError,  # noqa: A004
        TryAgainError,
    )
except ModuleNotFoundError as _missing:
    raise ImportError("the worker for Redis needs the extra: pip install 'batchclient[redis]'") from _missing

__all__ = [
    "GONE",
    "Connection",
    "RedisError",
    "ResponseError",
    "as_text",
    "check_connection",
    "entries_in",
    "is_gone",
    "lacks_group",
]

Connection = Redis | RedisCluster
GONE = (ConnectionError, TimeoutError, ReadOnlyError, ClusterDownError, MasterDownError, TryAgainError, OSError)
"""Errors of a Redis that is away, loads its data, or hands over to a replica."""
_REFUSED = (AuthenticationError, AuthorizationError)


def is_gone(error: BaseException) -> bool:
    """Whether a Redis that failed so may be back later."""
    # A wrong password is a ConnectionError by now, with the refusal as its cause.
    return isinstance(error, GONE) and not isinstance(error, _REFUSED) and not isinstance(error.__cause__, _REFUSED)


def lacks_group(error: BaseException) -> bool:
    """Whether the group, or the stream with it, is not there any more."""
    return isinstance(error, ResponseError) and any(word in str(error) for word in ("NOGROUP", "UNBLOCKED"))


def check_connection(redis: object) -> None:
    """Refuse what is no client, and a client that decodes: a message may be any bytes.

    Raises:
        ConfigError: it is none of redis-py's asyncio clients, or it has ``decode_responses=True``.
    """
    if not isinstance(redis, Redis | RedisCluster):
        kind = f"{type(redis).__module__}.{type(redis).__qualname__}"
        raise ConfigError(f"redis is a redis.asyncio.Redis or RedisCluster, not a {kind:.80}", field="redis")
    if redis.get_encoder().decode_responses:
        raise ConfigError("redis: make the client without decode_responses=True", field="redis")


def as_text(value: bytes | str) -> str:
    """Return a text of Redis: names and ids are UTF-8, or are shown as far as they are."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def entries_in(reply: Any) -> Iterator[tuple[str, Mapping[bytes, bytes] | None]]:
    """Yield the entries of a reply to XREADGROUP or XCLAIM: the id, and the fields if they are there.

    Replies of one stream come as ``[[name, entries]]``, or by protocol 3 as ``{name: [entries]}``.
    """
    if isinstance(reply, Mapping):
        reply = [entry for chunks in reply.values() for chunk in chunks for entry in chunk]
    for entry in reply or ():
        if entry is not None and entry[0] is not None:
            yield as_text(entry[0]), entry[1] or None
