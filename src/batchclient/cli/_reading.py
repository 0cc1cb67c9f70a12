"""A reading of all rows before a job: they are counted and measured, and some are drawn at random.

Rules:
- Memory does not grow with the rows, but for 7 to 13 bytes a row that find the duplicates, and a
  count for each size that a prompt has.
- The same rows of the same input are drawn in each run.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from batchclient._calls.inputs import check_ids, write_messages, write_text
from batchclient._maps.occurrences import Occurrences
from batchclient._maps.row_calls import RowCall
from batchclient.errors import ConfigError
from batchclient.jobs import BadRow, Row

__all__ = ["Reading"]

_SHOWN = 5
"""Unusable rows that are shown, at most."""
_LONGEST_COUNTED_BYTES = 4 * 1024 * 1024
"""Longer prompts are not sent to be counted: no model takes them."""


class _Prompt(NamedTuple):
    """A prompt's bytes, its row's number, the row, and the text, which is left out if it is too long."""

    size: int
    number: int
    row: Row
    text: str


class Reading:
    """The rows of an input.

    Args:
        rows: of the input.
        call_of: from a row to its call.
        random_rows, longest_rows: usable rows to keep, at most: drawn at random, and those of the
            longest prompts.

    Attributes:
        rows: all of them, counted.
        unusable: rows without a prompt.
        faults: why the first ones are unusable, with their lines.
        duplicates: rows with the prompt of an earlier row.
        first, call: the first usable row's prompt, and its call.
        sizes: how many prompts have how many bytes.
        drawn: prompts at random.
        longest: a heap of the longest prompts.

    Raises:
        OSError: the input cannot be read any further.
    """

    def __init__(
        self, rows: Iterable[Row], call_of: Callable[[Row], RowCall], *, random_rows: int, longest_rows: int = 0
    ) -> None:
        self.rows = self.unusable = self.duplicates = 0
        self.faults: list[str] = []
        self.first: Any = None
        self.call: str = "complete"
        self.sizes: Counter[int] = Counter()
        self.drawn: list[_Prompt] = []
        self.longest: list[_Prompt] = []
        self._call_of = call_of
        self._most = random_rows, longest_rows
        self._seen = Occurrences()
        self._rng = random.Random(0)  # noqa: S311  # the same rows in each run
        for row in rows:
            self._add(row)

    def __repr__(self) -> str:
        return f"<Reading: {self.rows} rows, {self.unusable} unusable>"

    @property
    def usable(self) -> int:
        """Rows that make a request."""
        return self.rows - self.unusable

    def _add(self, row: Row) -> None:
        self.rows += 1
        try:
            made = self._call_of(row)
            wire, text = _written(made)
        except (BadRow, ConfigError) as error:
            self.unusable += 1
            if len(self.faults) < _SHOWN:
                self.faults.append(str(error) if isinstance(error, BadRow) else f"{row.where}: {error.message}")
            return
        if self.first is None:
            self.first, self.call = made.item, made.call
            if len(made.item) == 1 and made.call == "chat" and made.item[0].keys() == {"role", "content"}:
                self.first = made.item[0]["content"]
        self.duplicates += self._seen.number(hash(wire)) > 0
        size = len(text.encode())
        self.sizes[size] += 1
        prompt = _Prompt(size, self.rows, row, text if size <= _LONGEST_COUNTED_BYTES else "")
        random_rows, longest_rows = self._most
        if len(self.drawn) < random_rows:
            self.drawn.append(prompt)
        elif (place := self._rng.randrange(self.usable)) < random_rows:
            self.drawn[place] = prompt
        heapq.heappush(self.longest, prompt)
        if len(self.longest) > longest_rows:
            heapq.heappop(self.longest)


def _written(made: RowCall) -> tuple[bytes, str]:
    """Return what is sent of a row's input, and its text.

    Raises:
        ConfigError: it cannot be sent.
    """
    item = made.item
    if made.call == "chat":
        return write_messages(item)[0], "\n".join(_texts(item))
    if made.call in ("score", "rerank"):
        query, documents, _ = item
        item = "\n".join([query, *([documents] if isinstance(documents, str) else documents)])
    if not isinstance(item, str):
        item = " ".join(map(str, check_ids(item)))
    return write_text(item, "prompt"), item


def _texts(messages: list[Any]) -> list[str]:
    """Return the texts of a conversation, without images and the like."""
    texts: list[str] = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        texts += [part["text"] if isinstance(part, dict) else part for part in parts if _has_text(part)]
    return texts


def _has_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str))
