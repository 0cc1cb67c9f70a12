"""What the server's metrics page says before and after a cell."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from batchclient._core.limits import ServerLoad
from batchclient._shell.pages import read_page
from batchclient.bench.strategies import Target
from batchclient.client import BatchClient
from batchclient.dialects._metrics import parse_metrics
from batchclient.errors import BatchClientError
from batchclient.transport import Timeouts, WireRequest

__all__ = ["Page", "cache_hit_share", "fetch_page", "told"]

_TIMEOUT_S = 5.0
_PAGE = WireRequest("GET", "/metrics", from_root=True)
_OK = 200

Page = ServerLoad | None
"""``None``: no page, or none that tells the load."""


async def fetch_page(target: Target) -> Page:
    """Return the load that the server's ``/metrics`` tells; never raises for what the server does."""
    client = BatchClient(**target.arguments(), from_environment=False)
    if target.transport is None:
        transport = client._engine.connections.for_metrics(target.base_url)
    else:
        transport = target.transport(target.base_url, target.headers)
    try:
        status, _, body = await read_page(
            transport, _PAGE, Timeouts(read_s=_TIMEOUT_S), _TIMEOUT_S, _TIMEOUT_S, only_success=True
        )
    except (BatchClientError, TimeoutError):
        return None
    finally:
        await transport.aclose()
        await client.aclose()
    return parse_metrics(body, target.model) if status == _OK else None


def cache_hit_share(before: Page, after: Page) -> float | None:
    """Return the prefix cache's share of the prompt tokens between two pages; ``None``: not told."""
    if before is None or after is None:
        return None
    hits = _grown(before.prefix_hit_tokens, after.prefix_hit_tokens)
    asked = _grown(before.prefix_query_tokens, after.prefix_query_tokens)
    return None if hits is None or not asked else hits / asked


def told(before: Page, after: Page) -> dict[str, Any]:
    """Return both pages for a report."""
    return {
        name: {field: value for field, value in asdict(page).items() if value is not None}
        for name, page in (("before", before), ("after", after))
        if page is not None
    }


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before
