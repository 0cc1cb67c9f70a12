"""The reading of a reply's body, whichever way the reply comes.

Rules:
- The decoded body is capped as it arrives.
- A reply to another request of the transport is refused, and nothing more is read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from batchclient.errors import ResponseTooLarge
from batchclient.transport._compression import Decoding
from batchclient.transport._exceptions import misdelivered
from batchclient.transport._ids import Mark

__all__ = ["read_body"]


async def read_body(
    next_piece: Callable[[], Awaitable[bytes]],
    headers: Mapping[str, str],
    *,
    most_bytes: int,
    mark: Mark | None,
    refuse: Callable[[], Any],
) -> AsyncGenerator[bytes]:
    """Yield the decoded body as it arrives.

    Args:
        next_piece: returns the next bytes; empty: the body has ended.
        headers: of the reply.
        most_bytes: of the decoded body.
        mark: the request's, if the transport gave an id.
        refuse: called if the body is another request's.

    Raises:
        ConnectionLost: the body is another request's, or its encoding is broken.
        ResponseTooLarge: the body is longer.
    """
    encoding = headers.get("content-encoding")
    decoding = None if encoding is None else Decoding(encoding)
    left = most_bytes
    while data := await next_piece():
        for piece in (data,) if decoding is None else decoding.feed(data):
            left -= len(piece)
            if left < 0:
                raise ResponseTooLarge(f"the response is over max_response_bytes={most_bytes}")
            if mark is not None:
                if mark.is_anothers_body(piece):
                    refuse()
                    raise misdelivered()
                mark = None
            yield piece
    if decoding is not None:
        decoding.end()
