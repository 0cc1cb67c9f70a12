"""Redis away and back: told once each, and borne."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from batchclient._shell.log import log
from batchclient.integrations.redis._library import is_gone, is_read_only, lacks_group, reason_of

if TYPE_CHECKING:
    from batchclient.integrations.redis._broker import Broker

__all__ = ["Patience"]

_T = TypeVar("_T")
_FIRST_S = 0.05
_LONGEST_S = 2.0


class Patience:
    """Bears a Redis that is away, for several tasks at once.

    Args:
        reconnect: closes connections, so that the next command finds the master of now.
    """

    def __init__(self, reconnect: Callable[[], Awaitable[None]]) -> None:
        self._reconnect = reconnect
        self._is_away = False
        self._pause_s = _FIRST_S

    def __repr__(self) -> str:
        return f"<Patience: Redis is {'away' if self._is_away else 'there'}>"

    async def bear(
        self, work: Callable[[], Awaitable[_T]], stopping: asyncio.Event, broker: Broker | None = None
    ) -> _T | None:
        """Do something with Redis, again and again while Redis is away; ``None``: the worker stops.

        Args:
            work: makes one try.
            stopping: ends the trying.
            broker: makes the group again, should it be gone.

        Raises:
            RedisError: Redis refuses.
        """
        while True:
            try:
                done = await work()
            except Exception as error:
                if not await self._note(error, broker):
                    raise
            else:
                self._note_success()
                return done
            if await self.wait_a_little(stopping):
                return None

    async def try_once(self, work: Callable[[], Awaitable[object]], broker: Broker) -> bool:
        """Do something with Redis; return whether Redis was there.

        Raises:
            RedisError: Redis refuses.
        """
        try:
            await work()
        except Exception as error:
            if not await self._note(error, broker):
                raise
            return False
        self._note_success()
        return True

    async def wait_a_little(self, stopping: asyncio.Event) -> bool:
        """Wait for a growing time; return whether the worker stops."""
        pause_s = self._pause_s * random.uniform(0.5, 1.0)  # jitter  # noqa: S311
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        try:
            async with asyncio.timeout(pause_s):
                await stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _note(self, error: Exception, broker: Broker | None) -> bool:
        """Take in a failure; return whether it may pass."""
        if lacks_group(error) and broker is not None:
            log("group_made_again", "the consumer group is gone; it is made again")
            try:
                await broker.make_group()
            except Exception as second:  # Redis may have gone meanwhile
                if not is_gone(second):
                    raise
            return True
        if not is_gone(error):
            return False
        if not self._is_away:
            self._is_away = True
            why = reason_of(error)
            log("redis_away", "Redis is away (%s): work under way goes on, and nothing is read", why, reason=why)
        if is_read_only(error):
            await self._reconnect()
        return True

    def _note_success(self) -> None:
        self._pause_s = _FIRST_S
        if self._is_away:
            self._is_away = False
            log("redis_back", "Redis is back")
