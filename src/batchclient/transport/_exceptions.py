"""What the HTTP libraries and users' transports raise, as errors of ours.

Rules:
- A user's own transport, client or authentication may raise anything. That is the network's failure to whoever waits, and its class is named.
- Classes are known by their names: a user's own client may be httpx2's, whose classes are others by the same names, and aiohttp may not be installed. So
  no library is imported here.
- Our errors' texts name hosts and timeouts, never headers or bodies; an exception that holds some is not their cause.
- A connection that could not be made is told from one that broke: only the first is surely no work for the server.
"""

from __future__ import annotations

import errno
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

__all__ = ["AIOHTTP_BREAKS", "SILENT", "cause_of", "is_aiohttps", "is_of", "is_timeout", "translated"]

AIOHTTP_BREAKS = frozenset({"ServerDisconnectedError", "ClientOSError", "ClientConnectionResetError"})
SILENT = "the server was silent for read_timeout_s"
_QUOTES = ": bytearray("
_LIBRARIES = frozenset({"httpx", "httpx2"})
"""httpx2 is httpx's fork, which openai's client uses from its third major on: the same names, other classes."""
_NO_SOCKETS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})


def is_of(kind: type, *names: str) -> bool:
    """Whether a class is one of those of httpx, or of httpx2, or made from one."""
    return any(base.__name__ in names and base.__module__.partition(".")[0] in _LIBRARIES for base in kind.__mro__)


def is_aiohttps(error: BaseException) -> bool:
    """Whether aiohttp raised it and httpx-aiohttp let it through."""
    return type(error).__module__.partition(".")[0] == "aiohttp"


def is_timeout(error: BaseException | None) -> bool:
    """Whether an HTTP library raised it because time ran out: for a connection, a place in a pool, a write or a read."""
    if error is None or not is_of(type(error), "TimeoutException"):
        return False
    # httpx-aiohttp names a refused and a broken connection after a timeout as well.
    return error.__cause__ is None or not is_aiohttps(error.__cause__) or isinstance(error.__cause__, TimeoutError)


def cause_of(error: BaseException) -> BaseException | None:
    """What may be seen behind our error.

    Not what holds our headers (aiohttp's own), the server's bytes (h11's) or a proxy's.
    """
    if is_aiohttps(error) or _QUOTES in str(error) or _is_of_a_tunnel(error):
        return None
    if is_of(type(error), "RequestError"):
        # Put there by a user's own client: the URL's query may hold a key.
        error._request = None  # type: ignore[attr-defined]
    return error


def translated(error: BaseException, address: str = "", received: int = 0) -> BatchClientError:
    """Map httpx's and httpx2's exceptions to ours, and those of a user's own transport."""
    kind = type(error)
    if is_aiohttps(error):
        # Its texts quote the server's bytes.
        return ConnectionLost(f"the reply is no HTTP ({type(error).__name__})")
    # httpx-aiohttp maps aiohttp's whole ClientConnectionError family to ConnectTimeout, broken connections included.
    broken = type(error.__cause__).__name__ in AIOHTTP_BREAKS
    is_librarys = is_of(kind, "HTTPError", "InvalidURL", "StreamError")
    if not is_librarys or (is_of(kind, "ConnectError", "ConnectTimeout") and not broken):
        known = _known_cause(error, address)
        if known is not None:
            return known
    after = f" after {received} bytes of the body" if received else ""
    if not is_librarys:
        # Its text may hold anything.
        if isinstance(error, TimeoutError):
            return ReadTimedOut(f"the transport raised {kind.__name__}{after}")
        return ConnectionLost(f"the connection broke{after}: the transport raised {kind.__name__}")
    if is_of(kind, "ConnectTimeout") and is_timeout(error):
        return ConnectFailed(f"no connection{address} within the connect timeout")
    if _is_of_a_tunnel(error):
        # The rest is the proxy's own text, or our URL.
        return ConnectFailed(f"no connection{address}: the proxy answered {str(error)[:3]}")
    if is_of(kind, "ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol") and not broken:
        return ConnectFailed(f"no connection{address}: {error}")
    if is_of(kind, "PoolTimeout"):
        return ConnectFailed("the HTTP client's pool had no connection free")
    if is_of(kind, "ReadTimeout"):
        return ReadTimedOut(SILENT)
    if is_of(kind, "DecodingError"):
        return ConnectionLost("the body could not be decompressed")
    # What h11 says of bytes that are no HTTP ends with those bytes, and they may hold anything.
    said = str(error).partition(_QUOTES)[0]
    return ConnectionLost(f"the connection broke{after}: {said or type(error).__name__}")


def _is_of_a_tunnel(error: BaseException) -> bool:
    """Whether a proxy has answered that it makes no connection: a status first, in httpx's text and in aiohttp's."""
    return is_of(type(error), "ProxyError") and str(error)[:3].isdecimal()


def _known_cause(error: BaseException, address: str) -> BatchClientError | None:
    """What no repetition helps with, and what this machine is to blame for."""
    for cause in _causes(error):
        # aiohttp's own class, in front of it, is one by name only.
        if isinstance(cause, ssl.SSLCertVerificationError) and hasattr(cause, "verify_message"):
            return CertificateRefused(f"the connection{address} is refused by its certificate: {cause.verify_message}")
        if isinstance(cause, OSError) and cause.errno in _NO_SOCKETS:
            return OutOfSockets(f"no connection{address}: this process has no socket left ({cause.strerror})")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what is behind it, all the tries of a connection to several addresses included."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__ or error.__context__
