"""What the runner needs of an HTTP library: bytes out, status, headers and bytes in.

Rules:
- A transport knows nothing of prompts, batches or retries. It moves bytes.
- ``send`` returns when the response's headers are there; the body is read with ``chunks``.
- Every failure is raised as one of ``batchclient.errors.TransportError``'s subclasses; no class of the HTTP library leaks.
- A request with a body may be given an ``X-Request-Id``; a reply with the id of another request of ours is a ``ConnectionLost`` that is ``misdelivered``.
- ``aclose`` of a response that was not read to its end closes its connection, so that the server stops working on it.
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
        from_root: appended to the server's root instead: the base URL without its ``/v1``.
        body: the bytes to send; empty for a GET.
        headers: of this request; the transport adds those of every request.
    """

    method: str
    path: str
    from_root: bool = field(default=False, kw_only=True)
    # Neither is shown: prompts and keys are in them.
    body: bytes = field(default=b"", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for each phase of one request; ``None`` means no bound.

    Args:
        connect_s: TCP connect and TLS handshake.
        read_s: silence, by the clock: from what was written last to the whole headers, then between two pieces of the body.
            A byte of a header, an interim reply or a chunk's length does not end it.
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
    """The server's root, the base URL without its ``/v1``; a query in it stays."""
    path, question, query = base_url.partition("?")
    return path.removesuffix("/v1") + question + query
