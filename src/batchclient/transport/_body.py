"""A long request body, in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import httpx

__all__ = ["Pieces"]


class Pieces(httpx.AsyncByteStream):
    """No generator, as httpx's own is: trio complains of one that was begun and not ended, as when the server refuses the rest.

    Args:
        content: the body.
        size: bytes of a piece.
        wrote: told whenever the next piece is wanted.
    """

    def __init__(self, content: bytes, size: int, wrote: Callable[[], None]) -> None:
        self._content = content
        self._size = size
        self._wrote = wrote
        self._at = 0

    def __aiter__(self) -> Self:
        self._at = 0
        return self

    async def __anext__(self) -> bytes:
        self._wrote()
        at, self._at = self._at, self._at + self._size
        if at >= len(self._content):
            raise StopAsyncIteration
        return self._content[at : self._at]
