"""A scripted server behind batchclient's own ``Transport``.

The use is ``BatchClient(…, http=mock_llm.transport)``.

Rules:
- Waiting happens in the caller's event loop, by that loop's clock: with ``virtual_clock`` a slow
  answer takes no time.
- Faults show as over a socket, as ``batchclient.errors``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import anyio
import anyio.lowlevel

from batchclient.errors import ConnectFailed, ConnectionLost, ReadTimedOut
from batchclient.testing._speech import Reply
from batchclient.transport import Timeouts, WireRequest

__all__ = ["MockTransport", "Scripted", "is_silent_after"]


class Scripted(Protocol):
    """A ``MockLLM``, as the ways to a scripted server see the server."""

    host: str

    def receive(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Take a whole request; return its whole reply."""
        ...


class MockTransport:
    """Sends requests to a ``MockLLM``.

    Args:
        mock: the server.
        headers: recorded with every request, as if they had been sent.
    """

    def __init__(self, mock: Scripted, headers: Mapping[str, str]) -> None:
        self._mock = mock
        self._headers = dict(headers)

    def __repr__(self) -> str:
        return f"<MockTransport to {self._mock!r}>"

    async def send(self, request: WireRequest, timeouts: Timeouts) -> MockResponse:
        """Send a request; return once the headers of the response are there.

        Raises:
            ConnectFailed: the rule says ``refuse_connection``.
            ConnectionLost: the rule says ``disconnect``.
            ReadTimedOut: the rule says ``time_out``, or the reply takes longer than
                ``timeouts.read_s``.
        """
        path = request.path if request.from_root else f"/v1{request.path}"
        headers = {**self._headers, **dict(request.headers)}
        await anyio.lowlevel.checkpoint()
        reply = self._mock.receive(request.method, path, headers, request.body)
        if await is_silent_after(reply, timeouts.read_s):
            raise ReadTimedOut("the server was silent for read_timeout_s")
        if reply.fault == "refuse":
            raise ConnectFailed("the connection was refused") from ConnectionRefusedError()
        if reply.fault == "disconnect":
            raise ConnectionLost("the server closed the connection before its reply")
        return MockResponse(reply)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


class MockResponse:
    """A reply whose headers have arrived."""

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.headers: Mapping[str, str] = dict(reply.headers)
        self._reply = reply

    def __repr__(self) -> str:
        return f"<MockResponse {self.status}>"

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in pieces.

        Raises:
            ConnectionLost: the rule says ``disconnect(mid_reply=True)``.
        """
        for piece in self._reply.pieces:
            yield piece
            await anyio.lowlevel.checkpoint()
        if self._reply.fault == "cut":
            raise ConnectionLost("the server closed the connection before the end of its reply")

    async def aclose(self) -> None:
        """Do nothing: no connection is held."""


async def is_silent_after(reply: Reply, read_s: float | None) -> bool:
    """Wait for a reply as long as its reader does; return whether the reader's time ended first."""
    if reply.fault == "time_out" and not reply.delay_s:
        return True
    if read_s is not None and reply.delay_s > read_s:
        await anyio.sleep(read_s)
        return True
    if reply.delay_s == float("inf"):
        await anyio.sleep_forever()
    if reply.delay_s:
        await anyio.sleep(reply.delay_s)
    return False
