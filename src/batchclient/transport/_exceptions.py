"""Exceptions of the HTTP libraries and of users' transports, as errors of batchclient.

Rules:
- A user's own transport, client or authentication may raise anything. The caller sees a failure of
  the network with the exception's class named.
- Classes are known by their names, and no library is imported here: a user's own client may be
  httpx2's, with equal names for other classes, and aiohttp may not be installed.
- The texts of batchclient's errors name hosts and timeouts, never headers or bodies. An exception
  with headers or bodies in it does not become a cause.
- A connection that could not be made differs from a broken one: only the first is surely no work
  for the server.
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

__all__ = ["AIOHTTP_BREAKS", "SILENT", "cause_of", "is_aiohttps", "is_of", "is_timeout", "translated", "unconnected"]

AIOHTTP_BREAKS = frozenset({"ServerDisconnectedError", "ClientOSError", "ClientConnectionResetError"})
SILENT = "the server was silent for read_timeout_s"
_SPEAKS_HTTP = "; does the server speak http://?"
"""OpenSSL's ``WRONG_VERSION_NUMBER``: the reply to a TLS greeting was no TLS, most often HTTP."""
_QUOTES = ": bytearray("
_LIBRARIES = frozenset({"httpx", "httpx2"})
"""httpx2 is httpx's fork, and openai's client uses it from its third major on. Both have the same
names for different classes.
"""
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


def is_of(kind: type, *names: str) -> bool:
    """Whether a class, or a base of the class, is one of the named classes of httpx or httpx2."""
    return any(base.__name__ in names and base.__module__.partition(".")[0] in _LIBRARIES for base in kind.__mro__)


def is_aiohttps(error: BaseException) -> bool:
    """Whether aiohttp raised the error and httpx-aiohttp let it through."""
    return type(error).__module__.partition(".")[0] == "aiohttp"


def is_timeout(error: BaseException | None) -> bool:
    """Whether an HTTP library ran out of time: in connecting, in a pool, in writing or reading."""
    if error is None or not is_of(type(error), "TimeoutException"):
        return False
    # httpx-aiohttp also calls a refused or broken connection a timeout.
    return error.__cause__ is None or not is_aiohttps(error.__cause__) or isinstance(error.__cause__, TimeoutError)


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error as the cause of batchclient's own, or ``None``.

    ``None`` hides errors with headers (aiohttp's), with the server's bytes (h11's) or with a
    proxy's words.
    """
    if is_aiohttps(error) or _QUOTES in str(error) or _is_of_a_tunnel(error):
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


def translated(error: BaseException, address: str = "", received: int = 0) -> BatchClientError:
    """Return batchclient's error for an exception of httpx, httpx2 or a user's own transport."""
    kind = type(error)
    if is_aiohttps(error):
        # aiohttp's texts quote the server's bytes.
        return ConnectionLost(f"the reply is no HTTP ({type(error).__name__})")
    # httpx-aiohttp maps aiohttp's whole ClientConnectionError family to ConnectTimeout, broken
    # connections included.
    broken = type(error.__cause__).__name__ in AIOHTTP_BREAKS
    is_librarys = is_of(kind, "HTTPError", "InvalidURL", "StreamError")
    if not is_librarys or (is_of(kind, "ConnectError", "ConnectTimeout") and not broken):
        known = _known_cause(error, address)
        if known is not None:
            return known
    after = f" after {received} bytes of the body" if received else ""
    if not is_librarys:
        # The text may hold anything.
        if isinstance(error, TimeoutError):
            return ReadTimedOut(f"the transport raised {kind.__name__}{after}")
        return ConnectionLost(f"the connection broke{after}: the transport raised {kind.__name__}")
    if is_of(kind, "ConnectTimeout") and is_timeout(error):
        return ConnectFailed(f"no connection{address} within the connect timeout")
    if _is_of_a_tunnel(error):
        # The rest is the proxy's own text, or the request's URL.
        return ConnectFailed(f"no connection{address}: the proxy answered {str(error)[:3]}")
    if is_of(kind, "ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol") and not broken:
        hint = _SPEAKS_HTTP if "WRONG_VERSION_NUMBER" in str(error) else ""
        why = unconnected(error)
        return ConnectFailed(f"no connection{address}: {f'{why} ({error})' if why else error}{hint}")
    if is_of(kind, "PoolTimeout"):
        return ConnectFailed("the HTTP client's pool had no connection free")
    if is_of(kind, "ReadTimeout"):
        return ReadTimedOut(SILENT)
    if is_of(kind, "DecodingError"):
        return ConnectionLost("the body could not be decompressed")
    # h11's message about bytes that are no HTTP ends with the bytes, which may hold anything.
    said = str(error).partition(_QUOTES)[0]
    return ConnectionLost(f"the connection broke{after}: {said or type(error).__name__}")


def _is_of_a_tunnel(error: BaseException) -> bool:
    """Whether a proxy refuses to connect: httpx's and aiohttp's texts then begin with a status."""
    return is_of(type(error), "ProxyError") and str(error)[:3].isdecimal()


def _known_cause(error: BaseException, address: str) -> BatchClientError | None:
    """Return an error that no repetition helps with, or that is the machine's own, if known."""
    for cause in _causes(error):
        # aiohttp's own class, in front of that, shares only the name.
        if isinstance(cause, ssl.SSLCertVerificationError) and hasattr(cause, "verify_message"):
            return CertificateRefused(f"the connection{address} is refused by its certificate: {cause.verify_message}")
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
