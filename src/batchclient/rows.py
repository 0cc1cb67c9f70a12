"""The calls of rows, for programs with a queue, a database or a framework of their own.

    call = read_call({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
    answer = await client.chat(call.item, **call.params)

A worker of one's own so takes the same rows as ``stream_map`` and ``batchclient map``: messages,
prompts, ShareGPT conversations, and lines of OpenAI Batch files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from batchclient._calls.make import CallMaker
from batchclient._client.settings import make_settings
from batchclient._core.kinds import Kind
from batchclient._maps.row_calls import KINDS, RowCall, RowCalls, RowForm
from batchclient.errors import ConfigError

__all__ = ["RowCall", "RowForm", "check_call", "read_call"]


def read_call(
    row: Mapping[str, Any],
    form: RowForm | None = None,
    *,
    call: str = "complete",
    params: Mapping[str, Any] | None = None,
) -> RowCall:
    """Return the call that a map would make of a row, checked. No file and no URL is opened.

    Args:
        row: its fields; those with a parameter's name are the row's own parameters.
        form: ``"messages"``, ``"prompt"``, ``"conversations"`` or ``"batch"``; ``None``: as the
            row's fields tell.
        call: what is asked for, where neither the form nor the row says it.
        params: of all calls; a row's own replace them.

    Raises:
        ConfigError: the row makes no call, or one that would be refused before it is sent;
            ``field`` is what is at fault.
    """
    if form == "template":
        raise ConfigError("rows is 'messages', 'prompt', 'conversations' or 'batch'; fill in the prompt", field="rows")
    made = RowCalls(form, call=call, params=params, row_params="take").read(row)
    check_call(made)
    return made


def check_call(made: RowCall, *, tenant: str | None = None) -> None:
    """Refuse a call as it would be refused before it is sent.

    Args:
        made: the call; of ``score`` and ``rerank`` every document is looked at.
        tenant: for whom it is to be made.

    Raises:
        ConfigError: an argument is wrong; ``field`` names it.
    """
    check, kind = _maker().check_call, KINDS[made.call]
    items = [made.item]
    if kind in (Kind.SCORE, Kind.RERANK):
        query, documents, _ = made.item
        items = [(query, document) for document in ([documents] if isinstance(documents, str) else documents)]
        kind = Kind.SCORE
    for item in items:
        check(item, made.timeout_s, made.params, 0.0, made.priority or 0, tenant, kind)


@cache
def _maker() -> CallMaker:
    # The settings decide nothing that is checked here.
    return CallMaker(make_settings("balanced", {"base_url": "http://localhost/v1", "model": "m"}))
