"""A journal of a map from file to file: what the map does for such a job, beyond any other map.

Rules:
- The output covers the first rows of the input. The next run names those rows, compares them with
  those that the output has, and neither looks them up nor hands them out.
- A row that makes no request has a record, too: its identity is its content.
- Facts about the output are written by the journal's thread, in turn with the rows' commits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from batchclient.journal.journal import Journal

__all__ = ["CoverChanged", "Coverage", "FileJournal", "NotKept"]


class CoverChanged(Exception):
    """The first rows of the input are not those that the output has."""


class NotKept(Exception):
    """The journal has no answer of a row that was to be taken from there."""


@dataclass(slots=True)
class Coverage:
    """The rows at the beginning of an input, as a number and a hash.

    Args:
        rows: their number.
        digest: each row's hash is over the hash before, the row's identity and its content.
    """

    rows: int = 0
    digest: bytes = b""

    def add(self, key: bytes, document: Any) -> None:
        """Take in the next row."""
        # All fields count, also those outside the prompt: the output has them.
        content = zlib.crc32(repr(document).encode("utf-8", "surrogatepass"))
        self.digest = sha256(b"%b%b%d" % (self.digest, key, content)).digest()[:16]
        self.rows += 1


class FileJournal:
    """A journal, and what a job from file to file asks of its map.

    Args:
        journal: where, and how.
        template: the text that makes the prompts. Another text is another job.
        covered: the rows that the output has; none: all rows are handed out.
        identify: returns the identity of a document that makes no request, from the document and
            the reason; ``None``: the row has no record.
        explain: returns the words for such a document's record. They hold no text of the document.
        only_kept: send nothing: a row that is not in the journal fails with ``NotKept``.

    Attributes:
        coverage: of the rows that were covered or taken, in input order.
    """

    def __init__(
        self,
        journal: Journal,
        template: str,
        *,
        covered: Coverage | None = None,
        identify: Callable[[Any, Exception], bytes | None],
        explain: Callable[[Any, Exception], str],
        only_kept: bool = False,
    ) -> None:
        self.journal: Journal = journal
        self.template: str = template
        self.identify: Callable[[Any, Exception], bytes | None] = identify
        self.explain: Callable[[Any, Exception], str] = explain
        self.only_kept: bool = only_kept
        self.coverage: Coverage = Coverage()
        self._covered = covered or Coverage()
        self._note: Callable[[str, str], None] | None = None

    def __repr__(self) -> str:
        return f"<FileJournal {self.journal.path}: {self.coverage.rows} rows>"

    @property
    def skips(self) -> bool:
        """Whether the next document is one that the output has."""
        return self.coverage.rows < self._covered.rows

    def skip(self, key: bytes, document: Any) -> None:
        """Take in a document that the output has.

        Raises:
            CoverChanged: this was the last one, and one of them is another.
        """
        self.coverage.add(key, document)
        if not self.skips and self.coverage.digest != self._covered.digest:
            raise CoverChanged

    def bind(self, note: Callable[[str, str], None]) -> None:
        """Take the map's way to the journal's thread."""
        self._note = note

    def note(self, name: str, value: str) -> None:
        """Write a fact down, after the rows committed so far. Does nothing once the map has ended."""
        if self._note is not None:
            self._note(name, value)
