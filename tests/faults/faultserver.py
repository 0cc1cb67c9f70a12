"""A server on a raw socket that does wrong what it is told to, connection by connection and byte by byte.

A script is ``async (connection)``: it reads requests, writes bytes, and resets, closes or falls silent where it likes. The first
connection runs the first script, and so on; those after the last script answer whatever they are asked.

    async with FaultServer(cut(40), hang()) as server: ...
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import subprocess

from tests.seams import connected
from tests.transport.rawserver import Heard, body_of, events_of, response

from batchclient import Backoff, Http

__all__ = [
    "Connection",
    "FaultServer",
    "answers",
    "certificate",
    "chunked",
    "cut",
    "hang",
    "make",
    "nobody_listens",
    "says",
    "whole",
]


class Connection:
    """One accepted connection.

    Args:
        number: from 0, in the order of arrival.
        server: whose.
    """

    def __init__(self, number, server, reader, writer):
        self.number = number
        self.server = server
        self.reader = reader
        self._writer = writer

    async def request(self):
        """Read a whole request; ``None`` once the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            line, *rest = head.decode().removesuffix("\r\n\r\n").split("\r\n")
            headers = [(name.lower(), value.strip()) for name, _, value in (each.partition(":") for each in rest)]
            length = int(dict(headers).get("content-length", 0))
            heard = Heard(self.number, line, headers, await self.reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.server.closed_by_client.set()
            return None
        self.server.heard.append(heard)
        self.server.news.set()
        return heard

    async def write(self, *pieces):
        """Write pieces, each a packet of its own as far as a socket allows."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    async def answer(self, heard):
        """Answer every prompt of a request, in the form that was asked for."""
        await self.write(whole(heard))

    def reset(self):
        """End with a reset, not with an orderly close."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def gone(self):
        """Say nothing until the client closes."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.server.closed_by_client.set()


class FaultServer:
    """Runs one script per connection.

    Args:
        scripts: of the first connections.
        then: of all the others; they answer by default.
        tls: an ``ssl.SSLContext`` to speak TLS with.
    """

    def __init__(self, *scripts, then=None, tls=None):
        self._scripts = list(scripts)
        self._then = then or answers()
        self._tls = tls
        self._tasks = set()
        self.heard = []
        self.connections = 0
        self.news = asyncio.Event()
        self.closed_by_client = asyncio.Event()
        self.port = 0

    def quiet(self):
        """Handshakes that fail are what is tested: asyncio is not to report them."""
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

    async def __aenter__(self):
        # The same port again, if it is started a second time.
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def arrived(self, count):
        """Wait until so many requests came."""
        while len(self.heard) < count:
            self.news.clear()
            await self.news.wait()

    @property
    def open(self):
        """How many connections are open."""
        return len(self._tasks)

    @property
    def prompts(self):
        """Of each request."""
        return [heard.prompts for heard in self.heard]

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        connection = Connection(self.connections, self, reader, writer)
        self.connections += 1
        script = self._scripts.pop(0) if self._scripts else self._then
        try:
            await script(connection)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


# What goes over the wire ---------------------------------------------------------------------------------------------


def chunked(pieces, *, end=True):
    """A chunked response of these pieces, with or without its last chunk."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")


def whole(heard):
    """The right answer; no page is there."""
    if heard.method == "GET":
        return response(b"", "404 Not Found")
    if heard.json.get("stream"):
        return chunked(events_of(heard))
    return response(body_of(heard), headers=[("content-type", "application/json")])


# Scripts -------------------------------------------------------------------------------------------------------------


def answers():
    """Answer request after request."""

    async def script(connection):
        while heard := await connection.request():
            await connection.answer(heard)

    return script


def says(*replies, close=False):
    """Say these bytes, one reply per request, then answer; or close after the last."""

    async def script(connection):
        for reply in replies:
            heard = await connection.request()
            if heard is None:
                return
            await connection.write(reply(heard) if callable(reply) else reply)
        if not close:
            await answers()(connection)

    return script


def cut(at, *, how="close"):
    """Write the right answer's first ``at`` bytes (of the end, if negative), then ``close``, ``reset`` or ``hang``."""

    async def script(connection):
        heard = await connection.request()
        await connection.write(whole(heard)[:at])
        if how == "reset":
            connection.reset()
        elif how == "hang":
            await connection.gone()

    return script


def hang():
    """Read the request and say nothing for ever."""
    return cut(0, how="hang")


# Clients and other servers -------------------------------------------------------------------------------------------------------


def make(server, backend="httpx", *, also=(), **arguments):
    """A client of the server, and of the URLs in ``also`` before it; it tries again at once."""
    urls = [*also, server.url]
    return connected(urls, backend=backend, **{"model": "m", "retry": Backoff(base_s=0), "detect": False, **arguments})


def nobody_listens():
    """A URL whose port refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}/v1"


def certificate(folder, *, name="IP:127.0.0.1", days=1):
    """Make a certificate and return (its file, a server's context with it). Negative ``days``: it has expired."""
    files = {kind: str(folder / f"{kind}.pem") for kind in ("key", "certificate", "request")}
    openssl = ["openssl"]
    subprocess.run(
        [*openssl, "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=t",
         "-keyout", files["key"], "-out", files["request"]], check=True, capture_output=True,
    )  # fmt: skip
    (folder / "extensions").write_text(f"subjectAltName={name}\nbasicConstraints=CA:TRUE\n")
    subprocess.run(
        [*openssl, "x509", "-req", "-in", files["request"], "-signkey", files["key"], "-days", str(days),
         "-extfile", str(folder / "extensions"), "-out", files["certificate"]], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["certificate"], files["key"])
    return files["certificate"], context
