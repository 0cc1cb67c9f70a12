"""The embedded server's pages: model, health, version, load, and the simulator's own two.

Rules:
- A guise's own pages go before the pages of every guise. A guise without vLLM's pages
  (``owned_by``) has only its own.
- A path with another method is 405, an unknown path 404, both in the words of vLLM's framework.
- No page takes the engine's time. ``POST /simulator/faults`` replaces all faults, or leaves them as
  they were.
"""

from __future__ import annotations

from collections.abc import Mapping

import pydantic_core

from batchclient.simulator.engine import Engine
from batchclient.simulator.exchange import JSON_HEADERS, Headers
from batchclient.simulator.guise import Served
from batchclient.simulator.statistics import metrics_text
from batchclient.simulator.validation import error_body

__all__ = ["load_headers", "page_of"]

_Answer = tuple[int, Headers, bytes]
"""Status, headers, body."""


def page_of(server: Served, method: str, path: str, body: bytes) -> _Answer:
    """Return the answer to a request that generates nothing."""
    page = server.guise.pages.get((method, path))
    if page is not None:
        return page(server, body)
    match method, path:
        case "GET", "/simulator/statistics":
            return 200, JSON_HEADERS, pydantic_core.to_json(server.statistics())
        case "POST", "/simulator/faults":
            return _set_faults(server, body)
        case _ if server.guise.owned_by is None:
            status, words = server.guise.not_found
            return status, JSON_HEADERS if words else (), words
        case "GET", "/v1/models":
            return 200, JSON_HEADERS, pydantic_core.to_json(_models(server))
        case ("GET", "/health" | "/ping") | ("POST", "/ping"):
            return 200, (), b""
        case "GET", "/version":
            return 200, JSON_HEADERS, pydantic_core.to_json({"version": server.guise.version})
        case "GET", "/metrics":
            content_type = (("content-type", "text/plain; version=1.0.0; charset=utf-8"),)
            return 200, content_type, metrics_text(server.engine, server.counters, server.model).encode()
        case _ if path in server.guise.routes:
            return 405, JSON_HEADERS, b'{"detail":"Method Not Allowed"}'
        case _, "/v1/models" | "/health" | "/ping" | "/version" | "/metrics":
            return 405, JSON_HEADERS, b'{"detail":"Method Not Allowed"}'
    return 404, JSON_HEADERS, b'{"detail":"Not Found"}'


def _set_faults(server: Served, body: bytes) -> _Answer:
    try:
        server.set_faults([str(each) for each in pydantic_core.from_json(body)])
    except (TypeError, ValueError) as error:
        return 400, JSON_HEADERS, error_body(str(error), "BadRequestError", 400)
    return 200, JSON_HEADERS, b"{}"


def _models(server: Served) -> dict[str, object]:
    created_s = int(server.epoch_s)
    permission = {
        "id": f"modelperm-{server.ids.getrandbits(64):016x}",
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    model = {
        "id": server.model,
        "object": "model",
        "created": created_s,
        "owned_by": server.guise.owned_by,
        "root": server.model,
        "parent": None,
        "max_model_len": server.limits.max_model_len_tokens,
        "permission": [permission],
    }
    return {"object": "list", "data": [model]}


def load_headers(engine: Engine, headers: Mapping[bytes, bytes]) -> Headers:
    """Return the load as a response header (ORCA), for a request that asks for the load."""
    waiting, usage = float(engine.waiting), engine.kv_usage_ratio
    if headers[b"endpoint-load-metrics-format"].upper() == b"JSON":
        named = {"named_metrics": {"num_requests_waiting": waiting, "kv_cache_usage_perc": usage}}
        return (("endpoint-load-metrics", "JSON " + pydantic_core.to_json(named).decode()),)
    text = f"TEXT named_metrics.num_requests_waiting={waiting}, named_metrics.kv_cache_usage_perc={usage}"
    return (("endpoint-load-metrics", text),)
