"""The Redis of a command: its URL, its stream, and its errors in one line."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from batchclient.cli._refusal import Refusal, refusal_of
from batchclient.cli._words import say
from batchclient.errors import ConfigError
from batchclient.jobs.statuses import Status

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = [
    "DeadStream",
    "GroupName",
    "RedisUrl",
    "StreamName",
    "connected",
    "group_name",
    "redis_url",
    "shown_redis",
    "stream_name",
    "told",
]

_DEFAULT_URL = "redis://localhost:6379"
_DEFAULT_STREAM = "inference_queue"
_SCHEMES = ("redis", "rediss", "unix")
_TIMEOUT_S = 10.0

_OPTIONS = {
    "redis": "--redis",
    "stream": "--stream",
    "source": "--from-list",
    "group": "--group",
    "consumer": "--consumer",
    "dead": "--dead",
    "results": "--results",
    "messages": "IN",
}
"""The arguments of the integration, and their names on the command line."""

RedisUrl = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help=f"The Redis server. Default: REDIS_URL, else {_DEFAULT_URL}."),
]
GroupName = Annotated[
    str | None, typer.Option("--group", help="The consumer group. Default: BATCHCLIENT_GROUP, else batchclient.")
]
StreamName = Annotated[
    str | None,
    typer.Option(
        "--stream", metavar="NAME", help=f"The stream of messages. Default: BATCHCLIENT_STREAM, else {_DEFAULT_STREAM}."
    ),
]
DeadStream = Annotated[
    str | None, typer.Option("--dead", metavar="NAME", help="The stream of dead letters (default: STREAM:dead).")
]


def redis_url(given: str | None) -> str:
    """Return the URL of Redis: the option, else the environment's.

    Raises:
        Refusal: it is no such URL. The message shows nothing of it: it may hold a password.
    """
    named = "--redis" if given is not None else "REDIS_URL"
    url = given if given is not None else os.environ.get("REDIS_URL", "").strip() or _DEFAULT_URL
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # of brackets, and the message would show the URL
        scheme = ""
    if scheme not in _SCHEMES:
        raise Refusal(f"{named}: a URL that begins with redis://, rediss:// or unix://")
    return url


def group_name(given: str | None) -> str:
    """Return the group's name: the option, else the environment's."""
    if given is not None:
        return given
    return os.environ.get("BATCHCLIENT_GROUP", "").strip() or "batchclient"


def stream_name(given: str | None) -> str:
    """Return the stream's name: the option, else the environment's."""
    if given is not None:
        return given
    return os.environ.get("BATCHCLIENT_STREAM", "").strip() or _DEFAULT_STREAM


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
        Refusal: the extra is missing, or redis-py refuses the URL.
    """
    try:
        from redis.asyncio import Redis
    except ModuleNotFoundError:
        raise Refusal("Redis needs the extra: pip install 'batchclient[redis]'") from None
    try:
        redis = Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        # An option that no connection has is found out now.
        redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, AttributeError):
        # redis-py's message would show the URL.
        raise Refusal("--redis: redis-py cannot use this URL") from None
    try:
        yield redis
    finally:
        await redis.aclose()


@contextmanager
def told(url: str | None = None) -> Iterator[None]:
    """Say a complaint in one line, and end with its status.

    Args:
        url: of Redis, for the complaint about a connection.
    """
    try:
        yield
    except ConfigError as error:
        _complain(_in_options(error), Status.USAGE)
    except Refusal as refusal:
        _complain(str(refusal), Status.USAGE)
    except Exception as error:
        # By the module's name: redis-py is an extra.
        if type(error).__module__.partition(".")[0] != "redis":
            raise
        where = "" if url is None else f"{shown_redis(url)}: "
        from batchclient.integrations.redis._library import is_refused

        _complain(f"--redis: {where}{error}", Status.USAGE if is_refused(error) else Status.FAILED)


def _in_options(error: ConfigError) -> str:
    """Return a complaint of the library with the option's name in front."""
    option = _OPTIONS.get(error.field or "")
    if option is None:
        return str(refusal_of(error))
    message = error.message
    for start in (f"{error.field}: ", f"{error.field} is "):
        message = message.removeprefix(start)
    return f"{option}: {message}"


def _complain(message: str, status: Status) -> None:
    say(f"Error: {message}")
    raise typer.Exit(status)
