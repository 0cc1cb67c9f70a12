"""Scores of pairs, ranks of documents, classes of texts.

Facts (vLLM 0.32, ``entrypoints/pooling/scoring`` and ``classify``, observed on a running server):
- ``/score`` takes ``text_1`` and ``text_2``: one against one, one against many, or as many against
  as many. So unrelated callers' pairs share a request.
- The other names (``queries`` and ``documents``, ``data_1`` and ``data_2``) mean the same;
  ``text_1`` and ``text_2`` are the oldest. ``/v1/score`` does the same, with a warning in the
  server's log each time.
- ``/rerank`` takes a query with its documents, and answers by score: ``index`` names the document.
  On servers with nothing else (llama.cpp, TEI, SGLang, Infinity) a list is a rerank of pairs with a
  common query, or no list at all.
- ``/classify`` answers an input's likeliest label, and each class's probability in model order.

A pair is the JSON array of its two texts. A rank's query is part of the coalescing key
(``Kind.RERANK``).
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json, to_json

from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._items import ItemsDecoder, finite, input_of
from batchclient.errors import BadRequest
from batchclient.transport import WireRequest
from batchclient.types import Classification, Score, Usage

__all__ = ["Classes", "PairScores", "RerankScores"]


class PairScores:
    """The form of servers that score any number of pairs, at their root."""

    mixes_queries = True

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request: the query once if all pairs share it."""
        pairs = [from_json(request.prompt) for request in batch.requests]
        queries = [query for query, _ in pairs]
        documents = [document for _, document in pairs]
        first: Any = queries[0] if queries.count(queries[0]) == len(queries) else queries
        solo = _solo(batch)
        body = b'{"text_1":%b,"text_2":%b,%b' % (to_json(first), to_json(documents), solo) + batch.shape.body[1:]
        return WireRequest("POST", "/score", body, from_root=True)

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> _Scores:
        """Return a fresh decoder for the batch's reply."""
        return _Scores(batch, secrets, content_type)


class RerankScores:
    """The form of servers that rank documents, in a field ``documents``, for a single query."""

    mixes_queries = False

    def __init__(self, *, from_root: bool = False, documents: str = "documents") -> None:
        self._from_root = from_root
        self._documents = documents.encode()

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request, or refuse a list of pairs with different queries."""
        pairs = [from_json(request.prompt) for request in batch.requests]
        query = pairs[0][0]
        if any(other != query for other, _ in pairs):
            message = "this server ranks documents for one query at a time"
            return Failure(FailureKind.LIST_REFUSED, BadRequest, message)
        documents = to_json([document for _, document in pairs])
        start = b'{"query":%b,"%b":%b,%b' % (to_json(query), self._documents, documents, _solo(batch))
        return WireRequest("POST", "/rerank", start + batch.shape.body[1:], from_root=self._from_root)

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> _Scores:
        """Return a fresh decoder for the batch's reply."""
        return _Scores(batch, secrets, content_type)


def _solo(batch: Batch) -> bytes:
    """Return a lone caller's own fields, with a comma."""
    requests = batch.requests
    return requests[0].solo_fields + b"," if len(requests) == 1 and requests[0].solo_fields else b""


class _Scores(ItemsDecoder):
    # An object on vLLM, llama.cpp and Infinity, a bare array on TEI and SGLang.
    _reply_type = object
    _holders = ("data", "results")

    def _items_of(self, reply: Any) -> list[Any]:
        return reply if isinstance(reply, list) else super()._items_of(reply)

    def _answer(self, item: Any, usage: Usage | None, attempts: int, extra: dict[str, Any]) -> Score:
        score = item["relevance_score"] if "relevance_score" in item else item["score"]
        return Score(finite(score), usage, attempts, extra)


class Classes:
    """The form of vLLM's ``/classify``."""

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        return WireRequest("POST", "/classify", b"{" + input_of(batch) + batch.shape.body[1:], from_root=True)

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> _Classes:
        """Return a fresh decoder for the batch's reply."""
        return _Classes(batch, secrets, content_type)


class _Classes(ItemsDecoder):
    def _answer(self, item: Any, usage: Usage | None, attempts: int, extra: dict[str, Any]) -> Classification:
        label, numbers = item["label"], item["probs"]
        if label is not None and not isinstance(label, str):
            raise TypeError("a label is no text")
        if not isinstance(numbers, list):
            raise TypeError("probabilities are no list")
        probabilities = tuple(map(finite, numbers))
        if not probabilities:
            raise ValueError("a text has no class")
        return Classification(label, probabilities, usage, attempts, extra)
