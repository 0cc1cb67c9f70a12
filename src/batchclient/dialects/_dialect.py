"""What every dialect has: the slots of ``Dialect``, and those of the decoder of its replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, RateWindow, Shape
from batchclient.transport import WireRequest
from batchclient.types import Completion

__all__ = ["Decoder", "Dialect", "OwnFields"]

OwnFields = Callable[[Mapping[str, Any]], frozenset[str]]
"""From a completion's fields, without nulls, to those that each prompt of a list may have its own values of; none: it shares lists
with its like only."""


class Decoder(Protocol):
    """Turns one reply into answers, piece by piece."""

    events: int
    """Streamed events with choices so far: two per choice, or one per token on servers that ignore ``stream_interval``."""
    begun: bool
    """Whether every prompt of a stream has had its first event."""

    @property
    def failed(self) -> bool:
        """Whether what is still to come can change nothing: ``end`` will say why."""
        ...

    @property
    def complete(self) -> bool:
        """Whether a stream has brought all that was asked for, or has said that it is over; its end may still bring a usage."""
        ...

    def feed(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        """Take in some bytes; return the (position, answer) pairs they completed."""
        ...

    def end(self, now: float) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """The reply is over: return the last answers, and why the unanswered requests have none."""
        ...


class Dialect(Protocol):
    """One sort of server."""

    name: str
    is_known_server: bool
    """Whether it is the language of one sort of server, which is not only taken for granted: its lists are known to be served at once."""
    length_reach: int | None
    """How many length buckets a batch may span; ``None``: any (the server batches continuously)."""
    own_fields: OwnFields | None
    """Which fields a list's prompts may each have their own values of; ``None``: none, whatever the call."""

    @property
    def caps(self) -> Mapping[Kind, int]:
        """Prompts per request that the server takes by default, by kind of call; a kind that is missing has no known cap."""
        ...

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Cut these out of the server's messages, too: a server that joined later has a key of its own."""
        ...

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request; or say why this server cannot be asked so."""
        ...

    def decoder(self, batch: Batch, content_type: str = "") -> Decoder:
        """Return a fresh decoder for the batch's reply, which may not be of the type that was asked for."""
        ...

    def events_per_choice(self, shape: Shape) -> int:
        """How many events a streamed choice sends at most, where the server heeds how they are asked for."""
        ...

    def failure(self, batch: Batch, status: int, headers: Mapping[str, str], body: bytes, wall_time: float) -> Failure:
        """Say what an error reply means. ``wall_time`` is Unix time, for ``Retry-After`` dates."""
        ...

    def rate_limits(self, headers: Mapping[str, str]) -> tuple[RateWindow, ...]:
        """Return what the reply's headers say is left of a gateway's rate limits; usually nothing."""
        ...
