"""Boot a real vLLM, and end it again: `with VllmServer() as server: ...` What it does as a process is in `server_process`.

By hand: python -m tests.live.vllm_server serve [--port N] [-- extra vllm flags]
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.live.real_time import go_first
from tests.live.server_process import HOST, ROOT, SERVED_MODEL, BootError, ServerProcess

CLASSIFIER_DIR = ROOT / ".cache" / "tiny-classifier"
SAME_IN_ANY_COMPANY = ("--dtype", "float32")
"""Greedy decoding then says the same whoever shares the batch. In bfloat16 sums depend on the batch (on an Intel CPU with AMX much more than
elsewhere), and the tiny model's best two tokens often tie."""
EMBED_FLAGS = ("--runner", "pooling", "--convert", "embed", "--max-model-len", "512")  # the tiny model as an embedder
CLASSIFIER_FLAGS = ("--max-model-len", "512", "--dtype", "float32")  # the cross-encoder: vLLM knows what it is


class VllmBootError(BootError):
    """The server could not be started; the message holds the end of its log."""


def venv_dir() -> Path:
    """Where scripts/environments.py installs vLLM."""
    return Path(os.environ.get("BATCHCLIENT_VLLM_VENV") or ROOT / ".vllm").absolute()


class VllmServer(ServerProcess):
    """One vLLM server on this machine, from `start()` to `stop()` (or as a context manager).

    On the CPU the engine takes core 0 and leaves core 1 to the API server. A second server beside a busy one needs the
    other core: `env={"VLLM_CPU_OMP_THREADS_BIND": "1"}`.
    """

    kind = "vllm"
    boot_limit_s = 240.0
    boot_error = VllmBootError
    server_env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    }

    def _program(self) -> Path:
        return venv_dir() / "bin" / "vllm"

    def check(self) -> None:
        if not self._program().is_file():
            raise VllmBootError(f"{self._program()} is missing: run scripts/environments.py")
        if not (self._model_dir / "config.json").is_file():
            raise VllmBootError(f"{self._model_dir} holds no model: run make test-extra WHICH=vllm, which makes it")

    def wait_until_healthy(self, deadline_s: float) -> None:
        super().wait_until_healthy(deadline_s)
        go_first(self.pid, heirs=True)  # the engine has been started already

    def _command(self) -> list[str]:
        command = [str(self._program()), "serve", self._model_dir.name, "--served-model-name", SERVED_MODEL]
        command += ["--host", HOST, "--port", str(self._port), "--max-model-len", "2048", "--max-num-seqs", "64"]
        command += ["--enforce-eager", "--disable-uvicorn-access-log"]
        return [*command, *self._flags]


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
