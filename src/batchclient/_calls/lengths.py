"""The length of prompts that the servers take.

Source: ``/models`` and similar pages, alone. A length that is told in a refusal is about the
refused call: vLLM 0.15 tells what the call's ``max_tokens`` left, and behind one address may stand
servers of unlike lengths.

Rules:
- A call is refused here only if no server could take its prompt: the longest length counts, and
  only where every server in use has told a length.
- A length is forgotten after five minutes, like all that was learnt: a server may have been started
  anew with another length. Calls that are too long then go out, and the server refuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchclient.dialects._fingerprints import ServerFacts


__all__ = ["ModelLengths"]

_FORGET_AFTER_S = 300.0


class ModelLengths:
    """The lengths of one client's servers."""

    __slots__ = ("_facts", "endpoints")

    def __init__(self) -> None:
        self.endpoints: set[int] = {0}
        """The ids of the servers in use."""
        self._facts: dict[int, tuple[ServerFacts, float]] = {}

    def restart(self, endpoints: int) -> None:
        """A runner starts: ids begin anew."""
        self.endpoints = set(range(endpoints))
        self._facts.clear()

    def know(self, endpoint: int, facts: ServerFacts, now: float) -> None:
        """Detection found which server an endpoint is."""
        self._facts[endpoint] = facts, now

    def longest(self, model: str, now: float) -> int | None:
        """Return the longest prompt and answer together that a server in use takes.

        ``None``: some server may take any length.
        """
        longest = 0
        for endpoint in self.endpoints:
            facts, said_at = self._facts.get(endpoint, (None, 0.0))
            tokens = facts.length_of(model) if facts is not None else None
            if tokens is None or now >= said_at + _FORGET_AFTER_S:
                return None
            longest = max(longest, tokens)
        return longest or None
