"""A colleague's chat beside a bulk map: its latency, and what the map gets done meanwhile.

    python benchmarks/beside_map.py                  # the embedded server: profile gpu, 64 sequences
    python benchmarks/beside_map.py --arms default guest limit=32 --seconds 60 --rounds 3

Each arm is a set of ``BatchClient`` arguments for the map; ``guest`` is
``limit=AdaptiveLimit(guest=True)``. ``alone`` is the chat without a map, and ``no chat`` the default
map without the chat. ``saturate`` is the program of its README, with chats
(``benchmarks/batch_files.py`` says how to install it). The colleague is ``AsyncOpenAI``: one
streamed chat of 100 tokens at a time, a second apart. The first 15 s of an arm count for nothing,
since the limit finds itself in them. The arms take turns. Answers of the map have about 150 tokens
(log-normal, sigma 0.5), and its throughput is shown as a share of that without the chat, or of the
best arm's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import openai
from _common import HERE, arguments_of, machine, median, percentile, provenance, table, write_results

from batchclient import AdaptiveLimit, BatchClient
from batchclient.simulator import EmbeddedServer

SETTLES_S = 15.0
CHAT_TOKENS = 100
MOST_TOKENS = 600
ALONE, NO_CHAT, SATURATE = "alone", "no chat", "saturate"
NAMED: dict[str, dict[str, Any]] = {"default": {}, NO_CHAT: {}, "guest": {"limit": AdaptiveLimit(guest=True)}}
LOW_LIMITS = ["limit=8", "limit=32"]
ARMS = [ALONE, NO_CHAT, "limit=62", "default", "guest", *LOW_LIMITS, SATURATE]
SATURATE_PYTHON = HERE.parent / ".cache/saturate/bin/python"
SATURATE_PROGRAM = """
import sys
from saturate import pump

def tell(row, reply):
    print(reply["usage"]["completion_tokens"], flush=True)
    return {"text": reply["choices"][0]["message"]["content"]}

base_url, out, most = sys.argv[1:]
message = "{} is a text to be summed up"
pump(
    ({"id": str(number), "text": message.format(number)} for number in range(10**6)),
    to_request=lambda row: {
        "model": "m", "max_tokens": int(most), "messages": [{"role": "user", "content": row["text"]}]
    },
    parse=tell,
    endpoint=base_url,
    output=out,
    id_key="id",
)
"""


class Chat(NamedTuple):
    """Seconds of one chat of the colleague's: to its first token, and to its end."""

    first_s: float
    whole_s: float


Rows = list[tuple[float, int]]
"""When each row of the map was answered, and its tokens."""


def documents() -> Iterator[str]:
    return (f"{number} is a text to be summed up" for number in itertools.count())


async def bulk(url: str, arm: str, rows: Rows) -> None:
    async with BatchClient(url, model="m", **(NAMED[arm] if arm in NAMED else arguments_of(arm))) as client:
        async for row in client.stream_map(documents(), "{}", max_tokens=MOST_TOKENS):
            rows.append((time.monotonic(), row.answer.usage.completion_tokens))


async def saturate(url: str, rows: Rows) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(SATURATE_PYTHON), "-c", SATURATE_PROGRAM, url, f"{folder}/out", str(MOST_TOKENS)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                rows.append((time.monotonic(), int(line)))
            raise RuntimeError("saturate has ended")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def chats(url: str, seconds: float) -> list[Chat]:
    ends, took = time.monotonic() + seconds, []
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        while (began := time.monotonic()) < ends:
            message: Any = {"role": "user", "content": f"{began} good morning"}
            first_s = 0.0
            pieces = await client.chat.completions.create(
                model="m", messages=[message], max_tokens=CHAT_TOKENS, stream=True
            )
            async for piece in pieces:
                if not first_s and piece.choices and piece.choices[0].delta.content:
                    first_s = time.monotonic() - began
            took.append(Chat(first_s, time.monotonic() - began))
            await asyncio.sleep(1.0)
    return took


async def measured(url: str, arm: str, seconds: float) -> tuple[list[Chat], Rows, float]:
    """The chats, the map's rows of the same time, and how long that was."""
    rows: Rows = []
    work = None
    if arm != ALONE:
        work = asyncio.create_task(saturate(url, rows) if arm == SATURATE else bulk(url, arm, rows))
        await asyncio.sleep(SETTLES_S)
    began, took = time.monotonic(), []
    if arm == NO_CHAT:
        await asyncio.sleep(seconds)
    else:
        took = await chats(url, seconds)
    lasted_s = time.monotonic() - began
    if work is not None:
        if work.done():
            work.result()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    return took, [row for row in rows if row[0] >= began], lasted_s


def of_chats(took: list[Chat]) -> list[str]:
    if not took:
        return ["0", *[""] * 6]
    firsts, wholes = [one.first_s for one in took], [one.whole_s for one in took]
    shown = (median(firsts), percentile(firsts, 0.95), *(percentile(wholes, share) for share in (0.5, 0.95, 0.99)))
    return [str(len(took)), *(f"{each:.2f}" for each in shown), f"{max(wholes):.2f}"]


def page_of(rows: list[list[str]]) -> str:
    """Of the figures those that the page shows: the longest times, and a map under a low limit, are in the JSON."""
    header = ("map", "first token: median s", "p95 s", "chat: median s", "p95 s", "map: tokens/s", "share of no chat's")
    kept = [row for row in rows if row[0] not in LOW_LIMITS]
    return table(header, [[row[0], *row[2:6], *row[-2:]] for row in kept])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=ARMS)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each arm, after it has settled")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    options = parser.parse_args()
    if SATURATE in options.arms and not SATURATE_PYTHON.exists():
        parser.error(f"{SATURATE} is not installed in {SATURATE_PYTHON.parents[1]}: see benchmarks/batch_files.py")
    runs: dict[str, list[tuple[list[Chat], Rows, float]]] = {arm: [] for arm in options.arms}
    shape = {"max_num_seqs": options.max_num_seqs, "output_lengths": "lognormal:150:0.5"}
    with EmbeddedServer("gpu", process=True, model="m", **shape) as server:
        for _ in range(options.rounds):
            for arm, own in runs.items():
                own.append(asyncio.run(measured(server.base_url, arm, options.seconds)))
                print(arm, *of_chats(own[-1][0]), f"{len(own[-1][1]) / own[-1][2]:.1f} rows/s", flush=True)
    per_s = {
        arm: sum(made for _, rows, _ in own for _, made in rows) / sum(lasted_s for _, _, lasted_s in own)
        for arm, own in runs.items()
    }
    best = per_s.get(NO_CHAT) or max(per_s.values())
    shown = []
    for arm, own in runs.items():
        done = sum(len(rows) for _, rows, _ in own)
        share = f"{per_s[arm] / best:.2f}" if done else ""
        shown.append(
            [arm, *of_chats([chat for took, _, _ in own for chat in took]), f"{done:,}", f"{per_s[arm]:,.0f}", share]
        )
    text = page_of(shown)
    names = ("map", "chats", "first_s", "first_p95_s", "chat_s", "chat_p95_s", "chat_p99_s", "chat_longest_s")
    fields = (*names, "rows", "tokens_per_s", "share")
    found, run = [dict(zip(fields, row, strict=True)) for row in shown], machine()
    write_results("beside_map", {"machine": run, "rows": found}, f"{text}\n\n{provenance(run)}")
    print(text)


if __name__ == "__main__":
    main()
