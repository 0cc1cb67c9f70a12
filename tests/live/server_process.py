"""A real server of others as a process: started, waited for, and ended with everything it started.

Rules of this file: standard library only; a server gets its own process group, and only that group is ever signalled.
The group's leader is not reaped before the whole group is gone, so its number cannot pass to a stranger meanwhile: every
look at it is a `waitid` that leaves it waitable.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
SERVED_MODEL = "tiny"
DEFAULT_MODEL_DIR = ROOT / ".cache" / "tiny-model"
LOG_TAIL_LINES = 40

HEALTH_TRY_S = 2.0  # while it boots, the port refuses or hangs
STOP_LIMIT_S = 10.0  # a SIGTERM during boot has been lost
POLL_EVERY_S = 0.1


class BootError(RuntimeError):
    """The server could not be started; the message holds the end of its log."""


class NotInstalled(BootError):
    """What the server needs is not there; the message says how to get it."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As the server binds: a port whose old connections still linger counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; None once the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the name, may hold blanks and parentheses of its own.
    return text.rpartition(")")[2].split()


def is_healthy(port: int, path: str = "/health") -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=HEALTH_TRY_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class ServerProcess:
    """One server on this machine, from `start()` to `stop()` (or as a context manager). A sort of server is a subclass."""

    kind = "server"
    health_path = "/health"
    boot_limit_s = 60.0
    server_env: Mapping[str, str] = {}

    def __init__(
        self,
        flags: Sequence[str] = (),
        *,
        port: int | None = None,
        model_dir: Path = DEFAULT_MODEL_DIR,
        env: Mapping[str, str] | None = None,
        boot_limit_s: float | None = None,
    ) -> None:
        """`flags` follow the usual ones on the command line, so that they win; `env` is added to the environment."""
        self.model = SERVED_MODEL
        self.log_path: Path | None = None
        self.boot_s: float | None = None
        self._flags = tuple(flags)
        self._wanted_port = port
        self._port: int | None = None
        self._model_dir = model_dir
        self._env = dict(env or {})
        self._boot_limit_s = boot_limit_s or self.boot_limit_s
        self._process: subprocess.Popen[bytes] | None = None

    # What a sort of server says ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `NotInstalled` where something is missing."""
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    # What all have -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError("the server has not been started")
        return self._port

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"

    @property
    def pid(self) -> int:
        """The process that was started: the one that listens, and the leader of the group."""
        return self._running().pid

    @property
    def pids(self) -> list[int]:
        """Every living process of the server, the one that listens first."""
        leader = self._running().pid
        members = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and (fields := stat_fields(int(entry.name))) is not None:
                state, group = fields[0], int(fields[2])
                if group == leader and state not in "ZX":
                    members.append(int(entry.name))
        return sorted(members, key=lambda pid: (pid != leader, pid))

    def api_server_cpu_s(self) -> float:
        """CPU seconds that the process that listens has used, its children's excluded."""
        fields = stat_fields(self.pid)
        if fields is None:
            raise RuntimeError("the API server is gone")
        user_ticks, system_ticks = int(fields[11]), int(fields[12])
        return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")

    def start(self, *, wait: bool = True) -> None:
        """Boot the server and return once it is healthy; raise `BootError` if it dies or takes too long.

        Without `wait` return as soon as its process is there: what a client meets that comes too early.
        """
        if self._process is not None:
            raise RuntimeError("the server has already been started")
        self.check()
        # Else the health of whoever listens there would pass for ours.
        if self._wanted_port is not None and port_is_taken(self._wanted_port):
            raise BootError(f"port {self._wanted_port} is taken")
        self._port = self._wanted_port if self._wanted_port is not None else free_port()
        logs = ROOT / ".cache" / f"{self.kind}-logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log_path = logs / f"{self._port}.log"
        started_s = time.monotonic()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.server_env | self._env,
                cwd=self._model_dir.parent,  # so that /v1/models names no folder of this machine
                start_new_session=True,
            )
        atexit.register(self.stop)
        if not wait:
            return
        try:
            self.wait_until_healthy(started_s + self._boot_limit_s)
        except BaseException:
            self.stop()
            raise
        self.boot_s = time.monotonic() - started_s

    def stop(self) -> None:
        """End every process of the server: SIGTERM, and SIGKILL after 10 s. Does nothing if it is not running."""
        process = self._process
        if process is None:
            return
        self._signal_group(signal.SIGTERM)
        if not self._group_is_gone(time.monotonic() + STOP_LIMIT_S):
            self._signal_group(signal.SIGKILL)
            self._group_is_gone(time.monotonic() + STOP_LIMIT_S)
        self._process = None
        process.wait()
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """SIGKILL for every process of the server, in one instant."""
        self._signal_group(signal.SIGKILL)
        self.stop()

    def is_running(self) -> bool:
        """Whether the process that listens lives (its children may not)."""
        return self._process is not None and not self._leader_is_dead()

    def log_tail(self) -> str:
        if self.log_path is None:
            return ""
        lines = self.log_path.read_text("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def wait_until_healthy(self, deadline_s: float) -> None:
        while not is_healthy(self.port, self.health_path):
            if self._leader_is_dead():
                raise BootError(f"{self.kind} ended while it booted; the end of {self.log_path}:\n{self.log_tail()}")
            if time.monotonic() > deadline_s:
                limit = f"{self._boot_limit_s:.0f} s"
                raise BootError(f"{self.kind} was not ready in {limit}; the end of {self.log_path}:\n{self.log_tail()}")
            time.sleep(POLL_EVERY_S)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def _leader_is_dead(self) -> bool:
        # WNOWAIT: Popen.poll() would reap it and free its number while its children still bear it as their group.
        return os.waitid(os.P_PID, self._running().pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._running().pid, number)

    def _group_is_gone(self, deadline_s: float) -> bool:
        while self.pids:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_EVERY_S)
        return True
