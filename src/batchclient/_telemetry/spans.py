"""Spans by OpenTelemetry's API: all that a tracer may raise or hold up stays here.

Rules:
- A tracer is the user's code. An error of a tracer is swallowed, and told once by its class.
- A span has no exception and no description of its status: both may hold a caller's text.
- A tracer that takes more than a tenth of a second to begin a span begins none for a minute.
- Without an SDK the API makes spans of nothing. Whether there is an SDK is looked at each second.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind

from batchclient._telemetry.ending import End, Ending

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from batchclient._telemetry.attributes import Attributes

__all__ = ["Spans", "Started", "check_provider", "holding"]

_SLOW_S, _REST_S = 0.1, 60.0
_LOOK_S = 1.0
_MOST_LINKS = 128
"""The SDK's own limit."""
_log = logging.getLogger("batchclient")


def check_provider(provider: object) -> None:
    """Refuse what is no tracer provider.

    Raises:
        ValueError: the object is none.
    """
    if not isinstance(provider, trace.TracerProvider):
        raise ValueError(f"a TracerProvider of OpenTelemetry, not a {type(provider).__name__}")


class Started:
    """A span that has begun.

    Attributes:
        context: the ids.
        recording: whether anybody will see the span.
        at: when the span began, nanoseconds.
    """

    __slots__ = ("at", "context", "recording", "span")

    def __init__(self, span: Span, context: SpanContext, at: int, *, recording: bool) -> None:
        self.span: Span = span
        self.context: SpanContext = context
        self.at: int = at
        self.recording: bool = recording


class Spans:
    """The spans of one client and event loop.

    Args:
        provider: the user's; ``None``: the global one.
        version: of the package.
    """

    def __init__(self, provider: TracerProvider | None, version: str) -> None:
        self._said: set[tuple[str, str]] = set()
        self._tracer: Any = None
        try:
            # The global provider may be set later: the API's tracer then becomes the real one.
            self._tracer = trace.get_tracer("batchclient", version, provider)
        except (Exception, CancelledError) as error:  # a provider is the user's code
            self.say("a tracer could not be had", type(error).__name__)
        self.ending: Ending = Ending(self.say)
        self.rests_until: float = float("inf") if self._tracer is None else 0.0
        """Until when no span is begun, on the client's clock."""

    def say(self, message: str, error: str) -> None:
        """Log a failure once."""
        if (message, error) not in self._said:
            self._said.add((message, error))
            _log.warning("telemetry: %s%s%s", message, ": " if error else "", error)

    def start(
        self, name: str, attributes: Attributes, context: Context | None, now: float, links: Sequence[Link] = ()
    ) -> Started | None:
        """Begin a span; ``None``: there is none, and nothing to be handed on.

        Args:
            context: holds the parent; ``None``: the present one.
            now: on the client's clock.
        """
        if now < self.rests_until:
            return None
        began, at = perf_counter(), time_ns()
        try:
            span = self._tracer.start_span(
                name, context, SpanKind.CLIENT, attributes, links, at, record_exception=False,
                set_status_on_exception=False,
            )  # fmt: skip
            ids, recording = span.get_span_context(), span.is_recording()
            if not ids.is_valid:
                if not recording:
                    self.rests_until = now + _LOOK_S
                return None
        except (Exception, CancelledError) as error:  # tracers, samplers and processors are the user's code
            self.say("a span could not be begun", type(error).__name__)
            return None
        took_s = perf_counter() - began
        if took_s > _SLOW_S or self.ending.is_full:
            self.rests_until = now + _REST_S
            self.say("a tracer or span processor is too slow, and makes no spans for a minute", "")
        return Started(span, ids, at, recording=recording)

    def link(self, members: Sequence[Started]) -> list[Link]:
        """Return links to the spans that are seen, to so many as a span may have."""
        return [Link(one.context) for one in members if one.recording][:_MOST_LINKS]

    def event(self, span: Span, name: str, attributes: Attributes, at: int) -> None:
        """Add an event to a span."""
        try:
            span.add_event(name, attributes, at)
        except (Exception, CancelledError) as error:  # a span is the user's code
            self.say("an event could not be added", type(error).__name__)

    def end(self, ends: list[End]) -> None:
        """End spans soon, in a thread."""
        self.ending.end(ends)

    def parent_of(self, variables: Variables) -> tuple[Context, bool]:
        """Return the context that holds a map's parent, and whether the parent records."""
        context = variables.run(contexts.get_current)
        try:
            return context, trace.get_current_span(context).is_recording()
        except (Exception, CancelledError) as error:  # a span is the user's code
            self.say("a parent could not be asked", type(error).__name__)
            return context, False

    def finish(self, wake: Callable[[], object]) -> bool:
        """Call a function from the thread once all spans have ended; false: all have."""
        if not self.ending.waiting:
            return False
        self.ending.then(wake)
        return True


def holding(span: Span) -> Context:
    """Return a context that holds a span and nothing else: no baggage of any caller."""
    return trace.set_span_in_context(span, Context())
