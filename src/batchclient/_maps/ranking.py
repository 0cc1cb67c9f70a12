"""A row with a query and several documents: a request for each document, one answer for all.

Rules:
- The first error is the row's, and ends its other calls.
- The documents are scored as ``rerank`` scores them: in lists with those of other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from batchclient._calls.fan_out import Part, Share
from batchclient._calls.tables import kind_of
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient._maps.row import Row
from batchclient._shell.runner import Runner
from batchclient.errors import ConfigError
from batchclient.types import Ranking, Score, Usage

__all__ = ["request_of_pairs"]

Make = Callable[[Any, Any, Kind], Request]
"""Makes a request of a pair, for a waiter."""


def request_of_pairs(item: tuple[Any, Any, Any], row: Row, runner: Runner, kind: Kind, make: Make) -> Request:
    """Return the request of a row's first document; those of the others are the row's ``others``.

    Args:
        item: the query, the documents, and how many are wanted.
        row: the waiter of all.
        runner: sends them.
        kind: of the row: a score keeps the order, a rerank puts the best first.
        make: makes a request.

    Raises:
        ConfigError: the documents are none, or no texts.
    """
    query, documents, wanted = item
    if kind is Kind.SCORE and not isinstance(documents, (list, tuple)):
        return make((query, documents), row, kind)
    if not isinstance(documents, (list, tuple)) or not documents:
        what = "an empty list" if isinstance(documents, (list, tuple)) else kind_of(documents)
        raise ConfigError(f"documents is a list of texts, not {what}", field="documents")
    if wanted is not None and (type(wanted) is not int or wanted < 1):
        raise ConfigError(f"top_n is a whole number of at least 1, not {wanted!r:.40}", field="top_n")
    of_pair = Kind.SCORE if kind is Kind.SCORE or runner.servers.mixes_queries else Kind.RERANK
    answers: list[Any] = [None] * len(documents)
    share = Share(_Whole(row, runner, answers, kind, wanted), len(documents))
    requests = [make((query, each), _Pair(row, share, answers, place), of_pair) for place, each in enumerate(documents)]
    row.others = tuple(requests[1:])
    row.identity = b"%b %r" % (kind.value.encode(), str(wanted).encode())
    return requests[0]


class _Pair(Part):
    """The waiter of one of a row's documents; spans are the row's."""

    __slots__ = ("_row",)

    def __init__(self, row: Row, share: Share, answers: list[Any], place: int) -> None:
        super().__init__(share, answers, place)
        self._row = row

    @property
    def caller(self) -> Context | None:
        return self._row.caller

    @property
    def index(self) -> int:
        return self._row.index

    @property
    def id(self) -> str:
        return self._row.id


class _Whole:
    """The waiter of all of a row's documents."""

    __slots__ = ("_answers", "_kind", "_row", "_runner", "_wanted")

    def __init__(self, row: Row, runner: Runner, answers: list[Any], kind: Kind, wanted: int | None) -> None:
        self._row, self._runner = row, runner
        self._answers: list[Score] = answers
        self._kind, self._wanted = kind, wanted

    def done(self) -> bool:
        return self._row.ended

    def set_result(self, _: object) -> None:
        scores, usages = self._answers, [each.usage for each in self._answers]
        places = list(range(len(scores)))
        if self._kind is Kind.RERANK:
            places.sort(key=lambda place: scores[place].score, reverse=True)
        known = [usage for usage in usages if usage is not None]
        usage = None
        if len(known) == len(usages):
            estimated = any(each.prompt_tokens_estimated for each in known)
            usage = Usage(sum(each.prompt_tokens for each in known), 0, prompt_tokens_estimated=estimated)
        kept = tuple(places[: self._wanted])
        told = tuple(scores[place].score for place in kept)
        queued_s = max((each.queued_s for each in scores if each.queued_s is not None), default=None)
        self._row.set_result(Ranking(kept, told, usage, sum(each.attempts for each in scores), queued_s))

    def set_exception(self, error: BaseException) -> None:
        row, runner = self._row, self._runner
        if row.ended:
            return
        requests = [request for request in (row.request, *row.others) if request is not None]
        row.set_exception(error)
        for request in requests:
            # Not within the step that brought the error.
            runner.backend.call_soon(partial(runner.leave, request))
