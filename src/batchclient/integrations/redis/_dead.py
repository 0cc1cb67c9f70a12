"""Dead letters: looked at, put back, dropped."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from batchclient.integrations.redis import _scripts as scripts
from batchclient.integrations.redis._connection import Connection, as_text, check_connection, entries_in
from batchclient.integrations.redis._messages import identity_in
from batchclient.integrations.redis._options import STREAM, Keys

__all__ = ["DeadLetter", "dead_letters", "drop_dead", "letter_of", "retry_dead"]

_PAGE = 100
_END_OF_CALENDAR = 253_402_300_800.0
_OWN = ("message", "error", "deliveries", "worker", "at")
"""The fields that a dead letter has beside its message's."""
_ERROR_FIELDS = ("type", "message")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message without a result.

    Args:
        entry: its entry in the stream of dead letters.
        id: whose result it would have been.
        message: its entry in the stream of messages.
        error: the error's ``type`` and ``message``.
        deliveries: how often it was delivered.
        worker: the worker that gave it up.
        at: when, Unix seconds.
        fields: the message as it was enqueued.
    """

    entry: str
    id: str
    message: str
    error: Mapping[str, str]
    deliveries: int
    worker: str
    at: float
    fields: Mapping[str, bytes] = field(repr=False)


async def dead_letters(
    redis: Connection, *, stream: str = STREAM, dead: str | None = None
) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters of a stream, the oldest first.

    Args:
        redis: a ``redis.asyncio.Redis`` or ``RedisCluster`` without ``decode_responses``.
        stream: the stream of messages.
        dead: the stream of dead letters, by default the stream's name with ``:dead``.
    """
    check_connection(redis)
    source = Keys.of(stream, dead=dead).dead
    async for entry, fields in _pages(redis, source, "+"):
        yield letter_of(entry, fields)


async def retry_dead(
    redis: Connection, entries: Iterable[str] | None = None, *, stream: str = STREAM, dead: str | None = None
) -> int:
    """Put dead letters back into their stream, as they were enqueued; return how many.

    Args:
        redis, stream, dead: as for ``dead_letters``.
        entries: the letters' entries; ``None``: all that are there now.
    """
    check_connection(redis)
    names = Keys.of(stream, dead=dead)
    retry = redis.register_script(scripts.RETRY_DEAD)
    total = 0
    async for some in _groups(redis, names.dead, entries):
        args = [str(len(_OWN)), *_OWN, *some]
        total += int(await retry(keys=[names.dead, names.stream], args=args))
    return total


async def drop_dead(
    redis: Connection, entries: Iterable[str] | None = None, *, stream: str = STREAM, dead: str | None = None
) -> int:
    """Delete dead letters; return how many.

    Args:
        redis, entries, stream, dead: as for ``retry_dead``.
    """
    check_connection(redis)
    source = Keys.of(stream, dead=dead).dead
    total = 0
    async for some in _groups(redis, source, entries):
        total += int(await redis.xdel(source, *some))
    return total


def letter_of(entry: str, fields: Mapping[bytes, bytes]) -> DeadLetter:
    """Read an entry of a stream of dead letters."""
    own = {name: fields.get(name.encode(), b"").decode(errors="replace") for name in _OWN}
    rest = {as_text(name): value for name, value in fields.items() if as_text(name) not in _OWN}
    try:
        stored = json.loads(own["error"])
    except (ValueError, RecursionError):
        stored = None
    error = stored if isinstance(stored, dict) else {}
    return DeadLetter(
        entry,
        identity_in(fields, own["message"] or entry),
        own["message"],
        {
            name: as_text(text.encode(errors="replace"))
            for name in _ERROR_FIELDS
            if isinstance(text := error.get(name), str)
        },
        int(_number(own["deliveries"])),
        own["worker"],
        _number(own["at"]),
        rest,
    )


def _number(text: str) -> float:
    """Read a number; 0 where somebody else has written another text, or no time of a calendar."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0.0 <= number < _END_OF_CALENDAR else 0.0


async def _groups(redis: Connection, source: str, entries: Iterable[str] | None) -> AsyncIterator[Sequence[str]]:
    if entries is not None:
        named = list(entries)
        for start in range(0, len(named), _PAGE):
            yield named[start : start + _PAGE]
        return
    # Letters that die again meanwhile are left alone.
    last = list(entries_in(await redis.xrevrange(source, count=1)))
    group: list[str] = []
    if last:
        async for entry, _ in _pages(redis, source, last[0][0]):
            group.append(entry)
            if len(group) == _PAGE:
                yield group
                group = []
    if group:
        yield group


async def _pages(redis: Connection, source: str, last: str) -> AsyncIterator[tuple[str, Mapping[bytes, bytes]]]:
    after = "-"
    while page := list(entries_in(await redis.xrange(source, min=after, max=last, count=_PAGE))):
        for entry, fields in page:
            yield entry, fields or {}
        after = f"({page[-1][0]}"
