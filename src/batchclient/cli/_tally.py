"""The rows of a run, counted: ``reused + answered + failed = read``."""

from __future__ import annotations

from typing import Any

from batchclient.cli._failures import Failures
from batchclient.journal.of_file import NotKept
from batchclient.types import MapResult

__all__ = ["Tally"]


class Tally:
    """Counts the rows that are handed to the output.

    Attributes:
        failures: the rows that failed, those of the journal included.
        succeeded: the others.
        missing: rows of a journal to be published that the journal does not have.
        covered: rows that the output had from the beginning.
        covered_failed: the failed ones among them.
    """

    def __init__(self) -> None:
        self.failures: Failures = Failures()
        self.succeeded: int = 0
        self.missing: int = 0
        self.covered: int = 0
        self.covered_failed: int = 0
        self._reused = 0
        self._failed_again = 0

    def __repr__(self) -> str:
        return f"<Tally: {self.read} read, {self.failures.total} failed>"

    def add(self, result: MapResult[Any]) -> bool:
        """Count a row; return whether there is one to be written."""
        if isinstance(result.error, NotKept):
            self.missing += 1
            return False
        if result.reused:
            self._reused += 1
            self._failed_again += result.error is not None
        if result.error is None:
            self.succeeded += 1
        else:
            self.failures.add(result)
        return True

    @property
    def read(self) -> int:
        """Rows of the input that are done with."""
        return self.succeeded + self.failures.total + self.covered

    @property
    def reused(self) -> int:
        """Rows that the journal or the output had, failed ones included."""
        return self._reused + self.covered

    @property
    def answered(self) -> int:
        """Rows that were sent and have an answer."""
        return self.succeeded - (self._reused - self._failed_again)

    @property
    def failed(self) -> int:
        """Rows that failed in this run."""
        return self.failures.total - self._failed_again

    @property
    def failed_in_output(self) -> int:
        """Rows that failed, in this run or before."""
        return self.failures.total + self.covered_failed
