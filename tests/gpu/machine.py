"""What is there to test against: servers named in the environment, or a GPU of this machine and what can serve on it.

Rules:
- Nothing here imports CUDA, torch or vLLM: to find out that there is no GPU takes milliseconds.
- A server that someone named is taken at its word: if it does not answer that is an error, never a skip.
- What is missing is said once, in one sentence, the same for every test.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
URLS = {  # the kind of server by the variable that names one
    "BATCHCLIENT_VLLM_URL": "vllm",
    "BATCHCLIENT_TGI_URL": "tgi",
    "BATCHCLIENT_SGLANG_URL": "sglang",
    "BATCHCLIENT_LLAMACPP_URL": "llamacpp",
    "BATCHCLIENT_TRTLLM_URL": "trtllm",
}
GPU_DEVICES = ("nvidia[0-9]*",)
_TRY_S = 10.0
_SMI_S = 20.0


@dataclass(frozen=True)
class Found:
    """What there is.

    Args:
        urls: kind of server to base URL, as named in the environment.
        local: what this machine can start itself: ``"vllm"``, ``"transformers"`` or nothing.
        python: the interpreter that has it.
        device: ``"cuda"``; ``"cpu"`` for a rehearsal.
        missing: why there is nothing; empty where there is something.
    """

    urls: Mapping[str, str] = field(default_factory=dict)
    local: str | None = None
    python: str | None = None
    device: str = "cuda"
    missing: str = ""

    @property
    def kinds(self) -> list[str]:
        """Every kind of server that can be tested, named ones first."""
        kinds = list(self.urls)
        return [*kinds, self.local] if self.local and self.local not in kinds else kinds


def find(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> Found:
    """Find servers and GPUs. Takes milliseconds."""
    urls = {kind: environ[name] for name, kind in URLS.items() if environ.get(name)}
    rehearsal = environ.get("BATCHCLIENT_GPU_DEVICE") == "cpu"
    gpus = rehearsal or any(path for pattern in GPU_DEVICES for path in devices.glob(pattern))
    local, python = (None, None) if not gpus else _local(environ)
    if urls or local:
        return Found(urls, local, python, "cpu" if rehearsal else "cuda")
    lacking = (
        "this machine has no NVIDIA GPU" if not gpus else "neither vLLM nor transformers is installed beside its GPU"
    )
    named = ", ".join(URLS)
    return Found(missing=f"no server is named ({named}) and {lacking}: see tests/README.md")


def _local(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(what can be started, its interpreter): the one named, else ours, else that of scripts/environments.py."""
    venv = Path(environ.get("BATCHCLIENT_VLLM_VENV") or ROOT / ".vllm").absolute()
    named = environ.get("BATCHCLIENT_VLLM_PYTHON")
    if named:
        return "vllm", named
    if importlib.util.find_spec("vllm") is not None:
        return "vllm", sys.executable
    if (venv / "bin" / "vllm").is_file():
        return "vllm", str(venv / "bin" / "python")
    if importlib.util.find_spec("transformers") is not None and importlib.util.find_spec("torch") is not None:
        return "transformers", sys.executable
    return None, None


def rooted(url: str) -> str:
    """A base URL with its /v1, however it was written."""
    url = url.rstrip("/")
    return url if url.endswith("/v1") else f"{url}/v1"


def get(url: str) -> bytes:
    """No proxy: the server is on this machine or one that is reached directly."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_TRY_S) as answer:
        body: bytes = answer.read()
    return body


@dataclass(frozen=True)
class Served:
    """What a server says of itself: its first model and, where it tells, that model's length in tokens."""

    model: str
    max_model_len: int | None


def ask(base_url: str) -> Served:
    """Ask a server's list of models.

    Raises:
        OSError: it does not answer.
        LookupError: it has no model.
    """
    entry = json.loads(get(f"{base_url}/models"))["data"][0]
    length = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
    return Served(entry["id"], length)


def gauge(page: str, name: str) -> float:
    """The sum of a metric over its labels on a Prometheus page.

    Raises:
        LookupError: the page has none by that name.
    """
    lines = [line for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    if not lines:
        raise LookupError(f"no {name} on the page")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def facts() -> dict[str, object]:
    """The machine, the card, and versions: what a figure is worth nothing without."""
    versions = {}
    for name in ("batchclient", "httpx", "openai", "vllm", "torch", "transformers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "machine": f"{platform.system()} {platform.machine()}, {cpu_model()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        "cards": cards(),
        "versions": versions,
        "commit": _line(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]),
    }


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def cards() -> list[dict[str, str]]:
    """Name, driver and memory of every card, as nvidia-smi says; none where there is no such program."""
    if shutil.which("nvidia-smi") is None:
        return []
    fields = ("name", "driver_version", "memory.total")
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    return [dict(zip(fields, (part.strip() for part in line.split(",")), strict=False)) for line in _lines(query)]


def _lines(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]


def _line(command: list[str]) -> str:
    return next(iter(_lines(command)), "")
