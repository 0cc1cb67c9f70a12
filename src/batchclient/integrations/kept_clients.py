"""The batch clients that others' clients send through: one per server, credentials and headers, and not too many of them.

Rules:
- A client is made when it is first asked for, and found again by its key. Where none can be made for a key, that is remembered, too.
- There are at most ``most``. Then the one that nobody asked for longest makes room. One in use never does; where all are in use there is none for another
  key, and its call has to go by itself.
- In use is a client with calls under way in an event loop that lives, and one that is held: found, with no call under way yet.
- A client that leaves is closed: it takes no more calls from then on, and who still knows it asks anew. Its connections need an event loop to close,
  so that is its owner's to await (``close_leaving``) or to begin (``close_leaving_soon``).
- After ``aclose`` the clients stay known, closed: a call in one is refused, not sent through a new one.
- One thread at a time. It knows neither who makes its clients nor whose they are: the background loop of a blocking client closes it, and must not keep
  that client alive.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from batchclient.client import BatchClient

__all__ = ["KeptClients"]

_Key = TypeVar("_Key", bound=Hashable)

_MOST_CLIENTS = 32
"""Each has connections and a learnt limit of its own; programs have one or two."""


class KeptClients(Generic[_Key]):
    """A bounded set of batch clients.

    Args:
        most: how many are kept at the most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._clients: OrderedDict[_Key, BatchClient | None] = OrderedDict()
        """The one that nobody asked for longest is the first."""
        self._held: set[_Key] = set()
        self._leaving: list[BatchClient] = []
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[BatchClient]:
        return iter([client for client in self._clients.values() if client is not None])

    @property
    def leaving(self) -> bool:
        """Whether one has made room and is still to be closed."""
        return bool(self._leaving)

    def find(self, key: _Key, make: Callable[[_Key], BatchClient | None]) -> BatchClient | None:
        """Return the client of a key, a new one if need be; ``None`` if there is none for it, or may be none more.

        Raises:
            Exception: what ``make`` raises; nobody has made room then.
        """
        clients = self._clients
        if key in clients:
            clients.move_to_end(key)
            return clients[key]
        idle = None
        if len(clients) >= self._most:
            idle = next(
                (each for each, kept in clients.items() if each not in self._held and not _is_at_work(kept)), None
            )
            if idle is None:
                return None
        clients[key] = client = make(key)
        if idle is not None:
            self._dismiss(clients.pop(idle))
        return client

    def _dismiss(self, client: BatchClient | None) -> None:
        if client is not None:
            client._closed = True
            self._leaving.append(client)

    @contextmanager
    def hold(self, key: _Key) -> Generator[None]:
        """Let nobody take a client for idle before its call has begun."""
        self._held.add(key)
        try:
            yield
        finally:
            self._held.discard(key)

    async def close_leaving(self) -> None:
        """Close what has made room."""
        for client in list(self._leaving):
            await client.aclose()
            # Not before: whoever is cancelled meanwhile leaves the rest to the next one.
            if client in self._leaving:
                self._leaving.remove(client)

    def close_leaving_soon(self) -> None:
        """The same, in a task of the running asyncio loop; without one nothing can be closed."""
        if asyncio._get_running_loop() is not None:
            closing = asyncio.ensure_future(self.close_leaving())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """End all calls and close every client, those that are leaving too."""
        for client in self:
            await client.aclose()
        await self.close_leaving()
        if self._closing:
            await asyncio.wait(set(self._closing))


def _is_at_work(client: BatchClient | None) -> bool:
    runner = None if client is None else client._runner
    return runner is not None and not runner.core.idle and not runner.backend.is_gone()
