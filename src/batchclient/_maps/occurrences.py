"""How often was a fingerprint seen before? For a million documents in 16 to 32 MB.

A dictionary of a million numbers takes some 100 MB, too much for a map which promises flat memory.
Here one array of 64-bit fingerprints has open addressing; counts are kept for repeats only.
"""

from __future__ import annotations

from array import array

__all__ = ["Occurrences"]


class Occurrences:
    """Counts how often each 64-bit fingerprint came. Amortised O(1)."""

    __slots__ = ("_count", "_mask", "_repeats", "_slots")

    def __init__(self) -> None:
        self._mask = 1023
        self._slots = array("Q", bytes(8 * 1024))
        self._count = 0
        self._repeats: dict[int, int] = {}

    def number(self, fingerprint: int) -> int:
        """Return how often a fingerprint came before, and count it. 0 the first time."""
        fingerprint = fingerprint or 1  # 0 marks an empty slot
        if self._place(fingerprint):
            self._count += 1
            if self._count * 2 > self._mask:
                self._grow()
            return 0
        seen = self._repeats.get(fingerprint, 0) + 1
        self._repeats[fingerprint] = seen
        return seen

    def _place(self, fingerprint: int) -> bool:
        slots, mask = self._slots, self._mask
        index = fingerprint & mask
        while held := slots[index]:
            if held == fingerprint:
                return False
            index = (index + 1) & mask
        slots[index] = fingerprint
        return True

    def _grow(self) -> None:
        old = self._slots
        self._mask = self._mask * 2 + 1
        self._slots = array("Q", bytes(8 * (self._mask + 1)))
        for fingerprint in old:
            if fingerprint:
                self._place(fingerprint)
