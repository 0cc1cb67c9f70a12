"""Work for a server, done in several ways, and how long it took: this client, AsyncOpenAI, one call after the other, the engine itself.

Rules:
- Prompts are random and never repeat, so that no run profits from what another left in the prefix cache.
- Every answer must have all its tokens: a way that loses some would look fast.
- Runs are compared with runs beside them, as pairs in turn; a lone figure says nothing on a shared machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchclient import Completion
from tests.gpu.machine import ROOT, Found
from tests.gpu.servers import MEMORY_SHARE, MODEL_LEN_TOKENS, model_dir
from tests.gpu.targets import Target

WORDS = ("def", "class", "return", "import", "self", "for", "while", "not", "in", "is", "value", "name", "list", "open")
RUN_S = float(os.environ.get("BATCHCLIENT_GPU_RUN_S") or 5)
"""How long one measured run may take, about; seconds."""
LEAST, MOST = 64, 20_000
_ENGINE_S = 1800.0


@dataclass(frozen=True)
class Run:
    """One run: so many prompts and generated tokens in so many seconds; ``cpu_s`` is this process' own."""

    prompts: int
    tokens: int
    seconds: float
    cpu_s: float = 0.0

    @property
    def prompts_per_s(self) -> float:
        return self.prompts / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def prompts(count: int, words: int = 20) -> list[str]:
    return [" ".join(random.choices(WORDS, k=words)) for _ in range(count)]


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def timed(work: Callable[[], Awaitable[int]], count: int) -> Run:
    """Run something that returns how many tokens were generated."""
    cpu_s, started = own_cpu_s(), time.perf_counter()
    tokens = await work()
    return Run(count, tokens, time.perf_counter() - started, own_cpu_s() - cpu_s)


def whole(answer: Completion, max_tokens: int) -> int:
    made = answer.usage.completion_tokens if answer.usage else None
    assert made in (max_tokens, None), f"an answer of {made} tokens instead of {max_tokens}"
    return max_tokens


def fixed_length(target: Target) -> dict[str, Any]:
    """Parameters with which every answer has all its tokens, where the server has such a parameter."""
    return {"ignore_eos": True} if target.kind in ("vllm", "sglang", "trtllm") else {}


async def by_us(target: Target, texts: Sequence[str], max_tokens: int, **settings: Any) -> Run:
    async with target.client(**settings) as client:

        async def work() -> int:
            answers = await client.batch_map(texts, "{}", max_tokens=max_tokens, temperature=0, **fixed_length(target))
            return sum(whole(answer, max_tokens) for answer in answers)

        return await timed(work, len(texts))


async def by_openai(target: Target, texts: Sequence[str], max_tokens: int, in_flight: int) -> Run:
    """``AsyncOpenAI`` and gather, with a semaphore as its users write it."""
    import openai

    async with openai.AsyncOpenAI(base_url=target.base_url, api_key="none", timeout=600) as client:
        gate = asyncio.Semaphore(in_flight)

        async def one(text: str) -> int:
            async with gate:
                reply = await client.completions.create(
                    model=target.model,
                    prompt=text,
                    max_tokens=max_tokens,
                    temperature=0,
                    extra_body=fixed_length(target),
                )
            assert reply.usage is not None
            assert reply.usage.completion_tokens == max_tokens
            return max_tokens

        async def work() -> int:
            return sum(await asyncio.gather(*map(one, texts)))

        return await timed(work, len(texts))


async def one_by_one(target: Target, texts: Sequence[str], max_tokens: int) -> Run:
    async with target.client() as client:

        async def work() -> int:
            made = 0
            for text in texts:
                answer = await client.complete(text, max_tokens=max_tokens, temperature=0, **fixed_length(target))
                made += whole(answer, max_tokens)
            return made

        return await timed(work, len(texts))


async def count_for(target: Target, max_tokens: int, seconds: float = RUN_S) -> int:
    """How many prompts keep this server busy for so long; the first small run warms it up."""
    await by_us(target, prompts(LEAST), max_tokens)
    run = await by_us(target, prompts(2 * LEAST), max_tokens)
    return max(LEAST, min(MOST, int(run.prompts_per_s * seconds)))


def by_engine(found: Found, counts: dict[int, int]) -> dict[int, Run]:
    """``vllm.LLM.generate`` in a process of its own: runs by ``max_tokens``. What no client can exceed."""
    assert found.python is not None
    folder: Path = model_dir(found)
    job = {
        "model": folder.name,
        "device": found.device,
        "memory": MEMORY_SHARE,
        "max_model_len": MODEL_LEN_TOKENS,
        "cases": [[max_tokens, prompts(count)] for max_tokens, count in counts.items()],
    }
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    script = ROOT / "tests" / "gpu" / "engine_script.py"
    done = subprocess.run(
        [found.python, str(script)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=_ENGINE_S,
        env=env,
        cwd=folder.parent,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the engine's own run failed; the end of its log:\n{done.stderr[-4000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return {
        case["max_tokens"]: Run(case["prompts"], case["tokens"], case["seconds"]) for case in json.loads(lines[-1][7:])
    }
