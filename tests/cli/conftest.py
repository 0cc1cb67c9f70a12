"""What the CLI's tests share: a server of their own, and the command line as a process and in process."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tests import command_line
from tests.fakes.pages import serving

from batchclient.simulator import EmbeddedServer

COMMAND = [sys.executable, "-m", "batchclient"]


@pytest.fixture
def server():
    with EmbeddedServer("instant") as running:
        yield running


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    # A test without a terminal is somebody who looks on: a server that is not there is no reason to wait.
    monkeypatch.setattr("batchclient.cli._map_options.WAIT_S", 0.0)
    for name in ("BASE_URL", "MODEL", "API_KEY"):
        monkeypatch.delenv(f"BATCHCLIENT_{name}", raising=False)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def journal(out):
    return out.with_name("out.jsonl.journal")


@pytest.fixture
def part(out):
    return out.with_name("out.jsonl.part")


@pytest.fixture
def cli():
    """Run a command in this process."""
    return command_line.run


@pytest.fixture
def cli_map(cli, server):
    """Run ``map`` on the server in this process; later options win."""

    def run(source, *args, prompt="Say {text}", **given):
        options = ["--base-url", server.base_url, "--model", server.model, "--prompt", prompt, "--max-tokens", 3]
        return cli("map", source, *options, "--temperature", 0, *args, **given)

    return run


@pytest.fixture
def spawn(server):
    """Start ``map`` on the server as a process with pipes; killed at the end if the test has not waited for it."""
    processes = []

    def start(source, *args, prompt="Say {text}", **options):
        command = [*COMMAND, "map", str(source), "--base-url", server.base_url, "--model", server.model]
        command += ["--prompt", prompt, "--max-tokens", "3", "--temperature", "0", *map(str, args)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, **(pipes | options)))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()


@pytest.fixture
def models():
    """A server that has two models, refuses to say which, or takes its time."""

    def answer(asked):
        if asked.path != "/v1/models":
            return 404, b""
        if running.holds:
            running.was_asked.set()
            running.over.wait(30)
        if running.status != 200:
            return running.status, b"<html>no</html>", {"content-type": "text/html"}
        return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in ("one", "two")]}

    with serving(answer) as running:
        running.status, running.holds = 200, False
        running.was_asked, running.over = threading.Event(), threading.Event()
        yield running
        running.over.set()


PNG = b"\x89PNG\r\n\x1a\n.."


def rows_of(count, text="text"):
    return [{"id": number, "text": f"{text} {number}"} for number in range(count)]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def read_rows(data):
    """Rows from a path or from bytes; any line that is not JSON fails the test."""
    data = data.read_bytes() if isinstance(data, os.PathLike) else data
    return [json.loads(line) for line in data.decode().split("\n") if line]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.01)


def has_rows(path, count):
    return path.exists() and path.read_bytes().count(b"\n") >= count


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
