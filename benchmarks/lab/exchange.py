"""One batch between a client and the laboratory's server: its state there, and its replies."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.core import Batch, Failure

from batchclient.types import Completion

__all__ = ["Exchange", "Reply"]


@dataclass(slots=True, eq=False)
class Reply:
    """The part of one response that the client reads at one moment; ``ended``: the last part."""

    at: float
    batch: Batch
    answers: list[tuple[int, Completion]]
    ended: bool
    failure: Failure | None = None


@dataclass(slots=True, eq=False)
class Exchange:
    """One batch in the server's hands. ``heard_at``: when the last byte that is an event left, if one has."""

    batch: Batch
    left: int = field(init=False)
    unfinished: list[int] = field(init=False)
    tokens: list[int] = field(init=False)
    first_s: list[float | None] = field(init=False)
    plain: list[tuple[int, Completion]] | None = field(init=False)
    sequences: list[int] = field(default_factory=list)
    gone: bool = False
    heard_at: float | None = None

    def __post_init__(self) -> None:
        size = self.left = len(self.batch.requests)
        self.unfinished, self.tokens = [self.batch.shape.weight] * size, [0] * size
        self.first_s = [None] * size
        self.plain = None if self.batch.streamed else []
