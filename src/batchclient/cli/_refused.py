"""Rows that are refused alike: the end of the job where none succeeds.

The fault is then in the command, such as a wrong key or a parameter unknown to the server, and
``OUT`` stays as it was. A row that makes no request says nothing about the command. A file of few
rows may end first: refusals of the key and of the model are the command's fault also then.
"""

from __future__ import annotations

from collections.abc import Collection

from batchclient.cli._failures import kind_of
from batchclient.errors import AuthenticationFailed, BadRequest, ConfigError, ConnectFailed, NotFound
from batchclient.jobs import BadRow

__all__ = ["MOST_REFUSALS", "UNUSABLE", "Refused"]

MOST_REFUSALS = 256
"""After so many rows refused alike, and none successful, no later row would do better."""
UNUSABLE = frozenset({BadRow.__name__, ConfigError.__name__})
"""The errors of rows that make no request."""
_OF_THE_COMMAND = {AuthenticationFailed.__name__, NotFound.__name__}
"""These errors tell of the key and the model."""
_OF_EVERY_ROW = (AuthenticationFailed, NotFound, ConnectFailed)
"""Errors of these kinds are alike whatever their words are, other refusals by their words."""


class Refused:
    """Counts the rows at the beginning of a job that are refused alike.

    Args:
        most: the job gives up after so many rows.
        keep_going: never give up.

    Attributes:
        most: the argument.
        keep_going: the argument; true from the first row on that has succeeded.
        kind: the error's class behind giving up, if so.
        is_command: whether key or model were refused for all rows of the job.
    """

    def __init__(self, most: int, *, keep_going: bool) -> None:
        self.most: int = most
        self.keep_going: bool = keep_going
        self.kind: str = ""
        self.is_command: bool = False
        self._alike = ("", "")
        self._count = 0

    def __repr__(self) -> str:
        return f"<Refused: {self._count} alike>"

    def is_one_too_many(self, error: Exception | None) -> bool:
        """Whether a row's error is one refusal too many; asked for each row that was sent."""
        if self.keep_going or not isinstance(error, (*_OF_EVERY_ROW, BadRequest)):
            return False
        alike = kind_of(error, "" if isinstance(error, _OF_EVERY_ROW) else str(error))
        self._count = self._count + 1 if alike == self._alike else 1
        self._alike = alike
        return self._count >= self.most

    def give_up(self) -> None:
        """End the job."""
        self.kind = self._alike[0]

    def end(self, kinds: Collection[str], *, has_answers: bool) -> None:
        """Decide about a job of few rows.

        Args:
            kinds: the classes of all errors of the job.
            has_answers: whether any row has succeeded.
        """
        refusals = set(kinds) - UNUSABLE
        self.is_command = bool(refusals) and refusals <= _OF_THE_COMMAND and not (has_answers or self.keep_going)
