"""Other servers' replies in OpenAI's form, and whom a usage belongs to.

A reader stands between a reply and its decoder; each reply has its own reader. The decoder sees
``choices``, each with ``index``, ``text`` and ``finish_reason``. An unreadable choice becomes
``unreadable``, which fails alone. An unreadable reply raises one of ``BAD_FORM``, which decoders
report as a malformed reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from batchclient._core.messages import Batch
from batchclient.dialects._bodies import Bodies
from batchclient.types import Usage

__all__ = [
    "BAD_FORM",
    "OpenAIReader",
    "Reader",
    "StopReader",
    "UsageWatch",
    "index_of",
    "unreadable",
]

BAD_FORM = (LookupError, TypeError, AttributeError, ValueError)
"""Errors raised by reading data of another form than servers send."""


def index_of(given: Any, size: int | None = None) -> Any:
    """Return the number meant by an ``index``; any other value is returned unchanged.

    ``"0"`` (protobuf's JSON) and ``0.0`` (Lua's) mean 0. A lone choice (``size`` 1) needs no index.
    """
    if type(given) is int:
        return given
    if given is None:
        return 0 if size == 1 else None
    if type(given) is float and given.is_integer():
        return int(given)
    if type(given) is str and given.isascii() and given.isdecimal() and len(given) < 10:
        return int(given)
    return given


def unreadable(index: Any) -> dict[str, Any]:
    """Return a choice refused by every decoder: the text is no string, and the choice is over."""
    return {"index": index, "text": False, "finish_reason": "unreadable"}


class Reader(Protocol):
    """Turns one reply into OpenAI's form."""

    counts_each: bool
    """Whether each choice has a usage of its own, inside the choice or, streamed, beside it."""
    tells_sums: bool
    """Otherwise: whether the usage of a list is the sum over the prompts."""

    def reply(self, reply: Any) -> Any:
        """Return a plain reply in OpenAI's form."""
        ...

    def event(self, event: Any) -> Any:
        """Return an event of a stream in OpenAI's form."""
        ...


class OpenAIReader:
    """Reads replies in OpenAI's form."""

    counts_each = False
    tells_sums = True

    def __init__(self, batch: Batch) -> None:
        pass

    def reply(self, reply: Any) -> Any:
        """Return the reply unchanged."""
        return reply

    def event(self, event: Any) -> Any:
        """Return the event unchanged."""
        return event


