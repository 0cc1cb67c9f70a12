"""Boot a real vLLM, llama-server or `transformers serve`: `with VllmServer() as server: ...` What all do is in `server_process`.

By hand: python -m tests.live.servers vllm|llamacpp|transformers|transformers-cb [--port N] [-- extra flags]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from tests.live.real_time import go_first
from tests.live.server_process import HOST, ROOT, SERVED_MODEL, BootError, NotInstalled, ServerProcess

THINKING_MODEL_DIR = ROOT / ".cache" / "thinking-model"
CLASSIFIER_DIR = ROOT / ".cache" / "tiny-classifier"
SAME_IN_ANY_COMPANY = ("--dtype", "float32")
"""Greedy decoding then says the same whoever shares the batch. In bfloat16 sums depend on the batch (on an Intel CPU with AMX much more than
elsewhere), and the tiny model's best two tokens often tie."""
EMBED_FLAGS = ("--runner", "pooling", "--convert", "embed", "--max-model-len", "512")  # the tiny model as an embedder
CLASSIFIER_FLAGS = ("--max-model-len", "512", "--dtype", "float32")  # the cross-encoder: vLLM knows what it is


def _place(variable: str, otherwise: str) -> Path:
    """Where scripts/environments.py or scripts/llama_server.sh puts a server, unless a variable names another folder."""
    return Path(os.environ.get(variable) or ROOT / otherwise).absolute()


def llama_dir() -> Path:
    return _place("BATCHCLIENT_LLAMA_DIR", ".cache/llama")


def transformers_venv() -> Path:
    return _place("BATCHCLIENT_TRANSFORMERS_VENV", ".transformers")


class VllmServer(ServerProcess):
    """One vLLM server on this machine, from `start()` to `stop()` (or as a context manager).

    On the CPU the engine takes core 0 and leaves core 1 to the API server. A second server beside a busy one needs the
    other core: `env={"VLLM_CPU_OMP_THREADS_BIND": "1"}`.
    """

    kind = "vllm"
    boot_limit_s = 240.0
    server_env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    }

    def _program(self) -> Path:
        return _place("BATCHCLIENT_VLLM_VENV", ".vllm") / "bin" / "vllm"

    def check(self) -> None:
        if not self._program().is_file():
            raise NotInstalled(f"{self._program()} is missing: run scripts/environments.py")
        if not (self._model_dir / "config.json").is_file():
            raise NotInstalled(f"{self._model_dir} holds no model: run make test-extra WHICH=vllm, which makes it")

    def wait_until_healthy(self, deadline_s: float) -> None:
        super().wait_until_healthy(deadline_s)
        go_first(self.pid, heirs=True)  # the engine has been started already

    def _command(self) -> list[str]:
        command = [str(self._program()), "serve", self._model_dir.name, "--served-model-name", SERVED_MODEL]
        command += ["--host", HOST, "--port", str(self._port), "--max-model-len", "2048", "--max-num-seqs", "64"]
        command += ["--enforce-eager", "--disable-uvicorn-access-log"]
        return [*command, *self._flags]


class LlamaServer(ServerProcess):
    """llama-server with 4 slots of 2,048 tokens each. It knows the model by a path relative to its folder, which its pages repeat."""

    kind = "llamacpp"

    def check(self) -> None:
        if not (llama_dir() / "llama-server").is_file():
            raise NotInstalled(f"{llama_dir()}/llama-server is missing: run scripts/llama_server.sh")
        if not self._gguf.is_file():
            raise NotInstalled(f"{self._gguf} is missing: run scripts/make_tiny_gguf.py")

    @property
    def _gguf(self) -> Path:
        return self._model_dir.with_name(self._model_dir.name.removesuffix("-model") + ".gguf")

    def _command(self) -> list[str]:
        command = [str(llama_dir() / "llama-server"), "-m", self._gguf.name, "--alias", SERVED_MODEL, "--host", HOST]
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
    server.kind: server for server in (VllmServer, LlamaServer, TransformersServer, ContinuousTransformersServer)
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
