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

    __slots__ = ("bodies", "count", "prefix")

    def __init__(self) -> None:
        self.prefix: bytes = b"bc-%b-" % secrets.token_hex(6).encode()
        self.count: int = 0
        self.bodies: list[int] = [0] * _REMEMBERED
        """The hashes of the last requests' bodies."""

    def mark(self, body: bytes) -> Mark:
        """Give an id to a request before it is sent."""
        number = self.count
        self.count = number + 1
        self.bodies[number % _REMEMBERED] = hash(body)
        return Mark(self, number)


class Mark:
    """A request's id."""

    __slots__ = ("_body", "_ids", "id")

    def __init__(self, ids: RequestIds, number: int) -> None:
        self._ids = ids
        self._body = ids.bodies[number % _REMEMBERED]
        self.id: bytes = b"%b%0*x" % (ids.prefix, _DIGITS, number)

    def is_anothers(self, told: bytes) -> bool:
        """Whether a reply's header, or the beginning of its body, has the id of a request of the
        transport with another body.
        """
        ids = self._ids
        at = told.find(ids.prefix)
        if at < 0:
            return False
        begin = at + len(ids.prefix)
        try:
            number = int(told[begin : begin + _DIGITS], 16)
        except ValueError:
            return False
        return 0 < ids.count - number <= _REMEMBERED and ids.bodies[number % _REMEMBERED] != self._body
