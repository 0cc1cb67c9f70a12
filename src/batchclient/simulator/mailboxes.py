"""The open requests of a server: both shells get the parts of a reply from its mailbox."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from batchclient.simulator.open_request import Part
from batchclient.simulator.server import SimulatedServer

__all__ = ["Mailbox", "Mailboxes"]


class Mailbox:
    """A request's parts on their way to the reader, and how to wake the reader."""

    __slots__ = ("parts", "request_id", "wake")

    def __init__(self, request_id: int) -> None:
        self.request_id: int = request_id
        self.parts: deque[Part] = deque()
        self.wake: Callable[[], object] | None = None
        """Given while the reader sleeps."""

    def put(self, part: Part) -> None:
        """Add a part."""
        self.parts.append(part)
        self.ring()

    def ring(self) -> None:
        """Wake the reader, if there is one that sleeps."""
        if self.wake is not None:
            self.wake()


class Mailboxes:
    """The mailboxes of a server that nobody else drives, by request.

    Args:
        server: answers.
        clock: seconds, never going back.
    """

    def __init__(self, server: SimulatedServer, clock: Callable[[], float]) -> None:
        self.server = server
        self.clock = clock
        self._open: dict[int, Mailbox] = {}
        self._requests = 0

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def receive(self, method: str, path: str, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Mailbox:
        """Hand a request to the server; return the mailbox of its reply."""
        self._requests += 1
        mailbox = self._open[self._requests] = Mailbox(self._requests)
        self.server.receive(mailbox.request_id, method, path, body, self.clock(), headers)
        return mailbox

    def deliver(self) -> None:
        """Hand out the parts that are due."""
        for part in self.server.poll(self.clock()):
            mailbox = self._open.get(part.request_id)
            if mailbox is not None:
                mailbox.put(part)

    def close(self, mailbox: Mailbox) -> None:
        """Forget the request of a reader that has gone, so that the server stops."""
        if self._open.pop(mailbox.request_id, None) is not None:
            self.server.disconnect(mailbox.request_id, self.clock())
