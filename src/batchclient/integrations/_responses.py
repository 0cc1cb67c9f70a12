"""Our answers and errors as an HTTP library's responses and exceptions.

Rules:
- An answer is the server's own: its status, its headers without the shared message's, its body cut
  out for one caller (``dialects._verbatim``).
- An error is the server's own, where the server's body concerned the caller alone. Else the body is
  made of our error, in OpenAI's form.
- A failure without an answer of the server raises the library's own exception, as if the library
  had met the network itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from batchclient.errors import (
    BadRequest,
    BatchClientError,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    LocalError,
    NotFound,
    QueueFull,
    ReadTimedOut,
    TransportError,
)
from batchclient.transport._libraries import is_of
from batchclient.types import Reply

__all__ = ["ResponseWriter"]

_OF_THE_SHARED_MESSAGE = frozenset(
    {
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"etag",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Of the connection (RFC 9110, 7.6.1), or of the shared message's own body."""
_JSON = (b"content-type", b"application/json")
_BAD_GATEWAY = 502
"""For a reply that is no answer: the status that a gateway gives (RFC 9110, 15.6.3)."""


Headers = list[tuple[bytes, bytes]]


class ResponseWriter:
    """Writes the responses of an HTTP library.

    Args:
        library: ``httpx`` or ``httpx2``.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._last: tuple[Mapping[str, str], Headers] | None = None

    def answer(self, reply: Reply) -> Any:
        """Return the response to an answered call."""
        return self._response(reply.status, to_json(reply.body), [*self._headers(reply.headers), _JSON])

    def failure(self, error: BatchClientError, request: Any) -> Any:
        """Return the response to a failed call, or raise the library's exception.

        Raises:
            ConfigError: the transport is used in two event loops at once.
            Exception: the library's ``TransportError``; the cause is our error.
        """
        if isinstance(error, ConfigError):
            raise error
        if isinstance(error, (TransportError, LocalError)) and not isinstance(error, QueueFull):
            raise self._exception(error)(error.message, request=request) from error
        status = error.status
        reply = error.reply
        if reply is None or status is None or status < 300:
            made = _BAD_GATEWAY
            if isinstance(error, BadRequest):
                made = status or (404 if isinstance(error, NotFound) else 400)
            return self._made(error, 429 if isinstance(error, QueueFull) else made, [])
        headers = self._headers(reply.headers)
        if reply.body is None:
            return self._made(error, status, headers)
        kind = reply.headers.get("content-type", "")
        return self._response(status, reply.body, [*headers, (b"content-type", kind.encode("latin-1"))])

    def _made(self, error: BatchClientError, status: int, headers: Headers) -> Any:
        body = {"error": {"message": error.message, "type": type(error).__name__, "param": None, "code": error.code}}
        if not error.retryable and status >= 500:
            # openai's sign, which many other libraries heed; the status alone would have them send
            # the call again.
            headers = [*headers, (b"x-should-retry", b"false")]
        return self._response(status, to_json(body), [*headers, _JSON])

    def _response(self, status: int, content: bytes, headers: Headers) -> Any:
        headers.append((b"content-length", b"%d" % len(content)))
        # As a stream: a response made with its content has no ``elapsed``, and cannot be read raw.
        return self._library.Response(status, headers=headers, stream=self._library.ByteStream(content))

    def _headers(self, headers: Mapping[str, str]) -> Headers:
        """The headers that are still true, as received.

        All calls of a shared request have the same object.
        """
        if self._last is not None and self._last[0] is headers:
            return self._last[1]
        raw: Any = getattr(headers, "raw", None)
        if raw is None:
            raw = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        kept = [each for each in raw if each[0].lower() not in _OF_THE_SHARED_MESSAGE]
        self._last = (headers, kept)
        return kept

    def _exception(self, error: BatchClientError) -> Any:
        library = self._library
        cause = type(error.__cause__).__name__
        if isinstance(error, ConnectFailed):
            if cause == "PoolTimeout":
                return library.PoolTimeout
            return library.ConnectTimeout if is_of(type(error.__cause__), "TimeoutException") else library.ConnectError
        if isinstance(error, (ReadTimedOut, DeadlineExceeded)):
            return library.ReadTimeout
        if cause in ("RemoteProtocolError", "WriteError", "WriteTimeout"):
            return getattr(library, cause)
        return library.ReadError
