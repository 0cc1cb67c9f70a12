"""The runner's view of an HTTP library: bytes out, status, headers and bytes in.

Rules:
- A transport moves bytes and knows nothing of prompts, batches or retries.
- ``send`` returns when the response's headers are there; ``chunks`` reads the body.
- Every failure is a ``batchclient.errors.TransportError``; no class of the HTTP library leaks.
- A request with a body may be given an ``X-Request-Id``. A reply with the id of another request of
  the transport is a ``ConnectionLost`` that is ``misdelivered``.
- ``aclose`` of a response that was not read to its end closes the connection, so that the server
  stops working on the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Timeouts", "Transport", "WireRequest", "WireResponse", "root_of"]


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One HTTP request, relative to an endpoint's base URL.

    Args:
        method: ``"GET"`` or ``"POST"``.
        path: appended to the base URL, with its leading slash (``"/completions"``).
        from_root: whether ``path`` is appended to the server's root: the base URL without ``/v1``.
        body: the bytes to send; empty for a GET.
        headers: of this request; the transport adds the headers of every request.
    """

    method: str
    path: str
    from_root: bool = field(default=False, kw_only=True)
    # Neither is shown: both hold prompts and keys.
    body: bytes = field(default=b"", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for each phase of a request; ``None`` means no bound.

    Args:
        connect_s: TCP connect and TLS handshake.
        read_s: silence, by the clock: from the last write to the whole headers, then between two
            pieces of the body. A byte of a header, an interim reply or a chunk's length does not
            end the silence.
        write_s: the longest gap between two writes.
    """

    connect_s: float | None = 5.0
    read_s: float | None = None
    write_s: float | None = 30.0


class WireResponse(Protocol):
    """A response whose body has not been read yet."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Header values by lower-case name."""
        ...

    def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the decoded body in pieces of any size, as they arrive."""
        ...

    async def aclose(self) -> None:
        """Release the connection; close it if the body was not read to its end."""
        ...


class Transport(Protocol):
    """Sends requests to one endpoint."""

    async def send(self, request: WireRequest, timeouts: Timeouts) -> WireResponse:
        """Send ``request``; return once the response's headers have arrived.

        Raises:
            ConnectFailed: nothing was sent.
            ReadTimedOut: the server was silent for ``timeouts.read_s``.
            ConnectionLost: the connection broke after the request was (partly) sent.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


def root_of(base_url: str) -> str:
    """Return the server's root: the base URL without its ``/v1``; a query stays."""
    path, question, query = base_url.partition("?")
    return path.removesuffix("/v1") + question + query
