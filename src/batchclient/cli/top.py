"""``batchclient top``: a running job or service in the terminal, from its page ``/statistics``.

Rules:
- The page is read four times a second, and nothing else is asked. No redirect is followed, and no
  proxy is taken: a user in the URL is for this place alone.
- A page that cannot be read at first is a complaint. One that answered before, and is gone, ends
  the command with status 0: a job's page goes with the job.
- A signal ends the command, and the terminal has its cursor back.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from batchclient._shell.pages import LARGEST_PAGE_BYTES, read_page
from batchclient.cli._refusal import Refusal
from batchclient.cli._signals import until_signal
from batchclient.cli._top_view import Page, frame_of
from batchclient.cli._words import say
from batchclient.errors import BatchClientError
from batchclient.jobs.statuses import Status, of_signal
from batchclient.transport import Timeouts, Transport, WireRequest
from batchclient.transport.http import HttpTransport

__all__ = ["top"]

_EVERY_S = 0.25
WAIT_S = 10.0
"""On a busy machine, too, where the first page waits for the libraries that are imported for it."""
_WINDOW_S = 5.0
"""Rates are over so long, seconds."""
_PATH = "/statistics"


def top(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where --metrics-port or serve() listens, as HOST:PORT.")],
    once: Annotated[bool, typer.Option("--once", help="Print the page once, without rates, and exit.")] = False,
) -> int:
    """Show a running job or service: servers, limits, queue, batch sizes, tokens/s, errors.

    The numbers are those of /statistics at URL. Exit status: 0 the page has gone, 2 wrong usage, 5
    nothing answers at URL, 130 Ctrl-C.
    """
    place = _place_from(url)
    if once:
        asyncio.run(_show(place, once=True))
        return Status.OK
    ended_by = until_signal(_show(place))
    return of_signal(ended_by) if ended_by else Status.OK


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the page is read.

    Args:
        name: host and port.
        url: without the page's path.
        headers: the user of the URL, as curl sends it.
    """

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


def _place_from(text: str) -> _Place:
    """Read a URL, or ``HOST:PORT``.

    Raises:
        Refusal: the text is neither.
    """
    given = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    # A word alone may be a key.
    if not parts.hostname or parts.scheme not in ("http", "https") or (given != text and port is None):
        raise Refusal("URL is a URL such as http://127.0.0.1:9400, or HOST:PORT")
    user, _, name = parts.netloc.rpartition("@")
    headers = {"Authorization": f"Basic {b64encode(unquote(user).encode()).decode()}"} if user else {}
    path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix(_PATH)
    query = f"?{parts.query}" if parts.query else ""
    return _Place(name, f"{parts.scheme}://{name}{path}{query}", headers)


async def _show(place: _Place, *, once: bool = False) -> None:
    """Draw the page until it is gone.

    Raises:
        Refusal: the page cannot be read at first, or is another one.
    """
    console, name = Console(), place.name
    async with aclosing(HttpTransport(place.url, place.headers, max_response_bytes=LARGEST_PAGE_BYTES)) as transport:
        pages = [await _read(transport, place)]
        if once or not console.is_terminal:
            console.print(_drawn(pages, name, console.width))
            return
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_drawn(pages, name, console.width), refresh=True)
                await asyncio.sleep(_EVERY_S)
                try:
                    pages.append(await _read(transport, place))
                except Refusal:
                    break
                while len(pages) > 2 and pages[-1].at - pages[1].at >= _WINDOW_S:
                    del pages[0]
    say(f"{name} has gone")


def _drawn(pages: list[Page], name: str, width: int) -> RenderableType:
    try:
        return frame_of(pages[-1], pages[0] if len(pages) > 1 else None, name, width)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise Refusal(f"{name}: {_PATH} is not what such a page has", Status.NO_SERVER) from None


async def _read(transport: Transport, place: _Place) -> Page:
    """Read the page.

    Raises:
        Refusal: nothing answers, or something else does.
    """
    content, why = None, "the client is closed"
    try:
        # A bound of the whole, also where a byte comes now and then.
        async with asyncio.timeout(WAIT_S):
            status, _, body = await read_page(transport, WireRequest("GET", _PATH), Timeouts())
        if status == HTTPStatus.OK:
            content = json.loads(body)
        else:
            why = f"{_PATH} answers {status}"
    except TimeoutError:
        why = f"{_PATH} did not come within {WAIT_S:g} s"
    except BatchClientError as error:
        why = f"nothing answers: {error}"
    except (ValueError, RecursionError):
        why = f"{_PATH} is no JSON"
    if content is None:
        raise Refusal(f"{place.name}: {why}", Status.NO_SERVER)
    return Page(content, time.monotonic())
