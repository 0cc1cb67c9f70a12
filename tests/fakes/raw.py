"""A raw HTTP/1.1 server on a real socket that does what it is told to, connection by connection, down to half a byte and a reset.

A script is ``async (connection)``: it reads requests, writes bytes, and resets, closes or falls silent where it likes. The first
connection runs the first script, and so on; those after the last script answer whatever they are asked.

    async with RawServer(cut(40), hang()) as server: ...

It runs in the test's own event loop; ``answers_in_a_thread`` and ``answers_in_a_process`` answer every prompt from outside it.
"""

import asyncio
import contextlib
import json
import multiprocessing
import shutil
import socket
import ssl
import struct
import subprocess
import threading

import pytest

from batchclient import Backoff
from tests.seams import connected

JSON = [("content-type", "application/json")]


class Heard:
    """One request as it came over the wire."""

    def __init__(self, connection, line, headers, body=b""):
        self.connection = connection
        """Number of the connection, from 0."""
        self.method, self.path, _ = line.split(" ")
        self.headers = headers
        """(lower-case name, value), in order."""
        self.body = body

    def header(self, name):
        values = [value for each, value in self.headers if each == name]
        assert len(values) <= 1, f"{name} was sent {len(values)} times"
        return values[0] if values else None

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def prompts(self):
        prompt = self.json["prompt"]
        return prompt if isinstance(prompt, list) else [prompt]


# What goes over the wire ---------------------------------------------------------------------------------------------


def events_of(heard):
    """Two events per prompt, as vLLM streams a list."""
    chunks = []
    for part, reason in (("<", None), (">", "length")):
        for index, prompt in enumerate(heard.prompts):
            text = part if reason is None else f"{prompt}>"
            choice = {"index": index, "text": text, "finish_reason": reason}
            usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
            chunks.append(b"data: " + json.dumps({"id": "1", "choices": [choice], "usage": usage}).encode() + b"\n\n")
    return [*chunks, b"data: [DONE]\n\n"]


def body_of(heard):
    """One JSON object, or all the events of a stream."""
    if heard.json.get("stream"):
        return b"".join(events_of(heard))
    choices = [
        {"index": index, "text": f"<{prompt}>", "finish_reason": "length", "token_ids": [1], "prompt_token_ids": [1]}
        for index, prompt in enumerate(heard.prompts)
    ]
    return json.dumps({"id": "1", "choices": choices}).encode()


def response(body, status="200 OK", headers=(), length=None):
    """The bytes of a whole response."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def error(status, message="no", headers=(), **fields):
    """An error as vLLM writes it."""
    body = {"error": {"message": message, "type": "Error", "code": int(status[:3]), **fields}}
    return response(json.dumps(body).encode(), status, [*JSON, *headers])


def chunked(pieces, *, end=True):
    """A chunked response of these pieces, with or without its last chunk."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")


def whole(heard):
    """The right answer; 404 to a question, such as the one for the server's load."""
    if heard.method == "GET":
        return response(b"", "404 Not Found")
    return chunked(events_of(heard)) if heard.json.get("stream") else response(body_of(heard), headers=JSON)


