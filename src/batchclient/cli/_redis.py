"""The Redis of a command: its URL, its stream, and its errors in one line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from batchclient.cli._refusal import Refusal
from batchclient.errors import ConfigError
from batchclient.jobs.statuses import Status

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["GROUP", "REDIS", "STREAM", "DeadStream", "GroupName", "RedisUrl", "StreamName", "connected", "shown_redis"]

REDIS, STREAM, GROUP = "redis://localhost:6379", "inference_queue", "batchclient"
_SCHEMES = ("redis", "rediss", "unix")
_TIMEOUT_S = 10.0
_OPTIONS = {
    **{name: f"--{name}" for name in ("redis", "stream", "group", "consumer", "dead", "results")},
    "source": "--from-list",
    "messages": "IN",
}
"""The arguments of the integration, and their names on the command line."""

RedisUrl = Annotated[
    str,
    typer.Option(
        "--redis",
        metavar="URL",
        envvar="REDIS_URL",
        show_envvar=False,
        show_default=False,
        help=f"The server. Default: REDIS_URL, else {REDIS}.",
    ),
]
StreamName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        envvar="BATCHCLIENT_STREAM",
        show_envvar=False,
        show_default=False,
        help=f"The stream of messages. Default: BATCHCLIENT_STREAM, else {STREAM}.",
    ),
]
GroupName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        envvar="BATCHCLIENT_GROUP",
        show_envvar=False,
        show_default=False,
        help=f"The consumer group. Default: BATCHCLIENT_GROUP, else {GROUP}.",
    ),
]
DeadStream = Annotated[
    str | None, typer.Option("--dead", metavar="NAME", help="The stream of dead letters (default: STREAM:dead).")
]


def shown_redis(url: str) -> str:
    """Return a URL of Redis without its user, password and query, as far as redis-py reads it."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    # A path that is no number may be the rest of a password with a slash.
    is_shown = parts.scheme == "unix" or parts.path.strip("/").isdigit()
    return f"{parts.scheme}://{place}{parts.path if is_shown else ''}"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Redis]:
    """Make a client for a URL; nothing is sent yet.

    A Redis that does not answer for ten seconds counts as away, unless the URL says otherwise.

    Raises:
        Refusal: the URL is none, the extra is missing, or Redis fails within the block. No message
            shows the URL's password.
    """
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # of brackets, and the message would show the URL
        scheme = ""
    if scheme not in _SCHEMES:
        raise Refusal("--redis (REDIS_URL): a URL that begins with redis://, rediss:// or unix://")
    try:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError
    except ModuleNotFoundError:
        raise Refusal("Redis needs redis, of the extra batchclient[redis]") from None
    from batchclient.integrations.redis._connection import is_refused

    try:
        redis = Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        # An option that no connection has is found out now.
        redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, AttributeError):
        # redis-py's message would show the URL.
        raise Refusal("--redis (REDIS_URL): redis-py cannot use this URL") from None
    try:
        yield redis
    except RedisError as error:
        status = Status.USAGE if is_refused(error) else Status.FAILED
        raise Refusal(f"--redis: {shown_redis(url)}: {error}", status) from None
    except ConfigError as error:
        option = _OPTIONS.get(error.field or "")
        if option is None:
            raise
        message = error.message.removeprefix(f"{error.field}: ").removeprefix(f"{error.field} is ")
        raise Refusal(f"{option}: {message}") from None
    finally:
        await redis.aclose()
