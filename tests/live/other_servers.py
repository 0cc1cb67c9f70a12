"""Boot a real llama-server or `transformers serve` on the CPU: `with LlamaServer() as server: ...`

By hand: python -m tests.live.other_servers llamacpp|transformers|transformers-cb [--port N] [-- extra flags]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from tests.live.server_process import HOST, ROOT, SERVED_MODEL, BootError, NotInstalled, ServerProcess

GGUF = ROOT / ".cache" / "tiny.gguf"


def llama_dir() -> Path:
    """Where scripts/llama_server.sh builds llama-server."""
    return Path(os.environ.get("BATCHCLIENT_LLAMA_DIR") or ROOT / ".cache" / "llama").absolute()


def transformers_venv() -> Path:
    """Where scripts/environments.py installs transformers."""
    return Path(os.environ.get("BATCHCLIENT_TRANSFORMERS_VENV") or ROOT / ".transformers").absolute()


class LlamaServer(ServerProcess):
    """llama-server with 4 slots of 2,048 tokens each. It knows the model by a path relative to its folder, which its pages repeat."""

    kind = "llamacpp"

    def check(self) -> None:
        if not (llama_dir() / "llama-server").is_file():
            raise NotInstalled(f"{llama_dir()}/llama-server is missing: run scripts/llama_server.sh")
        if not GGUF.is_file():
            raise NotInstalled(f"{GGUF} is missing: run scripts/make_tiny_gguf.py")

    def _command(self) -> list[str]:
        command = [str(llama_dir() / "llama-server"), "-m", GGUF.name, "--alias", SERVED_MODEL, "--host", HOST]
        command += ["--port", str(self._port), "--parallel", "4", "-c", "8192", "-t", "1", "--metrics", "--slots"]
        return [*command, *self._flags]


class TransformersServer(ServerProcess):
    """`transformers serve`, which answers one request after the other."""

    kind = "transformers"
    mode: tuple[str, ...] = ()
    # One thread: several wait for each other where cores are shared, and the model is tiny.
    server_env = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}

    @property
    def served(self) -> str:
        """It calls a model what it was started with."""
        return self._model_dir.name

    def check(self) -> None:
        if not (transformers_venv() / "bin" / "transformers").is_file():
            raise NotInstalled(f"{transformers_venv()} holds no transformers: run scripts/environments.py")
        if not (self._model_dir / "config.json").is_file():
            raise NotInstalled(f"{self._model_dir} holds no model: run scripts/make_tiny_model.py")

    def _command(self) -> list[str]:
        self.model = self.served
        program = transformers_venv() / "bin" / "transformers"
        command = [str(program), "serve", self.served, "--host", HOST, "--port", str(self._port), "--device", "cpu"]
        return [*command, *self.mode, *self._flags]


class ContinuousTransformersServer(TransformersServer):
    """`transformers serve --continuous-batching`, with a KV cache of 16,384 tokens."""

    kind = "transformers-cb"
    mode = ("--continuous-batching", "--cb-block-size", "32", "--cb-num-blocks", "512", "--cb-max-batch-tokens", "512")


KINDS: dict[str, type[ServerProcess]] = {
    server.kind: server for server in (LlamaServer, TransformersServer, ContinuousTransformersServer)
}


def main() -> None:
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    own, flags = arguments[:split], arguments[split + 1 :]
    parser = argparse.ArgumentParser(description="A real server on the CPU.", epilog="Its own flags go after --")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--port", type=int, help="a free one if not given")
    options = parser.parse_args(own)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with KINDS[options.kind](flags, port=options.port) as server:
            print(
                f"{server.base_url} (model {server.model}, ready in {server.boot_s:.1f} s, log {server.log_path})",
                flush=True,
            )
            while server.is_running():
                time.sleep(1.0)
            raise SystemExit(f"it ended; the end of its log:\n{server.log_tail()}")
    except BootError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
