"""The option ``--metrics-port``: a job's metrics for Prometheus, and its numbers as JSON."""

from __future__ import annotations

from collections.abc import Callable

from batchclient import BatchClient
from batchclient.cli._refusal import Refusal
from batchclient.errors import ConfigError

__all__ = ["Address", "address_from", "serve_metrics"]

Address = tuple[str, int]
"""Host and port."""

_HERE = "127.0.0.1"
_GREATEST_PORT = 65_535


def address_from(text: str | None) -> Address | None:
    """Read ``PORT`` or ``HOST:PORT``.

    Raises:
        Refusal: the text is neither.
    """
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") if colon else _HERE
    if not (host and port.isascii() and port.isdigit() and int(port) <= _GREATEST_PORT):
        raise Refusal(f"--metrics-port: a port from 0 to {_GREATEST_PORT}, or HOST:PORT, not {text!r}")
    return host, int(port)


def serve_metrics(client: BatchClient, address: Address | None, tell: Callable[[str], None] | None) -> None:
    """Serve the client's metrics, if an address is given, until the client is closed.

    Args:
        client: the job's.
        address: where to listen; port 0 is any free one.
        tell: given the URL of the pages, if there are any.

    Raises:
        Refusal: the port cannot be used.
    """
    if address is None:
        return
    from batchclient.integrations.prometheus import serve

    host, port = address
    try:
        pages = serve(client, port, host)
    except ConfigError as error:
        raise Refusal(f"--metrics-port: {error.message}") from None
    if tell is not None:
        tell(f"metrics: {pages.url}/metrics")
