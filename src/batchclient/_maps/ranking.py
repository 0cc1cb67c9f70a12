"""A call with a query and several documents: a request for each document, one answer for all.

Rules:
- The requests travel in lists with each other, and with other callers' where the servers take pairs
  of any queries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from batchclient._calls.call import Call
from batchclient._calls.tables import kind_of, refuse_frame
from batchclient._calls.unsendable import lone_surrogate
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient._maps.together import requests_together
from batchclient._shell.runner import Runner
from batchclient.dialects._arguments import refuse_unknown
from batchclient.dialects._fields import sort_fields
from batchclient.errors import ConfigError
from batchclient.types import RankedDocument, Ranking, Score, Usage

__all__ = ["rank", "requests_of"]


async def rank(call: Call, make: Callable[[Call], Awaitable[Any]]) -> list[RankedDocument]:
    """Order the documents of a call, the best first.

    Args:
        call: of kind ``RERANK``.
        make: makes a call.

    Raises:
        ConfigError: an argument is wrong. Nothing was sent.
        BatchClientError: a document's error; a note on the error says which.
    """
    query, documents, wanted = call.item
    texts = _texts_of(query, documents, wanted, call.params)
    ranking = await make(call._replace(item=(query, texts, wanted)))
    return [
        RankedDocument(place, score, texts[place]) for place, score in zip(ranking.places, ranking.scores, strict=True)
    ]


def requests_of(call: Call, waiter: Any, runner: Runner, make: Callable[[Call, Any], Request]) -> list[Request]:
    """Return the requests of a call with a query and several documents, one for each document.

    Args:
        call: of kind ``RERANK``, which puts the best first, or ``SCORE``, which keeps the order and
            may be about one document.
        waiter: the caller's, who gets a ``Ranking``, or of one document a ``Score``.
        runner: sends them.
        make: makes a request of a call about one document, for a waiter.

    Raises:
        ConfigError: the documents are none, or no texts.
    """
    query, documents, wanted = call.item
    if call.kind is Kind.SCORE and not isinstance(documents, (list, tuple)):
        return [make(call._replace(item=(query, documents)), waiter)]
    if not isinstance(documents, (list, tuple)) or not documents:
        what = "an empty list" if isinstance(documents, (list, tuple)) else kind_of(documents)
        raise ConfigError(f"documents is a list of texts, not {what}", field="documents")
    if wanted is not None and (type(wanted) is not int or wanted < 1):
        raise ConfigError(f"top_n is a whole number of at least 1, not {wanted!r:.40}", field="top_n")
    kind = Kind.SCORE if call.kind is Kind.SCORE or runner.servers.mixes_queries else Kind.RERANK
    calls = [call._replace(kind=kind, item=(query, each)) for each in documents]
    return requests_together(
        calls, waiter, runner, make, lambda scores: waiter.set_result(_ranking(scores, call.kind, wanted))
    )


def _texts_of(query: object, documents: object, top_n: object, params: Mapping[str, Any]) -> list[str]:
    """Return the documents of a rerank, its arguments checked.

    Raises:
        ConfigError: an argument is wrong.
    """
    refuse_frame(documents, "documents")
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        raise ConfigError(f"documents is a list of texts, not a {type(documents).__name__}", field="documents")
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        raise ConfigError(f"top_n is a whole number of at least 1, not {top_n!r:.40}", field="top_n")
    texts = list(documents)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(f"document {place} is {kind_of(text)}, not a text", field="documents")
        why = lone_surrogate(text)
        if why is not None:
            raise ConfigError(f"document {place} {why}", field="documents")
    if not isinstance(query, str):
        raise ConfigError(f"query is a text, not {kind_of(query)}", field="query")
    refuse_unknown(Kind.RERANK, params)
    # Each document is a score's: what is wrong with the fields would be said of ``score()``.
    sort_fields(params, Kind.RERANK)
    return texts


def _ranking(scores: list[Score], kind: Kind, wanted: int | None) -> Ranking:
    """Return the answer of a call whose documents have these scores."""
    usages = [each.usage for each in scores]
    places = list(range(len(scores)))
    if kind is Kind.RERANK:
        places.sort(key=lambda place: scores[place].score, reverse=True)
    known = [usage for usage in usages if usage is not None]
    usage = None
    if len(known) == len(usages):
        estimated = any(each.prompt_tokens_estimated for each in known)
        usage = Usage(sum(each.prompt_tokens for each in known), 0, prompt_tokens_estimated=estimated)
    kept = tuple(places[:wanted])
    told = tuple(scores[place].score for place in kept)
    queued_s = max((each.queued_s for each in scores if each.queued_s is not None), default=None)
    return Ranking(kept, told, usage, sum(each.attempts for each in scores), queued_s)
