"""Spans by OpenTelemetry's API: all that a tracer may raise or hold up stays here.

Rules:
- A tracer is the user's code. An error of a tracer is swallowed, and told once by its class.
- A span has no exception and no description of its status: both may hold a caller's text.
- A tracer that takes more than a second to begin a span begins none for a minute.
- Without an SDK the API makes spans of nothing. Whether there is an SDK is looked at each second.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context as Variables
from importlib import import_module
from itertools import islice
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, StatusCode

from batchclient._shell.log import log
from batchclient._telemetry.ending import Ending

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from batchclient._telemetry.attributes import Attributes

__all__ = ["Spans", "check_provider", "holding", "parent_of"]

_SLOW_NS, _MOST_SLOW, _REST_S = 5_000_000, 3, 60.0
"""A slow begin of a span, how many in a row are a slow tracer's, and the rest after those.

One slow begin says nothing: a garbage collection or another process may have come between.
"""
_LOOK_S = 1.0
_MOST_LINKS = 128
"""The SDK's own limit."""


def check_provider(provider: object) -> None:
    """Refuse what is no tracer provider.

    Raises:
        ValueError: the object is none.
    """
    if not isinstance(provider, trace.TracerProvider):
        raise ValueError(f"a TracerProvider of OpenTelemetry, not a {type(provider).__name__}")


class Spans:
    """The spans of one client and event loop.

    Args:
        provider: the user's; ``None``: the global one.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        self._said: set[tuple[str, str]] = set()
        self._slow_in_a_row = 0
        self._start: Any = None
        try:
            # The global provider may be set later: the API's tracer then becomes the real one.
            self._start = trace.get_tracer("batchclient", _version(), provider).start_span
        except (Exception, CancelledError) as error:  # a provider is the user's code
            self.say("a tracer could not be had", type(error).__name__)
        self.ending: Ending = Ending(self.say)
        self.rests_until: float = float("inf") if self._start is None else 0.0
        """Until when no span is begun, on the client's clock."""

    def say(self, message: str, error: str) -> None:
        """Log a failure once."""
        if (message, error) not in self._said:
            self._said.add((message, error))
            log("telemetry_failed", "telemetry: %s%s%s", message, ": " if error else "", error, error=error)

    def start(
        self,
        name: str,
        attributes: Attributes,
        context: Context | None,
        at: int,
        now: float,
        links: Sequence[Link] | None = None,
    ) -> Span | None:
        """Begin a span; ``None``: there is none, and nothing to be handed on.

        Args:
            context: holds the parent; ``None``: the present one.
            at: the time, nanoseconds.
            now: on the client's clock.
        """
        began = monotonic_ns()
        try:
            # Without exceptions of the span's own accord.
            span: Span = self._start(name, context, SpanKind.CLIENT, attributes, links, at, False, False)
            recording = span.is_recording()
            if not recording and not span.get_span_context().is_valid:
                self.rests_until = now + _LOOK_S
                return None
        except (Exception, CancelledError) as error:  # tracers, samplers and processors are the user's code
            self.say("a span could not be begun", type(error).__name__)
            return None
        took = monotonic_ns() - began
        self._slow_in_a_row = self._slow_in_a_row + 1 if took > _SLOW_NS else 0
        if self._slow_in_a_row >= _MOST_SLOW or (recording and self.ending.is_full):
            self._slow_in_a_row = 0
            self.rests_until = now + _REST_S
            self.say("a tracer or span processor is too slow, and makes no spans for a minute", "")
        return span

    def link(self, members: Iterable[Span]) -> list[Link]:
        """Return links to spans, to so many as a span may have."""
        return [Link(span.get_span_context()) for span in islice(members, _MOST_LINKS)]

    def event(self, span: Span, name: str, attributes: Attributes, at: int) -> None:
        """Add an event to a span."""
        try:
            span.add_event(name, attributes, at)
        except (Exception, CancelledError) as error:  # a span is the user's code
            self.say("an event could not be added", type(error).__name__)

    def describe(self, span: Span, attributes: Attributes, *, failed: bool = False) -> None:
        """Add a span's last attributes, and whether it failed."""
        try:
            span.set_attributes(attributes)
            if failed:
                # Without a description: an error's message may hold a prompt.
                span.set_status(StatusCode.ERROR)
        except (Exception, CancelledError) as error:  # a span is the user's code
            self.say("a span could not be described", type(error).__name__)

    def finish(self, wake: Callable[[], object]) -> bool:
        """Call a function from the thread once all spans have ended; false: all have."""
        if not self.ending.waiting:
            return False
        self.ending.then(wake)
        return True


def parent_of(variables: Variables) -> tuple[Context, Span]:
    """Return the context that holds the parent of a map's rows, and the parent."""
    context = variables.run(contexts.get_current)
    return context, trace.get_current_span(context)


def _version() -> str:
    # The package imports this module, if late.
    version: str = import_module("batchclient").__version__
    return version


def holding(span: Span) -> Context:
    """Return a context that holds a span and nothing else: no baggage of any caller."""
    return trace.set_span_in_context(span, Context())
