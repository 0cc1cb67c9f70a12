"""A server under test, and what the suite asks of it beside the client: its gauges and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from batchclient import BatchClient
from tests.gpu.machine import ask, gauge, get, rooted
from tests.live.server_process import ServerProcess

POLL_S = 0.05


@dataclass(frozen=True)
class Target:
    """One server.

    Args:
        kind: as in ``machine.URLS``.
        base_url: with its /v1.
        model: the name it knows its model by.
        max_model_len: in tokens; ``None`` where it does not say.
        process: ``None`` where someone else started it.
    """

    kind: str
    base_url: str
    model: str
    max_model_len: int | None
    process: ServerProcess | None = None

    @classmethod
    def attached(cls, kind: str, url: str) -> Self:
        """A server that someone else started."""
        base_url = rooted(url)
        served = ask(base_url)
        return cls(kind, base_url, served.model, served.max_model_len)

    @classmethod
    def of_process(cls, process: ServerProcess, max_model_len: int | None) -> Self:
        """A server of ours."""
        return cls(process.kind.removesuffix("-cb"), process.base_url, process.model, max_model_len, process)

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")

    def gauge(self, name: str) -> float:
        """A metric of the server's page, summed over its labels."""
        return gauge(get(f"{self.root}/metrics").decode(), name)

    def client(self, **settings: object) -> BatchClient:
        return BatchClient(self.base_url, model=self.model, **{"preset": "throughput", **settings})  # type: ignore[arg-type]

    async def until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Wait for a condition on the server's pages.

        Raises:
            TimeoutError: it did not come.
        """
        async with asyncio.timeout(within_s):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(POLL_S)
