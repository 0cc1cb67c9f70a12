"""Replies to calls that generate nothing: vectors, scores, classes, token ids.

Rules:
- Every input has exactly one item, by ``index``. With one missing, doubled or unknown, nothing is
  handed out. Token ids come without an index: a list's belong to its callers by order, and only if
  the numbers of both are equal.
- A list's usage is a total. A lone call's tokens are exact. So are a list's if all prompts are
  token ids and add up to the total. Otherwise a call gets a share of the total (``_shares``). For
  token ids the model computes nothing: there is no usage.
- An item with NaN or infinity fails its input alone. The input is tried once more: the number may
  come of the other inputs computed with it.
- An item of another form than servers send fails its input alone, and is not asked for again.

Facts:
- A vector comes as base64 of its 32-bit floats, the lowest byte first, or as numbers: many servers
  ignore the field (Ollama, SGLang). One that refuses it is asked without.
- Scores stand in an object on vLLM, llama.cpp and Infinity, in a bare array on TEI and SGLang.
- ``/tokenize`` answers ``{"tokens": […]}`` on vLLM and llama.cpp, lists of them for a list on
  SGLang, an array of objects with an ``id`` on TGI, an array of such arrays on TEI.
"""

from __future__ import annotations

import math
import sys
from array import array
from binascii import a2b_base64
from typing import Any

from batchclient._core.messages import Batch, Failure
from batchclient.dialects._decoder import Answers, PlainDecoder
from batchclient.dialects._readers import BAD_FORM
from batchclient.dialects._replies import malformed
from batchclient.dialects._shares import prompt_shares
from batchclient.dialects._verbatim import own_body
from batchclient.errors import DemuxError
from batchclient.types import Classification, Embedding, Reply, Score, Tokens, Usage

__all__ = [
    "ClassesDecoder",
    "NestedTokensDecoder",
    "ObjectTokensDecoder",
    "ScoresDecoder",
    "TokensDecoder",
    "VectorsDecoder",
    "read_vector",
]


class ItemsDecoder(PlainDecoder):
    """Reads a reply with an item per input. Subclasses make an answer of an item."""

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


class VectorsDecoder(ItemsDecoder):
    """Embeddings."""

    def _answers(self, reply: Any) -> tuple[Answers, Failure | None]:
        answers, failure = super()._answers(reply)
        wire = self._batch.wire
        wire.learnt.takes_lists = len(self._batch.requests) > 1 or wire.lone_as_list
        if len({len(embedding.vector) for _, embedding in answers}) > 1:
            # At least one vector is another than asked for, and nothing says which.
            return [], malformed("the reply's vectors have different lengths", once=True)
        if self._batch.shape.verbatim and isinstance(reply, dict):
            items = self._placed
            for position, embedding in answers:
                body = own_body(self._batch, reply, "data", [items[position]], embedding.usage)
                embedding.reply = Reply(body, source=(self._batch.id, len(items)), alone=self._batch.alone)
        return answers, failure

    def _answer(self, item: Any, usage: Usage | None, attempts: int, extra: dict[str, Any]) -> Embedding:
        return Embedding(read_vector(item["embedding"]), usage, attempts, extra)


class ScoresDecoder(ItemsDecoder):
    """Scores of pairs or documents."""

    _reply_type = object
    _holders = ("data", "results")

    def _items_of(self, reply: Any) -> list[Any]:
        return reply if isinstance(reply, list) else super()._items_of(reply)

    def _answer(self, item: Any, usage: Usage | None, attempts: int, extra: dict[str, Any]) -> Score:
        score = item["relevance_score"] if "relevance_score" in item else item["score"]
        return Score(_finite(score), usage, attempts, extra)


class ClassesDecoder(ItemsDecoder):
    """Classes of texts."""

    def _answer(self, item: Any, usage: Usage | None, attempts: int, extra: dict[str, Any]) -> Classification:
        label, numbers = item["label"], item["probs"]
        if label is not None and not isinstance(label, str):
            raise TypeError("a label is no text")
        if not isinstance(numbers, list):
            raise TypeError("probabilities are no list")
        probabilities = tuple(map(_finite, numbers))
        if not probabilities:
            raise ValueError("a text has no class")
        return Classification(label, probabilities, usage, attempts, extra)


class TokensDecoder(PlainDecoder):
    """``{"tokens": […]}``, with an array per text for several texts.

    llama.cpp writes a conversation as a text, ``{"prompt": …}``, of which there are no ids yet.
    """

    _called = "tokens"

    def _answers(self, reply: Any) -> tuple[Answers, Failure | None]:
        requests = self._batch.requests
        lists = self._lists(reply)
        if len(lists) != len(requests):
            raise DemuxError(f"the server sent the tokens of {len(lists)} texts for {len(requests)}")
        about = reply if isinstance(reply, dict) else {}
        extra = {name: value for name, value in about.items() if value is not None and name != "tokens"}
        answers: Answers = []
        unreadable: Exception | None = None
        for position, (request, given) in enumerate(zip(requests, lists, strict=True)):
            try:
                ids = self._ids(given)
            except BAD_FORM as error:
                unreadable = error
                continue
            answers.append((position, Tokens(ids, None, request.attempts, extra.copy())))
        return answers, self._why_unread(unreadable, answers)

    def _lists(self, reply: Any) -> list[Any]:
        """Return each text's tokens."""
        is_written = "tokens" not in reply and isinstance(reply.get("prompt"), str)
        tokens = [] if is_written else reply["tokens"]
        if not isinstance(tokens, list):
            raise TypeError("tokens are no list")
        return tokens if len(self._batch.requests) > 1 else [tokens]

    @staticmethod
    def _ids(given: Any) -> list[int]:
        """Return a text's ids."""
        if not isinstance(given, list) or any(type(each) is not int for each in given):
            raise TypeError("a token id is no number")
        return given


class ObjectTokensDecoder(TokensDecoder):
    """``[{"id": …}, …]``."""

    _reply_type = list

    def _lists(self, reply: Any) -> list[Any]:
        return [reply]

    @staticmethod
    def _ids(given: Any) -> list[int]:
        return TokensDecoder._ids([each["id"] for each in given])


class NestedTokensDecoder(ObjectTokensDecoder):
    """``[[{"id": …}, …], …]``."""

    def _lists(self, reply: Any) -> list[Any]:
        return list(reply)


def read_vector(given: object) -> array[float]:
    """Return a vector that came as base64 of 32-bit floats or as numbers.

    Raises:
        TypeError: the vector came as something else.
        ValueError: the vector is empty, cut off, or not finite.
    """
    if isinstance(given, str):
        vector = array("f")
        vector.frombytes(a2b_base64(given))
        if sys.byteorder == "big":
            vector.byteswap()
    elif isinstance(given, list):
        try:
            vector = array("f", given)
        except OverflowError:
            raise ValueError("a vector holds a number that is too large") from None
    else:
        raise TypeError("a vector is neither text nor a list")
    if not vector:
        raise ValueError("a vector is empty")
    # The sum is finite only if every number is: 32-bit floats cannot overflow a 64-bit sum.
    if not math.isfinite(sum(vector)):
        raise ValueError("a vector holds NaN or infinity")
    return vector


def _finite(number: object) -> float:
    if type(number) not in (int, float):
        raise TypeError("a score is no number")
    # (``isfinite`` raises for a whole number of 400 digits.)
    if not abs(number) <= sys.float_info.max:  # type: ignore[arg-type]
        raise ValueError("a score is not finite")
    return float(number)  # type: ignore[arg-type]


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
