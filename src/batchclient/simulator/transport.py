"""The embedded server without sockets: a ``Transport`` that drives it in the caller's event loop.

Rules:
- The transport has no task of its own. Among the waiters for parts, the leader sleeps until the
  server's next deadline and hands out all parts that are due. The others sleep until they are
  woken. A waiter that leaves while nobody leads wakes another.
- Each wait also ends at the request's own read timeout.
- Faults show as over a socket, as ``batchclient.errors``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import anyio

from batchclient.errors import ConnectFailed, ConnectionLost, ReadTimedOut, TransportError
from batchclient.simulator.open_request import Part
from batchclient.simulator.server import SimulatedServer
from batchclient.transport import Timeouts, WireRequest

__all__ = ["SimulatorTransport"]


async def _sleep_until(at: float) -> None:
    await anyio.sleep_until(at)


class _Mailbox:
    """A request's parts, and the nap of the waiter for them."""

    __slots__ = ("nap", "parts", "read_s", "request_id")

    def __init__(self, request_id: int, read_s: float | None) -> None:
        self.request_id: int = request_id
        self.read_s: float | None = read_s
        self.parts: deque[Part] = deque()
        self.nap: anyio.CancelScope | None = None


class SimulatorTransport:
    """Sends requests to a ``SimulatedServer`` in this process, on asyncio or trio.

    Args:
        server: no other transport may drive it.
        clock: seconds, never going back; by default the event loop's.
        sleep_until: sleeps until the clock shows a time, at infinity for ever; by default anyio's.
        prefix: the part of the endpoint's base URL before each path.
        api_key: sent as ``Authorization: Bearer``.
    """

    def __init__(
        self,
        server: SimulatedServer,
        clock: Callable[[], float] = anyio.current_time,
        sleep_until: Callable[[float], Awaitable[None]] = _sleep_until,
        *,
        prefix: str = "/v1",
        api_key: str | None = None,
    ) -> None:
        self.server = server
        self._clock = clock
        self._sleep_until = sleep_until
        self._prefix = prefix
        self._headers = [(b"authorization", f"Bearer {api_key}".encode())] if api_key else []
        self._mailboxes: dict[int, _Mailbox] = {}
        self._leader: _Mailbox | None = None
        self._requests = 0

    def __repr__(self) -> str:
        return f"<SimulatorTransport {len(self._mailboxes)} open, {self.server!r}>"

    async def send(self, request: WireRequest, timeouts: Timeouts) -> SimulatorResponse:
        """Send a request; return once the headers of the reply are there.

        Raises:
            ConnectFailed: the fault ``refuse``.
            ConnectionLost: the fault ``disconnect``.
            ReadTimedOut: the server was silent for ``timeouts.read_s``.
        """
        self._requests += 1
        mailbox = _Mailbox(self._requests, timeouts.read_s)
        self._mailboxes[mailbox.request_id] = mailbox
        headers = self._headers + [(name.lower().encode(), value.encode()) for name, value in request.headers]
        path = request.path if request.from_root else self._prefix + request.path
        self.server.receive(mailbox.request_id, request.method, path, request.body, self._clock(), headers)
        self._wake(self._leader)  # the request may be due before the leader wakes
        try:
            first = await self.next_part(mailbox)
        except BaseException:
            self.forget(mailbox)
            raise
        return SimulatorResponse(self, mailbox, first)

    async def aclose(self) -> None:
        """Break every open connection."""
        for mailbox in list(self._mailboxes.values()):
            mailbox.parts.append(Part(mailbox.request_id, last=True, broken=True))
            self._wake(mailbox)
            self.server.disconnect(mailbox.request_id, self._clock())

    # --- for responses ---

    async def next_part(self, mailbox: _Mailbox) -> Part:
        """Return the next part of a reply; see ``send`` for the errors."""
        give_up_at = math.inf if mailbox.read_s is None else self._clock() + mailbox.read_s
        try:
            while not mailbox.parts:
                self._pump()
                if mailbox.parts:
                    break
                if self._clock() >= give_up_at:
                    raise ReadTimedOut(f"no byte for {mailbox.read_s} s")
                await self._nap(mailbox, give_up_at)
        finally:
            if self._leader is None:
                self._wake_a_leader()
        part = mailbox.parts.popleft()
        if part.broken:
            raise _error(part)
        return part

    def forget(self, mailbox: _Mailbox) -> None:
        """Close the connection of a reader that has gone, so that the server stops."""
        if self._mailboxes.pop(mailbox.request_id, None) is not None:
            self.server.disconnect(mailbox.request_id, self._clock())

    # --- waiting ---

    async def _nap(self, mailbox: _Mailbox, give_up_at: float) -> None:
        until = give_up_at
        if self._leader is None:
            self._leader = mailbox
            deadline = self.server.next_deadline()
            until = give_up_at if deadline is None else min(deadline, give_up_at)
        try:
            with anyio.CancelScope() as mailbox.nap:
                await self._sleep_until(until)
        finally:
            mailbox.nap = None
            if self._leader is mailbox:
                self._leader = None

    def _wake_a_leader(self) -> None:
        # A waiter with parts is awake already, and leaves with the parts instead of leading.
        sleepers = (each for each in self._mailboxes.values() if each.nap is not None and not each.parts)
        self._wake(next(sleepers, None))

    def _pump(self) -> None:
        for part in self.server.poll(self._clock()):
            mailbox = self._mailboxes.get(part.request_id)
            if mailbox is not None:
                mailbox.parts.append(part)
                self._wake(mailbox)

    @staticmethod
    def _wake(mailbox: _Mailbox | None) -> None:
        if mailbox is not None and mailbox.nap is not None:
            mailbox.nap.cancel()


class SimulatorResponse:
    """A reply whose headers have arrived."""

    def __init__(self, transport: SimulatorTransport, mailbox: _Mailbox, first: Part) -> None:
        self.status: int = first.status
        self.headers: Mapping[str, str] = dict(first.headers)
        self._transport = transport
        self._mailbox = mailbox
        self._first: Part | None = first

    def __repr__(self) -> str:
        return f"<SimulatorResponse {self.status}>"

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in pieces.

        Raises:
            ConnectionLost: the connection broke before the body's end.
            ReadTimedOut: the server was silent for the request's ``read_s``.
        """
        while True:
            part, self._first = self._first, None
            if part is None:
                part = await self._transport.next_part(self._mailbox)
            if part.last:
                self._transport.forget(self._mailbox)
            if part.body:
                yield part.body
            if part.last:
                return

    async def aclose(self) -> None:
        """Let go of the reply; the server's work for the reply ends."""
        self._transport.forget(self._mailbox)


def _error(part: Part) -> TransportError:
    if part.refused:
        failed = ConnectFailed("the connection was refused")
        failed.__cause__ = ConnectionRefusedError()
        return failed
    return ConnectionLost("the server closed the connection before the end of its reply")
