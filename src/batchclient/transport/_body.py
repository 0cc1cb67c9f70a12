"""A reply's body, whichever way it comes: capped, decompressed, and no other request's.

Bodies are asked for without compression. gzip and deflate are undone nevertheless, a piece at a
time: the cap is checked before a bomb goes off. Brotli, zstd and compress are refused; any other
word is no coding (``none``, ``utf-8``), and the bytes are taken as they are.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from batchclient.errors import ConnectionLost, ResponseTooLarge
from batchclient.transport._exceptions import misdelivered
from batchclient.transport._ids import Mark

if TYPE_CHECKING:
    from batchclient.transport._httpx import HttpxConnection
    from batchclient.transport.connection import Connection

__all__ = ["Response"]

_LARGEST_DECODED_BYTES = 64 * 1024
_GZIP, _ZLIB, _RAW = 31, 15, -15
"""What zlib calls the header of a format: 16 more for gzip's, a minus for none."""
_UNASKED = frozenset({"br", "compress", "x-compress", "zstd"})
_MOST_ENCODINGS = 4


class Response:
    """A reply whose body has not been read yet; see ``WireResponse``.

    Args:
        connection: brings the body.
        headers: of the reply.
        release: takes the connection back, given whether another request may use it.
        mark: of the request, if the transport gave an id.
        most_bytes: cap on the decoded body.
        may_go_on: whether another request may use the connection, as far as the head tells.
    """

    __slots__ = ("_mark", "_may_go_on", "_most_bytes", "_next_piece", "_release", "headers", "status")

    def __init__(
        self,
        connection: Connection | HttpxConnection,
        headers: Mapping[str, str],
        release: Callable[[bool], Awaitable[None]],
        mark: Mark | None,
        most_bytes: int,
        *,
        may_go_on: bool,
    ) -> None:
        self.status = connection.status
        self.headers = headers
        self._next_piece = connection.next_piece
        self._release: Callable[[bool], Awaitable[None]] | None = release
        self._mark = mark
        self._most_bytes = most_bytes
        self._may_go_on = may_go_on

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the decoded body as it arrives.

        Raises:
            ConnectionLost: it broke, or its encoding is broken, or it is another request's.
            ResponseTooLarge: the body is longer than the cap.
        """
        encoding = self.headers.get("content-encoding")
        layers = [] if encoding is None else _layers(encoding)
        left, mark = self._most_bytes, self._mark
        while data := await self._next_piece():
            pieces: Iterable[bytes] = (data,)
            for layer in layers:
                pieces = layer.decoded(pieces)
            for piece in pieces:
                left -= len(piece)
                if left < 0:
                    raise ResponseTooLarge(f"the response has over {self._most_bytes} bytes")
                if mark is not None and mark.is_anothers(piece):
                    self._may_go_on = False
                    raise misdelivered()
                mark = None
                yield piece
        if any(layer.is_open for layer in layers):
            raise ConnectionLost("the body was cut off within its compression")

    async def aclose(self) -> None:
        """Release the connection; it is closed if the body was not read to its end."""
        release, self._release = self._release, None
        if release is not None:
            await release(self._may_go_on)


def _layers(content_encoding: str) -> list[_Layer]:
    """Return what undoes the encodings; the last of the header was applied last."""
    words = [word.strip() for word in content_encoding.lower().split(",")[:_MOST_ENCODINGS]]
    if not _UNASKED.isdisjoint(words):
        raise ConnectionLost("the body is encoded in a way that was not asked for")
    return [_Layer(word) for word in reversed(words) if word in ("gzip", "x-gzip", "deflate")]


class _Layer:
    def __init__(self, encoding: str) -> None:
        self._format = _ZLIB if encoding == "deflate" else _GZIP
        self._begun = b""
        self._inflater: zlib._Decompress | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._begun) or self._inflater is not None

    def decoded(self, source: Iterable[bytes]) -> Iterator[bytes]:
        for data in source:
            try:
                yield from self._inflated(data)
            except zlib.error as error:
                raise ConnectionLost("the body could not be decompressed") from error

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        data, self._begun = self._begun + data, b""
        while data:
            if self._inflater is None:
                if len(data) < 2:
                    self._begun = data
                    return
                # RFC 1950, 2.2: the first two bytes are a multiple of 31. Some servers send none.
                is_raw = self._format == _ZLIB and (data[0] & 15 != 8 or (data[0] << 8 | data[1]) % 31)
                self._inflater = zlib.decompressobj(_RAW if is_raw else self._format)
            piece = self._inflater.decompress(data, _LARGEST_DECODED_BYTES)
            while piece:
                yield piece
                data = self._inflater.unconsumed_tail
                piece = self._inflater.decompress(data, _LARGEST_DECODED_BYTES)
            data = self._inflater.unused_data
            if self._inflater.eof:
                # A gzip file may have another member.
                data = data.lstrip(b"\0") if self._format == _GZIP else b""
                self._inflater = None
