"""Records of tenants, and of their calls by priority class. ``lanes`` keeps and chooses them."""

from __future__ import annotations

from typing import Any

__all__ = ["Account", "Lane"]


class Account:
    """Tokens served to a tenant (``None``: calls naming none), whose share is ``weight``."""

    __slots__ = ("counter", "tenant", "weight")

    def __init__(self, tenant: str | None, weight: float = 1.0) -> None:
        self.tenant: str | None = tenant
        self.weight: float = weight
        self.counter: float = 0.0

    def __repr__(self) -> str:
        return f"<Account: {self.counter:g} weighted tokens>"


class Lane:
    """A tenant's calls of a priority class, which go before those of lower classes."""

    __slots__ = (
        "account",
        "completion_tokens",
        "groups",
        "in_flight",
        "max_queued",
        "priority",
        "prompt_tokens",
        "size",
        "sweep_at",
    )

    def __init__(self, priority: int, account: Account, max_queued: int = 0) -> None:
        self.priority: int = priority
        self.account: Account = account
        self.max_queued: int = max_queued
        self.size: int = 0
        """Calls that wait."""
        self.groups: list[tuple[float, int, int, Any]] = []
        """The queue's own, a heap: (rank, number of submission, ticket, group)."""
        self.sweep_at: int = 0
        """The queue's own: how long the heap may become before it is swept."""
        self.in_flight: int = 0
        """Sequences in flight."""
        self.prompt_tokens: int = 0
        self.completion_tokens: int = 0
        """Tokens of answered calls, as the server counted them."""

    def __repr__(self) -> str:
        return f"<Lane of class {self.priority}: {self.size} queued, {self.in_flight} in flight>"

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
