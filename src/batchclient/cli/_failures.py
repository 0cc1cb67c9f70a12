"""The rows that failed, in a few words: how many, and why, with an example."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from batchclient.cli._rows import message_of
from batchclient.types import MapResult

__all__ = ["UNUSABLE", "Failures", "kind_of"]

UNUSABLE = frozenset({"BadRow", "ConfigError"})
"""The errors of rows that make no request: they say nothing about the command."""

_MOST_FREQUENT = 5
_MOST_KINDS = 256
"""Errors told apart, at most: memory stays flat where each error has words of its own."""
_COMPARED = 80
"""Letters of a message that tell errors apart; further on, servers quote the request."""
_LONGEST = 200
_OWN = re.compile(r"[\w-]*\d[\w-]*")
"""A number, or a word with digits: of a row or a request, such as its length or its id."""


def kind_of(error: Exception | None, message: str) -> tuple[str, str]:
    """Return what errors have in common that differ in numbers and names of requests alone."""
    return type(error).__name__, _OWN.sub("0", message[: 4 * _COMPARED])[:_COMPARED]


class Failures:
    """Counts failed rows by error. Errors that differ in numbers alone are one error.

    Attributes:
        by_type: the number of rows by the name of the error's class.
    """

    def __init__(self) -> None:
        self.by_type: Counter[str] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], tuple[int, str]] = {}

    def __repr__(self) -> str:
        return f"<Failures: {self.total}>"

    @property
    def total(self) -> int:
        """Rows that failed."""
        return self.by_type.total()

    def add(self, result: MapResult[Any]) -> None:
        """Count a failed row."""
        where = result.document.where
        message = message_of(result).removeprefix(where).lstrip(": ")
        alike = kind_of(result.error, message)
        self.by_type[alike[0]] += 1
        if alike not in self._examples and len(self._examples) >= _MOST_KINDS:
            alike = (alike[0], "")
        self._counts[alike] += 1
        self._examples.setdefault(alike, (where, message))

    def lines(self) -> list[str]:
        """Return a line for each of the most frequent errors, with an example."""
        lines = []
        most = self._counts.most_common(_MOST_FREQUENT)
        for alike, count in most:
            where, message = self._examples[alike]
            shown = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
            kind = "unusable" if alike[0] in UNUSABLE else alike[0]
            lines.append(f"  {count:,} {kind}, such as {where}: {' '.join(shown.split())}")
        others = self.total - sum(count for _, count in most)
        if others:
            lines.append(f"  {others:,} of other kinds")
        return lines
