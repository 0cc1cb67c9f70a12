"""Spans by OpenTelemetry's API.

Rules:
- A span has no exception and no description of its status: both may hold a caller's text.
- A span is ended where its call or request ends: a processor that blocks, such as the
  ``SimpleSpanProcessor``, blocks the event loop, as in every program.
- Without an SDK the API makes spans of nothing. Whether there is an SDK is looked at each second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import Context as Variables
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, StatusCode

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from batchclient._telemetry.attributes import Attributes

__all__ = ["Spans", "check_provider", "context_of", "end", "holding", "links_to"]

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
    """Begins the spans of one client and event loop.

    Args:
        provider: the user's; ``None``: the global one.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        # The package imports this module, if late.
        version: str = import_module("batchclient").__version__
        # The global provider may be set later: the API's tracer then becomes the real one.
        self._tracer = trace.get_tracer("batchclient", version, provider)
        self.none_until: float = 0.0
        """Until when there is no SDK, on the client's clock."""

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
        # Without exceptions of the span's own accord.
        span = self._tracer.start_span(name, context, SpanKind.CLIENT, attributes, links, at, False, False)
        if not span.is_recording() and not span.get_span_context().is_valid:
            self.none_until = now + _LOOK_S
            return None
        return span


def end(span: Span, attributes: Attributes, at: int, *, failed: bool = False) -> None:
    """End a span with its last attributes.

    Args:
        at: the time, nanoseconds.
        failed: whether it failed.
    """
    try:
        span.set_attributes(attributes)
        if failed:
            # Without a description: an error's message may hold a prompt.
            span.set_status(StatusCode.ERROR)
    finally:
        span.end(at)


def links_to(members: Iterable[Span]) -> list[Link]:
    """Return links to spans, to so many as a span may have."""
    return [Link(span.get_span_context()) for span in islice(members, _MOST_LINKS)]


def context_of(variables: Variables) -> Context:
    """Return the context that holds the parent of a map's rows."""
    return variables.run(contexts.get_current)


def holding(span: Span) -> Context:
    """Return a context that holds a span and nothing else: no baggage of any caller."""
    return trace.set_span_in_context(span, Context())
