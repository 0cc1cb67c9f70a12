"""Undoes compression that was not asked for, as the bytes arrive.

Bodies are asked for without compression. gzip and deflate are undone nevertheless, a piece at a
time: the cap on a body's size is checked before a bomb goes off. Other encodings are refused.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator
from typing import Any

from batchclient.errors import ConnectionLost

__all__ = ["decompressed"]

_LARGEST_DECODED_BYTES = 64 * 1024
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""By encoding, as zlib wants it: 16 more for gzip's header."""
_MOST_ENCODINGS = 4


def decompressed(source: Any, content_encoding: str) -> Any:
    """Return a body's chunks without their encodings; the header's last was applied last."""
    for encoding in reversed(content_encoding.lower().split(",")[:_MOST_ENCODINGS]):
        source = _decoded(source, encoding.strip())
    return source


async def _decoded(source: Any, encoding: str) -> AsyncGenerator[bytes]:
    if encoding in ("", "identity"):
        async for chunk in source:
            yield chunk
        return
    if encoding not in _WINDOW_BITS:
        raise ConnectionLost("the body is encoded in a way that was not asked for")
    decoder = zlib.decompressobj(_WINDOW_BITS[encoding])
    async for chunk in source:
        left = chunk
        while left:
            try:
                piece = decoder.decompress(left, _LARGEST_DECODED_BYTES)
            except zlib.error as error:
                raise ConnectionLost("the body could not be decompressed") from error
            left = decoder.unconsumed_tail
            if piece:
                yield piece
    yield decoder.flush()
