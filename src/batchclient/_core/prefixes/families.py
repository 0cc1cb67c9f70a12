"""Prefix families: calls whose prompts begin alike, so that a server computes the common part once.

A server keeps the KV of prefixes it has seen, until the room is needed. If more prefixes are under
way than fit, each is computed again and again; if calls of a prefix come next to each other, each
is computed once.

Rules:
- A prompt's *rungs* are the checksums of its first 256, 512, 1,024, … 16,384 bytes. A shorter
  prompt has none and pays nothing. A call's family is its longest rung shared with some other call.
  So families nest, and a header common to all calls hides none of the families under it.
- A queued call moves into a deeper family when the family's second member appears (see
  ``prefix_tree``).

A checksum equal by accident (1 in 2^32 per pair) costs a cache miss and nothing else.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict

from batchclient._core.messages import Request

__all__ = ["Families", "length_of", "path_of"]

SHORTEST_PREFIX = 256
"""Bytes on the wire, about 64 tokens of a text or of token ids: shorter prefixes save next to
nothing (vLLM's blocks are 16 tokens)."""
_STEPS = tuple((256 << i >> 1 if i else 0, 256 << i) for i in range(7))
"""The bytes each rung adds: 0 to 256, 256 to 512, … 8,192 to 16,384. Lengths double, so the longest
shared rung covers at least half of a shared prefix."""
_REMEMBERED = 16_384


def path_of(request: Request) -> list[int]:
    """The request's rungs, never 0. Like a server's cache, they depend on model and prompt alone."""
    size, view = len(request.prompt), memoryview(request.prompt)
    sums: list[int] = []
    checksum = zlib.crc32(request.shape.model.encode())
    for start, end in _STEPS:
        if size < end:
            break
        checksum = zlib.crc32(view[start:end], checksum)
        # With the length included, rungs of two lengths are never equal.
        sums.append(checksum << 15 | end)
    return sums


class Families:
    """The rungs seen lately; the least recently seen are forgotten."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, None] = OrderedDict()

    def join(self, request: Request) -> list[int]:
        """Set the family and the stem of a request with a long prompt; return its rungs."""
        seen = self._seen
        path = path_of(request)
        request.stem = path[-1]
        for rung in path:
            if rung in seen:
                request.family = rung
                seen.move_to_end(rung)
            else:
                seen[rung] = None
        while len(seen) > _REMEMBERED:
            seen.popitem(last=False)
        return path


def length_of(family: int) -> int:
    """Bytes of the prefix by which a family is known."""
    return family & 0x7FFF
