"""The call of a row, for programs with a queue, a database or a framework of their own.

For example::

    made = read_call({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
    answer = await client.chat(made.item, model=made.model, **made.params)

A worker of one's own so takes the same rows as ``stream_map`` and ``batchclient map``: messages,
prompts, ShareGPT conversations, and lines of OpenAI Batch files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from batchclient._calls.call import Call
from batchclient._calls.make import CallMaker
from batchclient._core.kinds import Kind
from batchclient._maps.row_calls import KINDS, RowCall, RowCalls
from batchclient._settings import make_settings
from batchclient.errors import ConfigError

__all__ = ["RowCall", "check_call", "read_call"]

_CALLS = ("complete", "chat", "embed", "classify")
_FORMS = ("batch", "messages", "prompt", "conversations")


def read_call(
    row: Mapping[str, Any],
    form: Literal["batch", "messages", "prompt", "conversations"] | None = None,
    *,
    call: Literal["complete", "chat", "embed", "classify"] = "complete",
    params: Mapping[str, Any] | None = None,
) -> RowCall:
    """Return the call that a map would make of a row, checked. No file and no URL is opened.

    Args:
        row: its fields; those with a parameter's name are the row's own parameters.
        form: ``None``: as the row's fields tell.
        call: the method to use when the row does not tell.
        params: of all calls; a row's own replace them.

    Raises:
        ConfigError: the row makes no call, or one that would be refused before it is sent;
            ``field`` is what is at fault.
    """
    if form is not None and form not in _FORMS:
        raise ConfigError(f"form is one of {', '.join(_FORMS)}, not {form!r:.40}", field="form")
    if call not in _CALLS:
        raise ConfigError(f"call is one of {', '.join(_CALLS)}, not {call!r:.40}", field="call")
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
    maker, kind = _maker(), KINDS[made.call]
    model = maker.model(made.model)
    items = [made.item]
    if kind in (Kind.SCORE, Kind.RERANK):
        items, kind = _pairs_of(*made.item, is_score=kind is Kind.SCORE), Kind.SCORE
    for item in items:
        maker.make(
            Call(kind, item, made.params, model, made.timeout_s, made.priority or 0, tenant, made.session), None, 0.0
        )


def _pairs_of(query: Any, documents: Any, wanted: Any, *, is_score: bool) -> list[tuple[Any, Any]]:
    if is_score and isinstance(documents, str):
        documents = [documents]
    if not isinstance(documents, (list, tuple)) or not documents:
        raise ConfigError("documents is a list of texts, of one at least", field="documents")
    if wanted is not None and (type(wanted) is not int or wanted < 1):
        raise ConfigError(f"top_n is a whole number of at least 1, not {wanted!r:.40}", field="top_n")
    return [(query, document) for document in documents]


@cache
def _maker() -> CallMaker:
    # The settings decide nothing that is checked here.
    return CallMaker(make_settings("balanced", {"base_url": "http://localhost/v1", "model": "m"}))
