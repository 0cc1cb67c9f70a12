"""The fetching of a server's page: a plain GET, read whole, within a short time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from enum import Enum

from batchclient.transport import Timeouts, Transport, WireRequest
from batchclient.transport._deadline import deadline

__all__ = ["BODY_TRICKLES", "LARGEST_PAGE_BYTES", "FetchedPage", "Page", "StartTask", "read_page"]

BODY_TRICKLES = "the headers came, and the body did not end"
LARGEST_PAGE_BYTES = 2 * 1024 * 1024
"""A real vLLM's metrics page has 50 kB per engine."""


class Page(Enum):
    """The sorts of question put to servers beside the calls."""

    LOAD = "how busy it is"
    SERVER = "which server it is"


FetchedPage = tuple[int, Mapping[str, str], bytes]
"""Status, headers, body."""

StartTask = Callable[[Callable[[], Awaitable[None]], Callable[[], None]], Callable[[], object]]
"""The type of ``Runner.start_reader``."""


async def read_page(
    transport: Transport,
    request: WireRequest,
    timeouts: Timeouts,
    headers_s: float | None = None,
    body_s: float | None = None,
    *,
    only_success: bool = False,
) -> FetchedPage:
    """Ask for a page and read all of it.

    Args:
        transport, request, timeouts: see ``Transport.send``.
        headers_s, body_s: the most time for each part, seconds; ``None``: no bound.
        only_success: leave the body of a reply other than a 2xx unread.

    Raises:
        TimeoutError: a part took longer; with ``BODY_TRICKLES``, if the headers had come.
        BatchClientError: as ``Transport.send``.
    """
    page = bytearray()
    async with deadline(headers_s):
        response = await transport.send(request, timeouts)
    try:
        if only_success and not 200 <= response.status < 300:
            return response.status, response.headers, b""
        async with deadline(body_s), aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                page += chunk
    except TimeoutError:
        raise TimeoutError(BODY_TRICKLES) from None
    finally:
        await response.aclose()
    return response.status, response.headers, bytes(page)
