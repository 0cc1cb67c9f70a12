"""Any other server with OpenAI's API: a gateway, ``transformers serve``, a mock.

Rules:
- No field of vLLM's is sent: no ``stream_interval``, no ``return_token_ids``, no
  ``continuous_usage_stats``. A list's usage is a sum, and each call gets a share (``_shares``).
- Lists are tried, and given up where the server refuses them or leaves prompts unanswered.
  (``transformers serve`` 5.23 refuses: "prompt must be a string.") So are streams.
- Chats go one by one: OpenAI's API has no list of conversations. ``/rerank`` is not OpenAI's
  either, but many gateways have it.
- ``transformers serve`` (seen running) ends a stream without ``[DONE]``, leaves the stop string in
  the text, and ignores ``n``. A reply with too few choices is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchclient._core.kinds import Kind
from batchclient.dialects._chat import Chat
from batchclient.dialects._embeddings import Embeddings
from batchclient.dialects._readers import StopReader
from batchclient.dialects._scores import RerankScores
from batchclient.dialects._server import Form, ServerDialect
from batchclient.dialects.completions import Completions

__all__ = ["OpenaiDialect"]

VLLM_ONLY = frozenset(
    {"stream_interval", "continuous_usage_stats", "return_token_ids", "priority", "repetition_detection"}
)
"""Fields added by batchclient and unknown to OpenAI's API."""


class OpenaiDialect(ServerDialect):
    """The dialect described at the top of the file."""

    name = "openai"
    without = VLLM_ONLY
    caps: Mapping[Kind, int] = {Kind.CHAT: 1}
    forms: Mapping[Kind, Form] = {
        Kind.COMPLETION: Completions(priority_sign=0, reader=StopReader),
        Kind.CHAT: Chat(priority_sign=0),
        Kind.EMBEDDING: Embeddings(),
        Kind.SCORE: RerankScores(),
        Kind.RERANK: RerankScores(),
    }
