"""Rows that are refused alike: kept out of the output, and the end of the job where none succeeds.

Rules:
- The fault is then in the command, such as a wrong key or a parameter unknown to the server, and
  nothing is written: the first rows are held back while each is refused.
- One row that succeeds, or that a server or the network fails in another way, releases them. A row
  that makes no request says nothing about the command.
- A file of few rows may end first. Refusals of the key and of the model are the command's fault
  also then; other refusals may be the rows' own, and are written.
"""

from __future__ import annotations

from collections.abc import Collection

from batchclient.errors import AuthenticationFailed, BadRequest, ConfigError, ConnectFailed, NotFound
from batchclient.jobs import BadRow

__all__ = ["MOST_REFUSALS", "UNUSABLE", "Refused"]

MOST_REFUSALS = 256
"""After so many rows refused alike, and none successful, no later row would do better."""
_MOST_HELD = 10_000
_UNUSABLE = (BadRow, ConfigError)
UNUSABLE = frozenset(each.__name__ for each in _UNUSABLE)
"""The errors of rows that make no request."""
_HELD = (AuthenticationFailed, NotFound, BadRequest, *_UNUSABLE)
_OF_THE_COMMAND = {AuthenticationFailed.__name__, NotFound.__name__}
"""These errors tell of the key and the model."""
_OF_EVERY_ROW = (AuthenticationFailed, NotFound, ConnectFailed)
"""Errors of these kinds are alike whatever their words are, other refusals by equal words."""


class Refused:
    """The rows at the beginning of a job that are refused alike.

    Args:
        most: the job gives up after so many rows refused alike.
        keep_going: never give up, and hold nothing back.
        may_hold: whether no row has succeeded in an earlier run.

    Attributes:
        most: the argument.
        kind: the error's class behind giving up, if so.
        is_command: whether nothing was written, since the fault is in the command.
    """

    def __init__(self, most: int, *, keep_going: bool, may_hold: bool) -> None:
        self.most: int = most
        self.kind: str = ""
        self.is_command: bool = False
        self._keep_going = keep_going
        self._may_hold = may_hold and not keep_going
        self._held: list[bytes] = []
        self._alike: tuple[str, ...] = ()
        self._count = 0

    def __repr__(self) -> str:
        return f"<Refused: {self._count} alike, {len(self._held)} held>"

    @property
    def is_holding(self) -> bool:
        """Whether rows are held back."""
        return bool(self._held)

    def lines_for(self, line: bytes, error: Exception | None) -> list[bytes]:
        """Take a row in; return the lines to be written now."""
        if not self._may_hold:
            return [line]
        self._held.append(line)
        is_held = isinstance(error, _HELD) and len(self._held) < _MOST_HELD
        return [] if is_held else self._release()

    def is_one_too_many(self, error: Exception | None) -> bool:
        """Whether a row's error is one refusal too many; asked for each row that is written."""
        alike: tuple[str, ...]
        if self._keep_going:
            return False
        if isinstance(error, _OF_EVERY_ROW):
            alike = (type(error).__name__,)
        elif isinstance(error, BadRequest):
            alike = (type(error).__name__, str(error))
        else:
            return False
        self._count = self._count + 1 if alike == self._alike else 1
        self._alike = alike
        return self._count >= self.most

    def give_up(self) -> None:
        """End the job."""
        self.kind = self._alike[0]

    def go_on(self) -> list[bytes]:
        """Do not give up in this job: rows have succeeded. Return the lines to be written."""
        self._keep_going = True
        return self._release()

    def end(self, kinds: Collection[str]) -> list[bytes]:
        """Decide about the rows held back; return the lines to be written.

        Args:
            kinds: the classes of all errors of the job.
        """
        refusals = set(kinds) - UNUSABLE
        if self._held and (self.kind or (refusals and refusals <= _OF_THE_COMMAND)):
            self.is_command = True
            self._held = []
        return self._release()

    def _release(self) -> list[bytes]:
        held, self._held = self._held, []
        self._may_hold = False
        return held
