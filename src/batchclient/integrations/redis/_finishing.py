"""Outcomes on their way to Redis, in groups.

Rules:
- A group is what has come while the group before was stored: large under load, small else.
- Outcomes are kept while Redis is away. They are of held messages, so they are bounded.
- A message that is handed back takes the same way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from batchclient.integrations.redis._broker import Broker, Outcome
from batchclient.integrations.redis._patience import Patience

__all__ = ["Finisher"]

_TOGETHER = 128
_TOGETHER_BYTES = 1024 * 1024


class Finisher:
    """Stores outcomes.

    Args:
        broker: the stream's.
        patience: bears a Redis that is away.
        on_finished: told of each outcome, and of what ``Broker.finish`` returned of it.
    """

    def __init__(self, broker: Broker, patience: Patience, on_finished: Callable[[Outcome, int], None]) -> None:
        self._broker = broker
        self._patience = patience
        self._on_finished = on_finished
        self._outcomes: deque[Outcome] = deque()
        self._something = asyncio.Event()
        self._nothing = asyncio.Event()
        self._nothing.set()
        self._never = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Finisher: {len(self._outcomes)} wait>"

    def put(self, outcome: Outcome) -> None:
        """Queue an outcome."""
        self._outcomes.append(outcome)
        self._something.set()
        self._nothing.clear()

    async def empty(self) -> None:
        """Wait until everything is stored."""
        await self._nothing.wait()

    async def run(self) -> None:
        """Store outcomes until cancelled.

        Raises:
            RedisError: Redis refuses.
            ConfigError: a key holds no stream.
        """
        while True:
            await self._something.wait()
            group = self._group()
            done = await self._patience.bear(partial(self._broker.finish, group), self._never)
            for outcome, ended in zip(group, done or (), strict=True):
                self._outcomes.popleft()
                self._on_finished(outcome, ended)
            if not self._outcomes:
                self._something.clear()
                self._nothing.set()

    def _group(self) -> list[Outcome]:
        """Return the first outcomes, which stay in the queue until they are stored."""
        group: list[Outcome] = []
        size = 0
        for outcome in self._outcomes:
            if len(group) == _TOGETHER or (group and size + outcome.size > _TOGETHER_BYTES):
                break
            group.append(outcome)
            size += outcome.size
        return group
