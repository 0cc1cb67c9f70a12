"""The environment's proxy for a server, as httpx2 finds it, or httpx where httpx2 is missing.

``HTTP_PROXY``, ``HTTPS_PROXY`` and ``ALL_PROXY`` name proxies, ``NO_PROXY`` the servers that are
reached directly: names with all below them, addresses, and with httpx2 ranges of addresses. An
error shows only the variable of a proxy: the value may hold a password.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from batchclient.errors import ConfigError
from batchclient.transport._libraries import library

__all__ = ["proxy_for", "proxy_secrets", "proxy_variable"]

_SOCKS = ("socks5", "socks5h")


def proxy_for(base_url: str, backend: str | None) -> Any:
    """Return the environment's proxy for a server, as a ``Proxy`` of the backend's library.

    ``None``: the server is reached directly.

    Raises:
        ConfigError: the environment names an unusable proxy.
    """
    variable, given = _named(base_url)
    if given is None:
        return None
    http, _ = library(backend)
    try:
        proxy = http.Proxy(given)
    except (ValueError, http.InvalidURL):
        proxy = None
    # Raised after the handling of that error, which shows the URL and would be the context of this
    # error.
    if proxy is None or not proxy.url.host:
        raise _refused(variable, "is no URL of a proxy, such as http://localhost:3128")
    if proxy.url.scheme in _SOCKS and find_spec("socksio") is None:
        raise _refused(variable, f"is a SOCKS proxy: pip install '{http.__name__}[socks]'")
    return proxy


def proxy_variable(base_url: str) -> str | None:
    """Return the variable that names the environment's proxy for a server, heeded or not."""
    variable, given = _named(base_url)
    return None if given is None else variable


def proxy_secrets(base_urls: Sequence[str], backend: str | None) -> tuple[str, ...]:
    """Return the passwords of some servers' proxies, plain and encoded: a proxy may repeat them,
    and nobody may see them.

    Raises:
        ConfigError: as ``proxy_for``.
    """
    proxies = [proxy_for(base_url, backend) for base_url in base_urls]
    given = [proxy.auth for proxy in proxies if proxy is not None and proxy.auth is not None]
    return tuple({form for auth in given for form in (auth[1], _credentials(auth)) if form})


def _credentials(auth: tuple[str, str]) -> str:
    return base64.b64encode(":".join(auth).encode()).decode()


def _refused(variable: str, why: str) -> ConfigError:
    return ConfigError(f"trust_env: {variable} of the environment {why}", field="trust_env")


def _named(base_url: str) -> tuple[str, str | None]:
    """Return which variable names the server's proxy, and its URL, or ``None``."""
    http, _ = library("httpx2" if find_spec("httpx2") else None)
    named: dict[str, str | None] = http._utils.get_environment_proxies()
    url, patterns = http.URL(base_url), []
    for text in named:
        try:
            patterns.append(http._utils.URLPattern(text))
        except http.InvalidURL:
            # An entry of NO_PROXY that nobody can read.
            continue
    for pattern in sorted(patterns):
        if pattern.matches(url):
            return f"{pattern.pattern.removesuffix('://').upper()}_PROXY", named[pattern.pattern]
    return "", None
