"""How long prompts may be, as the servers say: in ``/models`` and its like, and in their complaints about prompts that are too long.

Rules:
- A call is refused here only if no server could take it: the longest counts, and it counts only where all that serve have said theirs.
- What was said is forgotten after five minutes, like all that was learnt: a server may have been started anew with another length. The next
  call that is too long then goes out, and the server's complaint says how it is now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchclient.dialects._fingerprints import ServerFacts


__all__ = ["ModelLengths"]

_FORGET_AFTER_S = 300.0
_MOST_LEARNT = 1024


class ModelLengths:
    """Of one client's servers."""

    __slots__ = ("_facts", "_learnt", "endpoints")

    def __init__(self) -> None:
        self.endpoints: set[int] = {0}
        """The ids of those that serve."""
        self._facts: dict[int, tuple[ServerFacts, float]] = {}
        self._learnt: dict[tuple[int, str], tuple[int, float]] = {}

    def restart(self, endpoints: int) -> None:
        """A runner starts: ids begin anew."""
        self.endpoints = set(range(endpoints))
        self._facts.clear()
        self._learnt.clear()

    def know(self, endpoint: int, facts: ServerFacts, now: float) -> None:
        """It was found out which server an endpoint is."""
        self._facts[endpoint] = facts, now
        for place in [place for place in self._learnt if place[0] == endpoint]:
            del self._learnt[place]

    def learn(self, endpoint: int, model: str, tokens: int, now: float) -> None:
        """A server has complained about a prompt and named its length."""
        if len(self._learnt) >= _MOST_LEARNT:
            self._learnt.clear()
        self._learnt[endpoint, model] = tokens, now

    def longest(self, model: str, now: float) -> int | None:
        """The longest that any of those that serve takes, prompt and answer together; ``None``: one may take any."""
        longest = 0
        for endpoint in self.endpoints:
            tokens, said_at = self._learnt.get((endpoint, model), (None, 0.0))
            if tokens is None and endpoint in self._facts:
                facts, said_at = self._facts[endpoint]
                tokens = facts.length_of(model)
            if tokens is None or now >= said_at + _FORGET_AFTER_S:
                return None
            longest = max(longest, tokens)
        return longest or None
