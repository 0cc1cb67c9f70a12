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
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial

import anyio

from batchclient.errors import ConnectFailed, ConnectionLost, ReadTimedOut, TransportError
from batchclient.simulator.mailboxes import Mailbox, Mailboxes
from batchclient.simulator.open_request import Part
from batchclient.simulator.server import SimulatedServer
from batchclient.transport import Timeouts, WireRequest

__all__ = ["SimulatorTransport"]


async def _sleep_until(at: float) -> None:
    await anyio.sleep_until(at)


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
        self._mailboxes = Mailboxes(server, clock)
        self._leader: Mailbox | None = None

    def __repr__(self) -> str:
        return f"<SimulatorTransport {len(self._mailboxes)} open, {self.server!r}>"

    async def send(self, request: WireRequest, timeouts: Timeouts) -> SimulatorResponse:
        """Send a request; return once the headers of the reply are there.

        Raises:
            ConnectFailed: the fault ``refuse``.
            ConnectionLost: the fault ``disconnect``.
            ReadTimedOut: the server was silent for ``timeouts.read_s``.
        """
        headers = self._headers + [(name.lower().encode(), value.encode()) for name, value in request.headers]
        path = request.path if request.from_root else self._prefix + request.path
        mailbox = self._mailboxes.receive(request.method, path, request.body, headers)
        if self._leader is not None:
            self._leader.ring()  # the request may be due before the leader wakes
        next_part = partial(self._next_part, mailbox, timeouts.read_s)
        close = partial(self._mailboxes.close, mailbox)
        try:
            first = await next_part()
        except BaseException:
            close()
            raise
        return SimulatorResponse(first, next_part, close)

    async def aclose(self) -> None:
        """Break every open connection."""
        for mailbox in self._mailboxes:
            mailbox.put(Part(mailbox.request_id, last=True, broken=True))
            self.server.disconnect(mailbox.request_id, self._clock())

    async def _next_part(self, mailbox: Mailbox, read_s: float | None) -> Part:
        """Return the next part of a reply; see ``send`` for the errors."""
        give_up_at = math.inf if read_s is None else self._clock() + read_s
        try:
            while not mailbox.parts:
                self._mailboxes.deliver()
                if mailbox.parts:
                    break
                if self._clock() >= give_up_at:
                    raise ReadTimedOut(f"no byte for {read_s} s")
                await self._nap(mailbox, give_up_at)
        finally:
            if self._leader is None:
                # Who has parts is awake already, and leaves with them instead of leading.
                sleepers = (each for each in self._mailboxes if each.wake is not None and not each.parts)
                if (sleeper := next(sleepers, None)) is not None:
                    sleeper.ring()
        part = mailbox.parts.popleft()
        if part.broken:
            raise _error(part)
        return part

    async def _nap(self, mailbox: Mailbox, give_up_at: float) -> None:
        until = give_up_at
        if self._leader is None:
            self._leader = mailbox
            deadline = self.server.next_deadline()
            until = give_up_at if deadline is None else min(deadline, give_up_at)
        try:
            with anyio.CancelScope() as nap:
                mailbox.wake = nap.cancel
                await self._sleep_until(until)
        finally:
            mailbox.wake = None
            if self._leader is mailbox:
                self._leader = None


class SimulatorResponse:
    """A reply whose headers have arrived, with its first part."""

    def __init__(self, first: Part, next_part: Callable[[], Awaitable[Part]], close: Callable[[], None]) -> None:
        self.status: int = first.status
        self.headers: Mapping[str, str] = dict(first.headers)
        self._first: Part | None = first
        self._next_part = next_part
        self._close = close

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
                part = await self._next_part()
            if part.last:
                self._close()
            if part.body:
                yield part.body
            if part.last:
                return

    async def aclose(self) -> None:
        """Let go of the reply; the server's work for the reply ends."""
        self._close()


def _error(part: Part) -> TransportError:
    if part.refused:
        failed = ConnectFailed("the connection was refused")
        failed.__cause__ = ConnectionRefusedError()
        return failed
    return ConnectionLost("the server closed the connection before the end of its reply")
