"""A colleague's chat beside a bulk map: its latency, and what the map gets done meanwhile.

    python benchmarks/beside_map.py                  # the embedded server: profile gpu, 64 sequences
    python benchmarks/beside_map.py --arms default limit=32 --seconds 60 --rounds 3

Each arm is a set of ``BatchClient`` arguments for the map; ``alone`` is the chat without a map. The
colleague is ``AsyncOpenAI``: one chat of 100 tokens at a time, a second apart. The first 15 s of an
arm count for nothing, since the limit finds itself in them. The arms take turns. Answers of the map
have about 150 tokens (log-normal, sigma 0.5), and its throughput is shown as a share of the best
arm's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import openai
from _common import arguments_of, machine, median, percentile, provenance, table, write_results

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer

SETTLES_S = 15.0
CHAT_TOKENS = 100


def documents() -> Iterator[str]:
    return (f"{number} is a text to be summed up" for number in itertools.count())


async def bulk(url: str, arm: str, tokens: list[tuple[float, int]]) -> None:
    async with BatchClient(url, model="m", **({} if arm == "default" else arguments_of(arm))) as client:
        async for row in client.stream_map(documents(), "{}", max_tokens=600):
            tokens.append((time.monotonic(), row.answer.usage.completion_tokens))


async def chats(url: str, seconds: float) -> list[float]:
    ends, took = time.monotonic() + seconds, []
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        while (began := time.monotonic()) < ends:
            message: Any = {"role": "user", "content": f"{began} good morning"}
            await client.chat.completions.create(model="m", messages=[message], max_tokens=CHAT_TOKENS)
            took.append(time.monotonic() - began)
            await asyncio.sleep(1.0)
    return took


async def measured(url: str, arm: str, seconds: float) -> tuple[list[float], float]:
    """The chats' seconds, and the map's tokens per second."""
    tokens: list[tuple[float, int]] = []
    work = asyncio.create_task(bulk(url, arm, tokens)) if arm != "alone" else None
    if work is not None:
        await asyncio.sleep(SETTLES_S)
    began = time.monotonic()
    took = await chats(url, seconds)
    lasted = time.monotonic() - began
    if work is not None:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    return took, sum(made for at, made in tokens if at >= began) / lasted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=["alone", "default", "limit=32", "limit=64", "limit=256"])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each arm, after it has settled")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    options = parser.parse_args()
    runs: dict[str, list[tuple[list[float], float]]] = {arm: [] for arm in options.arms}
    shape = {"max_num_seqs": options.max_num_seqs, "output_lengths": "lognormal:150:0.5"}
    with EmbeddedServer("gpu", process=True, model="m", **shape) as server:
        for _ in range(options.rounds):
            for arm, own in runs.items():
                own.append(asyncio.run(measured(server.base_url, arm, options.seconds)))
                print(arm, f"{median(own[-1][0]):.2f} s, {own[-1][1]:,.0f} tokens/s", flush=True)
    best = max(median([per_s for _, per_s in own]) for own in runs.values())
    rows = []
    for arm, own in runs.items():
        took, per_s = sorted(itertools.chain.from_iterable(each for each, _ in own)), median([each for _, each in own])
        share = f"{per_s / best:.2f}" if per_s else ""
        rows.append([arm, len(took), f"{median(took):.2f}", f"{percentile(took, 0.95):.2f}", f"{per_s:,.0f}", share])
    header = ("map", "chats", "chat: median s", "p95 s", "map: tokens/s", "share of the best")
    text = table(header, rows)
    found, run = [dict(zip(header, row, strict=True)) for row in rows], machine()
    write_results("beside_map", {"machine": run, "rows": found}, f"{text}\n\n{provenance(run)}")
    print(text)


if __name__ == "__main__":
    main()
