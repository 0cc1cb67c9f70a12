"""Other servers' replies in the form of OpenAI's, and whom a usage belongs to.

A reader stands between a reply and its decoder, one per reply: what the decoders see has ``choices``, each with ``index``, ``text`` and
``finish_reason``. A choice that cannot be read becomes ``unreadable``, which fails alone. A reply of which nothing can be read raises one of the
errors that the decoders take for a malformed one.
"""

from __future__ import annotations

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
    "legacy_logprobs",
    "unreadable",
]

BAD_FORM = (LookupError, TypeError, AttributeError, ValueError)
"""What reading something that is not what servers send raises."""


def index_of(given: Any, size: int | None = None) -> Any:
    """Return the number that an ``index`` stands for: ``"0"`` (protobuf's JSON) and ``0.0`` (Lua's) are 0; whatever is no number, as it is.

    Args:
        given: what the server sent; ``None``: nothing.
        size: how many there are; where it is one alone, it needs no number.
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
    """A choice that no decoder takes: its text is none, and nothing more comes of it."""
    return {"index": index, "text": False, "finish_reason": "unreadable"}


class Reader(Protocol):
    """Turns one reply into OpenAI's form."""

    counts_each: bool
    """Whether each choice has a usage of its own: in a plain reply ``usage`` of the choice, in a stream that beside it."""
    tells_sums: bool
    """Whether the one usage of a list, else, is the sum over its prompts."""

    def reply(self, reply: Any) -> Any:
        """A plain reply."""
        ...

    def event(self, event: Any) -> Any:
        """One event of a stream."""
        ...


class OpenAIReader:
    """Of servers whose replies are OpenAI's."""

    counts_each = False
    tells_sums = True

    def __init__(self, batch: Batch) -> None:
        pass

    def reply(self, reply: Any) -> Any:
        """As it is."""
        return reply

    def event(self, event: Any) -> Any:
        """As it is."""
        return event


class StopReader:
    """Of servers that leave the stop string that ended an answer in its text. What may be the beginning of one is held back until it is known.

    A text that holds a stop string was ended by it, so that there is nothing to lose where a server cuts it off itself.
    """

    counts_each = False
    tells_sums = True
    reasons: Mapping[str, str] = {}
    """The server's words for why an answer ended, where they are not OpenAI's."""

    def __init__(self, batch: Batch) -> None:
        self._stops = _STOPS.of(batch.shape)
        self._size = len(batch.requests) * batch.shape.weight
        self._held: dict[int, str] = {}

    def reply(self, reply: Any) -> Any:
        """A plain reply."""
        for choice in reply["choices"]:
            self._translate(choice)
        return reply

    def event(self, event: Any) -> Any:
        """One event."""
        for choice in event.get("choices") or ():
            index = index_of(choice.get("index"), self._size)
            if not self._stops or type(index) is not int:
                self._translate(choice)
                continue
            text = choice.get("text")
            if index in self._held and (isinstance(text, str) or (text is None and choice.get("finish_reason"))):
                choice["text"] = self._held.pop(index) + (text or "")
            self._translate(choice)
            if not choice.get("finish_reason") and isinstance(choice.get("text"), str):
                self._hold(index, choice)
        return event

    def _translate(self, choice: dict[str, Any]) -> None:
        reason, text = choice.get("finish_reason"), choice.get("text")
        if isinstance(reason, str):
            choice["finish_reason"] = reason = self.reasons.get(reason, reason) or None
        if reason == "stop" and isinstance(text, str):
            choice["text"] = text[: self._stop_at(text)]

    def _stop_at(self, text: str) -> int | None:
        """Where the first stop string begins in a text; ``None``: nowhere."""
        return min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)

    def _hold(self, index: int, choice: dict[str, Any]) -> None:
        text = choice["text"]
        at = self._stop_at(text)
        if at is None:
            longest = max(map(len, self._stops)) - 1
            sizes = range(min(longest, len(text)), 0, -1)
            ends = (text[-size:] for size in sizes)
            held = next((end for end in ends if any(stop.startswith(end) for stop in self._stops)), "")
            at = len(text) - len(held)
        if at < len(text):
            choice["text"], self._held[index] = text[:at], text[at:]


def _stops_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    stop = fields.get("stop")
    if fields.get("include_stop_str_in_output"):
        return ()
    return tuple(each for each in ([stop] if isinstance(stop, str) else stop or ()) if isinstance(each, str) and each)


_STOPS: Bodies[tuple[str, ...]] = Bodies(_stops_of)


class UsageWatch:
    """Whether what stands beside the choices of a stream is each choice's own usage.

    Args:
        batch: whose reply it is.
        reader: the reply's.
    """

    __slots__ = ("_began", "_each", "_learnt", "_most", "comes_last", "sum_comes_last")

    def __init__(self, batch: Batch, reader: Reader) -> None:
        asked = "stream_options" not in batch.wire.without
        lone = len(batch.requests) == 1
        single = lone and batch.shape.weight == 1
        self._each = single or reader.counts_each or (asked and "continuous_usage_stats" not in batch.wire.without)
        self._learnt = batch.wire.learnt
        self._began: set[int] | None = None if single or reader.counts_each or batch.wire.learnt.usage_is_own else set()
        most = batch.shape.max_output_tokens
        # With ``max_tokens`` 0 vLLM counts a token all the same.
        self._most = None if most is None else max(1, most)
        self.comes_last = lone and asked and not reader.counts_each
        """Whether the usage of a lone call follows its last choice, where it does not stand beside that."""
        self.sum_comes_last = not lone and asked and not reader.counts_each and reader.tells_sums
        """Whether a list's usage comes as one sum after its last answer, where no choice has its own beside it."""

    def usage(self, index: int, usage: Usage | None) -> Usage | None:
        """What is believed of the usage beside a choice."""
        if usage is None or not self._each or (self._most is not None and usage.completion_tokens > self._most):
            return None
        if not usage.total_tokens:
            # LiteLLM's proxy writes zeros beside every piece where it was not asked for a usage.
            return None
        began = self._began
        if began is not None:
            began.add(index)
            if usage.completion_tokens >= len(began):
                return None
            # Fewer tokens than choices that began: it is no sum of them.
            self._learnt.usage_is_own = True
            self._began = None
        return usage


def legacy_logprobs(tokens: list[tuple[str, float | None, dict[str, float]]], start: int = 0) -> dict[str, Any]:
    """Logprobs in the form of ``/v1/completions``.

    Args:
        tokens: (text, logprob, the likeliest with theirs) of each.
        start: where the first of them begins in the answer, characters.
    """
    offsets = []
    for text, _, _ in tokens:
        offsets.append(start)
        start += len(text)
    return {
        "text_offset": offsets,
        "token_logprobs": [logprob for _, logprob, _ in tokens],
        "tokens": [text for text, _, _ in tokens],
        "top_logprobs": [top for _, _, top in tokens],
    }
