"""``batchclient top``: a running job or service in the terminal, from its page ``/statistics``.

Rules:
- The page is read four times a second, and nothing else is asked.
- A page that cannot be read at first is a complaint. One that answered before, and is gone, ends
  the command with status 0: a job's page goes with the job.
- Ctrl-C ends the command with 130, and gives the terminal its cursor back.
"""

from __future__ import annotations

import json
import signal
import time
from base64 import b64encode
from http.client import HTTPException
from typing import Annotated, NoReturn
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from batchclient.cli._refusal import Refusal
from batchclient.cli._top_view import Page, frame_of
from batchclient.cli._words import say
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["top"]

_EVERY_S = 0.25
_PATIENCE_S = 3.0
_WINDOW_S = 5.0
"""Rates are over so long, seconds."""
_LARGEST = 16 << 20
_PATH = "/statistics"


class _Unread(Exception):
    """The page cannot be read; the message says why."""


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: the user and the password are for the named place alone."""

    def redirect_request(self, *_: object) -> None:
        """Return no request: the redirect itself is the answer."""


def top(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where --metrics-port or serve() listens, as HOST:PORT.")],
    once: Annotated[bool, typer.Option("--once", help="Print the page once, without rates, and exit.")] = False,
) -> None:
    """Show a running job or service: servers, limits, queue, batch sizes, tokens/s, errors.

    The numbers are those of /statistics at URL. Exit status: 0 the page has gone, 2 wrong usage, 5
    nothing answers at URL, 130 Ctrl-C.
    """
    try:
        place = _Place(url)
    except Refusal as refusal:
        _complain(str(refusal), Status.USAGE)
    console = Console()
    try:
        page = place.read()
        frame = _drawn(page, None, place.name, console.width)
        if once or not console.is_terminal:
            console.print(frame)
            return
        _watch(place, page, console)
    except _Unread as error:
        _complain(f"{place.name}: {error}", Status.NO_SERVER)
    except KeyboardInterrupt:
        raise typer.Exit(of_signal(signal.SIGINT)) from None


def _watch(place: _Place, page: Page, console: Console) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ended = ""
        with Live(console=console, auto_refresh=False) as live:
            pages = [page]
            while not ended:
                frame = _drawn(pages[-1], pages[0] if len(pages) > 1 else None, place.name, console.width)
                live.update(frame, refresh=True)
                time.sleep(_EVERY_S)
                try:
                    pages.append(place.read())
                except _Unread as error:
                    ended = str(error)
                while len(pages) > 2 and pages[-1].at - pages[1].at >= _WINDOW_S:
                    del pages[0]
        say(f"{place.name} has gone: {ended}")
    finally:
        signal.signal(signal.SIGINT, before)


def _drawn(page: Page, before: Page | None, name: str, width: int) -> RenderableType:
    try:
        return frame_of(page, before, name, width)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _Unread(f"{_PATH} is not what such a page has") from None


class _Place:
    """Where a page is read.

    Args:
        url: a URL, or ``HOST:PORT``.

    Attributes:
        name: host and port.

    Raises:
        Refusal: the URL is none.
    """

    def __init__(self, url: str) -> None:
        given = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(given)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        # A word alone may be a key.
        if not host or parts.scheme not in ("http", "https") or (given != url and port is None):
            raise Refusal("URL is a URL such as http://127.0.0.1:9400, or HOST:PORT")
        shown = f"[{host}]" if ":" in host else host
        self.name: str = shown if port is None else f"{shown}:{port}"
        path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix(_PATH)
        # urllib takes a user for a part of the host's name.
        address = parts.netloc.rpartition("@")[2]
        asked = parts._replace(netloc=address, path=path + _PATH, fragment="").geturl()
        self._request = Request(asked)  # noqa: S310  # its scheme was looked at
        if parts.username is not None:
            known = b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode()
            self._request.add_header("Authorization", f"Basic {known}")
        # A page about a program is asked for directly.
        self._opener = build_opener(ProxyHandler({}), _NoRedirects())

    def read(self) -> Page:
        """Read the page.

        Raises:
            _Unread: nothing answers, or something else does.
        """
        try:
            with self._opener.open(self._request, timeout=_PATIENCE_S) as reply:
                content = json.loads(reply.read(_LARGEST))
        except HTTPError as error:
            error.close()
            raise _Unread(f"{_PATH} answers {error.code}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or type(reason).__name__
            raise _Unread(f"nothing answers ({why})") from None
        except ValueError:
            raise _Unread(f"{_PATH} is no JSON") from None
        if content is None:
            raise _Unread("the client is closed")
        return Page(content, time.monotonic())


def _complain(text: str, status: Status) -> NoReturn:
    say(f"Error: {text}")
    raise typer.Exit(status)
