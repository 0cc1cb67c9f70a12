"""In whose guise the embedded server speaks: its generating routes, its other pages, its words when it refuses.

Rules:
- The engine, its costs, the API server's queue and the faults are the same in every guise. A guise is what a client can see: paths, fields,
  bodies, statuses, the order of choices, limits.
- A route reads a body into a ``CompletionCall`` (raising ``HttpError`` as that server would) and makes the writer of its reply.
- Everything else that a guise answers is a page: method and path to a function of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from batchclient.simulator.chat import ChatBatchWriter, ChatWriter, parse_chat, parse_chat_batch
from batchclient.simulator.exchange import BUSY
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
from batchclient.simulator.text import Generation
from batchclient.simulator.validation import CompletionCall, HttpError, Limits, error_body, parse_completion
from batchclient.simulator.wire import ReplyWriter

if TYPE_CHECKING:
    from batchclient.simulator.server import SimulatedServer

__all__ = [
    "CHAT",
    "CHAT_BATCH",
    "GUISES",
    "POOLING",
    "TOKENS",
    "VLLM",
    "Guise",
    "Page",
    "Route",
    "Writer",
    "make_guise",
]


class Writer(Protocol):
    """Writes one request's reply; see ``wire.ReplyWriter`` for the methods' meaning."""

    reply_id: str

    def choice(self, index: int, generation: Generation) -> str: ...

    def body(self, choices: list[str], completion_tokens: int) -> bytes: ...

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes: ...

    def usage_event(self, completion_tokens: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Route:
    """A path that generates.

    Args:
        parse: reads and checks a body.
        writer: makes the reply's writer of (call, reply id, Unix time, model).
        id_prefix: of reply ids.
        done: what ends a stream; empty where the server ends it without a word.
        opening: what a stream begins with, before any answer.
        in_completion_order: whether a plain reply's choices stand in the order in which they were finished.
    """

    parse: Callable[[bytes, Limits], CompletionCall]
    writer: Callable[[CompletionCall, str, int, str], Writer]
    id_prefix: str = "cmpl-"
    done: bytes = b"data: [DONE]\n\n"
    opening: bytes = b""
    in_completion_order: bool = False


Page = Callable[["SimulatedServer", bytes], tuple[int, tuple[tuple[str, str], ...], bytes]]
"""(server, body) to (status, headers, body)."""


@dataclass(frozen=True, slots=True)
class Guise:
    """One sort of server as a client sees it.

    Args:
        name: as a dialect is called.
        routes: by path; all are POST.
        pages: by (method, path), before those that every guise has.
        unauthorized: the body of a 401.
        busy: the refusal above ``max_queued``.
        version: what the server says it is.
        owned_by: as in vLLM's ``/v1/models``; ``None``: it has none of vLLM's pages, only its own.
        max_concurrent: sequences above which it is busy, unless ``max_queued`` says otherwise; ``None``: never.
        slots: sequences that it runs at once, unless ``max_num_seqs`` says otherwise; ``None``: as the profile says.
        not_found: status and body for a path that it does not have.
        max_body_bytes: the longest body that it reads, unless ``SimulatedServer`` is told otherwise.
        too_large: the refusal of a longer one.
    """

    name: str
    routes: Mapping[str, Route]
    pages: Mapping[tuple[str, str], Page] = field(default_factory=dict)
    unauthorized: bytes = b'{"error":"Unauthorized"}'
    busy: HttpError = field(default_factory=lambda: HttpError(503, error_body(BUSY, "Service Unavailable", 503)))
    version: str = "0.32.0"
    owned_by: str | None = "vllm"
    max_concurrent: int | None = None
    slots: int | None = None
    not_found: tuple[int, bytes] = (404, b'{"detail":"Not Found"}')
    max_body_bytes: int = 64 << 20
    too_large: bytes = error_body("The request's body is too large.", "RequestEntityTooLarge", 413)


CHAT = Route(parse_chat, ChatWriter, "chatcmpl-")
"""``/v1/chat/completions`` as vLLM has it."""
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
"""What vLLM's pooling runner serves, by path."""
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
"""Where the guises are, each by its name in capitals. Their modules know this one, and are loaded when they are asked for."""
GUISES = tuple(_MODULES)
"""The names of all guises. Each is a dialect's name as well, but for ``strict`` and ``transformers``, to which one speaks ``openai``."""


def make_guise(name: str) -> Guise:
    """Return the guise of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in _MODULES:
        raise ValueError(f"there is no guise {name!r}; there are {', '.join(GUISES)}")
    guise = getattr(import_module(f"batchclient.simulator.{_MODULES[name]}"), name.upper())
    assert isinstance(guise, Guise)
    return guise
