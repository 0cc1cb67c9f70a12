"""vLLM. Also what is spoken to a server before it is known which it is.

What it rests on (vLLM 0.32): a list may hold 1,024 prompts (``VLLM_MAX_COMPLETION_PROMPTS``); with ``--scheduling-policy priority``
lower priorities go first. Without, 0.32 was seen to accept and ignore them; its documentation says that a number other than 0 is refused.
"""

from __future__ import annotations

from batchclient._core.kinds import Kind
from batchclient.dialects._completions import Completions
from batchclient.dialects._server import ServerDialect

__all__ = ["VllmDialect"]


class VllmDialect(ServerDialect):
    """See the top of this file."""

    name = "vllm"
    caps = {Kind.COMPLETION: 1024}  # noqa: RUF012
    forms = {Kind.COMPLETION: Completions()}  # noqa: RUF012
