"""The roles of headers in sharing: the table of the drop-in and of the transports.

Rules:
- Three kinds of headers keep no request from sharing: descriptions of the message, names of the
  program, and names of a request for logs.
- All other headers count, unknown ones too. Such a header may be a credential, or the
  server's ground for a choice.
- A header with known credentials cannot be ignored: requests with several keys would go together,
  without any of the keys.
- Headers that do not count are not sent with shared requests, which have their own.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from batchclient.errors import ConfigError

__all__ = ["HeaderRole", "HeaderRoles"]

_OF_THE_MESSAGE = frozenset({"content-length", "accept-encoding", "connection"})
_OF_THE_PROGRAM = frozenset({"user-agent"})
_OF_THE_PROGRAM_PREFIX = "x-stainless-"
"""openai's and all siblings': among others retry counts and timeouts, new with every request."""
_IGNORED = frozenset(
    {
        "traceparent",  # W3C Trace Context, and what comes with it
        "tracestate",
        "baggage",
        "b3",
        "sentry-trace",
        "x-amzn-trace-id",
        "x-cloud-trace-context",
        "x-datadog-parent-id",
        "x-datadog-sampling-priority",
        "x-datadog-tags",
        "x-datadog-trace-id",
        "x-request-id",
        "x-correlation-id",
        "x-client-request-id",  # OpenAI's
        "x-irid",  # inspect-ai's, another in every call
        "idempotency-key",  # a shared request is no repetition of any
    }
)
_IGNORED_PREFIX = "x-b3-"
_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie", "api-key", "x-api-key"})
_LOOKED_AT = frozenset({"content-type", "accept", "host"})
_SPEAKS_OF_THE_BODY = frozenset({"content-encoding", "transfer-encoding", "content-range", "expect", "range", "te"})
_REMEMBERED = 1024


class HeaderRole(Enum):
    """A header's effect on the sharing of its request."""

    COUNTS = "shares with requests of the same value only"
    LEFT_OUT = "does not matter, and is not sent with a shared request"
    LOOKED_AT = "depends on its value: it says what the body is, or whose server"
    ALONE = "sends the request alone"


class HeaderRoles:
    """The table, with a user's own ignored headers.

    Args:
        ignored_headers: names of further headers that do not count.

    Raises:
        ConfigError: ``ignored_headers`` is no collection of names, or one holds credentials.
    """

    def __init__(self, ignored_headers: Collection[str] = ()) -> None:
        is_collection = isinstance(ignored_headers, Collection) and not isinstance(ignored_headers, str)
        names = ignored_headers if is_collection else (None,)
        if not all(isinstance(name, str) and name.isascii() for name in names):
            raise ConfigError("ignored_headers is a collection of names of headers", field="ignored_headers")
        own = {name.lower() for name in ignored_headers}
        for name in sorted(own & _CREDENTIALS):
            message = f"ignored_headers: {name} holds credentials, and requests with others never share"
            raise ConfigError(message, field="ignored_headers")
        self._ignored = _IGNORED | own
        self._known: dict[str | bytes, HeaderRole] = {}

    def of(self, name: str | bytes) -> HeaderRole:
        """Return the role of a header by its name."""
        role = self._known.get(name)
        if role is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            lower = name.lower()
            role = self._known[name] = self._find(lower if isinstance(lower, str) else lower.decode("latin-1"))
        return role

    def is_ignored(self, name: str) -> bool:
        """Whether a header says something of a single request, for logs."""
        lower = name.lower()
        return lower in self._ignored or lower.startswith(_IGNORED_PREFIX)

    def _find(self, lower: str) -> HeaderRole:
        if lower in _LOOKED_AT:
            return HeaderRole.LOOKED_AT
        if lower in _SPEAKS_OF_THE_BODY:
            return HeaderRole.ALONE
        if (
            lower in _OF_THE_MESSAGE
            or lower in _OF_THE_PROGRAM
            or lower.startswith(_OF_THE_PROGRAM_PREFIX)
            or self.is_ignored(lower)
        ):
            return HeaderRole.LEFT_OUT
        return HeaderRole.COUNTS