class StopReader:
    """Reads replies of servers that leave the stop string at the end of an answer's text.

    The end of a piece that may begin a stop string is held back until the next piece. A stop string
    in a text always ended the text, so nothing is lost where a server cuts the string off itself.
    An echoed prompt may have stop strings in it, and is passed on as it is.
    """

    counts_each = False
    tells_sums = True
    reasons: Mapping[str, str] = {}
    """OpenAI's reason to finish for each of the server's words, where the two differ."""

    def __init__(self, batch: Batch) -> None:
        self._stops = _STOPS.of(batch.shape)
        self._weight = batch.shape.weight
        self._size = len(batch.requests) * self._weight
        self._held: dict[int, str] = {}
        self._prompts = [request.prompt for request in batch.requests] if self._stops and _ECHO.of(batch.shape) else []
        self._echoed: dict[int, int] = {}
        """Characters of the echo that are still to come, by choice."""

    def reply(self, reply: Any) -> Any:
        """Cut stop strings out of a plain reply."""
        for choice in reply["choices"]:
            self._translate(choice, index_of(choice.get("index"), self._size))
        return reply

    def event(self, event: Any) -> Any:
        """Cut stop strings out of an event, and hold back a possible beginning."""
        for choice in event.get("choices") or ():
            index = index_of(choice.get("index"), self._size)
            if not self._stops or type(index) is not int:
                self._translate(choice, index)
                continue
            text = choice.get("text")
            if index in self._held and (isinstance(text, str) or (text is None and choice.get("finish_reason"))):
                choice["text"] = self._held.pop(index) + (text or "")
            start = self._translate(choice, index)
            if not choice.get("finish_reason") and isinstance(choice.get("text"), str):
                self._hold(index, choice, start)
        return event

    def _translate(self, choice: dict[str, Any], index: Any) -> int:
        """Put a choice into OpenAI's words; return where the answer begins in its text."""
        reason, text = choice.get("finish_reason"), choice.get("text")
        if isinstance(reason, str):
            choice["finish_reason"] = reason = self.reasons.get(reason, reason) or None
        start = self._end_of_echo(index, text) if self._prompts and isinstance(text, str) else 0
        if reason == "stop" and isinstance(text, str):
            choice["text"] = text[: self._stop_at(text, start)]
        return start

    def _end_of_echo(self, index: Any, text: str) -> int:
        """Return where the echo of the prompt ends in a choice's next piece."""
        if type(index) is not int or not 0 <= index < self._size:
            return 0
        left = self._echoed.get(index)
        if left is None:
            prompt = json.loads(self._prompts[index // self._weight])
            # Of token ids nobody here knows the text: stop strings stay.
            left = len(prompt) if isinstance(prompt, str) else _ENDLESS
            if isinstance(prompt, str) and not (prompt.startswith(text) or text.startswith(prompt)):
                # The server does not echo.
                left = 0
        here = min(left, len(text))
        self._echoed[index] = left - here
        return here

    def _stop_at(self, text: str, start: int) -> int | None:
        """Where the first stop string begins in a text, from ``start`` on; ``None``: nowhere."""
        return min((at for stop in self._stops if (at := text.find(stop, start)) >= 0), default=None)

    def _hold(self, index: int, choice: dict[str, Any], start: int) -> None:
        text = choice["text"]
        at = self._stop_at(text, start)
        if at is None:
            longest = max(map(len, self._stops)) - 1
            sizes = range(min(longest, len(text) - start), 0, -1)
            ends = (text[-size:] for size in sizes)
            held = next((end for end in ends if any(stop.startswith(end) for stop in self._stops)), "")
            at = len(text) - len(held)
        if at < len(text):
            choice["text"], self._held[index] = text[:at], text[at:]


def _stops_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    stop = fields.get("stop")
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or fields.get("include_stop_str_in_output"):
        return ()
    return tuple(each for each in stops if isinstance(each, str) and each)


def _echo_of(fields: Mapping[str, Any]) -> bool:
    return fields.get("echo") is True


_STOPS: Bodies[tuple[str, ...]] = Bodies(_stops_of)
_ECHO: Bodies[bool] = Bodies(_echo_of)
_ENDLESS = 1 << 60


class UsageWatch:
    """Whether the usage beside the choices of a stream is each choice's own."""

    __slots__ = ("_began", "_each", "_learnt", "_most", "comes_last", "sum_comes_last")

    def __init__(self, batch: Batch, reader: Reader) -> None:
        asked = "stream_options" not in batch.wire.without
        lone = len(batch.requests) == 1
        single = lone and batch.shape.weight == 1
        self._each = single or reader.counts_each or (asked and "continuous_usage_stats" not in batch.wire.without)
        self._learnt = batch.wire.learnt
        self._began: set[int] | None = None if single or reader.counts_each or batch.wire.learnt.usage_is_own else set()
        most = batch.shape.max_output_tokens
        # vLLM counts a token even with ``max_tokens`` 0.
        self._most = None if most is None else max(1, most)
        self.comes_last = lone and asked and not reader.counts_each
        """Whether a lone call's usage follows the last choice, unless the choice has its own."""
        self.sum_comes_last = not lone and asked and not reader.counts_each and reader.tells_sums
        """Whether a list's usage follows the last answer as a sum: no choice has its own."""

    def usage(self, index: int, usage: Usage | None) -> Usage | None:
        """Return the usage beside a choice if the usage is believed to be the choice's own."""
        if usage is None or not self._each or (self._most is not None and usage.completion_tokens > self._most):
            return None
        if not usage.total_tokens:
            # LiteLLM's proxy writes zeros beside every piece if no usage was asked for.
            return None
        began = self._began
        if began is not None:
            if not usage.completion_tokens:
                # Beside the role, before any token: a sum and an own usage are alike.
                return None
            began.add(index)
            if usage.completion_tokens >= len(began):
                return None
            # Fewer tokens than choices that began: the usage is no sum over the choices.
            self._learnt.usage_is_own = True
            self._began = None
        return usage
