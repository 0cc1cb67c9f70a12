"""A pause that grows each time that it was in vain, up to a longest one."""

from __future__ import annotations

__all__ = ["Pause"]


class Pause:
    """For example 0.1 s, then 0.2 s, 0.4 s, and so on up to 2 s.

    Args:
        first_s, longest_s: the first and the longest pause.
        factor: how much longer the next one is.
    """

    __slots__ = ("_factor", "_first_s", "_longest_s", "s")

    def __init__(self, first_s: float, longest_s: float, factor: float = 2.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._factor = factor
        self.s = first_s
        """The next pause."""

    def __repr__(self) -> str:
        return f"<Pause {self.s:g} s>"

    def take(self) -> float:
        """Return the pause, and make the next one longer."""
        taken = self.s
        self.s = min(self._longest_s, self._factor * taken)
        return taken

    def forget(self) -> None:
        """Begin with the first one again."""
        self.s = self._first_s
