"""Answers as fields of JSON, and fields as a line of JSON.

Rules:
- A vector's numbers have the nine digits needed to read a 32-bit float back unchanged.
- Values of tables are written as texts: times as ISO 8601, decimals with all their digits, bytes as
  base64; a length of time as its seconds.
- The line is JSON by the standard: no NaN, no infinity. Where a server sends one, such as a logprob
  of ``-Infinity``, the line has ``null``.
"""

from __future__ import annotations

import json
import math
from typing import Any

from batchclient._calls.tables import plain
from batchclient.types import Choice, Classification, Completion, Embedding, Ranking, Score, Usage

__all__ = ["asked_for", "encode", "fields_of"]

_PLAIN_MESSAGE = frozenset({"role", "content"})
"""A chat's message with these fields alone says no more than ``completion``."""


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, default=plain).encode


def encode(fields: dict[str, Any]) -> bytes:
    """Write fields as JSON, without a line end."""
    try:
        return _encode(fields).encode()
    except UnicodeEncodeError:
        # A lone surrogate in a field outside the prompt: escaped, the field leaves as it came.
        return _encode_ascii(fields).encode()
    except ValueError:
        return _encode_ascii(_without_infinities(fields)).encode()


def _without_infinities(value: Any) -> Any:
    """Return a value of JSON with ``None`` for each number that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_infinities(each) for name, each in value.items()}
    return [_without_infinities(each) for each in value] if isinstance(value, (list, tuple)) else value


def asked_for(answer: Completion) -> dict[str, Any]:
    """Return the fields of a completion that the server sends where a parameter asks for them."""
    choice = answer.choices[0]
    # The prompt's logprobs are a text's own in a list, and of a chat they stand beside the choices.
    of_prompt = choice.extra.get("prompt_logprobs", answer.extra.get("prompt_logprobs"))
    token_ids = None if choice.token_ids is None else list(choice.token_ids)
    told = {"logprobs": choice.logprobs, "prompt_logprobs": of_prompt, "token_ids": token_ids}
    return {name: value for name, value in told.items() if value is not None}


def fields_of(answer: Any, *, raw: bool = False) -> dict[str, Any]:
    """Return the fields added for an answer.

    Args:
        answer: of a row.
        raw: leave a vector as the array that it is, for a file that is no JSON.
    """
    usage = _of_usage(answer.usage, generates=isinstance(answer, Completion))
    if isinstance(answer, Embedding):
        vector = answer.vector if raw else [float(f"{number:.9g}") for number in answer.vector]
        return {"embedding": vector, "usage": usage}
    if isinstance(answer, Classification):
        return {"label": answer.label, "probabilities": list(answer.probabilities), "usage": usage}
    if isinstance(answer, Score):
        return {"score": answer.score, "usage": usage}
    if isinstance(answer, Ranking):
        told = [{"index": place, "score": score} for place, score in zip(answer.places, answer.scores, strict=True)]
        return {"results": told, "usage": usage}
    assert isinstance(answer, Completion), "a map has no other answers"
    added = _of_choice(answer.choices[0])
    if len(answer.choices) > 1:
        added["choices"] = [_of_choice(choice) for choice in answer.choices]
    return added | {"usage": usage}


def _of_choice(choice: Choice) -> dict[str, Any]:
    told: dict[str, Any] = {"completion": choice.text, "finish_reason": choice.finish_reason}
    if choice.message is not None and not choice.message.keys() <= _PLAIN_MESSAGE:
        told["message"] = dict(choice.message)
    return told


def _of_usage(usage: Usage | None, *, generates: bool) -> dict[str, Any] | None:
    """Return a row's usage; an estimate is marked as one."""
    if usage is None:
        return None
    told: dict[str, Any] = {"prompt_tokens": usage.prompt_tokens}
    if generates:
        told["completion_tokens"] = usage.completion_tokens
    if usage.prompt_tokens_estimated:
        told["prompt_tokens_estimated"] = True
    if generates and usage.completion_tokens_estimated:
        told["completion_tokens_estimated"] = True
    return told
