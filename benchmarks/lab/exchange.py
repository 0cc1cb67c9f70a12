"""One batch between a client and the laboratory's server: its state there, and its replies."""

from __future__ import annotations

from batchclient._core.messages import Batch, Failure
from batchclient.types import Completion

__all__ = ["Exchange", "Reply"]


class Reply:
    """The part of one response that the client reads at one moment."""

    __slots__ = ("answers", "at", "batch", "ended", "failure")

    def __init__(
        self,
        at: float,
        batch: Batch,
        answers: list[tuple[int, Completion]],
        ended: bool,  # noqa: FBT001
        failure: Failure | None = None,
    ) -> None:
        self.at = at
        self.batch = batch
        self.answers = answers
        self.ended = ended
        self.failure = failure
        """Whether it is the last of the first tokens."""


class Exchange:
    """One batch in the server's hands."""

    __slots__ = (
        "batch",
        "first_s",
        "gone",
        "heard_at",
        "left",
        "plain",
        "sequences",
        "tokens",
        "unfinished",
    )

    def __init__(self, batch: Batch) -> None:
        size = len(batch.requests)
        self.batch = batch
        self.left = size
        self.unfinished = [batch.shape.weight] * size
        self.tokens = [0] * size
        self.first_s: list[float | None] = [None] * size
        self.plain: list[tuple[int, Completion]] | None = None if batch.streamed else []
        self.sequences: list[int] = []
        self.gone = False
        self.heard_at: float | None = None
        """When the last byte that is an event left; ``None``: none has."""
