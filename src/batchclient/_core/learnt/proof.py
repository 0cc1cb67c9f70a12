"""A stranger's lists are proved before they are used: one list of eight goes beside singles.

A *stranger* is a server that is not known to serve a list's prompts at once. One that serves them
one after another takes eight times as long for that list as for a single.

Rules:
- The list goes once as many like singles are under way, or can be sent with it: they are beside it.
  For a second no more than sixteen are: most calls may soon share lists.
- Lists are proved if three quarters of the list's answers come within one and a half times the
  median single. (A few long answers may end a streamed list late.) If all come at its end, each
  caller waits for the longest answer: then the list may take 1.2 times the median single.
- Otherwise calls go singly from then on. The list itself is ended after three times the median
  single: nobody waits eight times as long for it, and few lose what a list of unlike answers has
  done. A list that fails proves nothing, and the next one is another proof.
- The verdict holds for an hour, until a restart, or until the server says to be another.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping

from batchclient._core.requests import Batch, Shape

__all__ = ["Proof", "like_singles"]

_SLOWER, _SLOWER_WHOLE = 1.5, 1.2
_ENDED = 3.0
_ALONE_S = 1.0


def like_singles(under_way: Mapping[int, Batch], shape: Shape, until: float = math.inf) -> int:
    """Count the batches under way, sent by a time, that hold one call of a shape or of its like."""
    return sum(
        len(one.requests) == 1 and one.shape.answer_key == shape.answer_key and one.sent_at <= until
        for one in under_way.values()
    )


class Proof:
    """One list, and how long the singles beside it take; ``under_way`` are the server's batches."""

    __slots__ = ("_took", "_under_way", "alone_until", "batch", "is_judged")

    def __init__(self, batch: Batch, under_way: Mapping[int, Batch]) -> None:
        self.batch = batch
        self.alone_until = batch.sent_at + _ALONE_S
        """Until when few singles go beside the list."""
        self.is_judged = False
        """Whether the verdict was given, though the list is still under way."""
        self._under_way = under_way
        self._took: list[float] = []

    def answered(self, batch: Batch, now: float) -> None:
        """Note an answered batch, perhaps a single beside the list."""
        if like_singles({batch.id: batch}, self.batch.shape, self.batch.sent_at):
            insort(self._took, now - batch.sent_at)

    @property
    def due_at(self) -> float:
        """When the list has taken too long, and then when it is ended; infinite without a median single."""
        return self._after(_ENDED if self.is_judged else _SLOWER)

    def _after(self, times: float) -> float:
        took, sent_at = self._took, self.batch.sent_at
        middle = (len(took) + like_singles(self._under_way, self.batch.shape, sent_at)) // 2
        return sent_at + times * took[middle] if middle < len(took) else math.inf

    def verdict(self, now: float) -> bool | None:
        """Whether the list is served at once; ``None``: that is not known yet."""
        if 4 * self.batch.unanswered <= len(self.batch.requests):
            # Faster, too, than half of the singles, if their median is not known yet.
            return now <= self._after(_SLOWER if self.batch.unanswered else _SLOWER_WHOLE)
        return False if now >= self.due_at else None
