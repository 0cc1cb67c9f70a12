"""``--dedupe``: rows with equal prompts are asked once, and each gets the answer.

Rules:
- The input is read twice: first to learn which prompts come several times. So an answer is kept
  only while a later row needs it, and only where there is one.
- Rows come in input order: the answer for a row's equal is there before the row is written.
- An error is the answer of all equal rows, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from batchclient._calls.inputs import write_messages, write_text
from batchclient._maps.occurrences import Occurrences
from batchclient.errors import ConfigError
from batchclient.jobs import BadRow, Row
from batchclient.types import MapResult

__all__ = ["Repeats", "fingerprint_of", "is_repeated", "written"]


def written(prompt: Any, *, chat: bool) -> tuple[bytes, Any]:
    """Return a prompt as bytes of JSON, and in full: for a chat as a conversation.

    Raises:
        ConfigError: the prompt cannot be sent.
    """
    if not chat:
        return write_text(prompt, "prompt"), prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    wire, _ = write_messages(messages)
    return wire, messages


def fingerprint_of(wire: bytes) -> int:
    """Return 64 bits for a prompt.

    Among a hundred million prompts two have the same bits by chance in one job of 3,700.
    """
    return int.from_bytes(hashlib.sha256(wire).digest()[:8], "big")


class _Repeated(Exception):
    """The error of a row that is not asked, since an equal row is."""

    def __init__(self, key: int) -> None:
        super().__init__("an equal row is asked")
        self.key = key


def is_repeated(error: Exception | None) -> bool:
    """Whether a row was not asked, since an equal row is."""
    return isinstance(error, _Repeated)


class Repeats:
    """Answers of rows for later rows with equal prompts.

    Args:
        rows: all of them, read once before the job.
        prompt_of: from a row to its prompt.
        chat: whether prompts are conversations.

    Attributes:
        count: rows that were not asked.
    """

    def __init__(self, rows: Iterable[Row], prompt_of: Callable[[Row], Any], *, chat: bool) -> None:
        self._prompt_of = prompt_of
        self._chat = chat
        self._left: dict[int, int] = {}
        """By prompt: the later rows that have it and were not read yet, where any has."""
        self._asked: set[int] = set()
        """The prompts of ``_left`` that were read once."""
        self._open: dict[int, int] = {}
        """By the identity of a row that is asked: its prompt, which later rows have, too."""
        self._answers: dict[int, MapResult] = {}
        self._given: dict[int, int] = {}
        """By prompt: the rows that got the answer of an equal one."""
        self.count = 0
        seen = Occurrences()
        for row in rows:
            key = self._key(row)
            if key is not None and (number := seen.number(key)):
                self._left[key] = number
        self._counts = dict(self._left)

    def __repr__(self) -> str:
        return f"<Repeats: {len(self._left)} prompts come again>"

    @property
    def kept(self) -> int:
        """Answers that are kept now, for later rows."""
        return len(self._answers)

    def _key(self, row: Row) -> int | None:
        try:
            return fingerprint_of(written(self._prompt_of(row), chat=self._chat)[0])
        except (BadRow, ConfigError):
            return None

    def prompt_of(self, row: Row) -> Any:
        """Return a row's prompt, unless an equal row is asked already."""
        prompt = self._prompt_of(row)
        key = fingerprint_of(written(prompt, chat=self._chat)[0])
        if key in self._asked:
            self._left[key] -= 1
            if not self._left[key]:
                # A file that has grown since it was counted has further rows, which are asked anew.
                del self._left[key]
                self._asked.discard(key)
            raise _Repeated(key)
        if key in self._left:
            self._asked.add(key)
            self._open[id(row)] = key
        return prompt

    def resolve(self, result: MapResult) -> MapResult | None:
        """Return a result with its own answer or its equal's; ``None`` if neither is there.

        Results come in input order.
        """
        if not isinstance(result.error, _Repeated):
            key = self._open.pop(id(result.document), None)
            if key is not None:
                self._answers[key] = result
            return result
        key = result.error.key
        first = self._answers.get(key)
        if first is None:
            return None
        self.count += 1
        number = self._given[key] = self._given.get(key, 0) + 1
        if number == self._counts[key]:
            del self._answers[key]
        name = result.id
        if result.document.get("id") in (None, "") and first.document.get("id") in (None, ""):
            name = f"{first.id.rpartition('-')[0]}-{number}"
        # The place is the first row's, since an error may name it.
        return replace(result, id=name, index=first.index, answer=first.answer, error=first.error, reused=first.reused)
