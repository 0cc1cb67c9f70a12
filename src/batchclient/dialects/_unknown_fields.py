"""Servers' refusals of unknown fields, and which of the fields are batchclient's.

Rules:
- Before a server is known, and to vLLM, batchclient sends fields that other servers may not know.
  Most servers ignore such fields. A strict server refuses the request, which is no caller's fault.
  The fields are left out from then on, and the refused calls are sent again.
- A field given by the caller is the caller's, even if batchclient would have sent it.
- If a refusal names no field at all, all of batchclient's fields are left out.

Sources of the words: pydantic's ``extra_forbidden`` ("Extra inputs are not permitted": FastAPI,
trtllm-serve), "Unrecognized request argument supplied" and "Unknown parameter" (OpenAI),
"Unexpected fields in the request" (transformers serve), "unknown field" (serde, in Rust servers).
"""

from __future__ import annotations

import re

from pydantic_core import from_json

from batchclient._core.kinds import Kind
from batchclient._core.requests import Batch

__all__ = ["OUR_FIELDS", "refused_fields"]

OUR_FIELDS = frozenset(
    {
        "stream_interval", "continuous_usage_stats", "stream_options", "return_token_ids", "priority",
        "repetition_detection",
    }
)  # fmt: skip
"""Fields that a dialect may add to the callers' own."""
_GENERATING = frozenset({Kind.COMPLETION, Kind.CHAT})
_STREAMED_ONLY = frozenset({"stream_interval", "continuous_usage_stats", "stream_options"})
_UNKNOWN = re.compile(
    r"extra_forbidden|extra (?:inputs|fields?) (?:are |is )?not (?:permitted|allowed)"
    r"|unexpected (?:fields?|keyword|parameter)|unrecogni[sz]ed (?:request )?(?:arguments?|fields?|parameters?|keys?)"
    r"|(?:unknown|unsupported) (?:fields?|parameters?|arguments?|keys?)"
    r"|additional propert(?:y|ies)",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(r"not (?:supported|allowed|permitted|recogni[sz]ed|available)", re.IGNORECASE)
"""Words about many things: a match counts only if the message names a field of batchclient's."""
_WORD = re.compile(r"[a-z_]+")


def refused_fields(batch: Batch, status: int, message: str) -> frozenset[str]:
    """Return the fields of batchclient's refused by a reply; empty if the reply is about others.

    ``message`` is the server's, free of prompts.
    """
    unknown = status in (400, 422) and _UNKNOWN.search(message) is not None
    if not unknown and not (status in (400, 422, 501) and _UNSUPPORTED.search(message)):
        return frozenset()
    callers = _callers_fields(batch)
    ours = _added(batch) - callers
    words = frozenset(_WORD.findall(message.lower()))
    named = words & ours
    if "continuous_usage_stats" in named:
        # The field is named by its path: ``stream_options`` itself may be welcome.
        named -= {"stream_options"}
    if named or not unknown or words & callers or "stream" in words:
        return named
    return ours


def _added(batch: Batch) -> frozenset[str]:
    """Return the fields of batchclient's in the batch's request.

    Where nothing is generated there is only base64, whose refusal has a kind of its own.
    """
    if batch.shape.kind not in _GENERATING:
        return frozenset()
    added = _STREAMED_ONLY if batch.streamed else frozenset({"return_token_ids"} if len(batch.requests) > 1 else ())
    if batch.shape.tells_priority:
        added |= {"priority"}
    if batch.shape.guarded:
        added |= {"repetition_detection"}
    if "stream_options" in batch.wire.without:
        added -= {"continuous_usage_stats"}
    return added - batch.wire.without


def _callers_fields(batch: Batch) -> frozenset[str]:
    fields = frozenset(from_json(batch.shape.body)) - {"model"}
    solo = batch.requests[0].solo_fields if len(batch.requests) == 1 else b""
    return fields | frozenset(from_json(b"{" + solo + b"}")) if solo else fields
