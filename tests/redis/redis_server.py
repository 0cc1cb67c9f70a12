"""A real redis-server as a process: on a unix socket, with its log on the disk, killed and started again."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 20.0


def program() -> str | None:
    """The redis-server on the path, or the one of scripts/environments.py; ``None``: there is none."""
    fetched = Path(os.environ.get("BATCHCLIENT_REDIS_DIR") or ROOT / ".cache" / "redis") / "bin/redis-server"
    return shutil.which("redis-server") or (str(fetched) if fetched.is_file() else None)


def cluster_options() -> list[str]:
    """The options of a node of a cluster, whose second port is by default 10,000 above its port."""
    for _ in range(100):
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return ["--cluster-enabled", "yes", "--port", str(port), "--bind", "127.0.0.1"]
    raise AssertionError("no two ports are free")


class RedisServer:
    """One server with a folder of its own, which outlives kills."""

    def __init__(self, *options: str) -> None:
        # Short: the name of a unix socket has 107 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix="bc-redis-"))
        self.socket = self.folder / "s"
        self.url = f"unix://{self.socket}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        command = [program(), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)]
        command += ["--appendonly", "yes", "--save", "", *self._options]
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_LIMIT_S
        while not self._answers():
            assert self._process.poll() is None, "redis-server ended"
            assert time.monotonic() < until, "redis-server did not start"
            time.sleep(0.01)

    def kill(self) -> None:
        """End the process as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2.0)
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
            except OSError:
                return False
