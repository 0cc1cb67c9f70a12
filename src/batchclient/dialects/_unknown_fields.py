"""What servers say of fields that they do not know, and which of those fields are ours.

Rules:
- Before a server is known, and to vLLM, we send fields that other servers may not know. Most ignore them. A strict one refuses them, which is
  no caller's fault: the fields are left out from then on, and what was refused is sent again.
- A field that the caller gave is the caller's, even if we would have sent it ourselves.
- Where the words are those of such a refusal and name no field at all, all of ours are left out.

The words: pydantic's ``extra_forbidden`` ("Extra inputs are not permitted": FastAPI, trtllm-serve), "Unrecognized request argument supplied"
and "Unknown parameter" (OpenAI), "Unexpected fields in the request" (transformers serve), "unknown field" (serde, in Rust servers).
"""

from __future__ import annotations

import re

from pydantic_core import from_json

from batchclient._core.kinds import Kind
from batchclient._core.requests import Batch

__all__ = ["OUR_FIELDS", "refused_fields"]

OUR_FIELDS = frozenset({"stream_interval", "continuous_usage_stats", "stream_options", "return_token_ids", "priority"})
"""What a dialect may add to the callers' own fields."""
_GENERATING = frozenset({Kind.COMPLETION, Kind.CHAT})
_STREAMED_ONLY = frozenset({"stream_interval", "continuous_usage_stats", "stream_options"})
_UNKNOWN = re.compile(
    r"extra_forbidden|extra (?:inputs|fields?) (?:are |is )?not (?:permitted|allowed)|unexpected (?:fields?|keyword|parameter)"
    r"|unrecogni[sz]ed (?:request )?(?:arguments?|fields?|parameters?|keys?)|(?:unknown|unsupported) (?:fields?|parameters?|arguments?|keys?)"
    r"|additional propert(?:y|ies)",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(r"not (?:supported|allowed|permitted|recogni[sz]ed|available)", re.IGNORECASE)
"""Said of many things: it counts where a field of ours is named with it."""
_WORD = re.compile(r"[a-z_]+")


def refused_fields(batch: Batch, status: int, message: str) -> frozenset[str]:
    """Return the fields of ours that a reply refuses the batch for; empty if it is about anything else.

    Args:
        batch: as it was sent.
        status: of the reply.
        message: the server's, free of prompts.
    """
    unknown = status in (400, 422) and _UNKNOWN.search(message) is not None
    if not unknown and not (status in (400, 422, 501) and _UNSUPPORTED.search(message)):
        return frozenset()
    callers = _callers_fields(batch)
    ours = _added(batch) - callers
    words = frozenset(_WORD.findall(message.lower()))
    named = words & ours
    if "continuous_usage_stats" in named:
        # It is named with the path to it, and the rest of that path may be welcome.
        named -= {"stream_options"}
    if named or not unknown or words & callers or "stream" in words:
        return named
    return ours


def _added(batch: Batch) -> frozenset[str]:
    """What the batch may have been sent with that is ours. Where nothing is generated, that is base64, whose refusal has a kind of its own."""
    if batch.shape.kind not in _GENERATING:
        return frozenset()
    added = _STREAMED_ONLY if batch.streamed else frozenset({"return_token_ids"} if len(batch.requests) > 1 else ())
    if batch.shape.tells_priority:
        added |= {"priority"}
    if "stream_options" in batch.wire.without:
        added -= {"continuous_usage_stats"}
    return added - batch.wire.without


def _callers_fields(batch: Batch) -> frozenset[str]:
    fields = frozenset(from_json(batch.shape.body)) - {"model"}
    solo = batch.requests[0].solo_fields if len(batch.requests) == 1 else b""
    return fields | frozenset(from_json(b"{" + solo + b"}")) if solo else fields
