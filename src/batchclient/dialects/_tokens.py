"""Texts to token ids, by each sort of server.

Facts:
- vLLM 0.32, ``entrypoints/serve/tokenize``, observed: ``/tokenize`` takes a single ``prompt`` and
  answers ``tokens``; a list is refused.
- SGLang 0.5.23, ``entrypoints/openai/protocol.py``: ``/v1/tokenize`` takes a ``prompt`` or a list
  of prompts; a list's ``tokens`` are lists.
- llama.cpp, ``tools/server/README.md``: ``/tokenize`` takes a single ``content`` and answers
  ``tokens``; special tokens are added only with ``add_special``.
- TGI 3.3, ``router/src/server.rs``: ``/tokenize`` takes a single ``inputs`` and answers an array of
  objects with an ``id``.
- TEI 1.9, ``router/src/http/server.rs``: ``/tokenize`` takes ``inputs``, a text or a list, and
  answers an array of such arrays.

The model computes nothing, so a call has no usage. Tokens come without an index. A list's answers
belong to its callers by order, and only if the numbers of both are equal.
"""

from __future__ import annotations

from typing import Any

from batchclient._core.messages import Batch, Failure
from batchclient.dialects._decoder import PlainDecoder
from batchclient.dialects._items import Answers, input_of
from batchclient.dialects._readers import BAD_FORM
from batchclient.errors import DemuxError
from batchclient.transport import WireRequest
from batchclient.types import Tokens

__all__ = ["LlamaCppTokens", "SglangTokens", "TeiTokens", "TgiTokens", "VllmTokens"]


class VllmTokens:
    """A single prompt at a time."""

    _path = "/tokenize"
    _field = b"prompt"

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        body = b"{" + input_of(batch, self._field) + batch.shape.body[1:]
        return WireRequest("POST", self._path, body, from_root=True)

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> _TokensDecoder:
        """Return a fresh decoder for the batch's reply."""
        return _TokensDecoder(batch, secrets, content_type)


class SglangTokens(VllmTokens):
    """A prompt or a list of prompts."""

    _path = "/v1/tokenize"


class LlamaCppTokens(VllmTokens):
    """A single text at a time, as ``content``."""

    _field = b"content"


class TgiTokens(VllmTokens):
    """A single text at a time; the answer is an array of objects."""

    _field = b"inputs"

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> _TokensDecoder:
        """Return a fresh decoder for the batch's reply."""
        return _ObjectsDecoder(batch, secrets, content_type)


class TeiTokens(TgiTokens):
    """A text or a list; the answer is an array of objects per text, even for a single text."""

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> _TokensDecoder:
        """Return a fresh decoder for the batch's reply."""
        return _NestedDecoder(batch, secrets, content_type)


class _TokensDecoder(PlainDecoder):
    """``{"tokens": […]}``, with an array per text for several texts."""

    _called = "tokens"

    def _answers(self, reply: Any) -> tuple[Answers, Failure | None]:
        requests = self._batch.requests
        lists = self._lists(reply)
        if len(lists) != len(requests):
            raise DemuxError(f"the server sent the tokens of {len(lists)} texts for {len(requests)}")
        extra = self._about(reply)
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
        tokens = reply["tokens"]
        if not isinstance(tokens, list):
            raise TypeError("tokens are no list")
        return tokens if len(self._batch.requests) > 1 else [tokens]

    @staticmethod
    def _ids(given: Any) -> list[int]:
        """Return a text's ids."""
        if not isinstance(given, list) or any(type(each) is not int for each in given):
            raise TypeError("a token id is no number")
        return given

    @staticmethod
    def _about(reply: Any) -> dict[str, Any]:
        about = reply if isinstance(reply, dict) else {}
        return {name: value for name, value in about.items() if value is not None and name != "tokens"}


class _ObjectsDecoder(_TokensDecoder):
    """``[{"id": …}, …]``."""

    _reply_type = list

    def _lists(self, reply: Any) -> list[Any]:
        return [reply]

    @staticmethod
    def _ids(given: Any) -> list[int]:
        return _TokensDecoder._ids([each["id"] for each in given])


class _NestedDecoder(_ObjectsDecoder):
    """``[[{"id": …}, …], …]``."""

    def _lists(self, reply: Any) -> list[Any]:
        return list(reply)
