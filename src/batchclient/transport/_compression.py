"""Undoes compression that was not asked for, as the bytes arrive.

Bodies are asked for without compression. gzip and deflate are undone nevertheless, a piece at a
time: the cap on a body's size is checked before a bomb goes off. Brotli, zstd and compress are
refused; any other word is no coding, and the bytes are taken as they are (``none``, ``utf-8``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from batchclient.errors import ConnectionLost

__all__ = ["Decoding"]

_LARGEST_DECODED_BYTES = 64 * 1024
_GZIP, _ZLIB, _RAW = 31, 15, -15
"""What zlib calls the header of a format: 16 more for gzip's, a minus for none."""
_OTHERS = frozenset({"br", "compress", "x-compress", "zstd"})
_MOST_ENCODINGS = 4


class Decoding:
    """The decoding of one body.

    Args:
        content_encoding: the reply's header; the last encoding in it was applied last.

    Raises:
        ConnectionLost: an encoding cannot be undone.
    """

    def __init__(self, content_encoding: str) -> None:
        words = [word.strip() for word in content_encoding.lower().split(",")[:_MOST_ENCODINGS]]
        if not _OTHERS.isdisjoint(words):
            raise ConnectionLost("the body is encoded in a way that was not asked for")
        self._layers = [_Layer(word) for word in reversed(words) if word in ("gzip", "x-gzip", "deflate")]

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Yield the decoded bytes in pieces.

        Raises:
            ConnectionLost: the bytes are none of the encoding's.
        """
        pieces: Iterable[bytes] = (data,)
        for layer in self._layers:
            pieces = layer.decoded(pieces)
        return pieces

    def end(self) -> None:
        """Raise ``ConnectionLost`` if the body was cut off."""
        if any(layer.is_open for layer in self._layers):
            raise ConnectionLost("the body was cut off within its compression")


class _Layer:
    def __init__(self, encoding: str) -> None:
        self._format = _ZLIB if encoding == "deflate" else _GZIP
        self._begun = b""
        self._inflater: zlib._Decompress | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._begun) or (self._inflater is not None and not self._inflater.eof)

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
                # RFC 1950, 2.2: a header's two bytes are a multiple of 31. Servers also send deflate without it.
                is_raw = self._format == _ZLIB and (data[0] & 15 != 8 or (data[0] << 8 | data[1]) % 31)
                self._inflater = zlib.decompressobj(_RAW if is_raw else self._format)
            piece = self._inflater.decompress(data, _LARGEST_DECODED_BYTES)
            if piece:
                yield piece
            if self._inflater.eof:
                # The next member of a gzip file.
                data = self._inflater.unused_data.lstrip(b"\0") if self._format == _GZIP else b""
                self._inflater = None
            else:
                data = self._inflater.unconsumed_tail
                if not data and len(piece) == _LARGEST_DECODED_BYTES:
                    while piece := self._inflater.decompress(b"", _LARGEST_DECODED_BYTES):
                        yield piece
