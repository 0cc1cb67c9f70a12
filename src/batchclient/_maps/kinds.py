"""The rows that a map has handed out, counted by what has become of them: for reports on a job."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

from batchclient.errors import BadRequest, ConfigError
from batchclient.health import is_cut_off
from batchclient.types import Completion, MapResult

__all__ = ["UNUSABLE", "Kind", "Kinds", "is_unpaid", "kind_of", "message_of"]

UNUSABLE = frozenset({"BadRow", "ConfigError", "MissingField"})
"""The errors of rows that make no request: they say nothing about the servers."""
_MOST_KINDS = 256
"""Errors told apart, at most: memory stays flat where each error has words of its own."""
_COMPARED = 80
"""Letters of a message that tell errors apart; further on, servers quote the request."""
_OWN = re.compile(r"[\w-]*\d[\w-]*")
"""A number, or a word with digits: of a row or a request, such as its length or its id."""


class Kind(NamedTuple):
    """What errors have in common that differ in numbers and names of requests alone."""

    type: str
    words: str


def kind_of(error: Exception | None, message: str) -> Kind:
    """Return the kind of an error."""
    return Kind(type(error).__name__, _OWN.sub("0", message[: 4 * _COMPARED])[:_COMPARED])


class Kinds:
    """Counts of rows.

    Attributes:
        rows: handed out, but for those that ``max_cost`` did not pay for: they are left out.
        failed: of them, those with an error.
        errors: failed rows by kind.
        types: failed rows by the name of the error's class.
        may_be_tried: failed rows that may succeed later.
        not_sent: rows that failed for good without a request.
        answers: rows whose answer has a health, the good ones included.
        bad: of them, those that are not ``ok``, by health.
        examples: of each kind and health the first row: its place, and why it failed.
        refusal: why a row failed that has waited in vain for a key or a model by which others of
            its model had answers, with its place; empty: none has.
        longest: output tokens of the longest answer that was cut off. Several answers of a list may
            share an estimate.
        is_mendable: whether such an answer can go on: it is one alone.
    """

    def __init__(self) -> None:
        self.rows: int = 0
        self.failed: int = 0
        self.may_be_tried: int = 0
        self.not_sent: int = 0
        self.answers: int = 0
        self.longest: int = 0
        self.errors: Counter[Kind] = Counter()
        self.types: Counter[str] = Counter()
        self.bad: Counter[str] = Counter()
        self.examples: dict[Kind | str, tuple[str, str]] = {}
        self.refusal: str = ""
        self.is_mendable: bool = False

    def __repr__(self) -> str:
        return f"<Kinds of {self.rows} rows, {self.failed} failed>"

    def add(self, result: MapResult[Any]) -> None:
        """Count a row."""
        if is_unpaid(result):
            return
        self.rows += 1
        if result.error is not None:
            self._add_error(result, result.error)
        health = result.health
        if health is None:
            return
        self.answers += 1
        if health == "ok":
            return
        self.bad[health] += 1
        self.examples.setdefault(health, (_place_of(result), ""))
        answer = result.answer if result.error is None else getattr(result.error, "completion", None)
        if isinstance(answer, Completion) and is_cut_off(answer):
            self.longest = max(self.longest, (answer.output_tokens or 0) // max(1, len(answer.choices)))
            self.is_mendable |= len(answer.choices) == 1

    def _add_error(self, result: MapResult[Any], error: Exception) -> None:
        # Only here, since pydantic comes with it.
        from batchclient.journal.rows import is_final

        place, told = _place_of(result), message_of(result)
        message = told.removeprefix(place).lstrip(": ")
        kind = kind_of(error, message)
        may_be_tried = not (kind.type == "BadRow" or is_final(error))
        self.failed += 1
        self.types[kind.type] += 1
        self.may_be_tried += may_be_tried
        self.not_sent += not may_be_tried and kind.type in UNUSABLE
        if isinstance(error, BadRequest) and error.retryable:
            self.refusal = self.refusal or told
        if kind not in self.examples and len(self.errors) >= _MOST_KINDS:
            kind = Kind(kind.type, "")
        self.errors[kind] += 1
        self.examples.setdefault(kind, (place, message))


def is_unpaid(result: MapResult[Any]) -> bool:
    """Whether a row was not sent since ``max_cost`` of its map is spent."""
    return isinstance(result.error, ConfigError) and result.error.field == "max_cost"


def message_of(result: MapResult[Any]) -> str:
    """Return why a row failed. The library counts documents; a reader of a file counts lines."""
    return str(result.error).replace(f"document {result.index}: ", f"{_place_of(result)}: ", 1)


def _place_of(result: MapResult[Any]) -> str:
    return getattr(result.document, "where", None) or f"document {result.index}"
