"""Records of tenants, and of their calls by priority class. ``lanes`` keeps and chooses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Account", "Lane"]


@dataclass(slots=True, eq=False)
class Account:
    """Weighted tokens served to a tenant (``None``: calls naming none), whose share is ``weight``."""

    tenant: str | None = field(repr=False)
    weight: float = 1.0
    counter: float = 0.0


@dataclass(slots=True, eq=False)
class Lane:
    """A tenant's calls of a priority class, which go before those of lower classes."""

    priority: int
    account: Account
    max_queued: int = 0
    size: int = 0
    """Calls that wait."""
    groups: list[tuple[float, int, int, Any]] = field(default_factory=list, repr=False)
    """The queue's own, a heap: (rank, number of submission, ticket, group)."""
    sweep_at: int = 0
    """The queue's own: how long the heap may become before it is swept."""
    in_flight: int = 0
    """Sequences in flight."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Tokens of answered calls, as the server counted them."""

    @property
    def queued(self) -> int:
        """Calls that have a place: ``max_queued`` at most."""
        return min(self.size, self.max_queued)

    @property
    def waiting(self) -> int:
        """Calls beyond ``max_queued``."""
        return self.size - self.queued

    @property
    def is_idle(self) -> bool:
        """Whether the lane has no call anywhere."""
        return not (self.size or self.in_flight)
