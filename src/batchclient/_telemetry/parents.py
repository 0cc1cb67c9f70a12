"""Parents of spans that are named by a text: a ``traceparent`` of W3C Trace Context."""

from __future__ import annotations

from contextvars import Context as Variables

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["variables_of"]


def variables_of(traceparent: str) -> Variables:
    """Return variables in which the named span is current; without a usable name none is."""
    variables = Variables()
    if traceparent:
        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
        variables.run(contexts.attach, parent)
    return variables
