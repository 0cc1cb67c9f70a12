"""Boot a real vLLM on the CPU, and end it again: `with VllmServer() as server: ...`

Rules of this file: standard library only; a server gets its own process group, and only that group is ever signalled.
The group's leader (the API server) is not reaped before the whole group is gone, so its number cannot pass to a
stranger meanwhile: every look at it is a `waitid` that leaves it waitable.

By hand: python tests/live/vllm_server.py serve [--port N] [-- extra vllm flags]
"""

import argparse
import atexit
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
SERVED_MODEL = "tiny"
DEFAULT_MODEL_DIR = ROOT / ".cache" / "tiny-model"
CLASSIFIER_DIR = ROOT / ".cache" / "tiny-classifier"
EMBED_FLAGS = ("--runner", "pooling", "--convert", "embed", "--max-model-len", "512")  # the tiny model as an embedder
CLASSIFIER_FLAGS = ("--max-model-len", "512", "--dtype", "float32")  # the cross-encoder: vLLM knows what it is
LOG_DIR = ROOT / ".cache" / "vllm-logs"
LOG_TAIL_LINES = 40

BOOT_LIMIT_S = 240.0
HEALTH_TRY_S = 2.0  # while it boots, the port refuses or hangs
STOP_LIMIT_S = 10.0  # a SIGTERM during boot has been lost
POLL_EVERY_S = 0.1

SERVER_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
}


class VllmBootError(RuntimeError):
    """The server could not be started; the message holds the end of its log."""


def venv_dir() -> Path:
    """Where scripts/vllm_env.sh installs vLLM."""
    return Path(os.environ.get("BATCHCLIENT_VLLM_VENV") or ROOT / ".vllm").absolute()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _port_is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As the server binds: a port whose old connections still linger counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; None once the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the name, may hold blanks and parentheses of its own.
    return text.rpartition(")")[2].split()


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=HEALTH_TRY_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class VllmServer:
    """One vLLM server on this machine, from `start()` to `stop()` (or as a context manager).

    The engine takes core 0 and leaves core 1 to the API server. A second server beside a busy one needs the other core:
    `env={"VLLM_CPU_OMP_THREADS_BIND": "1"}`.
    """

    def __init__(
        self,
        flags: Sequence[str] = (),
        *,
        port: int | None = None,
        model_dir: Path = DEFAULT_MODEL_DIR,
        env: Mapping[str, str] | None = None,
        boot_limit_s: float = BOOT_LIMIT_S,
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
        self._boot_limit_s = boot_limit_s
        self._process: subprocess.Popen[bytes] | None = None

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
        """The API server: the process that listens, and the leader of the group."""
        return self._running().pid

    @property
    def pids(self) -> list[int]:
        """Every living process of the server: the API server first, then the engine's."""
        leader = self._running().pid
        members = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))) is not None:
                state, group = fields[0], int(fields[2])
                if group == leader and state not in "ZX":
                    members.append(int(entry.name))
        return sorted(members, key=lambda pid: (pid != leader, pid))

    def api_server_cpu_s(self) -> float:
        """CPU seconds that the API server itself has used, the engine's processes excluded."""
        fields = _stat_fields(self.pid)
        if fields is None:
            raise RuntimeError("the API server is gone")
        user_ticks, system_ticks = int(fields[11]), int(fields[12])
        return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")

    def start(self) -> None:
        """Boot the server and return once it is healthy; raise VllmBootError if it dies or takes too long."""
        if self._process is not None:
            raise RuntimeError("the server has already been started")
        program = venv_dir() / "bin" / "vllm"
        if not program.is_file():
            raise VllmBootError(f"{program} is missing: run scripts/vllm_env.sh")
        if not (self._model_dir / "config.json").is_file():
            raise VllmBootError(f"{self._model_dir} holds no model: run scripts/test_vllm.sh, which makes it")
        # Else the health of whoever listens there would pass for ours.
        if self._wanted_port is not None and _port_is_taken(self._wanted_port):
            raise VllmBootError(f"port {self._wanted_port} is taken")
        self._port = self._wanted_port if self._wanted_port is not None else _free_port()
        LOG_DIR.mkdir(parents=True, exist_ok=True)
        self.log_path = LOG_DIR / f"{self._port}.log"
        started_s = time.monotonic()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | SERVER_ENV | self._env,
                cwd=self._model_dir.parent,  # so that /v1/models names no folder of this machine
                start_new_session=True,
            )
        atexit.register(self.stop)
        try:
            self._wait_until_healthy(started_s + self._boot_limit_s)
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

    def is_running(self) -> bool:
        """Whether the API server lives (its engine may not)."""
        return self._process is not None and not self._leader_is_dead()

    def log_tail(self) -> str:
        if self.log_path is None:
            return ""
        lines = self.log_path.read_text("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _command(self, program: Path) -> list[str]:
        command = [str(program), "serve", self._model_dir.name, "--served-model-name", SERVED_MODEL]
        command += ["--host", HOST, "--port", str(self._port), "--max-model-len", "2048", "--max-num-seqs", "64"]
        command += ["--enforce-eager", "--disable-uvicorn-access-log"]
        return [*command, *self._flags]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def _wait_until_healthy(self, deadline_s: float) -> None:
        while not _is_healthy(self.port):
            if self._leader_is_dead():
                raise VllmBootError(f"vLLM ended while it booted; the end of {self.log_path}:\n{self.log_tail()}")
            if time.monotonic() > deadline_s:
                limit = f"{self._boot_limit_s:.0f} s"
                raise VllmBootError(f"vLLM was not ready in {limit}; the end of {self.log_path}:\n{self.log_tail()}")
            time.sleep(POLL_EVERY_S)

    def _leader_is_dead(self) -> bool:
        # WNOWAIT: Popen.poll() would reap it and free its number while the engine still bears it as its group.
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


def _serve(port: int | None, flags: Sequence[str]) -> None:
    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
    with VllmServer(flags, port=port) as server:
        ready = f"model {server.model}, ready in {server.boot_s:.1f} s, log {server.log_path}"
        print(f"{server.base_url} ({ready})", flush=True)
        while server.is_running():
            time.sleep(1.0)
        raise SystemExit(f"vLLM ended; the end of its log:\n{server.log_tail()}")


def main() -> None:
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    own, flags = arguments[:split], arguments[split + 1 :]
    parser = argparse.ArgumentParser(description="A real vLLM on the CPU.", epilog="Flags of vLLM's own go after --")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="boot a server, print its URL, run until SIGINT or SIGTERM")
    serve.add_argument("--port", type=int, help="a free one if not given")
    options = parser.parse_args(own)
    try:
        _serve(options.port, flags)
    except VllmBootError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
