"""A request's span while the request is under way: the current one, and the server's parent.

Rules:
- The span is current in the context of the request's task. So whoever has instrumented the HTTP
  library has it for a parent.
- The server hears of it by the propagator of the process, by default W3C's: the call's span of a
  request with one call, else the request's.
- A header of the user's own wins: then none is added.
- No caller's baggage goes to a server.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Collection
from dataclasses import replace

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span

from batchclient._common.log import log
from batchclient.transport import Timeouts, Transport, WireRequest, WireResponse

__all__ = ["TracedTransport", "enter"]

_OUTGOING = contexts.create_key("batchclient-outgoing")


def enter(span: Span, outgoing: Context) -> None:
    """Make a request's span the current one, for the rest of the task.

    Args:
        outgoing: the headers for the server.
    """
    contexts.attach(contexts.set_value(_OUTGOING, outgoing, trace.set_span_in_context(span)))


class TracedTransport:
    """Adds the headers that tell a server of the span.

    Args:
        transport: sends the requests.
        own: the names of the headers that the user sends with every request.
    """

    def __init__(self, transport: Transport, own: Collection[str]) -> None:
        self._transport = transport
        self._own = frozenset(name.lower() for name in own)
        self._failed = False

    def __repr__(self) -> str:
        return repr(self._transport)

    async def send(self, request: WireRequest, timeouts: Timeouts) -> WireResponse:
        """Send a request; return once the headers of the response are there."""
        outgoing = contexts.get_value(_OUTGOING)
        if outgoing is not None:
            request = self._with_headers(request, outgoing)
        return await self._transport.send(request, timeouts)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    def _with_headers(self, request: WireRequest, outgoing: object) -> WireRequest:
        headers: dict[str, str] = {}
        try:
            propagate.inject(headers, outgoing)  # type: ignore[arg-type]
        except (Exception, CancelledError) as error:  # a propagator is the user's code
            if not self._failed:
                self._failed = True
                name = type(error).__name__
                log("telemetry_failed", "telemetry: a propagator failed: %s", name, error=name)
            return request
        own = self._own.union(name.lower() for name, _ in request.headers)
        if any(name.lower() in own for name in headers):
            return request
        return replace(request, headers=(*request.headers, *headers.items()))
