"""``enqueue``: messages into a stream, no more than its workers can take.

Rules:
- A message that no worker could use is refused here, with its number.
- Where the stream has ``max_queued`` messages, whoever enqueues waits. Nothing is ever trimmed: a
  trimmed entry would be a lost message.
- A connection that breaks may leave messages in the stream that nobody was told of. A caller that
  enqueues again then has them twice; equal ids have one result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import Any

from batchclient.errors import ConfigError
from batchclient.integrations.redis import _scripts as scripts
from batchclient.integrations.redis._library import Connection, as_text, check_connection
from batchclient.integrations.redis._messages import BadMessage, write_message
from batchclient.integrations.redis._names import STREAM, Names

__all__ = ["enqueue", "enqueue_groups", "move_list"]

_TOGETHER = 256
_TOGETHER_BYTES = 1024 * 1024
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 1.0


async def enqueue(
    redis: Connection,
    messages: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
    *,
    stream: str = STREAM,
    max_queued: int = 100_000,
) -> list[str]:
    """Put messages into a stream, and return their ids.

        await enqueue(redis, [{"id": "doc-1", "prompt": "Summarise: …", "max_tokens": 64}])

    Args:
        redis: a ``redis.asyncio.Redis`` or ``RedisCluster`` without ``decode_responses``.
        messages: mappings of a call's fields (``prompt``, ``messages`` or ``input``, and
            parameters), and beside them ``id``, ``call`` (``complete``, ``chat``, ``embed``,
            ``classify``), ``deadline`` (Unix seconds), ``priority``, ``tenant``, ``traceparent``;
            or lines of an OpenAI Batch file. Read lazily.
        stream: the stream.
        max_queued: messages in the stream, those in work included, at which the call waits.

    Returns:
        The id of each message: its own, else the entry's in the stream.

    Raises:
        ConfigError: a message or an argument is wrong. The messages before it are in the stream.
        redis.exceptions.RedisError: Redis refuses, or is away.
    """
    return [one async for ids in enqueue_groups(redis, messages, stream=stream, max_queued=max_queued) for one in ids]


async def enqueue_groups(
    redis: Connection,
    messages: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
    *,
    stream: str = STREAM,
    max_queued: int = 100_000,
) -> AsyncIterator[list[str]]:
    """Do as ``enqueue``; yield the ids of each group of messages that the stream has taken."""
    check_connection(redis)
    Names.of(stream)
    if type(max_queued) is not int or max_queued < 1:
        raise ConfigError(f"max_queued is a whole number of at least 1, not {max_queued!r:.40}", field="max_queued")
    await _check_stream(redis, stream)
    group: list[dict[str, bytes]] = []
    size = number = 0
    async for message in _each(messages):
        number += 1
        try:
            fields = write_message(message)
        except BadMessage as error:
            if group:
                yield await _add(redis, stream, group, max_queued)
            raise ConfigError(f"message {number}: {error}", field="messages") from None
        group.append(fields)
        size += len(fields["body"])
        if len(group) == min(_TOGETHER, max_queued) or size >= _TOGETHER_BYTES:
            yield await _add(redis, stream, group, max_queued)
            group, size = [], 0
    if group:
        yield await _add(redis, stream, group, max_queued)


async def move_list(redis: Connection, source: str, *, stream: str = STREAM) -> int:
    """Move the items of a list, such as an old worker's queue, into a stream; return how many.

    Each item is a message's body. The list may have the stream's name: it is then renamed to
    ``STREAM:list`` first.

    Args:
        redis: as for ``enqueue``.
        source: the list's key.
        stream: the stream.

    Raises:
        ConfigError: a key holds something else.
        redis.exceptions.RedisError: Redis refuses, or is away. No item is lost or doubled.
    """
    check_connection(redis)
    if source == stream:
        source = f"{stream}:list"
        kind = as_text(await redis.type(stream))
        if kind == "list" and not await redis.renamenx(stream, source):
            raise ConfigError(
                f"{source!r} is there from a move that has not ended: move that list first", field="source"
            )
    kind = as_text(await redis.type(source))
    if kind == "none":
        return 0
    if kind != "list":
        raise ConfigError(f"source: the key {source!r} is a {kind}, not a list", field="source")
    await _check_stream(redis, stream)
    move = redis.register_script(scripts.MOVE_LIST)
    total = 0
    while moved := int(await move(keys=[source, stream], args=[str(_TOGETHER)])):
        total += moved
    return total


async def _check_stream(redis: Connection, stream: str) -> None:
    kind = as_text(await redis.type(stream))
    if kind not in ("stream", "none"):
        hint = "; --from-list, or move_list, moves it" if kind == "list" else ""
        raise ConfigError(f"stream: the key {stream!r} is a {kind}, not a stream{hint}", field="stream")


async def _add(redis: Connection, stream: str, group: list[dict[str, bytes]], max_queued: int) -> list[str]:
    wait_s = _FIRST_WAIT_S
    while await redis.xlen(stream) + len(group) > max_queued:
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
    async with redis.pipeline(transaction=False) as pipe:
        for fields in group:
            pipe.xadd(stream, fields)  # type: ignore[arg-type]
        entries = await pipe.execute()
    return [
        fields["id"].decode() if "id" in fields else as_text(entry)
        for fields, entry in zip(group, entries, strict=True)
    ]


async def _each(messages: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
        return
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise ConfigError(f"messages is an iterable of mappings, not a {type(messages).__name__}", field="messages")
    for message in messages:
        yield message
