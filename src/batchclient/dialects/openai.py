"""Any server with OpenAI's API of which nothing else is known: a gateway, ``transformers serve``, a mock.

What it rests on:
- Nothing of vLLM's is sent: no ``stream_interval``, no ``return_token_ids``, no ``continuous_usage_stats``. A list's usage is a sum that
  belongs to nobody, and is left out.
- Lists are tried, and given up where they are refused (``transformers serve`` 5.23: "prompt must be a string.") or where prompts are left
  unanswered. So are streams.
- ``transformers serve`` ends a stream without ``[DONE]``, and ignores ``n``: a reply with too few choices is no answer.
"""

from __future__ import annotations

from batchclient._core.kinds import Kind
from batchclient.dialects._completions import Completions
from batchclient.dialects._server import ServerDialect

__all__ = ["VLLM_ONLY", "OpenaiDialect"]

VLLM_ONLY = frozenset({"stream_interval", "continuous_usage_stats", "return_token_ids", "priority"})
"""Of what we may add to the callers' fields, what is not OpenAI's."""


class OpenaiDialect(ServerDialect):
    """See the top of this file."""

    name = "openai"
    without = VLLM_ONLY
    forms = {Kind.COMPLETION: Completions(priority_sign=0)}  # noqa: RUF012
