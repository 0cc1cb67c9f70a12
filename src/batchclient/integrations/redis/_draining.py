"""The end of a worker: what is under way may end, the rest is handed back, the consumer goes.

Rules:
- Whatever needs Redis has a bound of time: a Redis that does not answer delays no end.
- A message whose outcome is not stored in time comes back once its lease has run out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from batchclient._shell.log import log
from batchclient.integrations.redis._broker import Broker
from batchclient.integrations.redis._finishing import Finisher
from batchclient.integrations.redis._patience import Patience
from batchclient.integrations.redis._tasks import LOOK_S, end
from batchclient.integrations.redis._work import Work

__all__ = ["Drain"]

_LAST_TRIES_S = 5.0
"""How long a stopping worker waits for a Redis that is away, seconds."""
_LEAST_TRY_S = 1.0
_READING_ENDS_S = 1.5
"""How long a stopping worker waits for a reading, which takes half a second at most."""


class Drain:
    """Ends a worker.

    Args:
        broker: the stream's.
        patience: bears a Redis that is away.
        finisher: has the outcomes that are not stored.
        held: the worker's messages.
        changed: set when a message has ended.
        give_up: ends the work on a message, which then is no longer held.
        on_released: told how many messages were handed back.
    """

    def __init__(
        self,
        broker: Broker,
        patience: Patience,
        finisher: Finisher,
        held: Mapping[str, Work],
        changed: asyncio.Event,
        give_up: Callable[[Work], None],
        on_released: Callable[[int], None],
    ) -> None:
        self._broker = broker
        self._patience = patience
        self._finisher = finisher
        self._held = held
        self._changed = changed
        self._give_up = give_up
        self._on_released = on_released
        self._given_up: list[str] = []
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<Drain of {self._broker!r}>"

    async def run(self, reading: asyncio.Task[None], finishing: asyncio.Task[None], grace_s: float) -> None:
        """End the reading, let work under way end, and store the outcomes.

        Args:
            reading, finishing: the tasks of the worker.
            grace_s: how long work under way may take, seconds.

        Raises:
            RedisError: Redis refuses.
        """
        until = asyncio.get_running_loop().time() + grace_s
        await asyncio.wait((reading,), timeout=_READING_ENDS_S)
        # Redis does not answer. A message of this reading comes back after its lease.
        await end([reading])
        await self._let_end(finishing, until)
        self._until = asyncio.get_running_loop().time() + _LAST_TRIES_S
        stored = asyncio.create_task(self._finisher.empty())
        await asyncio.wait((finishing, stored), timeout=_LAST_TRIES_S, return_when=asyncio.FIRST_COMPLETED)
        await end([stored])

    async def leave(self) -> None:
        """Hand back what the worker held, and delete the consumer where it has no other message.

        Raises:
            RedisError: Redis refuses.
        """
        if not await self._in_time(self._leave, max(self._until, asyncio.get_running_loop().time() + _LEAST_TRY_S)):
            log(
                "messages_left",
                "Redis is away: the messages that this worker holds come back once their leases have run out",
            )

    async def _let_end(self, finishing: asyncio.Task[None], until: float) -> None:
        """Hand back what is not under way, and let the rest end until a time; then end it."""
        loop = asyncio.get_running_loop()
        waiting = [work for work in self._held.values() if not work.done() and not work.is_under_way]
        for work in waiting:
            self._give_up(work)
        self._given_up = [work.entry for work in waiting]
        if waiting and loop.time() < until:
            await self._in_time(partial(self._hand_back, self._given_up), min(until, loop.time() + _LAST_TRIES_S))
        while any(not work.done() for work in self._held.values()) and loop.time() < until and not finishing.done():
            self._changed.clear()
            try:
                async with asyncio.timeout_at(min(until, loop.time() + LOOK_S)):
                    await self._changed.wait()
            except TimeoutError:
                continue
        for work in [work for work in self._held.values() if not work.done()]:
            self._give_up(work)
            self._given_up.append(work.entry)

    async def _in_time(self, work: Callable[[], Awaitable[None]], until: float) -> bool:
        """Do something with Redis, again and again until a time; return whether it is done.

        Raises:
            RedisError: Redis refuses.
        """
        loop = asyncio.get_running_loop()
        while (left := until - loop.time()) > 0:
            trying = asyncio.create_task(self._patience.try_once(work, self._broker))
            await asyncio.wait((trying,), timeout=left)
            await end([trying])
            if not trying.cancelled() and trying.result():
                return True
            await asyncio.sleep(max(0.0, min(LOOK_S, until - loop.time())))
        return False

    async def _hand_back(self, entries: list[str]) -> None:
        self._on_released(await self._broker.hand_back(entries))

    async def _leave(self) -> None:
        # A message that was left to its lease is not among them: that delivery counts.
        await self._hand_back([*self._given_up, *self._held])
        await self._broker.leave()
