"""Which HTTP requests may share one with others, and with whose.

Rules:
- A request is left alone unless all of this holds: a POST, to a path of ``PATHS``, of a whole JSON body that ``read_body`` takes, for an answer in JSON.
- Requests share only with those to the same server (scheme, host, port, path before ``PATHS``, query) with the same headers, so that nobody is answered
  with another's credentials, organisation or cookies. Three kinds of header are no part of that: what describes the message itself, what names the program
  (``user-agent``, ``x-stainless-*``), and labels of one request for logs (``traceparent``, ``x-request-id``, …). A header that is not known counts.
- What counts is sent with every shared request; the rest is not sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from batchclient._openai_form import PATHS, WireCalls, read_body

__all__ = ["Job", "RequestReader"]

_OF_THE_MESSAGE = frozenset({b"host", b"accept", b"content-type", b"content-length", b"accept-encoding", b"connection"})
_OF_THE_PROGRAM = frozenset({b"user-agent"})
_OF_THE_PROGRAM_PREFIX = b"x-stainless-"
"""openai's and all its siblings': retry counts and timeouts among them, other values in every request."""
_LABELS = frozenset(
    {
        b"traceparent",  # W3C Trace Context, and what comes with it
        b"tracestate",
        b"baggage",
        b"b3",
        b"sentry-trace",
        b"x-amzn-trace-id",
        b"x-cloud-trace-context",
        b"x-datadog-parent-id",
        b"x-datadog-sampling-priority",
        b"x-datadog-tags",
        b"x-datadog-trace-id",
        b"x-request-id",
        b"x-correlation-id",
        b"x-client-request-id",  # OpenAI's
        b"idempotency-key",  # a shared request is no repetition of any
    }
)
_LABEL_PREFIX = b"x-b3-"
_SPEAKS_OF_THE_BODY = frozenset(
    {b"content-encoding", b"transfer-encoding", b"content-range", b"expect", b"range", b"te"}
)
"""With one of these a request is left alone."""
_JSON = b"application/json"
_REMEMBERED = 1024
_SUFFIXES = sorted(PATHS, key=len, reverse=True)
"""``/chat/completions`` before ``/completions``."""

_COUNTS, _LEFT_OUT, _LOOKED_AT, _ALONE = range(4)


@dataclass(slots=True)
class Job:
    """A request that may be shared.

    Args:
        base_url: the server's, its query included.
        headers: those that count, by lower-case name, sorted: (base_url, headers) says whom it may share with.
        calls: its body's.
        timeout_s: how long the caller waits for an answer, seconds; ``None``: for ever.
    """

    base_url: str
    headers: tuple[tuple[bytes, bytes], ...]
    calls: WireCalls
    timeout_s: float | None


class RequestReader:
    """Reads the requests of an HTTP library (httpx's or httpx2's: their objects are alike).

    Args:
        base_url: read only requests below it; ``None``: of any server.
        labels: names of further headers that are labels.
    """

    def __init__(self, base_url: str | None, labels: Collection[str]) -> None:
        self._base_url = base_url
        self._labels = _LABELS | {name.lower().encode() for name in labels}
        self._roles: dict[bytes, int] = {}
        self._places: dict[tuple[str, bytes, bytes], tuple[str, str] | None] = {}

    def read(self, request: Any) -> Job | None:
        """Return what may be shared of a request; ``None``: leave it alone."""
        if request.method != "POST":
            return None
        url = request.url
        at = (url.scheme, url.netloc, url.raw_path)
        try:
            place = self._places[at]
        except KeyError:
            place = self._find_place(*at)
        if place is None:
            return None
        counted = self._counted(request.headers.raw, at[1])
        if counted is None:
            return None
        try:
            body = from_json(request.content)
        except (ValueError, RuntimeError):
            # No JSON; or a body that comes in pieces, which is the library's to send (``RequestNotRead``).
            return None
        calls = read_body(place[1], body)
        if calls is None:
            return None
        timeout = request.extensions.get("timeout")
        return Job(place[0], counted, calls, timeout.get("read") if timeout else None)

    def _find_place(self, scheme: str, netloc: bytes, raw_path: bytes) -> tuple[str, str] | None:
        """The base URL and the path below it, if it is one of ``PATHS``."""
        path, question, query = raw_path.decode("ascii").partition("?")
        found = None
        suffix = next((each for each in _SUFFIXES if path.endswith(each)), None)
        if suffix is not None and scheme in ("http", "https"):
            base_url = f"{scheme}://{netloc.decode('ascii')}{path.removesuffix(suffix)}{question}{query}"
            if self._base_url in (None, base_url):
                found = (base_url, suffix)
        if len(self._places) >= _REMEMBERED:
            self._places.clear()
        self._places[scheme, netloc, raw_path] = found
        return found

    def _counted(self, headers: list[tuple[bytes, bytes]], netloc: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
        """The headers that count; ``None``: the request is to be left alone."""
        counted = []
        roles = self._roles
        is_json = False
        for name, value in headers:
            role = roles.get(name)
            if role is None:
                role = self._find_role(name)
            if role == _LEFT_OUT:
                continue
            if role == _COUNTS:
                counted.append((name.lower(), value))
            elif role == _ALONE:
                return None
            else:
                lower = name.lower()
                if lower == b"content-type":
                    is_json = value == _JSON or value.partition(b";")[0].strip().lower() == _JSON
                elif lower == b"accept":
                    if value != _JSON and not (b"*/*" in value or _JSON in value or b"application/*" in value):
                        return None
                elif value != netloc:
                    # Another name than the URL's: a proxy's business.
                    return None
        if not is_json:
            return None
        counted.sort()
        return tuple(counted)

    def _find_role(self, name: bytes) -> int:
        lower = name.lower()
        if lower in (b"content-type", b"accept", b"host"):
            role = _LOOKED_AT
        elif lower in _SPEAKS_OF_THE_BODY:
            role = _ALONE
        elif (
            lower in _OF_THE_MESSAGE
            or lower in _OF_THE_PROGRAM
            or lower in self._labels
            or lower.startswith((_OF_THE_PROGRAM_PREFIX, _LABEL_PREFIX))
        ):
            role = _LEFT_OUT
        else:
            role = _COUNTS
        if len(self._roles) >= _REMEMBERED:
            self._roles.clear()
        self._roles[name] = role
        return role
