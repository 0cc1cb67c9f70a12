"""Ids of requests (``X-Request-Id``): what shows that a reply is another request's.

Rules:
- An id is a random prefix of its transport's own and a number, so that an id of another request *of ours* is known by itself. An id that we never gave
  says nothing: gateways and servers have ids of their own.
- An id is sent once. vLLM calls the engine's request by it, and no two of these may be alike.
- The reply to another request with the same body is as good: a cache answers with the reply that it has, its old id included. So is what comes after
  thousands of requests.
- vLLM begins its replies with the id (``cmpl-…``, ``chatcmpl-…``), transformers and gateways give the header back.
"""

from __future__ import annotations

import secrets

__all__ = ["RequestIds"]

_REMEMBERED = 4096
"""Of the requests before: a reply that is given to the wrong one was made a moment ago."""
_DIGITS = 8
"""Hexadecimal."""


class RequestIds:
    """Those of one transport."""

    __slots__ = ("_bodies", "_count", "_length", "_prefix", "_prefix_bytes")

    def __init__(self) -> None:
        self._prefix = f"bc-{secrets.token_hex(6)}-"
        self._prefix_bytes = self._prefix.encode()
        self._length = len(self._prefix) + _DIGITS
        self._count = 0
        self._bodies = [0] * _REMEMBERED

    def find_in(self, chunk: bytes) -> str | None:
        """The first id of ours in some bytes."""
        at = chunk.find(self._prefix_bytes)
        return None if at < 0 else chunk[at : at + self._length].decode("latin-1")

    def asked_for_other(self, told: str, content: int) -> bool:
        """Whether an id is that of a request of ours with another body."""
        if not told.startswith(self._prefix):
            return False
        try:
            number = int(told[len(self._prefix) : self._length], 16)
        except ValueError:
            return False
        return 0 < self._count - number <= _REMEMBERED and self._bodies[number % _REMEMBERED] != content

    def mark(self, body: bytes) -> Mark:
        """Give an id to a request that is about to be sent."""
        number = self._count
        self._count = number + 1
        content = self._bodies[number % _REMEMBERED] = hash(body)
        return Mark(self, f"{self._prefix}{number:0{_DIGITS}x}", content)


class Mark:
    """One request's id, and what it asked for."""

    __slots__ = ("_content", "_ids", "id")

    def __init__(self, ids: RequestIds, own: str, content: int) -> None:
        self._ids = ids
        self.id = own
        self._content = content

    def is_anothers_header(self, value: str | None) -> bool:
        """Whether a reply's header is the id of a request of ours that asked for something else."""
        return value is not None and value != self.id and self._ids.asked_for_other(value, self._content)

    def is_anothers_body(self, chunk: bytes) -> bool:
        """The same of what a reply's body begins with."""
        told = self._ids.find_in(chunk)
        return told is not None and told != self.id and self._ids.asked_for_other(told, self._content)
