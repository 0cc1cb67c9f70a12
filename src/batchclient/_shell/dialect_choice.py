"""The choice of an endpoint's dialect: the given one, else that of the server found out.

Runner and client share the choice, which knows neither: a runner with a reference to its client
would keep the client alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchclient._core.kinds import Kind
from batchclient.dialects import make_dialect

if TYPE_CHECKING:
    from batchclient.dialects._dialect import Dialect
    from batchclient.dialects._fingerprints import ServerFacts

__all__ = ["DialectChoice"]


class DialectChoice:
    """The choice of a client.

    Args:
        name: the given dialect; ``None``: to be found out.
        secrets: keys to cut out of servers' messages; more may be added.
        key_hint: added to the error of a server that asks for a key.

    Raises:
        ConfigError: no dialect has the name.
    """

    __slots__ = ("at_first", "given", "key_hint", "secrets")

    def __init__(self, name: str | None, secrets: tuple[str, ...], key_hint: str = "") -> None:
        self.given: str | None = name
        self.key_hint: str = key_hint
        self.secrets: tuple[str, ...] = secrets
        self.at_first: Dialect = self.make()
        """The dialect assumed for every server until the server is known."""

    def make(self) -> Dialect:
        """Return a fresh dialect for an unknown endpoint."""
        return make_dialect(self.given, self.secrets)

    def of(self, facts: ServerFacts) -> tuple[Dialect, Mapping[Kind, int]]:
        """Return a fresh dialect for a server, and its caps; stated caps come before usual ones."""
        # An unknown server may be a gateway in front of any other. The assumed dialect learns by
        # refusals, and so can do no less than a dialect that asks for nothing.
        dialect = make_dialect(self.given or facts.known, self.secrets)
        caps = dict(dialect.caps)
        for kind, cap in facts.caps.items():
            # A 1 is no number of the server's: such lists are absent, or cannot be told apart.
            if caps.get(kind) != 1:
                caps[kind] = cap
        return dialect, caps
