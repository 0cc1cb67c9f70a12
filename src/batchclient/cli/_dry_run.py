"""``batchclient map --dry-run``: all rows are read and rendered, and none is answered.

Rules:
- The server gets the questions by which the client finds out its model and its kind, and at most
  256 texts to tokenize. Nothing is generated, and no output is opened.
- The longest prompts are counted one by one, since they are the ones that may not fit. The others
  are estimated from a random part, by their bytes.
- Memory does not grow with the rows, but for 7 to 13 bytes a row that find the duplicates, and a
  count for each size that a prompt has.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from batchclient import Price
from batchclient._calls.inputs import BYTES_PER_TOKEN, check_ids, write_messages, write_text
from batchclient._maps.occurrences import Occurrences
from batchclient._maps.row_calls import RowCall, merged
from batchclient.cli._cost import written_cost
from batchclient.cli._progress import written_time
from batchclient.cli._refusal import in_options
from batchclient.cli._words import printable
from batchclient.client import BatchClient
from batchclient.dialects._thinking import room_for
from batchclient.errors import BatchClientError, ConfigError
from batchclient.jobs import BadRow, Row
from batchclient.rows import check_call

__all__ = ["LONGEST", "RANDOM", "DryRun", "Reading", "most_of", "written"]

_SHOWN = 5
"""Unusable rows that are shown, at most."""
RANDOM, LONGEST = 192, 64
"""Prompts that are tokenized, at most: drawn at random, and the longest."""
_LONGEST_COUNTED_BYTES = 4 * 1024 * 1024
"""Longer prompts are not sent to be counted: no model takes them."""
_LONGEST_SHOWN = 4000
"""Characters of the first prompt that are shown."""
_COUNTS_NOTHING = "has no tokens calls"
"""The client's words about a server without a page that counts tokens."""
_ASKING_S = 15.0
"""The server may take so long to count a prompt, or to be reached."""
_GENERATE = ("chat", "complete")
"""Calls whose answers are generated."""


class _Prompt(NamedTuple):
    """A prompt's bytes, a number, its row, and its text, which is left out if it is too long."""

    size: int
    number: int
    row: Row
    text: str

    def __repr__(self) -> str:
        # Tracebacks with values show it.
        return f"<prompt {self.number}>"


