"""Several requests for one call: what is done with all their answers.

Rules:
- The first error is the call's, and ends its other requests.
- Spans of a row's requests are the row's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from batchclient._calls.call import Call
from batchclient._calls.fan_out import Part, Share
from batchclient._core.messages import Request
from batchclient._maps.row import Row
from batchclient._shell.runner import Runner

__all__ = ["requests_together"]


def requests_together(
    calls: list[Call],
    waiter: Any,
    runner: Runner,
    make: Callable[[Call, Any], Request],
    then: Callable[[list[Any]], object],
) -> list[Request]:
    """Return the requests of several calls that are made for one.

    Args:
        calls: that are made.
        waiter: the caller's, who gets the first error.
        runner: sends them.
        make: makes a request of a call, for a waiter.
        then: takes the answers, in the order of the calls, unless the caller has gone.

    Raises:
        ConfigError: a call is wrong.
    """
    answers: list[Any] = [None] * len(calls)
    whole = _Whole(waiter, runner, answers, then)
    share = Share(whole, len(calls))
    part = partial(_RowPart, waiter) if isinstance(waiter, Row) else Part
    whole.requests = [make(call, part(share, answers, place)) for place, call in enumerate(calls)]
    return whole.requests


class _RowPart(Part):
    """The waiter of one of a row's requests; spans are the row's."""

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
    """The waiter of all requests of a call."""

    __slots__ = ("_answers", "_runner", "_then", "_waiter", "requests")

    def __init__(self, waiter: Any, runner: Runner, answers: list[Any], then: Callable[[list[Any]], object]) -> None:
        self._waiter, self._runner = waiter, runner
        self._answers, self._then = answers, then
        self.requests: list[Request] = []

    def done(self) -> bool:
        return self._waiter.done()  # type: ignore[no-any-return]

    def set_result(self, _: object) -> None:
        # The requests hold their waiters: a circle would wait for the garbage collector.
        self.requests = []
        if not self.done():
            self._then(self._answers)

    def set_exception(self, error: BaseException) -> None:
        if self.done():
            return
        requests, self.requests = self.requests, []
        self._waiter.set_exception(error)
        for request in requests:
            # Not within the step that brought the error.
            self._runner.backend.call_soon(partial(self._runner.leave, request))
