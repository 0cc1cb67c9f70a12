"""A small HTTP server in a thread of its own, for a program's pages about itself.

Rules:
- A page is answered by another thread than the event loop's, so that a blocked loop has pages, too.
- A page that fails is a 500 without details. A request that has not ended after ten seconds is
  dropped, also where a byte comes now and then.
- After a fork the child leaves the parent's port alone.
"""

from __future__ import annotations

import errno
import io
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from batchclient._common.forks import forget_in_child
from batchclient._common.log import Recent, log
from batchclient.errors import ConfigError

__all__ = ["Page", "PageServer"]

LONGEST_REQUEST_S = 10.0
_LOOK_EVERY_S = 0.1
_GREATEST_PORT = 65_535
Page = Callable[[], tuple[bytes, str]]
"""Returns a body and its content type."""


class PageServer:
    """Serves pages until ``close()``.

    Args:
        pages: by path, such as ``/metrics``.
        port: 0 for any free one.
        host: the address to listen at.

    Raises:
        ConfigError: the port is none, or in use, or may not be used; or the host is none of ours.
    """

    def __init__(self, pages: Mapping[str, Page], port: int, host: str) -> None:
        if type(port) is not int or not 0 <= port <= _GREATEST_PORT:
            raise ConfigError(f"port is a whole number from 0 to {_GREATEST_PORT}", field="port")
        if not isinstance(host, str) or not host:
            raise ConfigError("host is a name or an address of this machine", field="host")
        self.host: str = host
        """The address that was given."""
        try:
            self._server = _Server((host, port), _handler_of(pages))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} of {host} is in use by another program; give another, or 0 for any free one"
                raise ConfigError(message, field="port") from error
            field = "host" if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL else "port"
            raise ConfigError(f"port {port} of {host} cannot be used: {error.strerror}", field=field) from error
        self.port: int = self._server.server_address[1]
        """The port, also where 0 was given."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_EVERY_S,), name="batchclient pages", daemon=True
        )
        self._thread.start()
        forget_in_child(self)

    def __repr__(self) -> str:
        return f"<PageServer at {self.url}>"

    @property
    def url(self) -> str:
        """The server's URL, without a path."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the port back. Safe to call twice, from any thread."""
        self._stop_listening()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def close_soon(self) -> None:
        """Do the same without waiting for the thread; the port is free at once."""
        self._stop_listening()
        threading.Thread(target=self.close, name="batchclient pages end", daemon=True).start()

    def _stop_listening(self) -> None:
        # Otherwise the thread's look at the socket would keep the port for a moment.
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)

    def _forget_parent(self) -> None:
        self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # ``HTTPServer`` would ask the name service for the host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log("page_reader_left", "a reader of a page about the client went away")


class _Reading(io.RawIOBase):
    """What comes from a socket until a deadline: a socket's own bound begins anew with each byte."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


def _handler_of(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    recent = Recent()

    class Handler(BaseHTTPRequestHandler):
        timeout = LONGEST_REQUEST_S
        server_version = "batchclient"
        sys_version = ""
        error_content_type = "text/plain; charset=utf-8"
        error_message_format = "%(message)s\n"

        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.rfile = io.BufferedReader(_Reading(self.connection, LONGEST_REQUEST_S))

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """Answer what is no request for a page; nothing of it is repeated."""
            super().send_error(code)

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool = True) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, body, kind = HTTPStatus.OK, b"", "text/plain; charset=utf-8"
            if page is None:
                status, body = HTTPStatus.NOT_FOUND, f"there are: {', '.join(pages)}\n".encode()
            else:
                try:
                    body, kind = page()
                except Exception as error:  # a page that fails must not end its server
                    _tell_failed(recent, self.path.partition("?")[0], error)
                    status, body = HTTPStatus.INTERNAL_SERVER_ERROR, b"the page failed\n"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name
            """Say nothing: a scrape each second would fill the program's log."""

    return Handler


def _tell_failed(recent: Recent, page: str, error: Exception) -> None:
    left_out = recent.left_out("page_failed", page, time.monotonic())
    if left_out is not None:
        kind = type(error).__name__
        log("page_failed", "the page %s failed: %s", page, kind, page=page, error=kind, left_out=left_out)
