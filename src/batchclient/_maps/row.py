"""One row of a map, from its document to its answer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextvars import Context
from numbers import Integral
from typing import Any

from batchclient._core.messages import Request
from batchclient._shell.runner import Runner
from batchclient.errors import AnswerInvalid
from batchclient.types import Completion, MapResult

__all__ = ["Cut", "Finish", "Row", "leave", "own_id_of"]

Finish = Callable[[Completion], Completion]


class Cut:
    """A row's answer that was cut off, and what is done about it."""

    __slots__ = ("answer", "asked", "first", "fresh", "goal", "goes_on", "made", "tries", "whole")

    def __init__(self, first: Request, answer: Completion | None) -> None:
        self.first: Request = first
        """The row's request as it was given."""
        self.answer: Completion | None = answer
        """All that has come so far; ``None``: an earlier run has not kept it."""
        self.fresh: int = 0 if answer is None else answer.output_tokens or 0
        """Output tokens of its last part."""
        self.made: int = self.fresh
        """Output tokens of all of it, by the bounds sent where nobody counts."""
        self.asked: int | None = first.shape.max_output_tokens
        """The output tokens that the latest request asked for at most, without those of thinking."""
        self.goal: int = 0
        """The bound of the request under way; 0: ``max_tokens``."""
        self.tries: int = 0
        self.goes_on: bool = False
        """Whether the request under way goes on with ``answer``."""
        self.whole: bool = False
        """Whether going on was tried in vain."""


class Row:
    """One open row; the row is the waiter of its request."""

    __slots__ = (
        "_map",
        "answer",
        "ask",
        "attempts",
        "cut",
        "document",
        "ended",
        "error",
        "finish",
        "finished",
        "id",
        "identity",
        "index",
        "key",
        "n",
        "others",
        "own_id",
        "place",
        "request",
        "retries",
        "reused",
        "stays",
        "waits",
    )
    key: bytes
    n: int
    own_id: str | None

    def __init__(self, owner: weakref.ref[Any], index: int, document: Any) -> None:
        self._map = owner
        self.finish: Finish | None = None
        """Makes the caller's answer of the server's."""
        self.index: int = index
        self.document: Any = document
        self.id: str = ""
        self.request: Request | None = None
        self.ask: Callable[[Row, Runner], object] | None = None
        """Finds out how the row is to be asked, and then sends that instead of ``request``."""
        self.others: tuple[Request, ...] = ()
        """Further requests, of a row with several documents."""
        self.identity: bytes = b""
        """What the row is beside its requests."""
        self.answer: Any = None
        self.error: Exception | None = None
        self.attempts: int = 0
        self.retries: int = 0
        """How often the row was asked again, since an answer did not fit."""
        self.cut: Cut | None = None
        """An answer that was cut off, while the row goes on with it."""
        self.reused: bool = False
        self.ended: bool = False
        """Whether the row has its answer or its error."""
        self.finished: bool = False
        """Whether the row may be handed out."""
        self.waits: bool = False
        """Whether the row is not sent, since an equal one is under way."""
        self.stays: bool = False
        """Whether the row cannot be put aside."""
        self.place: tuple[int, int] | None = None
        """Where a journal has the row's record: its place in the file, and its size."""

    @property
    def caller(self) -> Context | None:
        """The variables of whoever has begun the map; ``None``: the map is over."""
        owner = self._map()
        return None if owner is None else owner.caller

    def done(self) -> bool:
        return self.ended

    def send(self, runner: Runner, request: Request) -> None:
        """Send the row's request, and the others that it may have."""
        if self.ask is not None:
            self.ask(self, runner)
            return
        others = self.others
        runner.submit(request, may_wait=True)
        for other in others:
            runner.submit(other, may_wait=True)

    def go_on(self, requests: list[Request]) -> None:
        """Send these requests instead of those before, unless nobody waits any more."""
        owner = self._map()
        if owner is not None and not self.ended:
            self.others = tuple(requests[1:])
            owner._go_on(self, requests[0])

    def set_result(self, answer: Any) -> None:
        self.attempts += answer.attempts
        owner = self._map()
        if owner is not None and owner.repairs.goes_on and (answer := owner._repair(self, answer)) is None:
            return
        self._end(answer)

    def _end(self, answer: Any) -> None:
        try:
            self.answer = answer if self.finish is None else self.finish(answer)
        except Exception as error:  # a validator may be the user's code
            owner = self._map()
            if isinstance(error, AnswerInvalid) and owner is not None and owner._ask_again(self, error):
                return
            self.error = error
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        assert isinstance(error, Exception)
        self.attempts += getattr(error, "attempt", 0)
        owner = self._map()
        after = error if self.cut is None or owner is None else owner._repair(self, error)
        if after is error:
            self.error = error
            self._finish()
        elif after is not None:
            self._end(after)

    def reuse(self, answer: Any, error: Exception | None, attempts: int) -> None:
        """Take what a journal has of the row."""
        self.answer, self.error, self.attempts = answer, error, attempts
        self.reused = self.ended = True
        self.request, self.others = None, ()

    def result(self) -> MapResult[Any]:
        """Return the row as its caller gets it."""
        return MapResult(self.id, self.index, self.document, self.answer, self.error, self.attempts, self.reused)

    def _finish(self) -> None:
        self.ended = True
        owner = self._map()
        if owner is not None:
            owner._on_ended(self)
        # The request holds its row: a circle would wait for the garbage collector.
        self.request, self.others = None, ()


def own_id_of(document: Any, column: str | None = None) -> str | None:
    """Return the document's own ``id``, of a Batch line its ``custom_id``, if it has one.

    ``column`` is another field that has the id.
    """
    if isinstance(document, Mapping):
        own = document.get(column or ("custom_id" if "custom_id" in document and "body" in document else "id"))
        if isinstance(own, str):
            return own or None
        if isinstance(own, Integral) and not isinstance(own, bool):
            return str(own)
        if isinstance(own, float) and own.is_integer():
            # So pandas writes whole numbers, where a column has gaps.
            return str(int(own))
    return None


def leave(runner: Runner, requests: list[Request], stop_reader: Callable[[], object] | None) -> None:
    """Cancel a map's open calls."""
    if stop_reader is not None:
        stop_reader()
    if not runner.ended:
        # The last first: a permit given back by the first request would be granted to a request
        # about to leave.
        for request in reversed(requests):
            runner.leave(request)
