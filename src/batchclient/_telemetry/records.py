"""What is kept of calls and requests while their spans are open."""

from __future__ import annotations

from contextvars import Context as Variables
from typing import TYPE_CHECKING, Protocol

from batchclient._telemetry import conventions as name
from batchclient._telemetry.attributes import Attributes

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

__all__ = ["Call", "Row", "Sent"]


class Row(Protocol):
    """A map's row, the waiter of its call."""

    @property
    def index(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def caller(self) -> Variables | None: ...


class Call:
    """A call under way whose span is seen.

    Attributes:
        at: when the span began, nanoseconds.
        facts: attributes of the call's last request; ``None``: none was sent.
        queue_s: the time before the first request.
        failed: of a failed attempt: the calls that went on, the server, the class of the error.
    """

    __slots__ = ("at", "facts", "failed", "queue_s", "span")

    def __init__(self, span: Span, at: int) -> None:
        self.span: Span = span
        self.at: int = at
        self.facts: Attributes | None = None
        self.queue_s: float = 0.0
        self.failed: tuple[int, int, str] | None = None

    def without_answer(self, error: str, attempts: int) -> Attributes:
        """Return the last attributes of a call that has no answer."""
        attributes = dict(self.facts or {})
        attributes[name.ERROR] = error
        if attempts > 1:
            attributes[name.ATTEMPTS] = attempts
        if self.facts is not None:
            attributes[name.QUEUE_S] = self.queue_s
        return attributes


class Sent:
    """A request under way, some of whose calls have spans.

    Attributes:
        current: the span for the time of the sending.
        outgoing: what the server is told.
        span: the request's; ``None``: no call's span is seen.
        at: when the span began, nanoseconds.
        facts: attributes of the request for its calls.
    """

    __slots__ = ("at", "current", "facts", "outgoing", "span")

    def __init__(
        self, current: Span, outgoing: Context, span: Span | None = None, at: int = 0, facts: Attributes | None = None
    ) -> None:
        self.current: Span = current
        self.outgoing: Context = outgoing
        self.span: Span | None = span
        self.at: int = at
        self.facts: Attributes | None = facts
