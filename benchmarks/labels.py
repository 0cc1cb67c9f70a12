"""Rows that get a label on a real vLLM: rows a second, beside rows of one token and a script by hand.

    python benchmarks/labels.py                          # 20,000 rows for each arm
    python benchmarks/labels.py --rows 2000 --rounds 1

The arms are ``one token`` (``max_tokens=1``), ``labels``, ``probabilities``, and ``by hand``: what a
program without the client does for the same (``BY_HAND``, whose lines are counted). They take
turns, each in a process of its own, and no prompt comes twice, so that no prefix is cached. The bar:
labels alone have 0.9 of the rows a second of one token.

``--base-url`` is a server that runs; else a vLLM is started with the tiny model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from typing import Any

from _common import in_a_process, machine, median, provenance, report, table
from _vllm import Server, vllm

from batchclient import BatchClient

LABELS = ["return", "import"]
PROMPT = "Review: {text}\nIs it return or import? Answer:"
WORDS = 60
"""Of a text."""
BAR = 0.9
BY_HAND = """
import asyncio
import openai

async def label_all(base_url, model, prompts, labels):
    client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=5)
    gate = asyncio.Semaphore(64)

    async def label(prompt):
        async with gate:
            answer = await client.completions.create(
                model=model, prompt=prompt, max_tokens=8, temperature=0,
                extra_body={"structured_outputs": {"choice": [" " + each for each in labels]}},
            )
        text = answer.choices[0].text.strip()
        if text not in labels:
            raise ValueError("none of the labels")
        return text

    return await asyncio.gather(*map(label, prompts))
"""
ARMS: dict[str, dict[str, Any]] = {
    "one token": {"max_tokens": 1, "temperature": 0},
    "labels": {"labels": LABELS, "temperature": 0},
    "probabilities": {"labels": LABELS, "probabilities": True},
    "by hand": {},
}


def texts_of(rows: int, seed: int) -> list[dict[str, str]]:
    drawn = random.Random(seed)
    words = ["broke", "after", "day", "works", "fine", "never", "good", "bad", "slow", "quick", "cheap", "dear", "box"]
    return [{"text": f"{seed}-{n} " + " ".join(drawn.choices(words, k=WORDS))} for n in range(rows)]


async def run(base_url: str, model: str, arm: str, rows: int, seed: int) -> dict[str, Any]:
    texts = texts_of(rows, seed)
    if arm == "by hand":
        made: dict[str, Any] = {}
        exec(BY_HAND, made)
        prompts = [PROMPT.format(**each) for each in texts]
        began, cpu = time.perf_counter(), time.process_time()
        labels = await made["label_all"](base_url, model, prompts, LABELS)
        seconds, batches = time.perf_counter() - began, rows
    else:
        async with BatchClient(base_url, model=model, preset="throughput", from_environment=False) as client:
            began, cpu = time.perf_counter(), time.process_time()
            labels = [row.answer.label async for row in client.stream_map(texts, PROMPT, **ARMS[arm]) if row.answer]
            seconds, batches = time.perf_counter() - began, client.statistics().batches
    assert len(labels) == rows and (arm == "one token" or {*labels} <= {*LABELS}), "a row has no label"
    return {"seconds": seconds, "requests": batches, "cpu_us": (time.process_time() - cpu) / rows * 1e6}


def measured(server: Server, rows: int, rounds: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for place, arm in enumerate(ARMS):
            given = {"base_url": server.base_url, "model": server.model, "arm": arm, "rows": rows}
            runs[arm].append(in_a_process(__file__, given | {"seed": random.getrandbits(30) + 4 * number + place}))
            print(f"{arm}: {rows / runs[arm][-1]['seconds']:.0f} rows/s", flush=True)
    return {
        arm: {name: median([each[name] for each in of]) for name in of[0]} | {"runs": of} for arm, of in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--base-url")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--write", action="store_true", help="write the results, and exit with 1 past the bar")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asyncio.run(run(**json.loads(options.child)))))
        return
    given = contextlib.nullcontext(Server(options.base_url, options.model)) if options.base_url else vllm()
    with given as server:
        arms = measured(server, options.rows, options.rounds)
    rates = {arm: options.rows / each["seconds"] for arm, each in arms.items()}
    lines = {"by hand": len(BY_HAND.strip().splitlines())} | dict.fromkeys([*ARMS][:3], 3)
    rows = [
        [arm, f"{rates[arm]:,.0f}", f"{rates[arm] / rates['one token']:.2f}", f"{each['seconds']:.1f}",
         f"{each['requests']:,.0f}", f"{each['cpu_us']:.0f}", lines[arm]]
        for arm, each in arms.items()
    ]  # fmt: skip
    header = ["arm", "rows/s", "of one token", "seconds", "requests", "client CPU, µs a row", "lines of code"]
    about = machine()
    markdown = f"{options.rows:,} rows on a vLLM with the tiny model\n\n{table(header, rows)}\n\n{provenance(about)}"
    share = rates["labels"] / rates["one token"]
    missed = [] if share >= BAR else [f"labels have {share:.2f} of the rows/s of one token, below {BAR}"]
    if options.write:
        report("labels", {"machine": about, "rows": options.rows, "arms": arms}, markdown, missed, check=True)
    else:
        print(markdown, *missed, sep="\n")


if __name__ == "__main__":
    main()
