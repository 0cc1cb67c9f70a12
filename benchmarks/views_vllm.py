"""Two views of one client on a real vLLM: how long a person's calls wait in the client, amid the rows of a map.

    python benchmarks/views_vllm.py                       # limits of 8, 32 and 64; a server of 64 sequences
    python benchmarks/views_vllm.py --base-url URL --model NAME

Each call of the view ``priority=1, preset="latency"`` is made half a second after the one before it
has ended, first with nothing beside it, then amid the map of the view ``preset="throughput"``. A
call's time is the queue's part (``queued_s``) and the server's; only the first is the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time

from _common import machine, percentile, provenance, table, write_results
from _vllm import Server, vllm

from batchclient import BatchClient

LIMITS = (8, 32, 64)
SETTLES_S = 5.0
ROW_TOKENS, CALL_TOKENS = 64, 16


async def asked(chat: BatchClient, seconds: float) -> list[tuple[float, float]]:
    """Seconds in the queue and in all of each call."""
    ends, took = time.monotonic() + seconds, []
    while (began := time.monotonic()) < ends:
        answer = await chat.complete(f"{began} what is a view?", max_tokens=CALL_TOKENS, ignore_eos=True)
        took.append((answer.queued_s or 0.0, time.monotonic() - began))
        await asyncio.sleep(0.5)
    return took


async def run(server: Server, limit: int, seconds: float) -> list[str]:
    async with BatchClient(server.base_url, model=server.model, limit=limit, from_environment=False) as client:
        chat, bulk = client.view(priority=1, preset="latency"), client.view(preset="throughput")
        alone = await asked(chat, seconds)
        documents, rows = (f"{number} {time.time()}" for number in itertools.count()), 0

        async def work() -> None:
            nonlocal rows
            async for _ in bulk.stream_map(documents, "Tag: {}", max_tokens=ROW_TOKENS, ignore_eos=True):
                rows += 1

        async with asyncio.TaskGroup() as group:
            mapping = group.create_task(work())
            await asyncio.sleep(SETTLES_S)
            rows, began = 0, time.monotonic()
            amid = await asked(chat, seconds)
            per_s = rows / (time.monotonic() - began)
            mapping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await mapping
    shown = [str(limit), str(len(amid))]
    for calls in (alone, amid):
        for part in zip(*calls, strict=True):
            shown += [f"{percentile(part, share):.3f}" for share in (0.5, 0.95)]
    return [*shown, f"{per_s:.0f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seconds", type=float, default=30.0, help="of calls alone, and of calls amid the map")
    parser.add_argument("--write", action="store_true", help="write the results")
    options = parser.parse_args()
    given = contextlib.nullcontext(Server(options.base_url, options.model)) if options.base_url else vllm()
    with given as server:
        rows = [asyncio.run(run(server, limit, options.seconds)) for limit in LIMITS]
    parts = [f"{where}, {part}: {share}" for where in ("alone", "amid") for part in ("queued", "whole") for share in
             ("median s", "p95 s")]  # fmt: skip
    text = f"{table(('limit', 'calls', *parts, 'rows/s'), rows)}\n\n{provenance(machine())}"
    print(text)
    if options.write:
        write_results("views_vllm", {"machine": machine(), "rows": rows}, text)


if __name__ == "__main__":
    main()
