"""The URL of a server, its key and headers: checked, and brought into their stored form.

Rules:
- No error message shows a URL, a key or a header's value: a key may be in the wrong place.
- A check raises ``ValueError``; the caller names the argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

__all__ = ["check_headers", "check_key", "check_url", "host_of"]

# RFC 9110, sections 5.1 and 5.5, without obs-text: the characters which h11 and httpx let through.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN_NAME = re.compile(r"[A-Za-z]{1,16}(-[A-Za-z]{1,16}){0,4}")
"""Names which may be shown: without digits, which keys have."""
_HEADER_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_HOST = re.compile(r"[A-Za-z0-9._~-]+")
_FOUR_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+){3}")


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers with their names in lower case.

    Raises:
        ValueError: a name or value would not reach the server unchanged.
    """
    for number, (name, text) in enumerate(headers.items(), 1):
        # A name may be a key in the wrong place.
        shown = repr(name) if _PLAIN_NAME.fullmatch(name) else f"number {number}"
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"the name of header {shown} is none: letters, digits and hyphens, its value apart")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"{name!r} is not for you to give: each request has its own")
        if not _HEADER_VALUE.fullmatch(text):
            raise ValueError(
                f"the value of the header {shown} is printable ASCII without spaces around it; a line break in it"
                " would start another header"
            )
    # Without case: two spellings of one name would be sent as two headers.
    return {name.lower(): text for name, text in headers.items()}


def check_key(key: object) -> object:
    """Return a key fit for a bearer token, or ``None``.

    Raises:
        ValueError: the key is unfit.
    """
    if key is None:
        return None
    if not isinstance(key, str) or not key or any(not 32 < ord(character) < 127 for character in key):
        raise ValueError("a string of printable ASCII characters")
    return key


def check_url(url: object, which: str = "the URL") -> str:
    """Return a URL in its stored form. No ``ValueError`` shows any of the URL."""
    if not isinstance(url, str):
        raise ValueError(f"{which} is a string, not {type(url).__name__}")
    url = url.strip()
    path, question, query = url.partition("?")
    if "@" in path:
        raise ValueError(f"{which} has a user or password in it; give api_key or headers")
    if any(ord(character) < 33 or ord(character) == 127 for character in url):
        raise ValueError(f"{which} has a space or line break in it")
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"{which} does not begin with http:// or https://, as http://localhost:8000/v1 does")
    if not _has_host(url):
        raise ValueError(f"{which} has no host that can be read, as http://localhost:8000/v1 has")
    if not _has_port(url):
        raise ValueError(f"{which} has no port between 1 and 65535")
    if "#" in url:
        raise ValueError(f"{which} has a #fragment, which is never sent")
    scheme, colon, rest = path.partition("://")
    scheme = scheme.lower()
    authority, slash, way = rest.partition("/")
    # Two spellings of one server would have a limit each, and two workers would share the server.
    authority = authority.lower().removesuffix(_DEFAULT_PORTS[scheme]).removesuffix(":")
    return scheme + colon + (authority + slash + way).rstrip("/") + question + query


def _has_host(url: str) -> bool:
    """Whether a URL has a name or address which an HTTP library can read, too."""
    try:
        host = urlsplit(url).hostname or ""
        if "[" in urlsplit(url).netloc:
            return ip_address(host).version == 6
        if _FOUR_NUMBERS.fullmatch(host):
            ip_address(host)
        return _HOST.fullmatch(host.encode("idna").decode("ascii")) is not None
    except ValueError:
        return False


def _has_port(url: str) -> bool:
    """Whether a URL's port is valid or absent."""
    try:
        # An HTTP library would ask port 80 in the place of port 0.
        return urlsplit(url).port != 0
    except ValueError:
        return False


def host_of(url: str) -> str:
    """Return the host of a checked URL."""
    return urlsplit(url).hostname or ""
