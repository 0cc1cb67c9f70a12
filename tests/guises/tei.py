"""TEI 1.9 (text-embeddings-inference): embeddings, reranks and classes; no text generation.

Rules (``router/src/http/server.rs``, ``router/src/http/types.rs``, ``core/src/infer.rs``):
- Each input takes a permit of ``max_concurrent_requests`` at once, or the request is a 429.
- More than ``max_client_batch_size`` inputs are a 422 that tells the cap. Longer texts are cut
  silently.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from batchclient.simulator.guise import Guise, Reply, Route, ServerView, json_reply
from batchclient.simulator.replies import EmbeddingWriter
from batchclient.simulator.requests import Body, Call, EmbeddingRequest, HttpError, Limits, RankRequest, Texts, read
from batchclient.simulator.text import token_ids
from tests.guises.parts import BareRanks, empty, json_handler, metrics_handler

__all__ = ["MAX_CLIENT_BATCH_SIZE", "TEI"]

_VERSION = "1.9.3"
MAX_CLIENT_BATCH_SIZE = 32
_MAX_CONCURRENT_REQUESTS = 512
_PAYLOAD_LIMIT = 2_000_000
_USUAL = {413: ("length limit exceeded", "payload too large"), 429: ("Model is overloaded", "overloaded")}


def _words(error: HttpError) -> Reply:
    if not error.message:
        message, kind = _USUAL.get(error.status, ("The request failed by order.", "backend"))
        return json_reply({"message": message, "code": error.status, "type": kind}, error.status)
    is_empty = error.status == 400 and "empty" in error.message
    status, kind = (400, "Empty") if is_empty else (422, "Validation")
    body = {"message": error.message, "code": status, "type": kind, "error": error.message, "error_type": kind}
    return json_reply(body, status)


def _bounded(call: Call) -> Call:
    if len(call.prompts) > MAX_CLIENT_BATCH_SIZE:
        given = f"batch size {len(call.prompts)} > maximum allowed batch size {MAX_CLIENT_BATCH_SIZE}"
        raise HttpError(422, given)
    return call


def _endless(limits: Limits) -> Limits:
    return replace(limits, max_model_len_tokens=1 << 40)


class _Embedding(EmbeddingRequest):
    def call(self, limits: Limits) -> Call:
        return _bounded(super().call(_endless(limits)))


class _Rank(RankRequest):
    documents: Annotated[Texts, Field(alias="texts")]

    def call(self, limits: Limits) -> Call:
        return _bounded(super().call(_endless(limits)))


class _Tokenize(Body):
    inputs: Texts


def _tokenize(server: ServerView, body: bytes) -> Reply:
    texts = read(_Tokenize, body, server.limits).inputs
    return json_reply([[{"id": each, "text": "", "special": False} for each in token_ids(text)] for text in texts])


def _info(server: ServerView) -> dict[str, object]:
    return {
        "model_id": server.model,
        "model_dtype": "float32",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": server.most_outstanding,
        "max_input_length": server.limits.max_model_len_tokens,
        "max_batch_tokens": 16_384,
        "max_client_batch_size": MAX_CLIENT_BATCH_SIZE,
        "auto_truncate": True,
        "version": _VERSION,
    }


def _metrics(server: ServerView) -> dict[str, float]:
    return {"te_queue_size": server.engine.waiting, "te_request_count": server.counters.requests}


TEI = Guise(
    "tei",
    {
        "/v1/embeddings": Route(_Embedding, EmbeddingWriter, id_prefix=""),
        "/rerank": Route(_Rank, BareRanks, id_prefix=""),
    },
    _words,
    {
        ("GET", "/info"): json_handler(_info),
        ("GET", "/health"): empty,
        ("GET", "/ping"): empty,
        ("POST", "/tokenize"): _tokenize,
        ("GET", "/metrics"): metrics_handler(_metrics),
    },
    not_found=b"",
    wrong_method=b"",
    any_model=True,
    busy=429,
    max_concurrent=_MAX_CONCURRENT_REQUESTS,
    max_body_bytes=_PAYLOAD_LIMIT,
)
