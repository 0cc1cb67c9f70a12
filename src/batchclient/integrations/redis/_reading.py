"""Messages from Redis to a worker: when to read, how many, and from where.

Rules:
- Messages are read while there is room, several at once: reading one by one costs eight times as
  much. So a few free places wait a moment for more.
- The first readings are small, and those of large messages stay so.
- Messages whose lease has run out are claimed every half lease, also while the queue is never
  empty. Messages that were handed back are looked for every second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batchclient.integrations.redis._broker import Broker, Delivery

__all__ = ["Reader", "Room"]

Room = tuple[int, int]
"""Places for further messages, and all places."""

_BLOCK_MS = 500
"""How long a reading waits for a message: as long as a stop may wait for a reading."""
_READ_TOGETHER = 256
_GROWTH = 4
_READ_BYTES = 16 * 1024 * 1024
"""Bytes of bodies in a reading, if its messages are as large as those of the reading before."""
_REST_S = 0.02
"""How long a few free places wait for more."""
_LOOK_S = 0.25
_RELEASED_S = 1.0


class Reader:
    """Reads messages for one worker.

    Args:
        broker: the stream's.
        lease_s: the time of a lease, seconds.
        room: tells how many further messages the worker can hold now, and how many it can at all.
        take: takes a message.
        changed: set when there may be more room.
        stopping: set when nothing is read any more.
    """

    def __init__(
        self,
        broker: Broker,
        lease_s: float,
        room: Callable[[], Room],
        take: Callable[[Delivery], None],
        changed: asyncio.Event,
        stopping: asyncio.Event,
    ) -> None:
        self._broker = broker
        self._lease_s = lease_s
        self._room = room
        self._take = take
        self._changed = changed
        self._stopping = stopping
        self._count = 1
        self._claim_at = 0.0
        self._released_at = 0.0

    def __repr__(self) -> str:
        return f"<Reader of {self._broker!r}>"

    async def wait_for_room(self) -> int:
        """Return how many messages may be read; 0: the worker stops."""
        loop = asyncio.get_running_loop()
        since: float | None = None
        while not self._stopping.is_set():
            free, places = self._room()
            rest_s = _LOOK_S
            if free > 0:
                since = loop.time() if since is None else since
                rest_s = since + _REST_S - loop.time()
                if free >= places // 4 or rest_s <= 0:
                    return free
            else:
                since = None
            self._changed.clear()
            try:
                async with asyncio.timeout(rest_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return 0

    async def read(self, room: int) -> None:
        """Take messages, at most so many; wait half a second for the first one."""
        count, now = min(room, self._count), asyncio.get_running_loop().time()
        if now >= self._claim_at:
            deliveries, more = await self._broker.claim(count)
            if not more:
                self._claim_at = now + self._lease_s / 2
        elif now >= self._released_at:
            deliveries = await self._broker.claim_released(count)
            if len(deliveries) < count:
                self._released_at = now + _RELEASED_S
        else:
            deliveries = await self._broker.read(count, _BLOCK_MS)
        gone = [each.entry for each in deliveries if each.fields is None]
        read = [each.fields for each in deliveries if each.fields is not None]
        for each in deliveries:
            if each.fields is not None:
                self._take(each)
        if read:
            size = sum(len(fields.get(b"body") or b"") for fields in read)
            most = min(_READ_TOGETHER, _READ_BYTES * len(read) // max(1, size))
            self._count = max(1, min(self._count * _GROWTH, most))
        if gone:
            await self._broker.forget(gone)
