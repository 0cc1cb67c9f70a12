"""``batchclient map --dry-run``: all rows are read and rendered, and none is answered.

Rules:
- The server gets the questions by which the client finds out its model and its kind, and at most
  256 texts to tokenize. Nothing is generated, and no output is opened.
- The longest prompts are counted one by one, since they are the ones that may not fit. The others
  are estimated from a random part, by their bytes.
- Memory does not grow with the rows, but for 7 to 13 bytes a row that find the duplicates.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from batchclient import Price
from batchclient._calls.inputs import BYTES_PER_TOKEN, write_messages, write_text
from batchclient._maps.occurrences import Occurrences
from batchclient.cli._cost import written_cost
from batchclient.cli._refusal import in_options
from batchclient.cli._words import printable
from batchclient.client import BatchClient
from batchclient.errors import BatchClientError, ConfigError
from batchclient.jobs import BadRow, Row
from batchclient.jobs.source import Source

__all__ = ["DryRun"]

_SHOWN = 5
"""Unusable rows that are shown, at most."""
_RANDOM, _LONGEST = 192, 64
"""Prompts that are tokenized, at most: drawn at random, and the longest."""
_LONGEST_COUNTED_BYTES = 4 * 1024 * 1024
"""Longer prompts are not sent to be counted: no model takes them."""
_LONGEST_SHOWN = 4000
"""Characters of the first prompt that are shown."""
_COUNTS_NOTHING = "has no tokens calls"
"""The client's words about a server without a page that counts tokens."""
_STEPS = 50
"""Lengths are kept to one part in so many."""
_ASKING_S = 15.0
"""The server may take so long to count a prompt, or to be reached."""


