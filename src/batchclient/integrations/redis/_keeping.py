"""Beside the messages: leases renewed, numbers looked at, dead workers' consumers deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from batchclient._metrics.worker import Waiting, WorkerCounts
from batchclient.integrations.redis._broker import Broker, GroupFigures
from batchclient.integrations.redis._patience import Patience
from batchclient.integrations.redis._settings import WorkerSettings

__all__ = ["Keeper"]

_FIGURES_S = 5.0
_FORGOTTEN_LEASES = 10
"""A consumer without messages that was silent for so many leases is a dead worker's."""


class Keeper:
    """Keeps the leases of held messages.

    Args:
        broker: the stream's.
        patience: bears a Redis that is away.
        settings: the worker's.
        held: the entries whose leases are renewed.
        on_lost: told of an entry that is another worker's by now, or has ended.
        counts: of the client's workers; the numbers are told there, too.

    Attributes:
        renewals: leases renewed.
        figures: the group's numbers, when last looked.
    """

    def __init__(
        self,
        broker: Broker,
        patience: Patience,
        settings: WorkerSettings,
        held: Collection[str],
        on_lost: Callable[[str], None],
        counts: WorkerCounts,
    ) -> None:
        self._broker = broker
        self._patience = patience
        self._settings = settings
        self._held = held
        self._on_lost = on_lost
        self._counts = counts
        self._group = settings.names.stream, settings.names.group
        self.renewals: int = 0
        self.figures: GroupFigures = GroupFigures(0, None)

    def __repr__(self) -> str:
        return f"<Keeper of {len(self._held)} leases>"

    async def run(self) -> None:
        """Keep until cancelled.

        Raises:
            RedisError: Redis refuses.
        """
        loop = asyncio.get_running_loop()
        lease_s, renew_s = self._settings.lease_s, self._settings.renew_s
        delete_idle = partial(self._broker.delete_idle, int(_FORGOTTEN_LEASES * lease_s * 1000))
        renew_at, figures_at, tidy_at = loop.time() + renew_s, 0.0, loop.time() + lease_s
        while True:
            now = loop.time()
            if now >= renew_at:
                renew_at = now + renew_s
                await self._patience.try_once(self._renew, self._broker)
            if now >= figures_at:
                figures_at = now + _FIGURES_S
                await self._patience.try_once(self._look, self._broker)
            if now >= tidy_at:
                tidy_at = now + lease_s
                await self._patience.try_once(delete_idle, self._broker)
            await asyncio.sleep(max(0.0, min(renew_at, figures_at, tidy_at) - loop.time()))

    async def _renew(self) -> None:
        entries = list(self._held)
        lost = await self._broker.renew(entries) if entries else []
        self.renewals += len(entries) - len(lost)
        self._counts.renewals += len(entries) - len(lost)
        for entry in lost:
            self._on_lost(entry)

    async def _look(self) -> None:
        await self._broker.look_at_clock()
        self.figures = await self._broker.figures()
        self._counts.waiting[self._group] = Waiting(self.figures.pending, self.figures.lag)

    def close(self) -> None:
        """Tell what waits no longer."""
        self._counts.waiting.pop(self._group, None)
