"""Prefix families: calls whose prompts begin alike, so that a server computes the common part once.

A server keeps the KV of prefixes it has seen, until the room is needed. If more prefixes are under
way than fit, each is computed again and again; if calls of a prefix come next to each other, each
is computed once.

Rules:
- A prompt's *rungs* are the checksums of its first 256, 512, 1,024, … 16,384 bytes. A shorter
  prompt has none and pays nothing. A call's family is its longest rung shared with some other call.
  So families nest, and a header common to all calls hides none of the families under it.
- A queued call moves into a deeper family when the family's second member appears.
- ``PrefixTree`` holds queued calls by rungs. The next call is one which shares most with the last.
  After a family's end the rest of the next wider family follows, and so on, and then the oldest
  call and its family. The run through a family goes on across batches.
- A run through an oldest call's families ends ``longest_run_s`` after its start, if older calls
  wait.

A checksum equal by accident (1 in 2^32 per pair) costs a cache miss and nothing else.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable

from batchclient._core.messages import Request

__all__ = ["Families", "PrefixTree", "length_of", "path_of", "rungs"]

SHORTEST_PREFIX = 256
"""Bytes on the wire, about 64 tokens of a text or of token ids: shorter prefixes save next to
nothing (vLLM's blocks are 16 tokens)."""
_STEPS = tuple((256 << i >> 1 if i else 0, 256 << i) for i in range(7))
"""The bytes each rung adds: 0 to 256, 256 to 512, … 8,192 to 16,384. Lengths double, so the longest
shared rung covers at least half of a shared prefix."""
_REMEMBERED = 16_384


def rungs(prompt: bytes, seed: int = 0) -> list[int]:
    """Checksums of the prompt's first 256, 512, … bytes, as far as it goes; never 0."""
    size = len(prompt)
    view = memoryview(prompt)
    sums: list[int] = []
    checksum = seed
    for start, end in _STEPS:
        if size < end:
            break
        checksum = zlib.crc32(view[start:end], checksum)
        # With the length included, rungs of two lengths are never equal.
        sums.append(checksum << 15 | end)
    return sums


def path_of(request: Request) -> list[int]:
    """The request's rungs. Like a server's cache, they depend on model and prompt alone."""
    return rungs(request.prompt, zlib.crc32(request.shape.model.encode()))


class Families:
    """The rungs seen lately; the least recently seen are forgotten."""

    __slots__ = ("_seen",)

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


class _Node:
    """The queued calls with a rung: calls without a longer rung, and others by the next rung."""

    __slots__ = ("children", "founder", "held", "requests", "rung")

    def __init__(self, rung: int, founder: Request | None) -> None:
        self.rung = rung
        self.held = 0
        """Requests here and below, dead requests too."""
        self.founder = founder
        """The first request to come, until a second comes."""
        self.requests: deque[Request] | None = None
        self.children: dict[int, _Node] = {}


class PrefixTree:
    """A group's queued calls by their rungs; a run lasts ``longest_run_s`` if older calls wait."""

    __slots__ = ("_path", "_root", "_run_ends_at", "longest_run_s")

    def __init__(self, longest_run_s: float) -> None:
        self.longest_run_s = longest_run_s
        self._root = _Node(0, None)
        self._path: list[int] = []
        """The rungs of the call taken last."""
        self._run_ends_at = 0.0

    @property
    def held(self) -> int:
        """Requests in the tree, dead requests too."""
        return self._root.held

    def add(self, request: Request, path: Iterable[int]) -> None:
        """Put a request behind the requests with the same rungs."""
        node = self._root
        node.held += 1
        for rung in path:
            child = node.children.get(rung)
            if child is None:
                node.children[rung] = child = _Node(rung, request)
            elif child.founder is not None:
                if child.founder.group is request.group:
                    # The path goes from short to long, so the longest shared rung is set last.
                    child.founder.family = max(child.founder.family, rung, key=length_of)
                child.founder = None
            child.held += 1
            node = child
        if node.requests is None:
            node.requests = deque()
        node.requests.append(request)

    def next(self, oldest: Request, now: float) -> Request:
        """Remove and return the next request; ``oldest`` is the live request which came first."""
        trail = self._trail() if now < self._run_ends_at else [self._root]
        while True:
            if len(trail) == 1:
                self._run_ends_at = now + self.longest_run_s
                self._path = path_of(oldest)
                trail = self._trail()
            request = self._first(trail)
            if request.group is oldest.group:
                self._path = [node.rung for node in trail[1:]]
                self._leave(trail)
                return request
            self._leave(trail)

    def sweep(self, live: Iterable[Request]) -> None:
        """Forget dead requests."""
        self._root = _Node(0, None)
        for request in live:
            self.add(request, path_of(request))

    def _trail(self) -> list[_Node]:
        """The nodes on the path of the last call, as far as calls with its rungs are left."""
        trail = [self._root]
        for rung in self._path:
            child = trail[-1].children.get(rung)
            if child is None:
                break
            trail.append(child)
        return trail

    @staticmethod
    def _first(trail: list[_Node]) -> Request:
        """Go down from the trail's end to the first request; a node's own precede longer rungs."""
        node = trail[-1]
        while not node.requests:
            node = next(iter(node.children.values()))
            trail.append(node)
        return node.requests.popleft()

    @staticmethod
    def _leave(trail: list[_Node]) -> None:
        """A request was removed at the trail's end: drop nodes without requests."""
        for node in trail:
            node.held -= 1
        while len(trail) > 1 and not trail[-1].held:
            node = trail.pop()
            del trail[-1].children[node.rung]


def length_of(family: int) -> int:
    """Bytes of the prefix by which a family is known."""
    return family & 0x7FFF
