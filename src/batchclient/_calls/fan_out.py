"""Several calls that only make sense together: one waiter for all of them.

Rules:
- The first error ends the others.
- So does the cancellation of whoever waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchclient._core.messages import Request
from batchclient._shell.backend import Waiter
from batchclient._shell.runner import Runner

__all__ = ["call_together"]


async def call_together(runner: Runner, count: int, make: Callable[[int, Any], Request]) -> list[Any]:
    """Make several calls and wait for all their answers.

    Args:
        runner: of the running event loop.
        count: how many calls.
        make: makes the request of one, by its place and with its waiter.

    Raises:
        ConfigError: one of them is wrong; nothing was sent.
        BatchClientError: of the first that failed; a note says which it is.
    """
    whole = runner.backend.waiter()
    answers: list[Any] = [None] * count
    share = _Share(whole, count)
    requests = [make(place, _Part(share, answers, place)) for place in range(count)]
    try:
        for request in requests:
            runner.submit(request)
        await runner.backend.wait(whole)
    except BaseException:
        for request in requests:
            runner.leave(request)
        raise
    return answers


class _Share:
    """The caller of several calls, and how many have not been answered."""

    __slots__ = ("left", "whole")

    def __init__(self, whole: Waiter, left: int) -> None:
        self.whole = whole
        self.left = left


class _Part:
    """The waiter of one of several calls."""

    __slots__ = ("_answers", "_place", "_share")

    def __init__(self, share: _Share, answers: list[Any], place: int) -> None:
        self._share = share
        self._answers = answers
        self._place = place

    def done(self) -> bool:
        return self._answers[self._place] is not None or self._share.whole.done()

    def set_result(self, answer: Any) -> None:
        self._answers[self._place] = answer
        self._share.left -= 1
        if not self._share.left:
            self._share.whole.set_result(None)

    def set_exception(self, error: BaseException) -> None:
        error.add_note(f"document {self._place}")
        self._share.whole.set_exception(error)
