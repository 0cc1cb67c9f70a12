"""What grouping calls by length is worth, beside the order in which they came.

    python benchmarks/length_grouping.py                 # both parts; boots a vLLM (tests/live/vllm_server.py)
    python benchmarks/length_grouping.py --parts static  # virtual time: the same on every machine

The arms, each the real scheduler with the same texts, none of which share a prefix:

- ``arrival order``: all calls are expected to be equally long, so that lists are filled first come, first served.
- ``nearest lengths``: the default. A list is filled from its oldest call's length bucket, then from the nearest ones.
- ``one bucket``: ``length_reach=0``, as for a server that pads.

Parts:

- ``static``: the laboratory's static batcher, which pads (``benchmarks/lab/padding.py``, batches of 64), a job of 2,048 texts, mean of the seeds. Texts are
  lognormal with sigma 1 about a mean of 400 tokens; answers of 1 and of 16 tokens each, and of unequal lengths that nobody knows before.
- ``vllm``: a real one on two CPU cores, 512 texts of 20 to 600 tokens through ``batch_map``, 128 in flight. Arms are interleaved in a new
  order each time with fresh texts; ratios are taken within a repetition.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import machine, machine_line, median, spread, table, write_results
from benchmarks.lab.profiles import SCENARIOS
from benchmarks.lab.workloads import PROMPT, Call, Calls, Lengths, Running
from benchmarks.strategies import Job, Strategy, _Job, run

from batchclient import BatchClient
from batchclient._core.lengths import PromptLengths
from batchclient._core.limits import FixedLimit, KneeLimit, Limit
from batchclient._core.messages import Request

ARMS: Mapping[str, tuple[bool, Mapping[str, Any]]] = {
    "arrival order": (True, {}),
    "nearest lengths": (False, {}),
    "one bucket": (False, {"length_reach": 0}),
}
"""Whether lengths are hidden from the scheduler, and settings."""

TEXTS = Lengths(400, 1.0, 8192)
STATIC_ANSWERS = {
    "1 token": Calls(TEXTS, Lengths(1), max_tokens=1),
    "16 tokens": Calls(TEXTS, Lengths(16), max_tokens=16),
    "64 on average, unequal": Calls(TEXTS, Lengths(64, 0.9, 256), max_tokens=256),
}
STATIC_LIMITS: Mapping[str, Callable[[], Limit]] = {"64": lambda: FixedLimit(64), "found (the default)": KneeLimit}
VLLM_TEXTS = Lengths(100, 1.0, 600)
VLLM_COUNT = 512


# --- a static batcher, in virtual time ---


@dataclass(frozen=True, slots=True)
class HiddenJob(Job):
    """A job whose calls are all expected to be equally long."""

    def start(self, rng: random.Random, submit: Callable[[Request, float], None]) -> Running:
        return _HiddenJob(self.texts, self.calls, rng, submit)


class _HiddenJob(_Job):
    def ask(self, now: float, conversation: int = -1, turn: int = 0, prompt_tokens: int = 0) -> None:
        call = Call(self.calls.prompts.draw(self.rng), (self.calls.outputs.draw(self.rng),))
        self.asked_at[call] = now
        expected = round(self.calls.prompts.mean_tokens)
        self._submit(Request(self.shape, PROMPT, prompt_tokens=expected, waiter=call), now)


def static_rates(arm: str, calls: Calls, limit: Callable[[], Limit], texts: int, seeds: int) -> list[float]:
    """Answers per second, by seed."""
    hidden, settings = ARMS[arm]
    job = (HiddenJob if hidden else Job)(texts, calls)
    scenario = replace(SCENARIOS["padding"], workload=job, duration_s=36_000.0)
    return [run(scenario, Strategy(arm, settings, limit), seed)["answers_per_s"] for seed in range(seeds)]


def static(options: argparse.Namespace) -> dict[str, Any]:
    return {
        answers: {
            name: {arm: static_rates(arm, calls, limit, 2048, options.seeds) for arm in ARMS}
            for name, limit in STATIC_LIMITS.items()
        }
        for answers, calls in STATIC_ANSWERS.items()
    }


def static_text(data: dict[str, Any]) -> str:
    rows = []
    for answers, limits in data.items():
        for limit, arms in limits.items():
            base = fmean(arms["arrival order"])
            rows += [
                [answers, limit, arm, f"{fmean(rates):.1f}", f"{fmean(rates) / base:.2f}"]
                for arm, rates in arms.items()
            ]
    header = ("answers", "limit", "order", "answers/s", "of arrival order")
    return f"## On a server with static padding, virtual time\n\n{table(header, rows)}"


# --- a real vLLM ---


@contextmanager
def hidden_lengths() -> Iterator[None]:
    """Every call is expected to be equally long."""

    def place(_lengths: PromptLengths, request: Request) -> None:
        request.bucket = 0

    known, PromptLengths.place = PromptLengths.place, place  # type: ignore[method-assign]
    try:
        yield
    finally:
        PromptLengths.place = known  # type: ignore[method-assign]


async def vllm_rate(base_url: str, model: str, arm: str, texts: list[str], max_tokens: int) -> float:
    hidden, settings = ARMS[arm]
    with hidden_lengths() if hidden else nullcontext():
        async with BatchClient(base_url, model=model, limit=128, group_prefixes=False, **settings) as client:
            began = time.perf_counter()
            answers = await client.batch_map(texts, "{}", max_tokens=max_tokens, temperature=0, ignore_eos=True)
            seconds = time.perf_counter() - began
    if len(answers) != len(texts) or any(answer.usage.completion_tokens != max_tokens for answer in answers):
        raise AssertionError("an answer without all its tokens")
    return len(texts) / seconds


def vllm(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.limits_vllm import vllm as booted
    from benchmarks.vllm_cpu import learn_prompts

    rates: dict[str, dict[str, list[float]]] = {}
    with booted("--max-num-seqs", "256") as server:
        prompts = asyncio.run(learn_prompts(server))
        for max_tokens in options.max_tokens:
            arms = rates[f"{max_tokens} token{'s' if max_tokens > 1 else ''}"] = {arm: [] for arm in ARMS}
            for repetition in range(options.repetitions + 1):
                for arm in random.sample(list(ARMS), len(ARMS)):
                    texts = [prompts.make(1, VLLM_TEXTS.draw(random))[0] for _ in range(VLLM_COUNT)]
                    rate = asyncio.run(vllm_rate(server.base_url, server.model, arm, texts, max_tokens))
                    if repetition:  # The first warms up.
                        arms[arm].append(rate)
    return rates


def vllm_text(data: dict[str, Any]) -> str:
    rows = []
    for answers, arms in data.items():
        base = arms["arrival order"]
        for arm, rates in arms.items():
            ratios = [rate / other for rate, other in zip(rates, base, strict=True)]
            rows.append([answers, arm, f"{median(rates):.0f}", f"{median(ratios):.2f} ({spread(ratios)})"])
    header = ("answers", "order", "answers/s", "of arrival order, median (min to max)")
    return f"## On a real vLLM, two CPU cores, tiny model\n\n{table(header, rows)}"


PARTS = {"static": (static, static_text), "vllm": (vllm, vllm_text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seeds", type=int, default=3, help="of the static part")
    parser.add_argument("--repetitions", type=int, default=15, help="of the vLLM's")
    parser.add_argument("--max-tokens", type=lambda given: [int(each) for each in given.split(",")], default=[1, 16])
    options = parser.parse_args()
    data: dict[str, Any] = {"machine": machine(), "parts": {}}
    text = ["# Grouping by length", machine_line(data["machine"])]
    for name in options.parts.split(","):
        measure, report = PARTS[name]
        data["parts"][name] = measure(options)
        text.append(report(data["parts"][name]))
        print(text[-1], end="\n\n", flush=True)
    if set(options.parts.split(",")) == set(PARTS):
        write_results("length_grouping", data, "\n\n".join(text))


if __name__ == "__main__":
    main()
