"""A call's own reply in OpenAI's form, cut out of the reply to the shared request.

Rules:
- A call that went alone has the server's reply unchanged.
- A call of a list has the reply's shared fields, nulls too, the call's items numbered from 0, and a
  usage of its own.
- Token ids requested only by batchclient are null, as in a reply without the request for ids.
- A streamed reply lacks fields of a plain reply. The fields are null here, as in a plain reply to
  any request that may join a list. Only ``system_fingerprint`` is lost.
- Where the server told a list's tokens together, the usage is the call's share (``_shares``),
  marked with ``"prompt_tokens_estimated": true`` or ``"completion_tokens_estimated": true``. A
  program that reads ``usage.total_tokens`` must find a number there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchclient._core.messages import Batch
from batchclient.types import Usage

__all__ = ["ESTIMATED", "own_body"]

ESTIMATED = ("prompt_tokens_estimated", "completion_tokens_estimated")
"""The marks of a usage other than the server's own count."""
_HOLDERS = ("choices", "data")
_IDS = ("token_ids", "prompt_token_ids")
_PLAIN_ONLY = ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
_PLAIN_ONLY_OF_ITEMS = ("prompt_logprobs", "routed_experts")
_PLAIN_ONLY_OF_USAGE = ("prompt_tokens_details", "completion_tokens_details")
"""Fields that vLLM 0.32 writes only into plain replies (``completion/protocol.py``)."""


def own_body(
    batch: Batch,
    reply: Mapping[str, Any],
    holder: str,
    items: Sequence[dict[str, Any]],
    usage: Usage | None,
) -> dict[str, Any]:
    """Return the body that the call's own reply would have had.

    Args:
        holder: the field of the items, ``"choices"`` or ``"data"``.
        items: the call's own, which become part of the body; of a list they are changed.
        usage: the call's, or a share; ``None``: the server told none.
    """
    body = {**dict.fromkeys(_PLAIN_ONLY), **reply} if batch.streamed else dict(reply)
    for name in _HOLDERS:
        # What a reply holds of several calls is not this call's.
        if name in body:
            del body[name]
    if batch.streamed:
        items = [{**dict.fromkeys(_PLAIN_ONLY_OF_ITEMS), **item} for item in items]
    listed = len(batch.requests) > 1
    hides_ids = listed and not batch.shape.wants_token_ids
    for index, item in enumerate(items):
        item["index"] = index
        if hides_ids:
            for name in _IDS:
                if name in item:
                    item[name] = None
    body[holder] = items if type(items) is list else list(items)
    told = body.get("usage")
    if listed or batch.streamed:
        body["usage"] = None if usage is None else _usage_fields({} if batch.streamed else told, usage)
    elif told is None:
        body["usage"] = None if usage is None else _usage_fields({}, usage)
    return body


def _usage_fields(told: Any, usage: Usage) -> dict[str, Any]:
    """Return a usage with the fields of the list's; fields about all calls together are null."""
    known = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    marks = {name: True for name in ESTIMATED if getattr(usage, name)}
    if not isinstance(told, dict) or not told:
        return {**dict.fromkeys(_PLAIN_ONLY_OF_USAGE), **known, **marks}
    return {**dict.fromkeys(told), **{name: known[name] for name in known if name in told}, **marks}
