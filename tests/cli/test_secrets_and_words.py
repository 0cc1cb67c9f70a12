"""What goes to whom: no program sends secrets elsewhere, none repeats them, and words of others steer no terminal."""

import asyncio
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import openai
import pytest

from batchclient.bench.strategies import rival_of


class Elsewhere(BaseHTTPRequestHandler):
    """Sends every request to another host; ``asked`` has the host that each was for, and its path."""

    def do_GET(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.asked.append((self.headers["Host"].partition(":")[0], self.path))
        self.send_response(307)
        self.send_header("Location", f"http://localhost:{self.server.server_port}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def elsewhere(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as running:
        running.asked = []
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://localhost:{running.server_port}")
        thread = Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_top_sends_its_user_to_no_other_host(cli, elsewhere):
    done = cli("top", f"http://user:secret@127.0.0.1:{elsewhere.server_port}", "--once")
    assert elsewhere.asked == [("127.0.0.1", "/statistics")]
    assert done.exit_code == 5 and done.stderr.endswith("/statistics answers 307\n")


def test_the_rival_of_bench_and_demo_goes_nowhere_else(elsewhere):
    async def call():
        async with rival_of(f"http://127.0.0.1:{elsewhere.server_port}/v1", "secret", {"x-key": "secret"}) as client:
            with suppress(openai.OpenAIError):
                await client.completions.create(model="m", prompt="secret")

    asyncio.run(call())
    assert elsewhere.asked == [("127.0.0.1", "/v1/completions")]
