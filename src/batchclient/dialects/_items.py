"""Replies that are a list with an item per input: vectors, scores, classes.

Rules:
- Every input has exactly one item, by ``index``. With one missing, doubled or unknown, nothing is
  handed out.
- A list's usage is a total. A lone call's tokens are exact. So are a list's if all prompts are
  token ids and add up to the total. Otherwise a call gets a share of the total (``_shares``).
- An item with NaN or infinity fails its input alone. The input is tried once more: the number may
  come of the other inputs computed with it.
- An item of another form than servers send fails its input alone, and is not asked for again.
"""

from __future__ import annotations

import sys
from typing import Any

from batchclient._core.messages import Batch, Failure
from batchclient.dialects._decoder import PlainDecoder
from batchclient.dialects._readers import BAD_FORM, index_of
from batchclient.dialects._replies import malformed
from batchclient.dialects._shares import prompt_shares
from batchclient.types import Usage

__all__ = ["Answers", "ItemsDecoder", "finite", "input_of"]

Answers = list[tuple[int, Any]]


def input_of(batch: Batch, name: bytes = b"input") -> bytes:
    """Write a batch's prompts as a member of a JSON object, with a comma.

    A single prompt is written as itself, where the server takes that, with its caller's own fields;
    several prompts as a list.
    """
    requests = batch.requests
    prompts = b",".join([request.prompt for request in requests])
    if len(requests) > 1 or batch.wire.lone_as_list:
        prompts = b"[%b]" % prompts
    solo = requests[0].solo_fields if len(requests) == 1 else b""
    return b'"%b":%b,%b' % (name, prompts, solo + b"," if solo else b"")


def finite(number: object) -> float:
    """Return a finite number; raise ``TypeError`` or ``ValueError`` for any other value."""
    if type(number) not in (int, float):
        raise TypeError("a score is no number")
    # (``isfinite`` raises for a whole number of 400 digits.)
    if not abs(number) <= sys.float_info.max:  # type: ignore[arg-type]
        raise ValueError("a score is not finite")
    return float(number)  # type: ignore[arg-type]


class ItemsDecoder(PlainDecoder):
    """Reads a reply with an item per input. Subclasses read an item and make an answer of it."""

    _called = "items"
    _holders: tuple[str, ...] = ("data",)
    """The fields of the reply that may hold the items."""
    _placed: list[Any]
    """The items in the order of the inputs."""

    def _answer(self, item: Any, usage: Usage | None, attempts: int, extra: dict[str, Any]) -> Any:
        """Make a caller's answer.

        Raises:
            KeyError, TypeError, AttributeError: the item has another form than servers send.
            ValueError: the item's numbers are unusable.
        """
        raise NotImplementedError

    def _answers(self, reply: Any) -> tuple[Answers, Failure | None]:
        self._placed = items = self._in_order(self._items_of(reply))
        about = reply if isinstance(reply, dict) else {}
        held = {"usage", *self._holders}
        self._extra = {name: value for name, value in about.items() if value is not None and name not in held}
        usages = _usages(self._batch, about.get("usage"))
        answers: Answers = []
        failure: Failure | None = None
        unreadable: Exception | None = None
        for position, request in enumerate(self._batch.requests):
            try:
                answer = self._answer(items[position], usages[position], request.attempts, self._extra.copy())
            except ValueError as error:
                failure = malformed(f"an item of the reply cannot be read: {_reason(error)}", once=True)
                continue
            except BAD_FORM as error:
                unreadable = error
                continue
            answers.append((position, answer))
        return answers, failure or self._why_unread(unreadable, answers)

    def _items_of(self, reply: Any) -> list[Any]:
        items = next((reply[name] for name in self._holders if name in reply), None)
        if not isinstance(items, list):
            raise TypeError("the reply holds no list of items")
        return items

    def _in_order(self, items: list[Any]) -> list[Any]:
        """Return the items in the order of the inputs; raise ``DemuxError`` on a mismatch."""
        placed: list[Any] = [None] * len(self._batch.requests)
        for item in items:
            index = self._demux.check(index_of(item.get("index"), self._size))
            self._demux.finish(index)
            placed[index] = item
        if not self._demux.complete:
            raise self._demux.missing()
        return placed


def _reason(error: ValueError) -> str:
    """Return an error's words if they are batchclient's own; a library's may quote the reply."""
    return str(error) if type(error) is ValueError else type(error).__name__


def _usages(batch: Batch, usage: Any) -> list[Usage | None]:
    """Return each request's usage, as far as known."""
    shares = prompt_shares(batch, usage.get("prompt_tokens") if isinstance(usage, dict) else None)
    if shares is None:
        return [None] * len(batch.requests)
    tokens, estimated = shares
    return [Usage(each, 0, estimated) for each in tokens]
