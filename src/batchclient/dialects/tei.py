"""TEI (text-embeddings-inference): embeddings, scores and classes of texts; no generation.

Facts (TEI 1.9, ``router/src/http/server.rs``, ``core/src/infer.rs``; not yet seen running):
- A request may hold ``max_client_batch_size`` inputs: 32, unless the server was started with more
  (``/info`` tells). Above the cap a 422 tells the number.
- Each input takes one of ``max_concurrent_requests`` (512) permits at once. Where a permit is
  missing, the whole request is a 429.
- ``/rerank`` calls the documents ``texts``.
- ``/predict`` orders a text's classes by their scores. A classification here has the model's order,
  so ``/predict`` is not asked.
- By default longer inputs are cut silently (``auto_truncate``).
"""

from __future__ import annotations

from collections.abc import Mapping

from batchclient._core.kinds import Kind
from batchclient.dialects._embeddings import Embeddings
from batchclient.dialects._scores import RerankScores
from batchclient.dialects._server import Form, ServerDialect
from batchclient.dialects._tokens import TeiTokens
from batchclient.dialects.openai import VLLM_ONLY

__all__ = ["TeiDialect"]

_MAX_CLIENT_BATCH_SIZE = 32


class TeiDialect(ServerDialect):
    """The dialect described at the top of the file."""

    name = "tei"
    caps: Mapping[Kind, int] = dict.fromkeys(
        (Kind.EMBEDDING, Kind.SCORE, Kind.RERANK, Kind.CLASSIFICATION, Kind.TOKENS), _MAX_CLIENT_BATCH_SIZE
    )
    length_reach: int | None = 0
    without: frozenset[str] = VLLM_ONLY
    forms: Mapping[Kind, Form] = {
        Kind.EMBEDDING: Embeddings(),
        Kind.SCORE: RerankScores(from_root=True, documents="texts"),
        Kind.RERANK: RerankScores(from_root=True, documents="texts"),
        Kind.TOKENS: TeiTokens(),
    }
