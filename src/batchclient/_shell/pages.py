"""The fetching of a server's page: a plain GET, read whole, within a short time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

from batchclient.transport import Timeouts, Transport, WireRequest
from batchclient.transport._deadline import deadline

__all__ = [
    "BODY_TRICKLES",
    "LARGEST_PAGE_BYTES",
    "NO_PAGES",
    "FetchedPage",
    "Page",
    "PageTimes",
    "StartTask",
    "read_page",
]

BODY_TRICKLES = "the headers came, and the body did not end"
NO_PAGES = (
    "it needs the servers' metrics pages, which this client does not ask for, as with probe=False or an http= of one's"
    " own; give a number instead, such as limit=8"
)
LARGEST_PAGE_BYTES = 2 * 1024 * 1024
"""A real vLLM's metrics page has 50 kB per engine."""


class Page(Enum):
    """The sorts of question put to servers beside the calls."""

    LOAD = "how busy it is"
    SERVER = "which server it is"


@dataclass(frozen=True, slots=True)
class PageTimes:
    """When servers are asked for pages beside the calls; times in seconds.

    Args:
        timeout_s: the most time for a page.
        first_after_s: from a batch to the first look at a server's load.
        every_s: from question to question for the load, at least. A page costs vLLM 8 to 10 ms of
            its API process's time (measured, 0.32): 2 % at two a second.
        pause_ratio: the least time from question to question, in multiples of the last answer's
            time. A slow page means a long wait at a busy server, not much work: a real vLLM short
            of CPU took 0.01 to 1 s for the same page. With a ratio of 10 reports were stale just
            where the server was overloaded.
    """

    timeout_s: float = 2.0
    first_after_s: float = 1.0
    every_s: float = 0.5
    pause_ratio: float = 2.0


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
