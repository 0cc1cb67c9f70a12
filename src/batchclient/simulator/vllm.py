"""vLLM 0.32 as the embedded server plays it: routes, handlers, words of refusal.

A real vLLM serves either generation or pooling. The embedded server serves both, so a test needs
only one server.
"""

from __future__ import annotations

from batchclient.simulator.guise import Guise, Reply, Route, ServerView, json_reply
from batchclient.simulator.replies import (
    ChatWriter,
    ClassWriter,
    CompletionWriter,
    EmbeddingWriter,
    RankWriter,
    ScoreWriter,
)
from batchclient.simulator.requests import (
    ChatRequest,
    ChatsRequest,
    CompletionRequest,
    EmbeddingRequest,
    HttpError,
    InputRequest,
    RankRequest,
    ScoreRequest,
    TokenizeRequest,
    read,
)
from batchclient.simulator.text import pieces, token_ids

__all__ = ["VLLM", "words"]

_VERSION = "0.32.0"
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_USUAL = {
    413: "The request's body is too large.",
    429: "Too many requests.",
    500: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    503: _BUSY,
}
_KINDS = {
    400: "BadRequestError",
    404: "NotFoundError",
    413: "RequestEntityTooLarge",
    429: "RateLimitError",
    503: "Service Unavailable",
}


def words(error: HttpError) -> Reply:
    """Write a refusal as vLLM does."""
    shown = {
        "message": error.message or _USUAL.get(error.status, "The request failed by order."),
        "type": error.kind or _KINDS.get(error.status, "InternalServerError"),
        "param": error.param,
        "code": error.status,
    }
    return json_reply({"error": shown}, error.status)


# Handlers -------------------------------------------------------------------------------------------------------------


def _models(server: ServerView, _body: bytes) -> Reply:
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
        "owned_by": "vllm",
        "root": server.model,
        "parent": None,
        "max_model_len": server.limits.max_model_len_tokens,
        "permission": [permission],
    }
    return json_reply({"object": "list", "data": [model]})


def _tokenize(server: ServerView, body: bytes) -> Reply:
    """Answer ``/tokenize``: a text costs the API server a request, and the engine nothing."""
    request = read(TokenizeRequest, body, server.limits)
    ids = token_ids(request.text)
    return json_reply(
        {
            "count": len(ids),
            "max_model_len": server.limits.max_model_len_tokens,
            "tokens": ids,
            "token_strs": pieces(request.text) if request.return_token_strs else None,
        }
    )


def _metrics(server: ServerView, _body: bytes) -> Reply:
    """Answer ``/metrics``: counters only grow, gauges are read from the engine."""
    engine, counters = server.engine, server.counters
    labels = f'engine="0",model_name="{server.model}"'
    blocks = engine.profile.kv_tokens // 16
    cache = f'block_size="16",engine="0",kv_cache_size_tokens="{16 * blocks}",num_gpu_blocks="{blocks}"'
    gauges: dict[str, dict[str, float]] = {
        "num_requests_running": {labels: engine.running},
        "num_requests_waiting": {labels: engine.waiting},
        "kv_cache_usage_perc": {labels: engine.kv_usage_ratio},
        "cache_config_info": {cache: 1},
    }
    reasons = ("stop", "length", "abort", "error")
    totals: dict[str, dict[str, float]] = {
        # A prefix cache that finds nothing: there is none yet.
        "prefix_cache_queries": {labels: engine.prompt_tokens},
        "prefix_cache_hits": {labels: 0},
        "num_preemptions": {labels: engine.preemptions},
        "prompt_tokens": {labels: engine.prompt_tokens},
        "generation_tokens": {labels: engine.generation_tokens},
        "request_success": {f'finished_reason="{each}",{labels}': counters.finish_reasons[each] for each in reasons},
        "admission_rejections": {f'reason="max_num_queued_reqs",model_name="{server.model}"': counters.rejections},
    }
    lines = []
    for kind, suffix, families in (("gauge", "", gauges), ("counter", "_total", totals)):
        for name, samples in families.items():
            lines += [f"# HELP vllm:{name} See vLLM.", f"# TYPE vllm:{name} {kind}"]
            lines += [f"vllm:{name}{suffix}{{{labelled}}} {float(value)}" for labelled, value in samples.items()]
    content_type = (("content-type", "text/plain; version=1.0.0; charset=utf-8"),)
    return Reply(200, content_type, "".join(f"{line}\n" for line in lines).encode())


def _nothing(_server: ServerView, _body: bytes) -> Reply:
    return Reply(200)


_SCORE = Route(ScoreRequest, ScoreWriter, "score-")
_RANK = Route(RankRequest, RankWriter, "score-")
VLLM = Guise(
    "vllm",
    {
        "/v1/completions": Route(CompletionRequest, CompletionWriter),
        "/v1/chat/completions": Route(ChatRequest, ChatWriter, "chatcmpl-"),
        "/v1/chat/completions/batch": Route(ChatsRequest, ChatWriter, "chatcmpl-"),
        "/v1/embeddings": Route(EmbeddingRequest, EmbeddingWriter, "embd-"),
        "/classify": Route(InputRequest, ClassWriter, "classify-"),
        "/score": _SCORE,
        "/v1/score": _SCORE,
        "/rerank": _RANK,
        "/v1/rerank": _RANK,
    },
    words,
    {
        ("GET", "/v1/models"): _models,
        ("GET", "/health"): _nothing,
        ("GET", "/ping"): _nothing,
        ("GET", "/version"): lambda _server, _body: json_reply({"version": _VERSION}),
        ("GET", "/metrics"): _metrics,
        ("POST", "/tokenize"): _tokenize,
    },
    # vLLM asks for a key below /v1 alone.
    unguarded=frozenset({"/classify", "/rerank", "/score"}),
)
