"""TEI 1.9 (text-embeddings-inference): embeddings, reranks and classes; no text generation.

Rules (``router/src/http/server.rs``, ``router/src/http/types.rs``, ``core/src/infer.rs``):
- Each input takes a permit of ``max_concurrent_requests`` at once, or the request is a 429.
- More than ``max_client_batch_size`` inputs are a 422 that tells the cap.
"""

from __future__ import annotations

from dataclasses import replace

import pydantic_core

from batchclient.simulator.exchange import JSON_HEADERS
from batchclient.simulator.guise import Guise, Route, Served
from batchclient.simulator.guise_parts import (
    Parse,
    empty_page,
    json_page,
    metrics_page,
    restated,
    texts_of,
    token_ids,
    whatever_model,
)
from tests.guises.parts import BareRanks, any_embedding
from batchclient.simulator.pooling import EmbeddingWriter, parse_rerank
from batchclient.simulator.validation import CompletionCall, HttpError, Limits

__all__ = ["MAX_CLIENT_BATCH_SIZE", "TEI"]

_VERSION = "1.9.3"
MAX_CLIENT_BATCH_SIZE = 32
_MAX_CONCURRENT_REQUESTS = 512
_PAYLOAD_LIMIT = 2_000_000


def _info(server: Served) -> dict[str, object]:
    return {
        "model_id": server.model,
        "model_sha": None,
        "model_dtype": "float32",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": server.most_outstanding,
        "max_input_length": server.limits.max_model_len_tokens,
        "max_batch_tokens": 16_384,
        "max_batch_requests": None,
        "max_client_batch_size": MAX_CLIENT_BATCH_SIZE,
        "auto_truncate": True,
        "tokenization_workers": 2,
        "version": _VERSION,
        "sha": None,
        "docker_label": None,
    }


def _metrics(server: Served) -> dict[str, float]:
    return {"te_queue_size": server.engine.waiting, "te_request_count": server.counters.requests}


def _words(status: int, message: str) -> HttpError:
    kind = "Empty" if status == 400 and "empty" in message else "Validation"
    status = 400 if kind == "Empty" else 422
    body = {"message": message, "code": status, "type": kind, "error": message, "error_type": kind}
    return HttpError(status, pydantic_core.to_json(body))


def _bounded(parse: Parse) -> Parse:
    """Return the same checks with TEI's cap; longer texts are cut silently."""

    def parse_bounded(body: bytes, limits: Limits) -> CompletionCall:
        call = restated(parse, _words)(body, replace(limits, max_model_len_tokens=1 << 40))
        if len(call.prompts) > MAX_CLIENT_BATCH_SIZE:
            raise _words(422, f"batch size {len(call.prompts)} > maximum allowed batch size {MAX_CLIENT_BATCH_SIZE}")
        return call

    return parse_bounded


def _parse_texts(body: bytes, limits: Limits) -> CompletionCall:
    return parse_rerank(body, limits, "texts")


def _tokenize(_server: Served, body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    texts, _ = texts_of(body, "inputs", _words)
    tokens = [[{"id": each, "text": "", "special": False} for each in token_ids(text)] for text in texts]
    return 200, JSON_HEADERS, pydantic_core.to_json(tokens)


TEI = Guise(
    "tei",
    {
        "/v1/embeddings": Route(_bounded(any_embedding), EmbeddingWriter, id_prefix=""),
        "/rerank": Route(_bounded(whatever_model(_parse_texts)), BareRanks, id_prefix=""),
    },
    {
        ("GET", "/info"): json_page(_info),
        ("GET", "/health"): empty_page,
        ("GET", "/ping"): empty_page,
        ("POST", "/tokenize"): _tokenize,
        ("GET", "/metrics"): metrics_page(_metrics),
    },
    max_body_bytes=_PAYLOAD_LIMIT,
    too_large=pydantic_core.to_json({"message": "length limit exceeded", "code": 413, "type": "payload too large"}),
    busy=HttpError(429, pydantic_core.to_json({"message": "Model is overloaded", "code": 429, "type": "overloaded"})),
    version=_VERSION,
    owned_by=None,
    max_concurrent=_MAX_CONCURRENT_REQUESTS,
    not_found=(404, b""),
)
