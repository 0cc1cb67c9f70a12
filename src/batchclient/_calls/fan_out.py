"""Several calls for one purpose: one waiter for all.

Rules:
- The first error ends the other calls.
- The waiter's cancellation ends all calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchclient._core.messages import Request
from batchclient._shell.backend import Waiter
from batchclient._shell.runner import Runner

__all__ = ["Part", "Share", "call_together"]


async def call_together(runner: Runner, count: int, make: Callable[[int, Any], Request]) -> list[Any]:
    """Make several calls and wait for all answers.

    Args:
        runner: of the running event loop.
        count: how many calls.
        make: makes the request of a call, from the call's place and its waiter.

    Raises:
        ConfigError: a call is wrong; nothing was sent.
        BatchClientError: of the first call that failed; a note names the call.
    """
    whole = runner.backend.waiter()
    answers: list[Any] = [None] * count
    share = Share(whole, count)
    requests = [make(place, Part(share, answers, place)) for place in range(count)]
    try:
        for request in requests:
            runner.submit(request)
        await runner.backend.wait(whole)
    except BaseException:
        for request in requests:
            runner.leave(request)
        raise
    return answers


class Share:
    """The caller of several calls, and how many have not been answered."""

    __slots__ = ("left", "whole")

    def __init__(self, whole: Waiter, left: int) -> None:
        self.whole = whole
        self.left = left


class Part:
    """The waiter of one of several calls."""

    __slots__ = ("_answers", "_place", "_share")

    def __init__(self, share: Share, answers: list[Any], place: int) -> None:
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
