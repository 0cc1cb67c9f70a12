"""vLLM; also the dialect spoken before the server is known.

Facts (vLLM 0.32):
- A list may hold 1,024 prompts (``VLLM_MAX_COMPLETION_PROMPTS``).
- With ``--scheduling-policy priority`` lower priorities go first. Without the option, 0.32 was seen
  to accept and ignore priorities; its documentation says that a number other than 0 is refused.
- Lists of chats have had their own route since 0.19, without a cap: 1,025 conversations were seen
  to be answered.
- Embeddings, pairs and texts to classify come in lists of any length. ``/tokenize`` takes one text
  at a time.
- A server has only the paths of its own model's kind; the others are not found.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchclient._core.kinds import Kind
from batchclient.dialects._chat import Chat
from batchclient.dialects._embeddings import Embeddings
from batchclient.dialects._scores import Classes, PairScores
from batchclient.dialects._server import Form, ServerDialect
from batchclient.dialects._tokens import VllmTokens
from batchclient.dialects.completions import Completions

__all__ = ["VllmDialect"]


class VllmDialect(ServerDialect):
    """The dialect described at the top of the file."""

    name = "vllm"
    caps: Mapping[Kind, int] = {Kind.COMPLETION: 1024, Kind.TOKENS: 1}
    forms: Mapping[Kind, Form] = {
        Kind.COMPLETION: Completions(),
        Kind.CHAT: Chat(list_path="/chat/completions/batch"),
        Kind.EMBEDDING: Embeddings(),
        Kind.SCORE: PairScores(),
        Kind.RERANK: PairScores(),
        Kind.CLASSIFICATION: Classes(),
        Kind.TOKENS: VllmTokens(),
    }
    list_routes: frozenset[Kind] = frozenset({Kind.CHAT})
    continues_chats = True
