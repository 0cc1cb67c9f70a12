"""redis-py: its errors by what they mean, and work that is tried again while Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from batchclient._common.log import log
from batchclient.errors import ConfigError

try:
    from redis.asyncio import Redis, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import EqualJitterBackoff
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
    "Connection",
    "NoPermissionError",
    "ResponseError",
    "Retrying",
    "as_text",
    "check_connection",
    "end",
    "entries_in",
    "is_gone",
    "is_read_only",
    "is_refused",
]

_T = TypeVar("_T")
Connection = Redis | RedisCluster
_GONE = (
    ConnectionError, TimeoutError, ReadOnlyError, ClusterDownError, MasterDownError, TryAgainError, OutOfMemoryError,
    NoScriptError, OSError,
)  # fmt: skip
"""Errors of a Redis that is away, loads its data, is full, or hands over to a replica."""
_PASSING = re.compile(r"\b(BUSY|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|NOSCRIPT|OOM|READONLY|TRYAGAIN) ")
"""Codes of replies without a class in redis-py; an error of a script has any code in its text."""
_NO_NODES = re.compile("cannot be connected|not covered")
"""Texts of a cluster's client: no node, or not the node of a key, can be reached."""
_REFUSED = (AuthenticationError, AuthorizationError, ssl.SSLCertVerificationError)
_NO_GROUP = re.compile("NOGROUP|UNBLOCKED")
_CANCELLED_EVERY_S = 0.25


def is_gone(error: BaseException) -> bool:
    """Whether a Redis that failed so may do its work later."""
    return not is_refused(error) and (isinstance(error, _GONE) or bool(_code_in(error)))


def is_refused(error: BaseException) -> bool:
    """Whether the password, the user or the certificate is wrong, which no time mends."""
    # redis-py makes a ConnectionError of some of them, with the refusal behind it.
    behind = (error, error.__cause__, error.__context__)
    return isinstance(error, NoPermissionError) or any(isinstance(each, _REFUSED) for each in behind)


def is_read_only(error: BaseException) -> bool:
    """Whether the server has become a replica: the master is elsewhere, perhaps under the same name."""
    return isinstance(error, ReadOnlyError) or _code_in(error) == "READONLY"


def _code_in(error: BaseException) -> str:
    if isinstance(error, RedisClusterException):
        return type(error).__name__ if _NO_NODES.search(str(error)) else ""
    found = _PASSING.search(str(error)) if isinstance(error, ResponseError) else None
    return found[1] if found else ""


class Retrying:
    """Does things with a Redis that may be away, for several tasks at once.

    Args:
        redis: the connection.
        make_group: makes the consumer group again, should it be gone.
    """

    def __init__(self, redis: Connection, make_group: Callable[[], Awaitable[None]]) -> None:
        self._redis = redis
        self._make_group = make_group
        self._retry = Retry(EqualJitterBackoff(cap=2.0, base=0.05), -1, (RedisError, OSError))  # type: ignore[arg-type]
        self._is_away = False

    def __repr__(self) -> str:
        return f"<Retrying: Redis is {'away' if self._is_away else 'there'}>"

    async def until_done(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do something with Redis, again and again while Redis is away.

        Raises:
            RedisError: Redis refuses.
        """
        done = await self._retry.call_with_retry(work, self._take_failure)
        if self._is_away:
            self._is_away = False
            log("redis_back", "Redis is back")
        return done

    async def _take_failure(self, error: Exception) -> None:
        """Return if the failure may pass."""
        if isinstance(error, ResponseError) and _NO_GROUP.search(str(error)):
            log("group_made_again", "the consumer group is gone; it is made again")
            try:
                await self._make_group()
            except Exception as second:  # Redis may have gone meanwhile
                if not is_gone(second):
                    raise
            return
        if not is_gone(error):
            raise error
        if not self._is_away:
            self._is_away = True
            why = _code_in(error) or type(error).__name__
            log("redis_away", "Redis is away (%s): work under way goes on, and nothing is read", why, reason=why)
        pool = getattr(self._redis, "connection_pool", None)  # a cluster's client finds its master by itself
        if pool is not None and is_read_only(error):
            # The next commands make new connections, to the master of now.
            with contextlib.suppress(RedisError, OSError):
                await pool.disconnect(inuse_connections=False)


async def end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they end: redis-py drops a cancellation that comes while it connects."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCELLED_EVERY_S)


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


def entries_in(reply: Any) -> Iterator[tuple[str, Mapping[bytes, bytes]]]:
    """Yield the entries of a reply, id and fields, without those that somebody has deleted.

    Replies of one stream come as ``[[name, entries]]``, or by protocol 3 as ``{name: [entries]}``.
    """
    if isinstance(reply, Mapping):
        reply = [entry for chunks in reply.values() for chunk in chunks for entry in chunk]
    for entry in reply or ():
        if entry is not None and entry[0] is not None and entry[1]:
            yield as_text(entry[0]), entry[1]
