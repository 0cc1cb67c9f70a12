"""Whether the GPU waits for the client: NVML's figure with this client at work, and with one call after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gpu.loads import by_us, count_for, one_by_one, prompts
from tests.gpu.machine import Found
from tests.gpu.report import Report
from tests.gpu.targets import Target
from tests.gpu.utilisation import Utilisation, unavailable

pytestmark = pytest.mark.gpu

MAX_TOKENS = 64


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 900))


def test_the_gpu_is_busier_and_gets_more_done_than_with_one_call_after_the_other(
    target: Target, found: Found, report: Report
) -> None:
    reason = "a rehearsal on the CPU has no GPU to watch" if found.device == "cpu" else unavailable()
    if reason:
        pytest.skip(reason)
    count = run(count_for(target, MAX_TOKENS, 10))
    with Utilisation() as batched:
        together = run(by_us(target, prompts(count), MAX_TOKENS))
    with Utilisation() as sequential:
        alone = run(one_by_one(target, prompts(32), MAX_TOKENS))
    for name, busy, done in (("this client", batched, together), ("one by one", sequential, alone)):
        report.figure(
            "utilisation", f"GPU utilisation, {name}", busy.mean(), "%", kind=target.kind, max_tokens=MAX_TOKENS
        )
        report.figure("utilisation", f"tokens/s, {name}", done.tokens_per_s, "tokens/s", kind=target.kind)
    # Kernels of one sequence keep a card "busy" too: what tells them apart is what gets done.
    assert together.tokens_per_s > 4 * alone.tokens_per_s
    assert batched.mean() > 0.8 * sequential.mean()
