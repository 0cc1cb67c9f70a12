"""Queued calls with long prompts by their prefixes: which of them goes next.

Rules:
- Calls of warm families go first (see ``conversations``): the last come first, whose family is
  likely still in the server's cache.
- Else the next call is one which shares most with the last. After a family's end the rest of the
  next wider family follows, and so on, and then the oldest call and its family. The run through a
  family goes on across batches.
- A run through an oldest call's families ends ``longest_run_s`` after its start, if older calls
  wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from batchclient._core.messages import Request
from batchclient._core.prefixes.conversations import Conversations
from batchclient._core.prefixes.families import length_of, path_of
from batchclient._core.waiting.groups import Group, Index

__all__ = ["PrefixTree"]


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


class PrefixTree(Index):
    """The index of a group whose prompts may share long prefixes."""

    __slots__ = ("_conversations", "_path", "_root", "_run_ends_at", "_warm")
    is_of_families = True

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self._root = _Node(0, None)
        self._warm: list[Request] = []
        """Calls whose families were warm on arrival; all are in the tree, too."""
        self._path: list[int] = []
        """The rungs of the call taken last."""
        self._run_ends_at = 0.0

    def __len__(self) -> int:
        return max(self._root.held, len(self._warm))

    def clear(self) -> None:
        self._root = _Node(0, None)
        self._warm.clear()

    def add(self, request: Request, path: Sequence[int] | None = None) -> None:
        node = self._root
        node.held += 1
        for rung in path_of(request) if path is None else path:
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
        if request.family and self._conversations.is_warm(request.family, request.queued_at):
            self._warm.append(request)

    def take(self, group: Group, count: int, reach: int | None, now: float) -> list[Request]:
        taken: list[Request] = []
        while len(taken) < count and (oldest := group.oldest()) is not None:
            request = self._next_warm(group, now) or self._next(oldest, now)
            request.group = None
            taken.append(request)
        return taken

    def _next_warm(self, group: Group, now: float) -> Request | None:
        while self._warm:
            request = self._warm.pop()
            if request.group is group and self._conversations.is_warm(request.family, now):
                return request
        return None

    def _next(self, oldest: Request, now: float) -> Request:
        """Remove and return the next request; ``oldest`` is the group's oldest."""
        trail = self._trail() if now < self._run_ends_at else [self._root]
        while True:
            if len(trail) == 1:
                self._run_ends_at = now + self._conversations.longest_run_s
                self._path = path_of(oldest)
                trail = self._trail()
            request = self._first(trail)
            if request.group is oldest.group:
                self._path = [node.rung for node in trail[1:]]
                self._leave(trail)
                return request
            self._leave(trail)

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