class Reading:
    """The rows of an input, read before a job; a pilot's, too.

    Args:
        rows: of the input.
        call_of: from a row to its call.
        random_rows, longest_rows: usable rows to keep, at most: drawn at random, and those of the
            longest prompts.
        params, retries: of the job, the latter in ``Repair``'s words.

    Attributes:
        rows: all of them, counted.
        unusable: rows without a prompt.
        faults: why the first ones are unusable, with their lines.
        duplicates: rows with the prompt of an earlier row.
        answers: tokens of all answers, at most; ``None``: a row has no bound.
        first, call: the first usable row's prompt, and its call.
        sizes: how many prompts have how many bytes.
        bytes: of all prompts together, as they are sent.
        drawn: prompts at random.
        longest: a heap of the longest prompts.

    Raises:
        OSError: the input cannot be read any further.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        call_of: Callable[[Row], RowCall],
        *,
        random_rows: int,
        longest_rows: int = 0,
        params: Mapping[str, Any] | None = None,
        retries: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows = self.unusable = self.duplicates = self.bytes = 0
        self.faults: list[str] = []
        self.answers: int | None = 0
        self.first: Any = None
        self.call: str = "complete"
        self.sizes: Counter[int] = Counter()
        self.drawn: list[_Prompt] = []
        self.longest: list[_Prompt] = []
        self._call_of = call_of
        self._params, self._retries = params or {}, retries or {}
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
            wire, text = written(made)
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
        most = most_of(made.call, merged(self._params, made.params), self._retries)
        self.answers = None if most is None or self.answers is None else self.answers + most
        self.bytes += len(wire)
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


@dataclass(repr=False)
class DryRun:
    """The rows of an input, as a job would send them.

    Args:
        client: not started yet.
        read: all rows, with those that are counted.
        max_tokens: to generate per row, if given.
        price: of tokens, if given.
        kept: rows in the journal, and the bounds of the seconds that one took; 0: unknown.
        failed: whether the server was away, or refused the key or the model.
    """

    client: BatchClient
    read: Reading
    max_tokens: int | None = None
    price: Price | None = None
    kept: tuple[int, float, float] = (0, 0.0, 0.0)
    failed: bool = False
    _counted: list[int] = field(default_factory=list)
    """Tokens of the prompts at random, as far as they were counted."""
    _counted_longest: list[int] = field(default_factory=list)
    _per_byte: float = 1 / BYTES_PER_TOKEN
    _why_not: str = ""
    """Why the server counted nothing."""
    _takes: int | None = None
    """Tokens that the model takes, prompt and answer together."""

    async def run(self) -> None:
        """Ask the server, if there is a row that could be sent.

        Raises:
            ConfigError: no model was given, and the server has several.
        """
        if self.read.usable:
            async with self.client:
                await self._ask()

    async def _ask(self) -> None:
        drawn = [each for each in self.read.drawn if each.text]
        longest = [each for each in self.read.longest if each.text and self.read.usable > RANDOM]
        texts = [each.text for each in drawn + longest]
        trouble: BatchClientError | None = None
        counted: list[int] = []
        try:
            # One first: it waits for a server that is not there yet, and what counts nothing is
            # asked once.
            counted = [await self._count(text) for text in texts[:1]]
        except ConfigError:
            raise
        except BatchClientError as error:
            trouble = error
        servers = await self.client.servers()
        lengths = [each.max_model_len or 0 for each in servers]
        self._takes = max(lengths) if all(lengths) else None
        if trouble is None:
            try:
                counted += await asyncio.gather(*map(self._count, texts[1:]))
            except BatchClientError as error:
                trouble = error
        if trouble is not None:
            self._why_not = in_options(f"{type(trouble).__name__}: {trouble.message:.200}")
            # Under a wrong address there is no such page either, and no list of models.
            self.failed = not (_COUNTS_NOTHING in trouble.message and all(each.models for each in servers))
            return
        self._counted, self._counted_longest = counted[: len(drawn)], counted[len(drawn) :]
        if drawn:
            self._per_byte = sum(self._counted) / sum(each.size for each in drawn)

    async def _count(self, text: str) -> int:
        return len(await self.client.tokenize(text, timeout_s=_ASKING_S))

    # The report ------------------------------------------------------------------------------------------------------

    def report(self) -> str:
        """Return the lines for a person."""
        read = self.read
        lines = [f"rows: {read.rows:,}", f"unusable: {read.unusable:,}"]
        lines += [f"  {fault}" for fault in read.faults]
        if read.unusable > len(read.faults):
            lines.append(f"  … and {read.unusable - len(read.faults):,} more")
        lines.append(f"duplicates: {read.duplicates:,} (rows with the prompt of an earlier row)")
        if read.usable:
            lines += self._of_tokens()
            shown = read.first if isinstance(read.first, str) else json.dumps(read.first, ensure_ascii=False, indent=1)
            more = f"… ({len(shown):,} characters in all)" if len(shown) > _LONGEST_SHOWN else ""
            lines += ["first prompt:", *(f"  {line}" for line in f"{shown[:_LONGEST_SHOWN]}{more}".split("\n"))]
        return "\n".join(map(printable, lines))

    def _of_tokens(self) -> list[str]:
        is_counted = self.read.usable == len(self._counted)
        tokens = Counter(self._counted)
        if not is_counted:
            tokens.clear()
            for size, rows in self.read.sizes.items():
                tokens[math.ceil(size * self._per_byte)] += rows
        median, p99, most = (self._quantile(tokens, share) for share in (0.5, 0.99, 1.0))
        if is_counted:
            method = "counted by the server"
        elif self._counted:
            most = max(self._counted + self._counted_longest)
            median, p99 = min(median, most), min(p99, most)
            count = len(self._counted) + len(self._counted_longest)
            method = f"the server counted {count} prompts, the longest among them; the others by their bytes"
        else:
            method = f"estimated, {BYTES_PER_TOKEN} bytes a token; the server counted none: {self._why_not}"
        if self.read.call == "chat":
            method += "; without the chat template's own"
        of_all = math.ceil(sum(size * rows for size, rows in self.read.sizes.items()) * self._per_byte)
        return [
            f"tokens of a prompt: median {median:,}, p99 {p99:,}, max {most:,} ({method})",
            f"tokens of all prompts: about {of_all:,}",
            *self._of_answers(),
            *self._of_time(),
            *self._of_cost(of_all),
            self._too_long(tokens),
        ]

    def _quantile(self, tokens: Counter[int], share: float) -> int:
        """Return the tokens of the prompt at a share of the sorted rows."""
        places = accumulate(tokens[each] for each in sorted(tokens))
        return next(
            each for each, place in zip(sorted(tokens), places, strict=True) if place >= share * self.read.usable
        )

    def _of_answers(self) -> list[str]:
        return [f"tokens of all answers: at most {self.read.answers:,}"] if self.read.answers else []

    def _of_time(self) -> list[str]:
        rows, low, high = self.kept
        left = max(self.read.usable - rows, 0)
        if not left:
            return []
        if not high:
            return ["time: not known before rows are asked; --pilot 200 asks some of them first"]
        times = " to ".join(dict.fromkeys(written_time(left * each) for each in (low, high)))
        return [f"time of the {left:,} rows that the journal has not: {times}, as it has seen"]

    def _of_cost(self, tokens_of_all: int) -> list[str]:
        price = self.price
        if price is None or price.input is None:
            # A price of hours says nothing before the job has run.
            return []
        lines = [f"cost of all prompts: about {written_cost(price.cost(prompt_tokens=tokens_of_all))}"]
        if self.read.answers is None:
            lines.append("cost of all answers: unknown without --max-tokens")
        elif self.read.answers:
            most = price.cost(completion_tokens=self.read.answers)
            lines.append(f"cost of all answers: at most {written_cost(most)}")
        return lines

    def _too_long(self, tokens: Counter[int]) -> str:
        if self._takes is None:
            return "longer than the model takes: unknown, the server does not say how long its prompts may be"
        answer = (self.max_tokens or 1) if self.read.call in _GENERATE else 0
        room = self._takes - answer
        count, about = sum(rows for length, rows in tokens.items() if length > room), ""
        if self.read.usable != len(self._counted):
            of_longest = sum(length > room for length in self._counted_longest)
            # Beyond the longest it is an estimate.
            is_known = of_longest < len(self._counted_longest)
            count, about = (of_longest, "") if is_known else (max(count, of_longest), "about ")
        answers = f" with {answer:,} for the answer" if answer else ""
        where = f"; the longest is in line {max(self.read.longest).row.line:,}" if count else ""
        return f"longer than the model takes: {about}{count:,} ({self._takes:,} tokens{answers}{where})"


def most_of(call: str, params: Mapping[str, Any], retries: Mapping[str, Any]) -> int | None:
    """Return how many tokens a row's answers have at most; ``None``: there is no bound."""
    if call not in _GENERATE:
        return 0
    given = {**params, **(params.get("extra_body") or {})}
    bounds = [bound for name in ("max_tokens", "max_completion_tokens") if type(bound := given.get(name)) is int]
    n = given.get("n")
    n = n if type(n) is int else 1
    if not bounds:
        return None
    bound = max(bounds) + thinking_room(given)
    # An answer that is cut off goes on where it is one alone.
    most = retries.get("max_tokens") or bound << retries.get("truncated", 0)
    return most if n == 1 else n * bound


def thinking_room(params: Mapping[str, Any]) -> int:
    """Return the output tokens that the thinking before an answer may take."""
    budget = params.get("thinking_tokens")
    return room_for(budget) if type(budget) is int else 0


def written(made: RowCall) -> tuple[bytes, str]:
    """Return what is sent of a row's input, and its text.

    Raises:
        ConfigError: it cannot be sent.
    """
    item = made.item
    if made.call == "chat":
        return write_messages(item)[0], "\n".join(_texts(item))
    if made.call in ("score", "rerank"):
        check_call(made)
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
