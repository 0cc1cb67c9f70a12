"""Throughput of calls grouped by length, beside calls in the order in which they came.

    python benchmarks/lab/length_grouping.py                 # both parts; boots a vLLM
    python benchmarks/lab/length_grouping.py --parts static  # virtual time: the same on every machine

``tests/live/servers.py`` boots the vLLM. The arms are each the real scheduler with the same
texts. No two texts share a prefix.

- ``arrival order``: the scheduler takes all calls for equally long, so lists are filled first come,
  first served.
- ``nearest lengths``: the default. A list is filled from its oldest call's length bucket, then from
  the nearest buckets.
- ``one bucket``: ``length_reach=0``, as for a server that pads.

Parts:

- ``static``: the laboratory's static batcher, which pads (``benchmarks/lab/padding.py``, batches of
  64). A job has 2,048 texts. Replies come as a whole. Figures are the mean of the seeds. Texts are
  lognormal with sigma 1 about a mean of 400 tokens. Answers have 1 token each, 16 tokens each, or
  unequal lengths that nobody knows before.
- ``vllm``: a real vLLM on two CPU cores, with a fixed limit of 128. A job has 1,024 texts through
  ``batch_map``, lognormal with sigma 1 about a mean of 100 tokens, 600 at most. Arms are
  interleaved in a new order each time, with fresh texts of the same lengths. Ratios are taken
  within a repetition. The interval holds the median of the ratios with 95 % certainty. It comes
  from the order statistics of a binomial, which assume nothing about the distribution of the
  ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._common import machine, median, provenance, table, write_results
from benchmarks.lab.profiles import SCENARIOS
from benchmarks.lab.strategies import Job, Strategy, run
from benchmarks.lab.workloads import Calls, Lengths

from batchclient import BatchClient, Batching, Schedule
from batchclient._core.learnt.lengths import PromptLengths
from batchclient._core.limits import FixedLimit, Limit
from batchclient._core.limits.control import LimitControl
from batchclient._core.limits.search import Search
from batchclient._core.messages import Request

ARMS: Mapping[str, tuple[bool, Mapping[str, Any]]] = {
    "arrival order": (False, {}),
    "nearest lengths": (True, {}),
    "one bucket": (True, {"length_reach": 0}),
}
"""Whether the scheduler knows lengths, and fields of ``Batching``."""

TEXTS = Lengths(400, 1.0, 8192)
STATIC_ANSWERS = {
    "1 token": Calls(TEXTS, Lengths(1), max_tokens=1),
    "16 tokens": Calls(TEXTS, Lengths(16), max_tokens=16),
    "64 on average, unequal": Calls(TEXTS, Lengths(64, 0.9, 256), max_tokens=256),
}
STATIC_LIMITS: Mapping[str, Callable[[], Limit]] = {
    "64": lambda: FixedLimit(64),
    "found (the default)": lambda: LimitControl(Search()),
}
VLLM_TEXTS = Lengths(100, 1.0, 600)


# --- a static batcher, in virtual time ---


def static_rates(arm: str, calls: Calls, limit: Callable[[], Limit], texts: int, seeds: int) -> list[float]:
    """Answers per second, by seed."""
    known, settings = ARMS[arm]
    scenario = replace(SCENARIOS["padding"], workload=Job(calls, texts, known), duration_s=36_000.0)
    runs = [run(scenario, Strategy(arm, settings, limit), seed) for seed in range(seeds)]
    if any(one["answers"] != texts for one in runs):
        raise AssertionError("not every text was answered")
    return [one["answers_per_s"] for one in runs]


def static(options: argparse.Namespace) -> dict[str, Any]:
    return {
        answers: {
            name: {arm: static_rates(arm, calls, limit, 2048, options.seeds) for arm in ARMS}
            for name, limit in STATIC_LIMITS.items()
        }
        for answers, calls in STATIC_ANSWERS.items()
    }


# --- a real vLLM ---


@contextmanager
def hidden_lengths() -> Iterator[None]:
    """Put all calls into one length bucket and change nothing else.

    No setting does so: only the comparison needs it.
    """
    place = PromptLengths.place

    def place_in_one(lengths: PromptLengths, request: Request) -> None:
        place(lengths, request)
        request.bucket = 0

    with mock.patch.object(PromptLengths, "place", place_in_one):
        yield


async def vllm_rate(base_url: str, model: str, arm: str, texts: list[str], max_tokens: int) -> float:
    known, settings = ARMS[arm]
    with nullcontext() if known else hidden_lengths():
        batching, schedule = Batching(**settings), Schedule(group_prefixes=False)
        async with BatchClient(base_url, model=model, limit=128, schedule=schedule, batching=batching) as client:
            began = time.perf_counter()
            answers = await client.batch_map(texts, "{}", max_tokens=max_tokens, temperature=0, ignore_eos=True)
            seconds = time.perf_counter() - began
    if len(answers) != len(texts) or any(answer.usage.completion_tokens != max_tokens for answer in answers):
        raise AssertionError("an answer without all its tokens")
    return len(texts) / seconds


def vllm(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks._vllm import learn_prompts
    from benchmarks._vllm import vllm as booted

    rates: dict[str, dict[str, list[float]]] = {}
    rng = random.Random()
    with booted("--max-num-seqs", "256") as server:
        prompts = asyncio.run(learn_prompts(server))
        for max_tokens in options.max_tokens:
            arms = rates[f"{max_tokens} token{'s' if max_tokens > 1 else ''}"] = {arm: [] for arm in ARMS}
            for repetition in range(options.repetitions + 1):
                # The same lengths for all arms: sums of drawn ones differ by a tenth.
                lengths = [VLLM_TEXTS.draw(rng) for _ in range(options.texts)]
                for arm in rng.sample(list(ARMS), len(ARMS)):
                    texts = [prompts.make(1, tokens)[0] for tokens in rng.sample(lengths, len(lengths))]
                    rate = asyncio.run(vllm_rate(server.base_url, server.model, arm, texts, max_tokens))
                    if repetition:  # The first warms up.
                        arms[arm].append(rate)
    return rates


def markdown(data: dict[str, Any]) -> str:
    """The shares of the rates in order of arrival, for the default limit and for a real vLLM."""
    rows = []
    for answers, limits in data["parts"].get("static", {}).items():
        arms = limits["found (the default)"]
        shares = [fmean(arms[arm]) / fmean(arms["arrival order"]) for arm in ("nearest lengths", "one bucket")]
        rows.append(["simulated, pads", answers, *(f"{share:.2f}" for share in shares)])
    for answers, arms in data["parts"].get("vllm", {}).items():
        ratios = [
            median([one / other for one, other in zip(arms[arm], arms["arrival order"], strict=True)])
            for arm in ("nearest lengths", "one bucket")
        ]
        rows.append(["a real vLLM", answers, *(f"{ratio:.2f}" for ratio in ratios)])
    header = ("server", "answers", "nearest lengths (the default)", "one bucket (`Batching(length_reach=0)`)")
    return f"{table(header, rows)}\n\n{provenance(data['machine'])}"


PARTS = {"static": static, "vllm": vllm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seeds", type=int, default=3, help="of the static part")
    parser.add_argument("--repetitions", type=int, default=21, help="of the vLLM's")
    parser.add_argument("--texts", type=int, default=1024, help="of each of its runs")
    parser.add_argument("--max-tokens", type=lambda given: [int(each) for each in given.split(",")], default=[1, 16])
    options = parser.parse_args()
    data: dict[str, Any] = {"machine": machine(), "parts": {}}
    for name in options.parts.split(","):
        data["parts"][name] = PARTS[name](options)
    print(markdown(data))
    if set(options.parts.split(",")) == set(PARTS):
        write_results("length_grouping", data, markdown(data))


if __name__ == "__main__":
    main()
