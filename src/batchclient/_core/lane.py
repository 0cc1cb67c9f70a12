"""Records of tenants, and of their calls by priority class. ``lanes`` keeps and chooses them."""

from __future__ import annotations

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
    """A tenant's calls of a priority class; higher classes go earlier."""

    __slots__ = (
        "account",
        "completion_tokens",
        "in_flight",
        "priority",
        "prompt_tokens",
        "size",
        "waiting",
    )

    def __init__(self, priority: int, account: Account) -> None:
        self.priority: int = priority
        self.account: Account = account
        self.size: int = 0
        """Calls queued."""
        self.waiting: int = 0
        """Calls waiting for a place in the queue."""
        self.in_flight: int = 0
        """Sequences in flight."""
        self.prompt_tokens: int = 0
        self.completion_tokens: int = 0
        """Tokens of answered calls, as the server counted them."""

    def __repr__(self) -> str:
        return f"<Lane of class {self.priority}: {self.size} queued, {self.in_flight} in flight>"

    @property
    def is_idle(self) -> bool:
        """Whether the lane has no call anywhere."""
        return not (self.size or self.waiting or self.in_flight)
