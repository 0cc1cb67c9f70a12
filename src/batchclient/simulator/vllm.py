"""vLLM, as the embedded server plays it: its routes and pages."""

from __future__ import annotations

from batchclient.simulator.chat import ChatBatchWriter, ChatWriter, parse_chat, parse_chat_batch
from batchclient.simulator.guise import Guise, Page, Route
from batchclient.simulator.pooling import (
    ClassWriter,
    EmbeddingWriter,
    RankWriter,
    ScoreWriter,
    detokenize_page,
    parse_embedding,
    parse_inputs,
    parse_rerank,
    parse_score,
    tokenize_page,
)
from batchclient.simulator.validation import parse_completion
from batchclient.simulator.wire import ReplyWriter

__all__ = [
    "CHAT",
    "CHAT_BATCH",
    "POOLING",
    "TOKENS",
    "VLLM",
]


CHAT = Route(parse_chat, ChatWriter, "chatcmpl-")
"""vLLM's ``/v1/chat/completions``."""
CHAT_BATCH = Route(parse_chat_batch, ChatBatchWriter, "chatcmpl-")
"""``/v1/chat/completions/batch``: vLLM alone, since 0.19."""
_SCORE = Route(parse_score, ScoreWriter, "score-")
_RERANK = Route(parse_rerank, RankWriter, "score-")
POOLING: dict[str, Route] = {
    "/v1/embeddings": Route(parse_embedding, EmbeddingWriter, "embd-"),
    "/classify": Route(parse_inputs, ClassWriter, "classify-"),
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
}
"""By path: the routes of vLLM's pooling runner."""
TOKENS: dict[tuple[str, str], Page] = {
    ("POST", "/tokenize"): tokenize_page,
    ("POST", "/detokenize"): detokenize_page,
}
VLLM = Guise(
    "vllm",
    {
        "/v1/completions": Route(parse_completion, ReplyWriter),
        "/v1/chat/completions": CHAT,
        "/v1/chat/completions/batch": CHAT_BATCH,
        **POOLING,
    },
    TOKENS,
)
