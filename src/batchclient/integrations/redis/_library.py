"""redis-py, and the texts and errors that it has in several forms."""

from __future__ import annotations

import re
import ssl
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
        NoPermissionError,
        NoScriptError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisClusterException,
        RedisError,
        ResponseError,
        TimeoutError,  # noqa: A004
        TryAgainError,
    )
except ModuleNotFoundError as _missing:
    raise ImportError("the worker for Redis needs redis, of the extra batchclient[redis]") from _missing

__all__ = [
    "GONE",
    "Connection",
    "NoPermissionError",
    "RedisError",
    "ResponseError",
    "as_text",
    "check_connection",
    "entries_in",
    "is_gone",
    "is_read_only",
    "is_refused",
    "lacks_group",
    "reason_of",
]

Connection = Redis | RedisCluster
GONE = (
    ConnectionError,
    TimeoutError,
    ReadOnlyError,
    ClusterDownError,
    MasterDownError,
    TryAgainError,
    OutOfMemoryError,
    NoScriptError,
    OSError,
)
"""Errors of a Redis that is away, loads its data, is full, or hands over to a replica."""
_PASSING = re.compile(r"\b(BUSY|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|NOSCRIPT|OOM|READONLY|TRYAGAIN) ")
"""Codes of replies without a class in redis-py; an error of a script has any code in its text."""
_NO_NODES = re.compile("cannot be connected|not covered")
"""Texts of a cluster's client: no node, or not the node of a key, can be reached."""
_REFUSED = (AuthenticationError, AuthorizationError, ssl.SSLCertVerificationError)


def is_gone(error: BaseException) -> bool:
    """Whether a Redis that failed so may do its work later."""
    return not is_refused(error) and (isinstance(error, GONE) or bool(_code_in(error)))


def is_refused(error: BaseException) -> bool:
    """Whether the password, the user or the certificate is wrong, which no time mends."""
    # redis-py makes a ConnectionError of some of them, with the refusal behind it.
    behind = (error, error.__cause__, error.__context__)
    return isinstance(error, NoPermissionError) or any(isinstance(each, _REFUSED) for each in behind)


def is_read_only(error: BaseException) -> bool:
    """Whether the server has become a replica: the master is elsewhere, perhaps under the same name."""
    return isinstance(error, ReadOnlyError) or _code_in(error) == "READONLY"


def reason_of(error: BaseException) -> str:
    """Return in a word why Redis does not do its work: the code of its reply, or the error's class."""
    return _code_in(error) or type(error).__name__


def _code_in(error: BaseException) -> str:
    if isinstance(error, RedisClusterException):
        return type(error).__name__ if _NO_NODES.search(str(error)) else ""
    found = _PASSING.search(str(error)) if isinstance(error, ResponseError) else None
    return found[1] if found else ""


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
