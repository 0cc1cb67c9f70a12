"""A held message, from its delivery to its outcome."""

from __future__ import annotations

from contextvars import Context as Variables
from typing import Any, Protocol

from batchclient._core.requests import Request, RequestState
from batchclient.integrations.redis._messages import Message

__all__ = ["Work"]

_NOT_SENT = frozenset({RequestState.NEW, RequestState.QUEUED, RequestState.BACKING_OFF})


class _Owner(Protocol):
    def _on_answer(self, work: Work, answer: Any) -> None: ...

    def _on_error(self, work: Work, error: BaseException) -> None: ...


class Work:
    """A held message; it is the waiter of its own request.

    Args:
        owner: told of the answer or the error.
        entry: the message's entry in the stream.
        deliveries: how often the message was delivered, this time included.
        size: bytes of its body.
        since: when it was delivered, by the event loop's clock.
    """

    __slots__ = (
        "_caller", "_ended", "_owner", "deliveries", "entry", "message", "request", "since", "size",
    )  # fmt: skip
    message: Message
    index = 0
    """For spans: each message has one, as the sampler says. (Of a map's rows a share has.)"""

    def __init__(self, owner: _Owner, entry: str, deliveries: int, size: int, since: float) -> None:
        self._owner = owner
        self._ended = False
        self._caller: Variables | None = None
        self.entry: str = entry
        self.deliveries: int = deliveries
        self.size: int = size
        self.since: float = since
        self.request: Request | None = None

    def __repr__(self) -> str:
        return f"<Work on {self.entry}>"

    @property
    def is_under_way(self) -> bool:
        """Whether a server may be working on the message."""
        return self.request is None or self.request.state not in _NOT_SENT

    @property
    def id(self) -> str:
        """The message's id, for its span."""
        return self.message.id

    @property
    def caller(self) -> Variables:
        """The variables that hold the parent of the message's span."""
        if self._caller is None:
            from batchclient._telemetry.parents import variables_of  # with OpenTelemetry, an extra

            self._caller = variables_of(self.message.traceparent)
        return self._caller

    def done(self) -> bool:
        """Whether the work has ended: by an outcome, or without."""
        return self._ended

    def end(self) -> None:
        """Take neither an answer nor an error any more."""
        self._ended = True

    def set_result(self, answer: Any) -> None:
        """Take the answer."""
        if not self._ended:
            self._ended = True
            self._owner._on_answer(self, answer)

    def set_exception(self, error: BaseException) -> None:
        """Take the error."""
        if not self._ended:
            self._ended = True
            self._owner._on_error(self, error)
