"""A smoke test of an installed batchclient, run by the environment's own interpreter.

    python -I scripts/_release_smoke.py EXTRA VERSION

EXTRA is none or the extra that is installed. A call is answered, each extra that is there works,
and each that is missing is named with the line to install it. The server is the standard library's,
since the embedded one comes with an extra. ``release_check.sh`` runs the test.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import batchclient
from batchclient import BatchClient, ConfigError, Http


class Server(BaseHTTPRequestHandler):
    """Answers each prompt of a completion, and 404 to all else."""

    def do_POST(self) -> None:
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        count = len(prompt) if isinstance(prompt, list) else 1
        choices = [{"index": at, "text": "yes", "finish_reason": "stop"} for at in range(count)]
        usage = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": 2 * count}
        sent = json.dumps({"id": "1", "model": "m", "choices": choices, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def expect(fact: object, words: object) -> None:
    if not fact:
        raise SystemExit(f"smoke test: {words}")


def ask(url: str, **settings: Any) -> None:
    async def main() -> None:
        async with BatchClient(url, model="m", **settings) as client:
            calls = [client.complete(f"{number}?", max_tokens=1, timeout_s=30) for number in range(3)]
            expect([answer.text for answer in await asyncio.gather(*calls)] == ["yes"] * 3, "other answers")

    asyncio.run(main())


def data(_url: str) -> None:
    from batchclient.jobs import read_rows

    with tempfile.NamedTemporaryFile(suffix=".parquet") as file, suppress(OSError):  # it is empty
        read_rows(file.name)


def otel(url: str) -> None:
    ask(url, telemetry=batchclient.Telemetry())


def prometheus(_url: str) -> None:
    from batchclient.integrations.prometheus import Collector

    Collector(batchclient.BatchClient("http://127.0.0.1:9/v1", model="m"))


def redis(_url: str) -> None:
    import_module("batchclient.integrations.redis")


def server(_url: str) -> None:
    from batchclient.testing import EmbeddedServer

    with EmbeddedServer(model="m"):
        pass


USES: dict[str, tuple[str, Callable[[str], None]]] = {
    "data": ("pyarrow", data),
    "httpx2": ("httpx2", lambda url: ask(url, http=Http(backend="httpx2"))),
    "otel": ("opentelemetry.trace", otel),
    "prometheus": ("prometheus_client", prometheus),
    "redis": ("redis", redis),
    "server": ("uvicorn", server),
}
"""By extra: a module that it brings (another extra may bring it, too), and a use of it. Of `cli` it is the command."""
INCLUDES = {"cli": "server"}


def is_there(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None and find_spec(module) is not None


def check_command(version: str, *, works: bool) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(Path(sys.executable).with_name("batchclient")), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    expect(run("--version").stdout == f"batchclient {version}\n", run("--version"))
    done = run("map", "--help")
    expect(done.returncode == 0 if works else "of the extra batchclient[cli]" in done.stderr, done)


def main(extra: str, version: str) -> None:
    expect(sys.prefix in str(batchclient.__file__), f"batchclient is {batchclient.__file__}")
    expect(batchclient.__version__ == version, batchclient.__version__)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        ask(url)
        for name, (module, use) in USES.items():
            there, said = is_there(module), ""
            try:
                use(url)
            except (ImportError, ConfigError) as error:
                said = str(error)
            expect(there or name not in (extra, INCLUDES.get(extra)), f"the extra {name} brings no {module}")
            expect(said == "" if there else f"the extra batchclient[{name}]" in said, f"{name}: {said}")
        server.shutdown()
    check_command(version, works=extra == "cli")
    print(f"{extra}: calls are answered, missing extras are named")


if __name__ == "__main__":
    os.chdir(tempfile.gettempdir())
    main(*sys.argv[1:])
