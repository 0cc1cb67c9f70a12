"""A loopback server with an account: which prompts came in which run, and which were answered.

What a prompt says decides its answer:
- ``bad`` in it: 400, whatever comes with it;
- ``once`` in it: 401 to the first request with it, which the client sends again;
- ``later`` in it: 429 and a ``Retry-After`` of an hour to the first request with it, and the row fails for now;
- ``busy`` in it: 503 to the first request with it, which the client sends again;
- else ``<prompt>``, for an embedding as the numbers of its letters.
"""

import asyncio
import json
import threading
from collections import Counter
from contextlib import contextmanager

from tests.fakes.raw import RawServer, response, whole

__all__ = ["AccountServer", "Run", "account_server", "answer_to", "text_of"]

JSON = [("content-type", "application/json")]


def answer_to(prompt):
    return f"<{prompt}>"


def vector_of(prompt):
    return [*map(float, answer_to(prompt).ljust(16).encode())]


def texts_of(given):
    return given if isinstance(given, list) else [given]


def text_of(vector):
    """The answer that a vector is."""
    return bytes(map(int, vector)).decode().rstrip()


class Run:
    """What came from one process: how often each prompt, and which were answered; errors count."""

    def __init__(self):
        self.came = Counter()
        self.answered = set()

    @property
    def in_flight(self):
        """Prompts that came and were not answered."""
        return self.came.keys() - self.answered


class AccountServer:
    """Lives in a thread.

    It pauses before each answer. Prompts with one of the texts in ``held`` get none until ``release``; ``met`` are those
    that were refused once. There is a run for each process.
    """

    def __init__(self):
        self.base_url = ""
        self.reset()
        self._news = threading.Condition()
        self.ready = threading.Event()

    def reset(self):
        """Begin anew, for another test."""
        self.pause_s = 0.0
        self.runs = [Run()]
        self.held = ()
        self.met = set()

    @property
    def run(self):
        return self.runs[-1]

    @property
    def came(self):
        """Over all runs."""
        return sum((run.came for run in self.runs), Counter())

    # In the test's thread --------------------------------------------------------------------------------------------

    def new_run(self):
        """Begin the next run, once all that the last process sent has been read."""
        asyncio.run_coroutine_threadsafe(self._settled(), self._loop).result()
        self.runs.append(Run())
        return self.run

    def wait_for(self, condition):
        """Wait until ``condition(run)`` holds."""
        with self._news:
            self._news.wait_for(lambda: condition(self.run))

    def release(self):
        """Hold nothing any more."""
        self.held = ()
        self._loop.call_soon_threadsafe(self._gate.set)

    def stop(self):
        self._loop.call_soon_threadsafe(self._over.set)

    # In the server's thread ------------------------------------------------------------------------------------------

    async def _settled(self):
        # Connections are accepted in order: once this one is, all before it are.
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        writer.write(b"GET /version HTTP/1.1\r\n\r\n")
        await reader.readline()
        writer.close()
        while self._server.open:
            await asyncio.sleep(0.001)

    def _tell(self):
        with self._news:
            self._news.notify_all()

    async def _on_request(self, heard, reader, writer, server):
        is_embedding = heard.path.endswith("/embeddings")
        if heard.method != "POST" or not (is_embedding or heard.path.endswith("/completions")):
            writer.write(response(b"{}", "404 Not Found", JSON))
            await writer.drain()
            return False
        run, prompts = self.run, texts_of(heard.json["input"]) if is_embedding else heard.prompts
        run.came.update(prompts)
        self._tell()
        if self.pause_s:
            await asyncio.sleep(self.pause_s)
        while any(text in prompt for text in self.held for prompt in prompts):
            self._gate.clear()
            await self._gate.wait()
        new = {prompt for prompt in prompts if {*prompt.split()} & {"once", "busy", "later"}} - self.met
        self.met |= new
        if any("once" in prompt for prompt in new):
            reply = response(b'{"error":{"message":"not yet","code":401}}', "401 Unauthorized", JSON)
        elif any("later" in prompt for prompt in new):
            headers = [*JSON, ("retry-after", "3600")]
            reply = response(b'{"error":{"message":"later","code":429}}', "429 Too Many Requests", headers)
        elif new:
            reply = response(b'{"error":{"message":"busy","code":503}}', "503 Service Unavailable", JSON)
        elif any("bad" in prompt for prompt in prompts):
            reply = response(b'{"error":{"message":"no such prompt","code":400}}', "400 Bad Request", JSON)
        elif is_embedding:
            data = [{"index": place, "embedding": vector_of(prompt)} for place, prompt in enumerate(prompts)]
            reply = response(json.dumps({"data": data}).encode(), headers=JSON)
        else:
            reply = whole(heard)
        writer.write(reply)
        await writer.drain()
        run.answered.update(prompts)
        self._tell()
        return False

    async def serve(self):
        self._loop, self._over, self._gate = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        async with RawServer(on_request=self._on_request) as self._server:
            self.base_url = self._server.url
            self.ready.set()
            await self._over.wait()


@contextmanager
def account_server():
    server = AccountServer()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    server.ready.wait()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
