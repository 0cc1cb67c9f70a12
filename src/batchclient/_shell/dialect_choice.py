"""Which dialect an endpoint is spoken to in: the one that was given, else the one of the server that was found out.

It is the runner's and the client's, and knows neither: a runner that held its client would keep it alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchclient._core.kinds import Kind
from batchclient.dialects import ENGINES, Dialect, make_dialect

if TYPE_CHECKING:
    from batchclient.dialects._fingerprints import ServerFacts

__all__ = ["DialectChoice"]


class DialectChoice:
    """Of one client.

    Args:
        name: the dialect that was given; ``None``: it is found out.
        secrets: keys to cut out of servers' messages; more may be added.
        key_hint: added to the error of a server that asks for a key.

    Raises:
        ConfigError: there is no dialect of that name.
    """

    __slots__ = ("_name", "at_first", "key_hint", "secrets")

    def __init__(self, name: str | None, secrets: tuple[str, ...], key_hint: str = "") -> None:
        self._name = name
        self.key_hint = key_hint
        self.secrets = secrets
        self.at_first = self.make()
        """What is taken for granted of every server until it is known."""

    @property
    def engine(self) -> bool:
        """Whether every server is known to be an engine that batches hundreds of sequences."""
        return self._name in ENGINES

    def make(self) -> Dialect:
        """Return a fresh dialect for an endpoint of which nothing is known yet."""
        return make_dialect(self._name, self.secrets)

    def of(self, facts: ServerFacts) -> tuple[Dialect, Mapping[Kind, int]]:
        """Return a fresh dialect for a server, and the caps that hold there: what it says itself counts more than what is usual."""
        # Of one that is not known nothing can be said: it may be a gateway before any of them. What is taken for granted at first finds
        # out by its refusals what it cannot do, and so can do no less than a dialect that asks for nothing.
        dialect = make_dialect(facts.known, self.secrets) if facts.known is not None else self.make()
        caps = dict(dialect.caps)
        for kind, cap in facts.caps.items():
            # One is no number of the server's: it has no lists of this kind, or none that can be told apart.
            if caps.get(kind) != 1:
                caps[kind] = cap
        return dialect, caps
