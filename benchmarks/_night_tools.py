"""The tools of ``night.py``: how each is called, and how its output is read.

Environment variables name the environments of others:
- ``BATCHCLIENT_CURATOR_PYTHON``: the Python of an environment with bespokelabs-curator.
- ``BATCHCLIENT_VLLM_VENV`` and ``BATCHCLIENT_TINY_MODEL``: vLLM and its toy model, if not ``.vllm``
  and ``.cache/tiny-model``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _common import HERE

__all__ = ["Job", "Tool", "tools"]

ROOT = HERE.parent
CURATOR = os.environ.get("BATCHCLIENT_CURATOR_PYTHON", "")
VLLM = Path(os.environ.get("BATCHCLIENT_VLLM_VENV", ROOT / ".vllm")) / "bin" / "vllm"
MODEL = Path(os.environ.get("BATCHCLIENT_TINY_MODEL", ROOT / ".cache" / "tiny-model"))
NEVER = ["polar_llama 0.6.1, of which PyPI has the sources alone: their build wants crates.io, which was out of reach"]
"""Tools without an arm, and why."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every tool is to do."""

    rows: int
    max_tokens: int
    concurrency: int


Command = Callable[[Path, Path, str, Job], Sequence[str]]
"""From input, output, base URL and job; the same for the first run and the second."""


@dataclass(frozen=True, slots=True)
class Tool:
    """How a tool is called.

    Args:
        name: in tables.
        command: makes the command.
        environment: variables that the tool needs.
        text_of: takes the answer's text from a line of the output; ``None``: the row has no answer.
        is_engine: whether the tool generates by itself.
    """

    name: str
    command: Command
    environment: Mapping[str, str] = field(default_factory=dict)
    text_of: Callable[[dict[str, Any]], str | None] = lambda line: line.get("text")
    is_engine: bool = False


def tools() -> tuple[list[Tool], list[str]]:
    """Return all tools that can run here, and those that cannot, with the reasons."""
    found = [
        Tool("`batchclient map --resume`", _batchclient, text_of=_answer_of),
        Tool("`AsyncOpenAI`, written at the end", _script("at-the-end")),
        Tool("`AsyncOpenAI`, each row appended", _script("append")),
        Tool("`AsyncOpenAI`, a file kept open", _script("keep-open")),
    ]
    missing = list(NEVER)
    if CURATOR:
        quiet = {"TELEMETRY_ENABLED": "false", "CURATOR_DISABLE_RICH_DISPLAY": "1", "OPENAI_API_KEY": "none"}
        quiet |= {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
        found.append(Tool("curator", _curator, quiet))
    else:
        missing.append("curator, since BATCHCLIENT_CURATOR_PYTHON names no environment with it")
    if VLLM.exists() and MODEL.exists():
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": ""}
        offline["VLLM_CPU_KVCACHE_SPACE"] = "1"
        found.append(Tool("`vllm run-batch`", _run_batch, offline, _text_of_run_batch, is_engine=True))
    else:
        missing.append("`vllm run-batch`, since vLLM or its toy model is not there (`make test-vllm` installs both)")
    return found, missing


def _batchclient(source: Path, out: Path, base_url: str, job: Job) -> Sequence[str]:
    options = ("--base-url", base_url, "--model", "instant", "--prompt", "{prompt}", "--resume")
    numbers = ("--max-tokens", str(job.max_tokens), "--concurrency", str(job.concurrency))
    return (sys.executable, "-m", "batchclient", "map", str(source), "-o", str(out), *options, *numbers)


def _script(how: str) -> Command:
    def command(source: Path, out: Path, base_url: str, job: Job) -> Sequence[str]:
        numbers = (str(job.max_tokens), str(job.concurrency))
        return (sys.executable, str(HERE / "_night_scripts.py"), how, str(source), str(out), base_url, *numbers)

    return command


def _curator(source: Path, out: Path, base_url: str, job: Job) -> Sequence[str]:
    numbers = (str(job.max_tokens), str(job.concurrency))
    return (CURATOR, str(HERE / "_night_curator.py"), str(source), str(out), base_url, *numbers)


def _run_batch(source: Path, out: Path, _: str, job: Job) -> Sequence[str]:
    served = ("--model", str(MODEL), "--served-model-name", "instant", "--max-model-len", "2048")
    seqs = ("--max-num-seqs", str(job.concurrency), "--enforce-eager")
    return (str(VLLM), "run-batch", "-i", str(source), "-o", str(out), *served, *seqs)


def _answer_of(line: dict[str, Any]) -> str | None:
    return line.get("completion") if line.get("error") is None else None


def _text_of_run_batch(line: dict[str, Any]) -> str | None:
    # The engine's answers name no row.
    body = (line.get("response") or {}).get("body") or {}
    return f"row {line['custom_id']}" if body.get("choices") else None
