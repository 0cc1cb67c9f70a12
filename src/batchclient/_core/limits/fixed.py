"""A number that a person has set: it holds until the server refuses, and comes back (``Bounds``)."""

from __future__ import annotations

from batchclient._core.limits.base import Limit

__all__ = ["FixedLimit"]


class FixedLimit(Limit):
    """A number.

    Args:
        limit: the number, at least 1.
    """

    __slots__ = ()

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("a limit is at least 1")
        super().__init__(limit, "fixed")