class DryRun:
    """The rows of an input, as a job would send them.

    Args:
        client: not started yet.
        source: open.
        prompt_of: from a row to its prompt.
        call: made for each row.
        max_tokens: to generate per row, if given.
        price: of tokens, if given.

    Attributes:
        rows: read.
        unusable: rows without a prompt.
        faults: why the first ones are unusable, with their lines.
        duplicates: rows with the prompt of an earlier row.
        failed: whether the server was away, or refused the key or the model.
    """

    def __init__(
        self,
        client: BatchClient,
        source: Source,
        prompt_of: Callable[[Row], Any],
        *,
        call: str,
        max_tokens: int | None = None,
        price: Price | None = None,
    ) -> None:
        self._client = client
        self._source = source
        self._prompt_of = prompt_of
        self._is_chat = call == "chat"
        self._generates = call in ("chat", "complete")
        self._max_tokens = max_tokens
        self._price = price
        self._rng = random.Random(0)  # noqa: S311  # the same rows in each run
        self._first: Any = None
        self._lengths: Counter[int] = Counter()
        self._bytes = 0
        self._drawn: list[tuple[int, str]] = []
        """Prompts at random: bytes and text."""
        self._longest: list[tuple[int, int, int, str]] = []
        """A heap of the longest prompts: bytes, a number, line and text."""
        self._counted: list[int] = []
        """Tokens of the prompts at random, as far as they were counted."""
        self._counted_longest: list[tuple[int, int]] = []
        """Tokens and line of the longest prompts, as far as they were counted."""
        self._why_not = ""
        """Why the server counted nothing."""
        self._takes: int | None = None
        """Tokens that the model takes, prompt and answer together."""
        self.rows = 0
        self.unusable = 0
        self.faults: list[str] = []
        self.duplicates = 0
        self.failed = False

    def __repr__(self) -> str:
        return f"<DryRun: {self.rows} rows>"

    @property
    def _usable(self) -> int:
        return self.rows - self.unusable

    async def run(self) -> None:
        """Read all rows, then ask the server.

        Raises:
            OSError: the input cannot be read any further.
            ConfigError: no model was given, and the server has several.
        """
        seen = Occurrences()
        for row in self._source.read():
            self._add(row, seen)
        if self._usable:
            async with self._client:
                await self._ask()

    def _add(self, row: Row, seen: Occurrences) -> None:
        self.rows += 1
        try:
            prompt = self._prompt_of(row)
            wire, whole = _written(prompt, chat=self._is_chat)
        except (BadRow, ConfigError) as error:
            self.unusable += 1
            if len(self.faults) < _SHOWN:
                self.faults.append(str(error) if isinstance(error, BadRow) else f"line {row.line}: {error.message}")
            return
        if self._first is None:
            self._first = prompt
        self.duplicates += seen.number(_fingerprint_of(wire)) > 0
        text = "\n".join(_texts(whole)) if self._is_chat else whole
        size = len(text.encode())
        self._bytes += size
        self._lengths[int(math.log1p(size) * _STEPS)] += 1
        if size > _LONGEST_COUNTED_BYTES:
            text = ""
        place = len(self._drawn) if len(self._drawn) < _RANDOM else self._rng.randrange(self._usable)
        if place == len(self._drawn):
            self._drawn.append((size, text))
        elif place < _RANDOM:
            self._drawn[place] = size, text
        if len(self._longest) < _LONGEST:
            heapq.heappush(self._longest, (size, self.rows, row.line, text))
        elif size > self._longest[0][0]:
            heapq.heapreplace(self._longest, (size, self.rows, row.line, text))

    # The server ------------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        client, texts = self._client, [text for _, text in self._drawn if text]
        longest = [(line, text) for *_, line, text in self._longest if text and self._usable > _RANDOM]
        runner = client._start()
        lists_models = True
        for _, number in client._endpoints:
            facts = await runner._questions.find_out(number)
            lists_models = lists_models and facts is not None and facts.dialect is not None
        try:
            # One first: a server that counts nothing is asked once.
            counted = [await self._count(text) for text in texts[:1]]
            counted += await asyncio.gather(*map(self._count, texts[1:]))
            of_longest = await asyncio.gather(*[self._count(text) for _, text in longest])
        except ConfigError:
            raise
        except BatchClientError as error:
            self._why_not = in_options(f"{type(error).__name__}: {error.message:.200}")
            # Under a wrong address there is no such page either, and no list of models.
            self.failed = not (_COUNTS_NOTHING in error.message and lists_models)
        else:
            self._counted = counted
            self._counted_longest = [(tokens, line) for tokens, (line, _) in zip(of_longest, longest, strict=True)]
        model = client._settings.model or client._calls.some_model
        self._takes = client._calls._longest(model, runner.backend.now())

    async def _count(self, text: str) -> int:
        return len(await self._client.tokenize(text, timeout_s=_ASKING_S))

    # The report ------------------------------------------------------------------------------------------------------

    def report(self) -> str:
        """Return the lines for a person."""
        lines = [f"rows: {self.rows:,}", f"unusable: {self.unusable:,}"]
        lines += [f"  {fault}" for fault in self.faults]
        if self.unusable > len(self.faults):
            lines.append(f"  … and {self.unusable - len(self.faults):,} more")
        lines.append(f"duplicates: {self.duplicates:,} (rows with the prompt of an earlier row)")
        if self._usable:
            lines += self._of_tokens()
            shown = (
                self._first if isinstance(self._first, str) else json.dumps(self._first, ensure_ascii=False, indent=1)
            )
            more = f"… ({len(shown):,} characters in all)" if len(shown) > _LONGEST_SHOWN else ""
            lines += ["first prompt:", *(f"  {line}" for line in f"{shown[:_LONGEST_SHOWN]}{more}".split("\n"))]
        return "\n".join(map(printable, lines))

    def _of_tokens(self) -> list[str]:
        per_byte = self._per_byte()
        median, p99, most = (self._quantile(share) for share in (0.5, 0.99, 1.0))
        median, p99, most = (math.ceil(size * per_byte) for size in (median, p99, most))
        counted = len(self._counted) + len(self._counted_longest)
        if counted and self._usable == len(self._counted):
            tokens = sorted(self._counted)
            median, p99, most = (tokens[math.ceil(share * len(tokens)) - 1] for share in (0.5, 0.99, 1.0))
            method = "counted by the server"
        elif counted:
            most = max([*self._counted, *(tokens for tokens, _ in self._counted_longest)])
            method = f"the server counted {counted} prompts, the longest among them; the others by their bytes"
        else:
            method = f"estimated, {BYTES_PER_TOKEN} bytes a token; the server counted none: {self._why_not}"
        if self._is_chat:
            method += "; without the chat template's own"
        tokens_of_all = math.ceil(self._bytes * per_byte)
        lines = [
            f"tokens of a prompt: median {median:,}, p99 {p99:,}, max {most:,} ({method})",
            f"tokens of all prompts: about {tokens_of_all:,}",
            *self._of_cost(tokens_of_all),
        ]
        if self._takes is None:
            return [*lines, "longer than the model takes: unknown, the server does not say how long its prompts may be"]
        return [*lines, self._too_long(self._takes, per_byte)]

    def _of_cost(self, tokens_of_all: int) -> list[str]:
        price = self._price
        if price is None or price.per_million_in is None:
            # A price of hours says nothing before the job has run.
            return []
        lines = [f"cost of all prompts: about {written_cost(price.cost(prompt_tokens=tokens_of_all))}"]
        if self._generates and self._max_tokens is None:
            lines.append("cost of all answers: unknown without --max-tokens")
        elif self._generates:
            most = price.cost(completion_tokens=self._usable * (self._max_tokens or 0))
            lines.append(f"cost of all answers: at most {written_cost(most)}")
        return lines

    def _too_long(self, takes: int, per_byte: float) -> str:
        answer = (self._max_tokens or 1) if self._generates else 0
        room = takes - answer
        line = max(self._longest)[2]
        if self._usable == len(self._counted):
            count, about = sum(tokens > room for tokens in self._counted), ""
        else:
            of_longest = sum(tokens > room for tokens, _ in self._counted_longest)
            count, about = of_longest, ""
            if of_longest == len(self._counted_longest):
                count = sum(rows for step, rows in self._lengths.items() if _size(step) * per_byte > room)
                count, about = max(count, of_longest), "about "
        answers = f" with {answer:,} for the answer" if answer else ""
        where = f"; the longest is in line {line:,}" if count else ""
        return f"longer than the model takes: {about}{count:,} ({takes:,} tokens{answers}{where})"

    def _per_byte(self) -> float:
        size = sum(size for size, text in self._drawn if text)
        return sum(self._counted) / size if self._counted and size else 1 / BYTES_PER_TOKEN

    def _quantile(self, share: float) -> float:
        """Return the bytes of the prompt at a share of the sorted rows."""
        left = math.ceil(share * self._usable)
        for step in sorted(self._lengths):
            left -= self._lengths[step]
            if left <= 0:
                return _size(step)
        return 0.0


def _size(step: int) -> float:
    return math.expm1((step + 0.5) / _STEPS)


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


def _written(prompt: Any, *, chat: bool) -> tuple[bytes, Any]:
    """Return a prompt as bytes of JSON, and in full: for a chat as a conversation.

    Raises:
        ConfigError: the prompt cannot be sent.
    """
    if not chat:
        return write_text(prompt, "prompt"), prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    wire, _ = write_messages(messages)
    return wire, messages


def _fingerprint_of(wire: bytes) -> int:
    """Return 64 bits for a prompt.

    Among a hundred million prompts two have the same bits by chance in one job of 3,700.
    """
    return int.from_bytes(hashlib.sha256(wire).digest()[:8], "big")
