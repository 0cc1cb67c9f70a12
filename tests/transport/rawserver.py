"""A raw HTTP/1.1 server on a real socket, scripted per connection, down to half a byte and a reset.

``RawServer`` runs in the test's own event loop; ``answers_in_a_thread`` and ``answers_in_a_process`` answer every prompt
from outside it.
"""

import asyncio
import contextlib
import json
import multiprocessing
import socket
import struct
import threading

__all__ = ["Heard", "RawServer", "answers_in_a_process", "answers_in_a_thread", "body_of", "events_of", "response"]


class Heard:
    """One request as it came over the wire."""

    def __init__(self, connection, line, headers, body):
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
    """One JSON object."""
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


class RawServer:
    """Answers every request, unless ``on_request`` does something else.

    Args:
        on_request: ``async (heard, reader, writer, server)``; return true to end the connection.
    """

    def __init__(self, on_request=None):
        self.on_request = on_request or answer
        self.heard = []
        self.connections = 0
        self.open = 0
        self.most_open = 0
        self.closed_by_client = asyncio.Event()
        self._news = asyncio.Event()
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def arrived(self, count):
        while len(self.heard) < count:
            self._news.clear()
            await self._news.wait()

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        number = self.connections
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while True:
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, ConnectionError):
                    self.closed_by_client.set()
                    return
                line, *rest = head.decode().removesuffix("\r\n\r\n").split("\r\n")
                headers = [(name.lower(), value.strip()) for name, _, value in (each.partition(":") for each in rest)]
                length = int(dict(headers).get("content-length", 0))
                heard = Heard(number, line, headers, await reader.readexactly(length))
                self.heard.append(heard)
                self._news.set()
                if await self.on_request(heard, reader, writer, self):
                    return
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(asyncio.current_task())
            writer.close()


async def answer(heard, reader, writer, server):
    writer.write(response(b"", "404 Not Found") if heard.method == "GET" else response(body_of(heard)))
    await writer.drain()


def reset(writer):
    """Close with a reset, not with an orderly end."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# For clients in other loops and processes ---------------------------------------------------------------------------


class _Outside:
    """A server with a loop of its own."""

    def __init__(self, silent, on_request=None):
        self.silent = silent
        self.on_request = on_request
        self.arrived = threading.Event()
        self.ready = threading.Event()

    def run(self):
        asyncio.run(self._main())

    async def _main(self):
        self.loop = asyncio.get_running_loop()
        self.over = asyncio.Event()

        async def say_nothing(heard, reader, writer, server):
            self.arrived.set()
            await reader.read()
            return True

        async with RawServer(say_nothing if self.silent else self.on_request) as server:
            self.server = server
            self.ready.set()
            await self.over.wait()

    def stop(self):
        self.loop.call_soon_threadsafe(self.over.set)


@contextlib.contextmanager
def answers_in_a_thread(*, silent=False, on_request=None):
    """A server's URL; with ``silent``, also an event: a request came, and none is answered."""
    outside = _Outside(silent, on_request)
    thread = threading.Thread(target=outside.run)
    thread.start()
    outside.ready.wait()
    try:
        yield (outside.server.url, outside.arrived) if silent else outside.server.url
    finally:
        outside.stop()
        thread.join()


def _serve_process(pipe):
    outside = _Outside(silent=False)
    thread = threading.Thread(target=outside.run)
    thread.start()
    outside.ready.wait()
    pipe.send(outside.server.url)
    with contextlib.suppress(EOFError):
        while pipe.recv():
            pipe.send(outside.server.connections)
    outside.stop()
    thread.join()


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
