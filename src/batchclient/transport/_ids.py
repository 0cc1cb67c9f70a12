"""Ids of requests (``X-Request-Id``), which show when a reply is another request's.

Rules:
- An id is a random prefix of its transport and a number, so the id of another request *of the
  transport* is known by itself. A foreign id says nothing: gateways and servers have their own.
- An id is sent once. vLLM gives the id to the engine's request, and the engine's must differ.
- The reply to another request with the same body is as good: a cache answers with a stored reply,
  old id included. So is a reply that comes thousands of requests later.
- vLLM begins its replies with the id (``cmpl-…``, ``chatcmpl-…``); transformers and gateways return
  the header.
"""

from __future__ import annotations

import secrets

__all__ = ["ID_HEADER", "Mark", "RequestIds"]

ID_HEADER = "x-request-id"

_REMEMBERED = 4096
"""Requests remembered: a reply for the wrong request belongs to a request of a moment ago."""
_DIGITS = 8
"""Hexadecimal digits of the number."""


class RequestIds:
    """The ids of one transport."""

    __slots__ = ("_bodies", "_count", "_length", "_prefix", "_prefix_bytes")

    def __init__(self) -> None:
        self._prefix = f"bc-{secrets.token_hex(6)}-"
        self._prefix_bytes = self._prefix.encode()
        self._length = len(self._prefix) + _DIGITS
        self._count = 0
        self._bodies = [0] * _REMEMBERED

    def find_in(self, chunk: bytes) -> str | None:
        """Return the transport's first id in some bytes."""
        at = chunk.find(self._prefix_bytes)
        return None if at < 0 else chunk[at : at + self._length].decode("latin-1")

    def asked_for_other(self, told: str, content: int) -> bool:
        """Whether an id belongs to a request of the transport with another body."""
        if not told.startswith(self._prefix):
            return False
        try:
            number = int(told[len(self._prefix) : self._length], 16)
        except ValueError:
            return False
        return 0 < self._count - number <= _REMEMBERED and self._bodies[number % _REMEMBERED] != content

    def mark(self, body: bytes) -> Mark:
        """Give an id to a request before it is sent."""
        number = self._count
        self._count = number + 1
        content = self._bodies[number % _REMEMBERED] = hash(body)
        return Mark(self, f"{self._prefix}{number:0{_DIGITS}x}", content)


class Mark:
    """A request's id, and the hash of its body."""

    __slots__ = ("_content", "_ids", "id")

    def __init__(self, ids: RequestIds, own: str, content: int) -> None:
        self._ids = ids
        self.id: str = own
        self._content = content

    def is_anothers_header(self, value: str | None) -> bool:
        """Whether a reply's header is the id of a request with another body."""
        return value is not None and value != self.id and self._ids.asked_for_other(value, self._content)

    def is_anothers_body(self, chunk: bytes) -> bool:
        """Whether a reply's body begins with the id of a request with another body."""
        told = self._ids.find_in(chunk)
        return told is not None and told != self.id and self._ids.asked_for_other(told, self._content)
