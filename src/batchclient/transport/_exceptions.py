"""Exceptions of sockets, of the HTTP libraries and of users' transports, as errors of batchclient.

Rules:
- A user's own transport, client or authentication may raise anything. The caller sees a failure of
  the network with the exception's class named.
- The texts of batchclient's errors name hosts and timeouts, never headers or bodies. An exception
  with headers or bodies in it does not become a cause.
- A connection that could not be made differs from a broken one: only the first is surely no work
  for the server.
- What no repetition mends is not tried again: a certificate, a proxy that wants a password.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator

from batchclient.errors import (
    BatchClientError,
    CertificateRefused,
    ConnectFailed,
    ConnectionLost,
    OutOfSockets,
    ReadTimedOut,
)
from batchclient.transport._libraries import is_of

__all__ = [
    "SILENT",
    "broken",
    "cause_of",
    "misdelivered",
    "not_connected",
    "translated",
    "unconnected",
]

SILENT = "the server was silent for read_timeout_s"
_WRONG_VERSION = "WRONG_VERSION_NUMBER"
"""OpenSSL's word: the reply to a TLS greeting was no TLS, most often HTTP."""
_NO_CERTIFICATE = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")
"""OpenSSL's words where the server wants a client's certificate: of TLS 1.3, and of 1.2."""
_QUOTES = ": bytearray("
"""With this h11 begins to quote bytes that are no HTTP. They may hold anything."""
_UNCONNECTED: tuple[tuple[type[BaseException], str], ...] = (
    (ConnectionRefusedError, "a refused connection"),
    (socket.gaierror, "a name that does not resolve"),
    (ssl.SSLCertVerificationError, "a refused certificate"),
    (ssl.SSLError, "a failed TLS handshake"),
    (TimeoutError, "a connect timeout"),
)
"""Why there is no connection, in words that errors, logs and statistics share."""
_UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})
_NO_SOCKETS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})
_LIBRARYS_OWN: tuple[tuple[str, type[BatchClientError], str], ...] = (
    ("PoolTimeout", ConnectFailed, "the HTTP client's pool had no connection free"),
    ("ReadTimeout", ReadTimedOut, SILENT),
    ("DecodingError", ConnectionLost, "the body could not be decompressed"),
)
"""Exceptions of httpx and httpx2 with one meaning each."""


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error as the cause of batchclient's own, or ``None``.

    ``None`` hides errors with the server's bytes (h11's) or with a proxy's words.
    """
    if _QUOTES in str(error) or _is_of_a_tunnel(error):
        return None
    if is_of(type(error), "RequestError"):
        # A user's own client put the request there: the URL's query may hold a key.
        error._request = None  # type: ignore[attr-defined]
    return error


def unconnected(error: BaseException | None) -> str:
    """Say why there is no connection, in a few words; empty: not known."""
    for cause in _causes(error):
        for kind, words in _UNCONNECTED:
            if isinstance(cause, kind):
                return words
        if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
            return "an unreachable host"
    return ""


def not_connected(error: BaseException, address: str) -> ConnectFailed:
    """Return batchclient's error for a connection that could not be made."""
    known = _known_cause(error, address)
    if known is not None:
        return known
    if is_of(type(error), "ConnectTimeout") or (isinstance(error, TimeoutError) and not str(error)):
        return ConnectFailed(f"no connection{address} within the connect timeout")
    why = unconnected(error)
    hint = "; does the server speak http://?" if _WRONG_VERSION in str(error) else ""
    return ConnectFailed(f"no connection{address}: {f'{why} ({error})' if why else error}{hint}")


def broken(
    error: BaseException | None, address: str = "", received: int = 0, *, is_new: bool = False
) -> BatchClientError:
    """Return batchclient's error for a connection that broke before the reply's end.

    Args:
        error: the socket's, or an HTTP library's; ``None``: the server closed the connection.
        address: behind "connection", where it is known.
        received: bytes of the reply's body.
        is_new: whether nothing was ever heard on the connection, which is not encrypted.
    """
    known = None if error is None else _known_cause(error, address)
    if known is not None:
        return known
    why = str(error or "").partition(_QUOTES)[0] or type(error).__name__
    if error is None:
        why = "the server closed it before the end of its reply"
        why += "; does it speak https://?" if is_new else ""
    return ConnectionLost(f"the connection broke{_after(received)}: {why}")


def translated(error: BaseException, address: str = "", received: int = 0) -> BatchClientError:
    """Return batchclient's error for an exception of httpx, httpx2 or a user's own transport."""
    kind = type(error)
    if not is_of(kind, "HTTPError", "InvalidURL", "StreamError"):
        # The text may hold anything.
        if isinstance(error, TimeoutError):
            return ReadTimedOut(f"the transport raised {kind.__name__}{_after(received)}")
        known = _known_cause(error, address)
        return known or ConnectionLost(f"the connection broke{_after(received)}: the transport raised {kind.__name__}")
    if _is_of_a_tunnel(error):
        # The rest is the proxy's own text, or the request's URL.
        status = str(error)[:3]
        refused = ConnectFailed(f"no connection{address}: the proxy answered {status}")
        # It wants a password, and will again.
        refused.retryable = status != "407"
        return refused
    if is_of(kind, "ConnectTimeout", "ConnectError", "ProxyError", "UnsupportedProtocol"):
        return not_connected(error, address)
    for name, ours, words in _LIBRARYS_OWN:
        if is_of(kind, name):
            return ours(words)
    return broken(error, address, received)


def misdelivered() -> ConnectionLost:
    """Return the error for a reply to another request of the transport."""
    error = ConnectionLost(
        "the reply is another request's, as its id says; if that is a cache's, give an X-Request-Id of your own:"
        " headers={…}"
    )
    error.misdelivered = True
    return error


def _after(received: int) -> str:
    return f" after {received} bytes of the body" if received else ""


def _is_of_a_tunnel(error: BaseException) -> bool:
    """Whether a proxy refuses to connect: the text then begins with a status."""
    return is_of(type(error), "ProxyError") and str(error)[:3].isdecimal()


def _known_cause(error: BaseException, address: str) -> ConnectFailed | None:
    """Return an error that no repetition helps with, or that is the machine's own, if known."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CertificateRefused(f"the connection{address} is refused by its certificate: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError) and any(words in str(cause) for words in _NO_CERTIFICATE):
            return CertificateRefused(
                f"the connection{address} is refused by the server ({cause.reason}): it wants a client's certificate,"
                " as it seems; http=httpx.AsyncClient(verify=…) has one"
            )
        if isinstance(cause, OSError) and cause.errno in _NO_SOCKETS:
            return OutOfSockets(f"no connection{address}: this process has no socket left ({cause.strerror})")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, all tries of a connection to several addresses included."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__ or error.__context__
