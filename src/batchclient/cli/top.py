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
from contextlib import closing
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Annotated, NoReturn
from urllib.parse import unquote, urlsplit

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from batchclient.cli._refusal import Refusal
from batchclient.cli._top_view import Page, frame_of
from batchclient.cli._words import say
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["top"]

_EVERY_S = 0.25
PATIENCE_S = 3.0
_WINDOW_S = 5.0
"""Rates are over so long, seconds."""
_LARGEST = 16 << 20
_PATH = "/statistics"


class _Unread(Exception):
    """The page cannot be read; the message says why."""


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
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
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
        self._asked = parts._replace(scheme="", netloc="", path=path + _PATH, fragment="").geturl()
        self._headers: dict[str, str] = {}
        if parts.username is not None:
            known = b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode()
            self._headers["Authorization"] = f"Basic {known}"
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        # It knows no proxy, and follows no redirect: the user is for this place alone.
        self._connect = partial(kind, host, port or kind.default_port, timeout=PATIENCE_S)

    def read(self) -> Page:
        """Read the page.

        Raises:
            _Unread: nothing answers, or something else does.
        """
        found: SimpleQueue[tuple[int, bytes] | Exception] = SimpleQueue()
        # In a thread: the connection's timeout is one of each byte.
        Thread(target=self._fetch, args=(found,), daemon=True).start()
        try:
            reply = found.get(timeout=PATIENCE_S)
            if isinstance(reply, Exception):
                raise reply
            status, body = reply
            content = json.loads(body) if status == HTTPStatus.OK else None
        except Empty:
            raise _Unread(f"{_PATH} did not come within {PATIENCE_S:g} s") from None
        except (OSError, HTTPException) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise _Unread(f"nothing answers ({why})") from None
        except (ValueError, RecursionError):
            raise _Unread(f"{_PATH} is no JSON") from None
        if content is None:
            raise _Unread("the client is closed" if status == HTTPStatus.OK else f"{_PATH} answers {status}")
        return Page(content, time.monotonic())

    def _fetch(self, found: SimpleQueue[tuple[int, bytes] | Exception]) -> None:
        try:
            with closing(self._connect()) as connection:
                connection.request("GET", self._asked, headers=self._headers)
                reply = connection.getresponse()
                found.put((reply.status, reply.read(_LARGEST)))
        except Exception as error:
            found.put(error)


def _complain(text: str, status: Status) -> NoReturn:
    say(f"Error: {text}")
    raise typer.Exit(status)
