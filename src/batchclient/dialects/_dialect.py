"""The slots of every dialect and of its replies' decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, RateWindow, Shape
from batchclient.transport import WireRequest
from batchclient.types import Completion

__all__ = ["Decoder", "Dialect", "OwnFields"]

OwnFields = Callable[[Mapping[str, Any]], frozenset[str]]
"""From a completion's fields, without nulls, to the fields whose values may differ between the
prompts of a list. If there are none, the call shares lists only with calls of equal fields.
"""


class Decoder(Protocol):
    """Turns one reply into answers, piece by piece."""

    events: int
    """Streamed events with choices so far: two per choice, or one per token on servers without
    ``stream_interval``.
    """

    cut: bool
    """Whether a stream ends here, though the server goes on: its answer has run into a loop."""

    @property
    def failed(self) -> bool:
        """Whether the reply has failed, whatever still comes: ``end`` says why."""
        ...

    @property
    def complete(self) -> bool:
        """Whether a stream has brought every answer or has ended itself; a usage may follow."""
        ...

    def feed(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        """Take in bytes; return the (position, answer) pairs that are now complete."""
        ...

    def end(self, now: float) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """End the reply; return the last answers, and why the unanswered requests have none."""
        ...

    def lost_tokens(self) -> int:
        """Return how many tokens came of answers that were not handed out, after a failure."""
        ...


class Dialect(Protocol):
    """One sort of server."""

    name: str
    length_reach: int | None
    """How many length buckets a batch may span; ``None``: any (continuous batching)."""
    own_fields: OwnFields | None
    """Which fields may differ between the prompts of a list; ``None``: none, whatever the call."""

    @property
    def caps(self) -> Mapping[Kind, int]:
        """Prompts per request taken by default; a kind of call that is missing has no known cap."""
        ...

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Cut further keys out of the server's messages: a server added later has its own key."""
        ...

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request, or say why the server cannot be asked."""
        ...

    def decoder(self, batch: Batch, content_type: str = "") -> Decoder:
        """Return a fresh decoder for the batch's reply, which may have an unexpected type."""
        ...

    def events_per_choice(self, shape: Shape) -> int:
        """Return the most events of a streamed choice, if the server heeds ``stream_interval``."""
        ...

    def failure(self, batch: Batch, status: int, headers: Mapping[str, str], body: bytes, wall_time: float) -> Failure:
        """Return an error reply's meaning. ``wall_time``: Unix time, for ``Retry-After`` dates."""
        ...

    def rate_limits(self, headers: Mapping[str, str]) -> tuple[RateWindow, ...]:
        """Return the rest of a gateway's rate limits by the reply's headers; usually nothing."""
        ...
