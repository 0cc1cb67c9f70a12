"""A smoke test of an installed batchclient, run by the environment's own interpreter.

    python -I scripts/_release_smoke.py EXTRA VERSION

EXTRA is none, cli, httpx2, aiohttp, otel, prometheus or redis.

The package is imported within a time, and a call is answered through each backend that is there.
Each extra that is missing is named by the argument or command that needs it, with the line to
install it. The server is the standard library's, since the embedded one comes with an extra.
``release_check.sh`` runs the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

IMPORT_S = 0.25
"""CPU seconds that ``import batchclient`` may take, best of several: a busy machine counts less."""
_TRIES = 10
_MODULES = {"httpx2": "httpx2", "aiohttp": "httpx_aiohttp"}
_TIMED = "import time; start = time.process_time(); import batchclient; print(time.process_time() - start)"


class Server(BaseHTTPRequestHandler):
    """Answers each prompt of a completion, and 404 to all else."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [body.get("prompt")]
        choices = [{"index": at, "text": "yes", "finish_reason": "stop"} for at in range(len(prompts))]
        usage = {"prompt_tokens": len(prompts), "completion_tokens": len(prompts), "total_tokens": 2 * len(prompts)}
        answer = {"id": "1", "object": "text_completion", "model": "m", "choices": choices, "usage": usage}
        self._reply(200 if self.path == "/v1/completions" else 404, answer)

    def do_GET(self) -> None:
        self._reply(404, {})

    def _reply(self, status: int, body: object) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program with its words taken; no variable of this shell reaches it but the path."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": os.environ["PATH"]}
    )


def expect(fact: bool, words: object) -> None:  # noqa: FBT001  # reads as a sentence
    """End the program where something is not so."""
    if not fact:
        raise SystemExit(f"smoke test: {words}")


def check_import() -> float:
    """Return the CPU seconds of the quickest import."""
    seconds = 1e9
    for _ in range(_TRIES):
        done = run(sys.executable, "-I", "-c", _TIMED)
        expect(done.returncode == 0, done.stderr)
        seconds = min(seconds, float(done.stdout))
        if seconds < IMPORT_S:
            break
    expect(seconds < IMPORT_S, f"import batchclient takes {seconds:.2f} s of CPU, more than {IMPORT_S} s")
    return seconds


def check_command(*, is_there: bool, version: str) -> None:
    """Run ``batchclient --version`` and ``--help``; without its extra the command names the extra."""
    command = str(Path(sys.executable).with_name("batchclient"))
    done = run(command, "--version")
    if is_there:
        expect(done.stdout == f"batchclient {version}\n" and done.returncode == 0, done)
        expect("simulate" in run(command, "--help").stdout, "--help names no simulate")
    else:
        # The version needs no extra; a command does.
        expect(done.stdout == f"batchclient {version}\n", done)
        done = run(command, "map", "--help")
        expect(done.returncode == 2 and "pip install 'batchclient[cli]'" in done.stderr, done)


def check_embedded_server(*, is_there: bool) -> None:
    """Start the embedded server; without its extra it names the extra."""
    from batchclient.testing import EmbeddedServer

    try:
        with EmbeddedServer(model="m") as server:
            asyncio.run(ask(server.base_url, None))
    except ImportError as error:
        expect(not is_there and "pip install 'batchclient[cli]'" in str(error), error)
    else:
        expect(is_there, "the embedded server runs without uvicorn")


async def ask(base_url: str, backend: str | None) -> str:
    """Make a call through a backend and return its answer."""
    from batchclient import BatchClient, Http

    async with BatchClient(base_url, model="m", http=Http(backend=backend) if backend else None) as client:
        texts = await asyncio.gather(*[client.complete(f"{n}?", max_tokens=1, timeout_s=30) for n in range(3)])
    return " ".join(text.text for text in texts)


def check_backend(base_url: str, backend: str, *, must_be_there: bool) -> None:
    """Make calls through a backend; without its extra the argument names the extra."""
    from batchclient import ConfigError

    is_there = find_spec(_MODULES[backend]) is not None
    expect(is_there or not must_be_there, f"the extra {backend} brings no {_MODULES[backend]}")
    try:
        answer = asyncio.run(ask(base_url, backend))
    except ConfigError as error:
        expect(not is_there and f"pip install 'batchclient[{backend}]'" in str(error), error)
    else:
        expect(answer == "yes yes yes", answer)


async def check_metrics(base_url: str, *, is_there: bool) -> None:
    """Serve a client's metrics; without its extra the module names the extra."""
    from batchclient import BatchClient

    try:
        from batchclient.integrations.prometheus import serve
    except ImportError as error:
        expect(not is_there and "pip install 'batchclient[prometheus]'" in str(error), error)
        return
    expect(is_there, "metrics are served without prometheus_client")
    async with BatchClient(base_url, model="m") as client:
        await client.complete("1?", max_tokens=1, timeout_s=30)
        with serve(client, 0) as server:
            page = await asyncio.to_thread(lambda: urlopen(f"{server.url}/metrics", timeout=30).read().decode())
    expect('batchclient_calls_total{outcome="succeeded"} 1.0' in page, page)


def check_redis(*, is_there: bool) -> None:
    """Import the worker of a Redis stream; without its extra the module names the extra."""
    try:
        from batchclient.integrations.redis import Worker
    except ImportError as error:
        expect(not is_there and "pip install 'batchclient[redis]'" in str(error), error)
        return
    expect(is_there and callable(Worker), "there is a worker without redis-py")


async def check_telemetry(base_url: str, *, is_there: bool) -> None:
    """Make a call with spans, which go nowhere without an SDK; the argument names a missing extra."""
    from batchclient import BatchClient, ConfigError, Telemetry

    try:
        telemetry = Telemetry()
    except ConfigError as error:
        expect(not is_there and "pip install 'batchclient[otel]'" in str(error), error)
        return
    expect(is_there, "spans are made without OpenTelemetry")
    async with BatchClient(base_url, model="m", telemetry=telemetry) as client:
        answer = await client.complete("1?", max_tokens=1, timeout_s=30)
    expect(answer.text == "yes", answer.text)


def main(extra: str, version: str) -> None:
    """Check the environment of an extra."""
    seconds = check_import()
    import batchclient

    expect(sys.prefix in str(batchclient.__file__), f"batchclient is {batchclient.__file__}")
    expect(batchclient.__version__ == version, batchclient.__version__)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base_url = f"http://127.0.0.1:{server.server_port}/v1"
        expect(asyncio.run(ask(base_url, None)) == "yes yes yes", "the calls have other answers")
        for backend in _MODULES:
            check_backend(base_url, backend, must_be_there=extra == backend)
        asyncio.run(check_metrics(base_url, is_there=extra == "prometheus"))
        asyncio.run(check_telemetry(base_url, is_there=extra == "otel"))
        server.shutdown()
    check_redis(is_there=extra == "redis")
    check_command(is_there=extra == "cli", version=version)
    check_embedded_server(is_there=extra == "cli")
    [script] = [point for point in entry_points(group="console_scripts") if point.name == "batchclient"]
    expect(callable(script.load()), script)
    print(f"{extra}: imports in {seconds:.2f} s of CPU, calls are answered, missing extras are named")


if __name__ == "__main__":
    os.chdir(tempfile.gettempdir())
    main(*sys.argv[1:])
