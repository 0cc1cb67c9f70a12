"""Which choice belongs to which prompt: by ``index``, and only if every index comes exactly once.

Servers number the choices of a list prompt by prompt: choice ``k`` of prompt ``p`` has
``index = p * n + k`` (vLLM 0.32, ``entrypoints/openai/completion/serving.py``). The order of
arrival says nothing: TGI answers in the order of completion. A reply with a missing, doubled or
unknown index is never handed out.
"""

from __future__ import annotations

from batchclient.errors import DemuxError

__all__ = ["Demux", "OnlyOne"]


class OnlyOne(DemuxError):
    """One of several choices came: the server ignores ``n``."""


class Demux:
    """Ticks off the choices of a reply: ``n`` for each of ``prompts`` prompts."""

    __slots__ = ("_left", "_n", "_open", "_seen", "_size")

    def __init__(self, prompts: int, n: int) -> None:
        self._n = n
        self._size = prompts * n
        self._seen = bytearray(self._size)
        self._left = [n] * prompts
        self._open = prompts

    @property
    def complete(self) -> bool:
        """Whether every choice has finished."""
        return self._open == 0

    def check(self, index: object) -> int:
        """Return the index if a choice with it may still come.

        Raises:
            DemuxError: the request has no such index, or the choice has finished already.
        """
        # bool is an int, and True would be taken for choice 1.
        if type(index) is not int or not 0 <= index < self._size:
            # Only a number is shown: anything else may be text of the prompt.
            shown = str(index)[:20] if type(index) is int else f"of type {type(index).__name__}"
            raise DemuxError(f"the server sent a choice with index {shown} for {self._size} choices")
        if self._seen[index]:
            raise DemuxError(f"the server sent choice {index} twice")
        return index

    def finish(self, index: int) -> bool:
        """Tick off a checked index; return whether all choices of its prompt have finished."""
        self._seen[index] = 1
        position = index // self._n
        self._left[position] -= 1
        if self._left[position]:
            return False
        self._open -= 1
        return True

    def missing(self) -> DemuxError:
        """Return the error of a reply without all choices."""
        came = sum(self._seen)
        error = OnlyOne if came == 1 else DemuxError
        return error(f"{self._size - came} of {self._size} choices are missing from the reply")
