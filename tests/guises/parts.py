"""What several of these guises share: names for any model, flat errors, bare ranks."""

from __future__ import annotations

from typing import Any

import pydantic_core

from batchclient.simulator.guise_parts import Parse, whatever_model
from batchclient.simulator.pooling import RankWriter, parse_embedding, parse_rerank, score_of
from batchclient.simulator.validation import HttpError, parse_completion

__all__ = ["OPENAI_FIELDS", "BareRanks", "any_embedding", "any_model", "any_rerank", "flat_error"]

_OPENAI_FIELDS = (
    "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream"
    " stream_options suffix temperature top_p user"
)
OPENAI_FIELDS = frozenset(_OPENAI_FIELDS.split())
"""OpenAI's fields of ``/v1/completions`` (API reference); ``stream_options``: ``include_usage``."""


def flat_error(status: int, message: str) -> HttpError:
    """Write an error as SGLang and trtllm-serve do: not nested."""
    body = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": status}
    return HttpError(status, pydantic_core.to_json(body))


any_model: Parse = whatever_model(parse_completion)
"""Reads a completion for any model's name."""
any_embedding: Parse = whatever_model(parse_embedding)
any_rerank: Parse = whatever_model(parse_rerank)


class BareRanks(RankWriter):
    """Writes a reranking as an array, the best first, as SGLang and TEI do."""

    def _item(self, index: int) -> dict[str, Any]:
        return {"index": index, "score": score_of(*self._call.pairs[index])}

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        """Return a whole reply."""
        return f"[{','.join(self.ranked(choices))}]".encode()