# The server ----------------------------------------------------------------------------------------------------------


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
        self.writer = writer

    async def head(self):
        """Read a request without its body; ``None`` once the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.server.closed_by_client.set()
            return None
        line, *rest = head.decode().removesuffix("\r\n\r\n").split("\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (each.partition(":") for each in rest)]
        return Heard(self.number, line, headers)

    async def request(self):
        """Read a whole request; ``None`` once the client has closed."""
        heard = await self.head()
        if heard is None:
            return None
        try:
            heard.body = await self.reader.readexactly(int(dict(heard.headers).get("content-length", 0)))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.server.closed_by_client.set()
            return None
        self.server.heard.append(heard)
        self.server.news.set()
        return heard

    async def write(self, *pieces):
        """Write pieces, each a packet of its own as far as a socket allows."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def answer(self, heard):
        """Answer every prompt of a request, in the form that was asked for."""
        await self.write(whole(heard))

    def reset(self):
        """End with a reset, not with an orderly close."""
        reset(self.writer)

    async def gone(self):
        """Say nothing until the client closes."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.server.closed_by_client.set()


class RawServer:
    """Runs one script per connection.

    Args:
        scripts: of the first connections.
        then: of all the others; they answer by default.
        on_request: in place of scripts, what every connection does with a request: ``async (heard, reader, writer, server)``,
            which returns true to end the connection.
        tls: an ``ssl.SSLContext`` to speak TLS with.
        listener: a bound socket, in place of a free port.
    """

    def __init__(self, *scripts, then=None, on_request=None, tls=None, listener=None):
        self.on_request = on_request
        self._scripts = list(scripts)
        self._then = then or (self._ask if on_request else answers())
        self._tls = tls
        self._listener = listener
        self._tasks = set()
        self.heard = []
        self.connections = 0
        self.most_open = 0
        self.news = asyncio.Event()
        self.closed_by_client = asyncio.Event()
        self.port = 0

    def quiet(self):
        """Handshakes that fail are what is tested: asyncio is not to report them."""
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

    async def __aenter__(self):
        # The same port again, if it is started a second time.
        place = {"sock": self._listener} if self._listener else {"host": "127.0.0.1", "port": self.port}
        self._server = await asyncio.start_server(self._serve, **place, ssl=self._tls)
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
        self.most_open = max(self.most_open, self.open)
        connection = Connection(self.connections, self, reader, writer)
        self.connections += 1
        script = self._scripts.pop(0) if self._scripts else self._then
        try:
            await script(connection)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _ask(self, connection):
        while heard := await connection.request():
            if await self.on_request(heard, connection.reader, connection.writer, self):
                return


async def answer(heard, reader, writer, server):
    """For ``on_request``: the right answer, its stream of known length."""
    writer.write(response(b"", "404 Not Found") if heard.method == "GET" else response(body_of(heard)))
    await writer.drain()


def reset(writer):
    """Close with a reset, not with an orderly end."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


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


# For clients in other loops and processes ----------------------------------------------------------------------------


class _Outside:
    """A server with a loop of its own, in a thread."""

    def __init__(self, silent=False, on_request=None):
        self.silent = silent
        self.on_request = on_request
        self.arrived = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _say_nothing(self, heard, reader, writer, server):
        self.arrived.set()
        await reader.read()
        return True

    async def _main(self):
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        async with RawServer(on_request=self._say_nothing if self.silent else self.on_request or answer) as self.server:
            self._ready.set()
            await self._over.wait()

    def __enter__(self):
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exc):
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


@contextlib.contextmanager
def answers_in_a_thread(*, silent=False, on_request=None):
    """A server's URL; with ``silent``, also an event: a request came, and none is answered."""
    with _Outside(silent, on_request) as outside:
        yield (outside.server.url, outside.arrived) if silent else outside.server.url


def _serve_process(pipe):
    with _Outside() as outside:
        pipe.send(outside.server.url)
        with contextlib.suppress(EOFError):
            while pipe.recv():
                pipe.send(outside.server.connections)


@contextlib.contextmanager
def answers_in_a_process():
    """A server's URL, and a function that says how many connections it has had."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve_process, args=(theirs,))
    process.start()
    theirs.close()

    def connections():
        ours.send(True)
        return ours.recv()

    try:
        yield ours.recv(), connections
    finally:
        ours.send(False)
        process.join()
        ours.close()


# Clients and other servers -------------------------------------------------------------------------------------------


def make(server, backend="httpx", *, also=(), **arguments):
    """A client of the server, and of the URLs in ``also`` before it; it tries again at once, and asks for no load."""
    defaults = {"model": "m", "retry": Backoff(base_s=0), "probe": False}
    return connected([*also, server.url], backend=backend, **(defaults | arguments))


_TAKEN = []
"""Sockets of ports on which nobody listens: closed, such a port might be another test's server's."""


def nobody_listens():
    """A URL whose port refuses connections."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    _TAKEN.append(taken)
    return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def certificate(folder, *, name="IP:127.0.0.1", days=1):
    """Make a certificate and return (its file, a server's context with it). No ``days``: it has expired."""
    files = {kind: str(folder / f"{kind}.pem") for kind in ("key", "certificate", "request")}
    subprocess.run(
        ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=t",
         "-keyout", files["key"], "-out", files["request"]], check=True, capture_output=True,
    )  # fmt: skip
    (folder / "extensions").write_text(f"subjectAltName={name}\nbasicConstraints=CA:TRUE\n")
    subprocess.run(
        ["openssl", "x509", "-req", "-in", files["request"], "-signkey", files["key"], "-days", str(days),
         "-extfile", str(folder / "extensions"), "-out", files["certificate"]], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["certificate"], files["key"])
    return files["certificate"], context
