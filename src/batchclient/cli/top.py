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
import time
from typing import Annotated

import httpx
import typer
from rich.console import Console, RenderableType
from rich.live import Live

from batchclient.cli._refusal import Refusal
from batchclient.cli._signals import until_signal
from batchclient.cli._top_view import Page, frame_of
from batchclient.cli._words import say
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["top"]

_EVERY_S = 0.25
PATIENCE_S = 3.0
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


def _place_from(text: str) -> httpx.URL:
    """Read a URL, or ``HOST:PORT``, and return the URL of the page.

    Raises:
        Refusal: the text is neither.
    """
    given = text if "://" in text else f"http://{text}"
    try:
        url = httpx.URL(given)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL()
    # A word alone may be a key.
    if not url.host or url.scheme not in ("http", "https") or (given != text and url.port is None):
        raise Refusal("URL is a URL such as http://127.0.0.1:9400, or HOST:PORT")
    path = url.path.rstrip("/").removesuffix("/metrics").removesuffix(_PATH)
    return url.copy_with(path=path + _PATH)


async def _show(url: httpx.URL, *, once: bool = False) -> None:
    """Draw the page until it is gone.

    Raises:
        Refusal: the page cannot be read at first, or is another one.
    """
    console, name = Console(), url.netloc.decode()
    async with httpx.AsyncClient(trust_env=False, timeout=2 * PATIENCE_S) as http:
        pages = [await _read(http, url, name)]
        if once or not console.is_terminal:
            console.print(_drawn(pages, name, console.width))
            return
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_drawn(pages, name, console.width), refresh=True)
                await asyncio.sleep(_EVERY_S)
                try:
                    pages.append(await _read(http, url, name))
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


async def _read(http: httpx.AsyncClient, url: httpx.URL, name: str) -> Page:
    """Read the page.

    Raises:
        Refusal: nothing answers, or something else does.
    """
    try:
        # A bound of the whole, also where a byte comes now and then.
        async with asyncio.timeout(PATIENCE_S):
            reply = await http.get(url)
        content = reply.json() if reply.status_code == httpx.codes.OK else None
        why = "the client is closed" if reply.status_code == httpx.codes.OK else f"{_PATH} answers {reply.status_code}"
    except TimeoutError:
        content, why = None, f"{_PATH} did not come within {PATIENCE_S:g} s"
    except httpx.HTTPError as error:
        content, why = None, f"nothing answers ({type(error).__name__})"
    except (ValueError, RecursionError):
        content, why = None, f"{_PATH} is no JSON"
    if content is None:
        raise Refusal(f"{name}: {why}", Status.NO_SERVER)
    return Page(content, time.monotonic())
