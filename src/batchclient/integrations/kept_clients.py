"""A bounded set of batch clients, for the clients of other libraries.

There is a batch client per server, credentials and headers.

Rules:
- A client is made on the first request for its key, and found again by the key. A key for which no
  client can be made is remembered, too.
- There are at most ``most`` clients. Then the client asked for longest ago makes room, unless the
  client is in use. Where all are in use another key gets no client, and the call goes alone.
- A client is in use with calls under way in a living event loop, and while held: found, with no
  call under way yet.
- A leaving client is closed and takes no more calls; whoever still knows the client asks anew. The
  connections need an event loop to close, so the owner awaits the closing (``close_leaving``) or
  begins the closing (``close_leaving_soon``).
- After ``aclose`` the clients stay known, closed: calls are refused, and no new client sends calls.
- One thread at a time uses the set. The set knows neither the maker nor the owner of its clients: a
  blocking client's background loop closes the set, and must not keep the blocking client alive.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from batchclient import BatchClient

__all__ = ["KeptClients"]

_Key = TypeVar("_Key", bound=Hashable)

_MOST_CLIENTS = 32
"""Each client has connections and a learnt limit of its own; programs have one or two clients."""


class KeptClients(Generic[_Key]):
    """A bounded set of batch clients.

    Args:
        most: the largest number of clients.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._clients: OrderedDict[_Key, BatchClient | None] = OrderedDict()
        """The client asked for longest ago is the first."""
        self._held: set[_Key] = set()
        self._leaving: list[BatchClient] = []
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[BatchClient]:
        return iter([client for client in self._clients.values() if client is not None])

    @property
    def leaving(self) -> bool:
        """Whether a client has made room and is still to be closed."""
        return bool(self._leaving)

    def find(self, key: _Key, make: Callable[[_Key], BatchClient | None]) -> BatchClient | None:
        """Return the client of a key, a new client if need be.

        ``None`` if no client can be made for the key, or the set is full of clients in use.

        Raises:
            Exception: an error of ``make``; no client has made room then.
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
            client._engine.closed = True
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
        """Close the clients that have made room."""
        for client in list(self._leaving):
            await client.aclose()
            # Not before: a caller who is cancelled meanwhile leaves the rest to the next caller.
            if client in self._leaving:
                self._leaving.remove(client)

    def close_leaving_soon(self) -> None:
        """Begin ``close_leaving`` in a task of the running asyncio loop; without a loop, nothing."""
        if asyncio._get_running_loop() is not None:
            closing = asyncio.ensure_future(self.close_leaving())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """End all calls and close every client, also clients that are leaving."""
        for client in self:
            await client.aclose()
        await self.close_leaving()
        if self._closing:
            await asyncio.wait(set(self._closing))


def _is_at_work(client: BatchClient | None) -> bool:
    return client is not None and client._engine.is_at_work
