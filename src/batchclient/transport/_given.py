"""A user's own ``Transport``: errors outside the contract of sending and reading become
batchclient's.

``aclose`` passes every error on unchanged: the closer of the client may want to know of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from batchclient.errors import BatchClientError, ConnectionLost
from batchclient.transport import Timeouts, Transport, WireRequest, WireResponse
from batchclient.transport._exceptions import cause_of, translated

__all__ = ["GivenTransport"]


class GivenTransport:
    """Sends requests over a user's transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return repr(self._transport)

    async def send(self, request: WireRequest, timeouts: Timeouts) -> WireResponse:
        """Send a request; return once the headers of the response are there."""
        with _as_ours():
            response = await self._transport.send(request, timeouts)
        try:
            return _GivenResponse(response)
        except AttributeError as error:
            raise ConnectionLost(f"the transport returned a {type(response).__name__}, which is no response") from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()


class _GivenResponse:
    def __init__(self, response: WireResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers
        self.aclose = response.aclose

    async def chunks(self) -> AsyncGenerator[bytes]:
        with _as_ours():
            async with aclosing(self._response.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk


@contextmanager
def _as_ours() -> Iterator[None]:
    try:
        yield
    except BatchClientError:
        raise
    except Exception as error:  # a transport is the user's code
        raise translated(error) from cause_of(error)
