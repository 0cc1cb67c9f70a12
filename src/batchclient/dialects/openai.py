"""Any server with OpenAI's API of which nothing else is known: a gateway, ``transformers serve``, a mock.

What it rests on:
- Nothing of vLLM's is sent: no ``stream_interval``, no ``return_token_ids``, no ``continuous_usage_stats``. A list's usage is a sum that
  belongs to nobody, and is left out.
- Lists are tried, and given up where they are refused (``transformers serve`` 5.23: "prompt must be a string.") or where prompts are left
  unanswered. So are streams.
- Chats go one by one: no list of conversations is OpenAI's. ``/rerank`` is not OpenAI's either, and many gateways have it.
- ``transformers serve`` (seen running) ends a stream without ``[DONE]``, leaves the stop string that ended an answer in it, and ignores ``n``: a reply
  with too few choices is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchclient._core.kinds import Kind
from batchclient.dialects._chat import Chat
from batchclient.dialects._embeddings import Embeddings
from batchclient.dialects._reader import StopReader
from batchclient.dialects._scores import RerankScores
from batchclient.dialects._server import Form, ServerDialect
from batchclient.dialects.completions import Completions

__all__ = ["OpenaiDialect"]

VLLM_ONLY = frozenset({"stream_interval", "continuous_usage_stats", "return_token_ids", "priority"})
"""Of what we may add to the callers' fields, what is not OpenAI's."""


class OpenaiDialect(ServerDialect):
    """See the top of this file."""

    name = "openai"
    is_known_server = False
    without = VLLM_ONLY
    caps: Mapping[Kind, int] = {Kind.CHAT: 1}
    forms: Mapping[Kind, Form] = {
        Kind.COMPLETION: Completions(priority_sign=0, reader=StopReader),
        Kind.CHAT: Chat(priority_sign=0),
        Kind.EMBEDDING: Embeddings(),
        Kind.SCORE: RerankScores(),
        Kind.RERANK: RerankScores(),
    }
