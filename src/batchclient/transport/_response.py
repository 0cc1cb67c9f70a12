"""A reply through httpx, and the fate of its connection.

Rules:
- The decoded body is capped as it arrives, and its silence is bounded.
- A reply to another request of the transport is refused, and nothing more is read from the
  connection.
- A connection on which a long request was refused is not used again: the server may have read only
  a part of the request.
- Any byte beyond a reply's end closes the connection: httpcore would take the byte for the
  beginning of the next reply.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from batchclient.errors import BatchClientError, ConnectionLost, ReadTimedOut, ResponseTooLarge
from batchclient.transport._compression import decompressed
from batchclient.transport._deadline import deadline
from batchclient.transport._exceptions import SILENT, cause_of, is_aiohttps, is_of, translated
from batchclient.transport._sockets import Stream

if TYPE_CHECKING:
    import httpx

    from batchclient.transport._ids import Mark

__all__ = ["Response"]


class Response:
    """A reply whose body is still to be read.

    Args:
        cap: bytes of the decoded body at most.
        silence_s: bounds the wait for each piece of the body, seconds.
        mark: of the request, if the transport gave an id.
        long: whether the request may have been refused before it was read.
        release: called once when the response is closed, with whether its pool is still ``good``.
            ``None``: the response came over a user's own client, which may raise anything.
    """

    __slots__ = (
        "_cap",
        "_foreign",
        "_long",
        "_mark",
        "_release",
        "_response",
        "_silence_s",
        "_socket",
        "headers",
        "status",
    )

    def __init__(
        self,
        response: httpx.Response,
        cap: int,
        silence_s: float | None,
        mark: Mark | None,
        release: Callable[..., Awaitable[None]] | None,
        *,
        long: bool,
    ) -> None:
        self._response = response
        self._cap = cap
        self._silence_s = silence_s
        self._mark = mark
        self._long = long
        self._release = release
        self._foreign = release is None
        socket = response.extensions.get("network_stream")
        self._socket = socket if isinstance(socket, Stream) else None
        if self._socket is not None:
            self._socket.heard = True
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def check(self) -> None:
        """Raise ``ConnectionLost`` if the headers belong to another request of the transport."""
        if self._mark is not None and self._mark.is_anothers_header(self.headers.get("x-request-id")):
            await self._close(good=False)
            raise _misdelivered()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the decoded body as it arrives."""
        left = self._cap
        response, socket, mark = self._response, self._socket, self._mark
        # ``response.stream`` spares each chunk a generator of httpx's.
        source: Any = response.stream
        if socket is None and self._silence_s is not None and "content-length" not in response.headers:
            # In a body of known length every byte counts, so the library's own timeout will do.
            source = _bounded(source, self._silence_s)
        if "content-encoding" in response.headers:
            source = decompressed(source, response.headers["content-encoding"])
        try:
            async for chunk in source:
                left -= len(chunk)
                if left < 0:
                    raise ResponseTooLarge(f"the response is over max_response_bytes={self._cap}")
                if mark is not None:
                    if mark.is_anothers_body(chunk):
                        await self._close(good=False)
                        raise _misdelivered()
                    mark = None
                yield chunk
                if socket is not None:
                    socket.heard = True
        except BatchClientError:
            raise
        except Exception as error:
            if is_of(type(error), "StreamError"):
                raise ConnectionLost("the response could not be read") from error
            if self._foreign or isinstance(error, OSError) or is_of(type(error), "HTTPError") or is_aiohttps(error):
                raise translated(error, received=self._cap - left) from cause_of(error)
            raise

    async def aclose(self) -> None:
        """Release the connection; close it if the body was not read to its end, or if more came."""
        await self._close(good=True)

    async def _close(self, *, good: bool) -> None:
        release, self._release = self._release, None
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.rest()
        refused = self._long and self.status >= 400
        _close_if_spoilt(self._response.stream, refused=refused)
        whole = False
        try:
            await self._response.aclose()
            whole = True
        finally:
            if release is not None:
                # A response that was broken off has left its place in httpx's pool taken for good.
                await release(good=good and whole and not refused)


def _close_if_spoilt(source: Any, *, refused: bool) -> None:
    """Have httpcore close a connection with bytes beyond the reply, or with a refused request.

    httpcore's connection is found behind the response's stream, a user's own client's, too.
    """
    while source is not None:
        connection = getattr(source, "_connection", None)
        if connection is not None:
            http = getattr(connection, "_h11_state", None)
            if http is not None and (refused or http.trailing_data[0]):
                # httpcore does not use a connection again that failed to send.
                http.send_failed()
            return
        source = getattr(source, "_httpcore_stream", None) or getattr(source, "_stream", None)


async def _bounded(source: Any, silence_s: float) -> AsyncGenerator[bytes]:
    """Bound the wait for each piece."""
    pieces = aiter(source)
    while True:
        try:
            async with deadline(silence_s):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise ReadTimedOut(SILENT) from error
        yield piece


def _misdelivered() -> ConnectionLost:
    error = ConnectionLost(
        "the reply is another request's, as its id says; if that is a cache's, give an X-Request-Id of your own:"
        " headers={…}"
    )
    error.misdelivered = True
    return error
