"""``enqueue``: messages into a stream, no more than its workers can take.

Rules:
- A message that no worker could use is refused here, with its number. So is one with the id of an
  earlier message of the same call: one id has one result.
- Where the stream has ``max_queued`` messages, whoever enqueues waits. Nothing is ever trimmed: a
  trimmed entry would be a lost message.
- A connection that breaks may leave messages in the stream that nobody knows of. A caller that
  enqueues again then has them twice; equal ids have one result.
- Where there is no stream, the stream is made with its consumer group: an autoscaler that goes by
  the group's lag then sees the messages before the first worker.
- An error of Redis shows no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

from batchclient.errors import ConfigError
from batchclient.integrations.redis import _scripts as scripts
from batchclient.integrations.redis._connection import (
    Connection,
    NoPermissionError,
    ResponseError,
    as_text,
    check_connection,
)
from batchclient.integrations.redis._messages import BadMessage, identity_in, write_message
from batchclient.integrations.redis._options import STREAM, Keys

__all__ = ["enqueue", "move_list"]

_TOGETHER = 256
_TOGETHER_BYTES = 1024 * 1024
_IDS_REMEMBERED = 1_000_000
"""A producer may run for ever."""
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 1.0


class _MessageId(str):
    """A message's id that knows the message's entry in the stream, for ``results``."""

    __slots__ = ("entry",)
    entry: str


async def enqueue(
    redis: Connection,
    messages: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
    *,
    stream: str = STREAM,
    group: str = "batchclient",
    max_queued: int = 100_000,
) -> list[str]:
    """Put messages into a stream, and return their ids.

    For example::

        await enqueue(redis, [{"id": "doc-1", "prompt": "Summarise: …", "max_tokens": 64}])

    Args:
        redis: a ``redis.asyncio.Redis`` or ``RedisCluster`` without ``decode_responses``.
        messages: mappings of a call's fields (``prompt``, ``messages`` or ``input``, and
            parameters, also within ``params``), and beside them ``id``, ``call`` (``complete``,
            ``chat``, ``embed``, ``classify``), ``deadline`` (Unix seconds), ``priority``,
            ``tenant``, ``session``; or lines of an OpenAI Batch file. Read lazily.
        stream: the stream.
        group: the consumer group of the workers, made where the stream is made.
        max_queued: messages in the stream, those in work included, at which the call waits.

    Returns:
        The id of each message: its own, else the entry's in the stream. By it ``results`` finds the
        outcome of this message, and of no older one of the same id.

    Raises:
        ConfigError: a message or an argument is wrong. The messages before it are in the stream.
        redis.exceptions.RedisError: Redis refuses, or is away.
    """
    check_connection(redis)
    Keys.of(stream, group)
    if type(max_queued) is not int or max_queued < 1:
        raise ConfigError(f"max_queued is a whole number of at least 1, not {max_queued!r:.40}", field="max_queued")
    await _make_stream(redis, stream, group)
    ids: list[str] = []
    some: list[tuple[str, dict[str, bytes]]] = []
    numbers: dict[str, int] = {}
    size = number = 0
    async for message in _each(messages):
        number += 1
        try:
            fields = write_message(message)
            own = identity_in({b"id": fields.get("id", b""), b"body": fields["body"]}, "")
            if own in numbers:
                raise BadMessage(f"it has the id of message {numbers[own]}, and one id has one result")
        except (BadMessage, ConfigError) as error:
            await _add(redis, stream, some, max_queued)
            raise ConfigError(f"message {number}: {error}", field="messages") from None
        if own and number <= _IDS_REMEMBERED:
            numbers[own] = number
        some.append((own, fields))
        size += len(fields["body"])
        if len(some) == min(_TOGETHER, max_queued) or size >= _TOGETHER_BYTES:
            ids += await _add(redis, stream, some, max_queued)
            some, size = [], 0
    return ids + await _add(redis, stream, some, max_queued)


async def move_list(redis: Connection, source: str, *, stream: str = STREAM, group: str = "batchclient") -> int:
    """Move the items of a list, such as an old worker's queue, into a stream; return how many.

    Each item is a message's body. The list may have the stream's name: its items then wait in
    ``STREAM:list`` first. A move that broke off goes on when it is called again.

    Args:
        redis: as for ``enqueue``.
        source: the list's key.
        stream: the stream.
        group: as for ``enqueue``.

    Raises:
        ConfigError: a key holds something else.
        redis.exceptions.RedisError: Redis refuses, or is away. No item is lost or doubled.
    """
    check_connection(redis)
    Keys.of(stream, group)
    if source == stream:
        source = f"{stream}:list"
        if as_text(await redis.type(stream)) == "list":
            await _check_list(redis, source)
            if not await redis.renamenx(stream, source):
                # A move broke off, and producers have made a list again.
                while await redis.lmove(stream, source):
                    pass
    if not await _check_list(redis, source):
        return 0
    await _make_stream(redis, stream, group)
    move = redis.register_script(scripts.MOVE_LIST)
    total = 0
    while moved := int(await move(keys=[source, stream], args=[str(_TOGETHER)])):
        total += moved
    return total


async def _check_list(redis: Connection, source: str) -> bool:
    """Return whether the list is there; refuse a key of another type."""
    kind = as_text(await redis.type(source))
    if kind not in ("list", "none"):
        raise ConfigError(f"source: the key {source!r} is a {kind}, not a list", field="source")
    return kind == "list"


async def _make_stream(redis: Connection, stream: str, group: str) -> None:
    """Make the stream and its group, where there is none; refuse a key of another type."""
    kind = as_text(await redis.type(stream))
    if kind == "none":
        try:
            await redis.xgroup_create(stream, group, id="0", mkstream=True)
        except NoPermissionError:  # a producer may have the right to add alone
            return
        except ResponseError as error:  # another producer was quicker
            if not str(error).startswith("BUSYGROUP"):
                raise
    elif kind != "stream":
        hint = "; --from-list, or move_list, moves it" if kind == "list" else ""
        raise ConfigError(f"stream: the key {stream!r} is a {kind}, not a stream{hint}", field="stream")


async def _add(
    redis: Connection, stream: str, some: list[tuple[str, dict[str, bytes]]], max_queued: int
) -> list[_MessageId]:
    """Add messages, each with its own id before it, once there is room; return the ids."""
    if not some:
        return []
    wait_s = _FIRST_WAIT_S
    while await redis.xlen(stream) + len(some) > max_queued:
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
    async with redis.pipeline(transaction=False) as pipe:
        for _, fields in some:
            pipe.xadd(stream, fields)  # type: ignore[arg-type]
        # redis-py would raise an error with the beginning of the message.
        entries = await pipe.execute(raise_on_error=False)
    ids: list[_MessageId] = []
    for (own, _), entry in zip(some, entries, strict=True):
        if isinstance(entry, Exception):
            raise entry
        text = as_text(entry)
        ids.append(_MessageId(own or text))
        ids[-1].entry = text
    return ids


async def _each(messages: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
        return
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise ConfigError(f"messages is an iterable of mappings, not a {type(messages).__name__}", field="messages")
    for message in messages:
        yield message
