"""The HTTP requests that may share a request, and the bounds of sharing.

Rules:
- A request is left alone unless all conditions hold: a POST, to a path of ``PATHS``, of a whole
  JSON body that ``read_body`` takes, for an answer in JSON.
- Requests share where the server (scheme, host, port, path before ``PATHS``, query) and the headers
  that count (``integrations.header_roles``) are equal. So no caller gets an answer by another
  caller's credentials, organisation or cookies.
- Headers that count are sent with every shared request; the rest is not sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from batchclient.integrations.form import PATHS, WireCalls, read_body
from batchclient.integrations.header_roles import HeaderRole, HeaderRoles

__all__ = ["Job", "RequestReader"]

_JSON = b"application/json"
_REMEMBERED = 1024
_SUFFIXES = sorted(PATHS, key=len, reverse=True)
"""``/chat/completions`` before ``/completions``."""
_COUNTS, _LEFT_OUT, _ALONE = HeaderRole.COUNTS, HeaderRole.LEFT_OUT, HeaderRole.ALONE


@dataclass(slots=True)
class Job:
    """A request that may be shared.

    Args:
        base_url: the server's, its query included.
        headers: the headers that count, by lower-case name, sorted. Requests share where
            (base_url, headers) are equal.
        calls: the calls of the body.
        timeout_s: the caller's longest wait for an answer, seconds; ``None``: for ever.
    """

    base_url: str
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    calls: WireCalls
    timeout_s: float | None


class RequestReader:
    """Reads the requests of an HTTP library: httpx's and httpx2's objects are alike.

    Args:
        base_url: read only requests below this URL; ``None``: of any server.
        roles: the roles of headers.
    """

    def __init__(self, base_url: str | None, roles: HeaderRoles) -> None:
        self._base_url = base_url
        self._roles = roles
        self._places: dict[tuple[str, bytes, bytes], tuple[str, str] | None] = {}

    def read(self, request: Any) -> Job | None:
        """Return the part of a request to share; ``None``: leave the request alone."""
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
            # No JSON; or a body in pieces, which the library itself sends (``RequestNotRead``).
            return None
        calls = read_body(place[1], body)
        if calls is None:
            return None
        timeout = request.extensions.get("timeout")
        return Job(place[0], counted, calls, timeout.get("read") if timeout else None)

    def _find_place(self, scheme: str, netloc: bytes, raw_path: bytes) -> tuple[str, str] | None:
        """The base URL and the path below, if the path is in ``PATHS``."""
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
        """The headers that count; ``None``: leave the request alone."""
        counted = []
        role_of = self._roles.of
        is_json = False
        for name, value in headers:
            role = role_of(name)
            if role is _LEFT_OUT:
                continue
            if role is _COUNTS:
                counted.append((name.lower(), value))
            elif role is _ALONE:
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
