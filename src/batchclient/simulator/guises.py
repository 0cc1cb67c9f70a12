"""The guises of the embedded server: generating routes, other pages, words of refusal.

Rules:
- The engine, its costs, the API server's queue and the faults are the same in every guise. A guise
  is everything a client can see: paths, fields, bodies, statuses, the order of choices, limits.
- A route reads a body into a ``CompletionCall``, or raises ``HttpError`` as the real server would
  refuse. The route also makes the writer of the reply.
- All other answers of a guise are pages: method and path to a function of the server.
"""

from __future__ import annotations

from importlib import import_module

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
    "GUISES",
    "POOLING",
    "TOKENS",
    "VLLM",
    "make_guise",
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
_MODULES = {
    "vllm": "guises",
    "sglang": "guise_sglang",
    "tgi": "guise_tgi",
    "llamacpp": "guise_llamacpp",
    "trtllm": "guise_trtllm",
    "tei": "guise_tei",
    "openai": "guise_openai",
    "strict": "guise_openai",
    "transformers": "guise_openai",
}
"""By guise: its module, with the guise under its name in capitals. A module is loaded on demand."""
GUISES = tuple(_MODULES)
"""The names of all guises. Each is a dialect's name as well, except ``strict`` and
``transformers``, whose dialect is ``openai``.
"""


def make_guise(name: str) -> Guise:
    """Return a guise by name; raise ``ValueError`` if no guise has the name."""
    if name not in _MODULES:
        raise ValueError(f"there is no guise {name!r}; there are {', '.join(GUISES)}")
    guise = getattr(import_module(f"batchclient.simulator.{_MODULES[name]}"), name.upper())
    assert isinstance(guise, Guise)
    return guise
