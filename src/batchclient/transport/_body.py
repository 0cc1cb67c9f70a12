"""A long request body, in pieces."""

from __future__ import annotations

from typing import Self

from batchclient.transport._under_way import UnderWay

__all__ = ["LONG_BODY_BYTES", "Pieces"]

LONG_BODY_BYTES = 64 * 1024
"""Servers read a shorter body before refusing it: the sockets' buffers hold the whole."""


class Pieces:
    """The pieces of a body; ``_library`` makes a stream of each library's class from them.

    No generator, as httpx's own is: trio complains of a generator that was begun and not ended, as
    when the server refuses the rest.

    Args:
        size: bytes of a piece.
        under_way: told whenever the next piece is wanted, and when none is left.
    """

    def __init__(self, content: bytes, size: int, under_way: UnderWay) -> None:
        self._content = content
        self._size = size
        self._under_way = under_way
        self._at = 0

    def __aiter__(self) -> Self:
        self._at = 0
        return self

    async def __anext__(self) -> bytes:
        self._under_way.wrote()
        at, self._at = self._at, self._at + self._size
        if at >= len(self._content):
            self._under_way.sent()
            raise StopAsyncIteration
        return self._content[at : self._at]
