"""The length of prompts that the servers take.

Sources: ``/models`` and similar pages, and the servers' complaints about prompts that are too long.

Rules:
- A call is refused here only if no server could take its prompt: the longest length counts, and
  only where every server in use has told a length.
- A length is forgotten after five minutes, like all that was learnt: a server may have been started
  anew with another length. The next call that is too long then goes out, and the server's complaint
  tells the present length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchclient.dialects._fingerprints import ServerFacts


__all__ = ["ModelLengths"]

_FORGET_AFTER_S = 300.0
_MOST_LEARNT = 1024


class ModelLengths:
    """The lengths of one client's servers."""

    __slots__ = ("_facts", "_learnt", "endpoints")

    def __init__(self) -> None:
        self.endpoints: set[int] = {0}
        """The ids of the servers in use."""
        self._facts: dict[int, tuple[ServerFacts, float]] = {}
        self._learnt: dict[tuple[int, str], tuple[int, float]] = {}

    def restart(self, endpoints: int) -> None:
        """A runner starts: ids begin anew."""
        self.endpoints = set(range(endpoints))
        self._facts.clear()
        self._learnt.clear()

    def know(self, endpoint: int, facts: ServerFacts, now: float) -> None:
        """Detection found which server an endpoint is."""
        self._facts[endpoint] = facts, now
        for place in [place for place in self._learnt if place[0] == endpoint]:
            del self._learnt[place]

    def learn(self, endpoint: int, model: str, tokens: int, now: float) -> None:
        """A server complained about a prompt and named the model's length."""
        if len(self._learnt) >= _MOST_LEARNT:
            self._learnt.clear()
        self._learnt[endpoint, model] = tokens, now

    def longest(self, model: str, now: float) -> int | None:
        """Return the longest prompt and answer together that a server in use takes.

        ``None``: some server may take any length.
        """
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
