"""The way to a server: proxies by the headers they add, encryption, and the place of the API.

Rules:
- A proxy is seen by a header that no LLM server sends. Of ``Server`` the product's name is shown,
  of the other headers the name alone: a value may hold an address.
- A URL is inside where its host is a private address, or a name that no public name server has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from batchclient.transport import Timeouts, Transport, WireRequest, WireResponse

__all__ = ["BelowV1", "is_inside", "proxies_in"]

_PRODUCTS = (
    "nginx",
    "openresty",
    "envoy",
    "istio-envoy",
    "cloudflare",
    "caddy",
    "traefik",
    "haproxy",
    "kong",
    "apache",
    "awselb",
    "varnish",
    "litellm",
    "google frontend",
    "gws",
)
"""Products named by ``Server`` that stand before a server. vLLM, SGLang and trtllm-serve send
``uvicorn``, llama-server ``llama.cpp``, TGI and TEI none.
"""
_HEADERS = (
    "via",
    "x-envoy-upstream-service-time",
    "x-kong-proxy-latency",
    "x-litellm-version",
    "x-litellm-call-id",
    "cf-ray",
    "x-amz-cf-id",
    "x-amzn-trace-id",
    "x-served-by",
    "x-cache",
    "x-traefik-router",
)
_INSIDE = ("localhost", ".local", ".localhost", ".internal", ".lan", ".home.arpa", ".svc", ".cluster.local")


def proxies_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the signs of proxies among a reply's headers, whose names are in lower case."""
    product = headers.get("server", "").partition("/")[0].strip().lower()
    found = [f"server: {product}"] if product in _PRODUCTS else []
    return tuple(found + [name for name in _HEADERS if name in headers])


def is_inside(url: str) -> bool:
    """Whether the host of a checked URL is surely reached without the public network."""
    host = (urlsplit(url).hostname or "").lower()
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_INSIDE)
    return address.is_private or address.is_loopback


class BelowV1:
    """Sends requests for the API to ``/v1``, where the URL lacks it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<BelowV1 of {self._transport!r}>"

    async def send(self, request: WireRequest, timeouts: Timeouts) -> WireResponse:
        """Send a request; return once the headers of the response are there."""
        if not request.from_root:
            request = replace(request, path=f"/v1{request.path}")
        return await self._transport.send(request, timeouts)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()
