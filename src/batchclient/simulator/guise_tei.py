"""TEI 1.9 (text-embeddings-inference): embeddings, reranking and classification; no text generation.

Rules (``router/src/http/server.rs``, ``router/src/http/types.rs``, ``core/src/infer.rs``):
- Each input takes one of ``max_concurrent_requests`` permits at once, or the whole request is a 429.
- More than ``max_client_batch_size`` inputs are a 422 that says the cap.
"""

from __future__ import annotations

import pydantic_core

from batchclient.simulator.guise_parts import empty_page, json_page, metrics_page
from batchclient.simulator.guises import Guise
from batchclient.simulator.server import SimulatedServer
from batchclient.simulator.validation import HttpError

__all__ = ["MAX_CLIENT_BATCH_SIZE", "TEI"]

_VERSION = "1.9.3"
MAX_CLIENT_BATCH_SIZE = 32
_MAX_CONCURRENT_REQUESTS = 512


def _info(server: SimulatedServer) -> dict[str, object]:
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


def _metrics(server: SimulatedServer) -> dict[str, float]:
    return {"te_queue_size": server.engine.waiting, "te_request_count": server.counters.requests}


TEI = Guise(
    "tei",
    {},
    {
        ("GET", "/info"): json_page(_info),
        ("GET", "/health"): empty_page,
        ("GET", "/ping"): empty_page,
        ("GET", "/metrics"): metrics_page(_metrics),
    },
    busy=HttpError(429, pydantic_core.to_json({"message": "Model is overloaded", "code": 429, "type": "overloaded"})),
    version=_VERSION,
    owned_by=None,
    max_concurrent=_MAX_CONCURRENT_REQUESTS,
    not_found=(404, b""),
)
