"""The environment's proxy for a server, for every HTTP backend, read as httpx2 2.16 reads it.

Rules:
- The variables are ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``ALL_PROXY``; lower-case names go before
  upper-case names. Where none is set, the system's settings count (urllib's ``getproxies``). A
  proxy without a scheme is an HTTP proxy.
- ``NO_PROXY`` is a list with commas. ``*`` turns every proxy off. An unreadable entry is ignored.
- ``name`` means the name and all below it, ``.name`` and ``*.name`` only the names below.
  ``localhost`` and addresses mean themselves.
- ``address/bits`` means a range of addresses, of version 4 or 6. A named server is in no range.
- ``:port`` after a name narrows the entry to the port, ``scheme://`` before it to the scheme. A
  scheme's default port is never written in a URL, so ``name:80`` does not mean ``http://name``.
- The most particular entry decides: a host, port or range before a bare scheme, a scheme before
  ``all``.
- An error shows only the variable of a proxy: the value may hold a password.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.request import getproxies

from batchclient.errors import ConfigError
from batchclient.transport._library import library

__all__ = ["proxy_for", "proxy_headers", "proxy_secrets"]

_SOCKS = ("socks5", "socks5h")
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def proxy_for(base_url: str, backend: str) -> Any:
    """Return the environment's proxy for a server, as a ``Proxy`` of the backend's library.

    ``None``: the server is reached directly.

    Args:
        backend: ``"httpx"``, ``"httpx2"`` or ``"aiohttp"``.

    Raises:
        ConfigError: the environment names an unusable proxy.
    """
    http = library(backend).http
    named = getproxies()
    variable = _variable(http.URL(base_url), named, http)
    if variable is None:
        return None
    given = named[variable]
    try:
        proxy = http.Proxy(given if "://" in given else f"http://{given}")
    except (ValueError, http.InvalidURL):
        proxy = None
    # Raised after the handling of that error, which shows the URL and would be the context of this
    # error.
    if proxy is None or not proxy.url.host:
        raise _refused(variable, "is no URL of a proxy, such as http://localhost:3128")
    if proxy.url.scheme in _SOCKS and backend == "aiohttp":
        raise _refused(variable, "is a SOCKS proxy, and the backend aiohttp has none")
    if proxy.url.scheme in _SOCKS and find_spec("socksio") is None:
        raise _refused(variable, f"is a SOCKS proxy: pip install '{http.__name__}[socks]'")
    return proxy


def proxy_headers(proxy: Any) -> dict[str, str]:
    """Return the headers with a proxy's credentials."""
    return {} if proxy.auth is None else {"proxy-authorization": f"Basic {_credentials(proxy.auth)}"}


def proxy_secrets(base_urls: Sequence[str], backend: str) -> tuple[str, ...]:
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
    return ConfigError(f"trust_env: {variable.upper()}_PROXY of the environment {why}", field="trust_env")


def _variable(url: Any, named: dict[str, str], http: Any) -> str | None:
    """Return which variable names the proxy for a URL: ``"http"``, ``"https"`` or ``"all"``."""
    entries = [entry.strip() for entry in named.get("no", "").split(",")]
    if "*" in entries:
        return None
    exceptions = [read for entry in entries if (read := _read(entry, http)) is not None]
    if any(one.is_particular and one.matches(url) for one in exceptions):
        return None
    for scheme in (url.scheme, "all"):
        if named.get(scheme) and f"{scheme}://" not in entries:
            return scheme
        if any(one.scheme == scheme and not one.is_particular for one in exceptions):
            return None
    return None


@dataclass(frozen=True, slots=True)
class _Exception:
    """An entry of ``NO_PROXY``. ``host`` is a pattern of whole names; ``None`` means anything."""

    scheme: str
    host: re.Pattern[str] | None
    network: _Network | None
    port: int | None

    @property
    def is_particular(self) -> bool:
        return self.host is not None or self.network is not None or self.port is not None

    def matches(self, url: Any) -> bool:
        if self.scheme not in ("all", url.scheme) or self.port not in (None, url.port):
            return False
        if self.network is not None:
            address = _address(url.host)
            return address is not None and address in self.network
        return self.host is None or self.host.fullmatch(url.host) is not None


def _read(entry: str, http: Any) -> _Exception | None:
    written = _as_url(entry)
    if written is None:
        return None
    try:
        url = http.URL(written)
    except http.InvalidURL:
        return None
    network = None
    bits = url.path.removeprefix("/")
    if bits and _address(url.host) is not None:
        network = _network(written, url.host, bits)
        if network is None:
            return None
    host = None if network is not None else _pattern(url.host)
    return _Exception(url.scheme, host, network, url.port)


def _as_url(entry: str) -> str | None:
    """Return an entry as a URL whose host may begin with ``*``."""
    host, slash, bits = entry.partition("/")
    if not entry or "://" in entry:
        return entry or None
    address = _address(host)
    if address is not None:
        return f"all://[{host}]{slash}{bits}" if address.version == 6 else f"all://{entry}"
    if entry.startswith("["):
        return f"all://{entry}"
    if slash:
        return None
    is_itself = entry.lower() == "localhost" or entry.startswith("*.")
    return f"all://{entry}" if is_itself else f"all://*{entry}"


def _network(written: str, host: str, bits: str) -> _Network | None:
    shown = f"[{host}]" if ":" in host else host
    if "@" in written or "%" in written or not bits.isdigit() or not written.endswith(f"{shown}/{bits}"):
        return None
    try:
        return ipaddress.ip_network(f"{host}/{bits}", strict=False)
    except ValueError:
        return None


def _pattern(host: str) -> re.Pattern[str] | None:
    if host in ("", "*"):
        return None
    if host.startswith("*."):
        return re.compile(rf".+\.{re.escape(host[2:])}")
    if host.startswith("*"):
        return re.compile(rf"(.+\.)?{re.escape(host[1:])}")
    return re.compile(re.escape(host))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
