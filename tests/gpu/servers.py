"""Servers that the suite starts itself: vLLM or `transformers serve`, on the local GPU, or on the CPU for a rehearsal.

Rules:
- The model is made on the spot (scripts/make_tiny_model.py): random weights, nothing is downloaded.
- On a GPU every server takes a bounded share of the memory, so that the engine in this process' child fits beside it.
- ``BATCHCLIENT_GPU_FLAGS`` is added to vLLM's flags: what a machine needs that this file does not know.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.machine import ROOT, Found
from tests.live.servers import ContinuousTransformersServer
from tests.live.real_time import go_first
from tests.live.server_process import HOST, SERVED_MODEL, ServerProcess
from tests.live.servers import VllmServer

MODEL_SIZE = "1b"
MEMORY_SHARE = 0.4
MODEL_LEN_TOKENS = 2048
BLOCK_TOKENS = 32
"""Of a KV cache whose size is set: what vLLM's attention takes on CUDA (multiples of 16) and on the CPU (of 32)."""
_MAKE_S = 1800.0


def model_size(found: Found) -> str:
    """``BATCHCLIENT_GPU_MODEL``: a preset of scripts/make_tiny_model.py; by default one that a GPU notices."""
    return os.environ.get("BATCHCLIENT_GPU_MODEL") or ("tiny" if found.device == "cpu" else MODEL_SIZE)


def model_dir(found: Found) -> Path:
    """The model, made now if it is not there. ``BATCHCLIENT_GPU_MODEL_DIR`` names one that is."""
    named = os.environ.get("BATCHCLIENT_GPU_MODEL_DIR")
    if named:
        return Path(named).absolute()
    size = model_size(found)
    out = ROOT / ".cache" / ("tiny-model" if size == "tiny" else f"model-{size}")
    if not (out / "config.json").is_file():
        assert found.python is not None
        command = [found.python, str(ROOT / "scripts" / "make_tiny_model.py"), str(out), "--size", size]
        subprocess.run(command, check=True, timeout=_MAKE_S, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    return out


class LocalVllm(VllmServer):
    """vLLM as this machine has it.

    Args:
        found: which interpreter, which device.
        flags: follow the usual ones, so that they win.
        kv_tokens: the size of its KV cache; by default what the memory share leaves.
        port: as for ``ServerProcess``.
    """

    boot_limit_s = 600.0

    def __init__(
        self, found: Found, flags: Sequence[str] = (), *, kv_tokens: int | None = None, port: int | None = None
    ) -> None:
        # A second server on the CPU beside the common one takes the other core.
        env = {"VLLM_CPU_OMP_THREADS_BIND": "1"} if found.device == "cpu" and (flags or kv_tokens or port) else {}
        super().__init__(flags, port=port, model_dir=model_dir(found), env=env)
        self._found = found
        self._kv_tokens = kv_tokens

    def check(self) -> None:
        pass

    def wait_until_healthy(self, deadline_s: float) -> None:
        super().wait_until_healthy(deadline_s)
        if self._found.device == "cpu":
            # The client shares two cores with an engine that spins: without this it waited 2 to 7 s for its turn.
            go_first()

    def _command(self) -> list[str]:
        assert self._found.python is not None
        command = [self._found.python, "-m", "vllm.entrypoints.cli.main", "serve", self._model_dir.name]
        command += ["--served-model-name", SERVED_MODEL, "--host", HOST, "--port", str(self._port)]
        command += ["--max-model-len", str(MODEL_LEN_TOKENS), "--disable-uvicorn-access-log"]
        if self._found.device == "cpu":
            command += ["--enforce-eager", "--max-num-seqs", "64"]
        else:
            command += ["--dtype", "bfloat16", "--gpu-memory-utilization", str(MEMORY_SHARE)]
        if self._kv_tokens is not None:
            blocks = self._kv_tokens // BLOCK_TOKENS
            command += ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(blocks)]
        return [*command, *shlex.split(os.environ.get("BATCHCLIENT_GPU_FLAGS", "")), *self._flags]


class LocalTransformers(ContinuousTransformersServer):
    """`transformers serve --continuous-batching` as this machine has it: where there is no vLLM."""

    boot_limit_s = 600.0

    def __init__(self, found: Found) -> None:
        super().__init__(model_dir=model_dir(found))
        self._found = found

    def check(self) -> None:
        pass

    def _command(self) -> list[str]:
        assert self._found.python is not None
        self.model = self.served
        device = "cpu" if self._found.device == "cpu" else "cuda:0"
        program = "from transformers.cli.transformers import main; main()"
        command = [self._found.python, "-c", program, "serve", self.served, "--host", HOST, "--port", str(self._port)]
        # Without a number of blocks its cache takes all the memory of the card.
        return [
            *command,
            "--device",
            device,
            "--continuous-batching",
            "--cb-block-size",
            "32",
            "--cb-num-blocks",
            "8192",
        ]


def start(found: Found) -> ServerProcess:
    """The usual server of this machine, up and healthy."""
    server: ServerProcess = LocalVllm(found) if found.local == "vllm" else LocalTransformers(found)
    server.start()
    return server
