"""A person's questions amid a map of thousands of rows: two views of one client, one limit, one queue.

python examples/two_views.py
"""

import asyncio
import os
import time

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer

ROWS = 3000


async def ask(chat: BatchClient, tags: asyncio.Task) -> list[float]:
    seconds = []
    while not tags.done():
        began = time.perf_counter()
        await chat.complete("What is a view?", max_tokens=16)
        seconds.append(time.perf_counter() - began)
        await asyncio.sleep(0.05)
    return seconds


async def main(url: str) -> None:
    async with BatchClient(url, limit=64) as client:
        bulk = client.view(preset="throughput")
        chat = client.view(priority=1, preset="latency")
        tags = asyncio.create_task(bulk.batch_map((f"row {n}" for n in range(ROWS)), "Tag: {}", max_tokens=16))
        seconds = await ask(chat, tags)
        middle_ms = 1000 * sorted(seconds)[len(seconds) // 2]
        print(f"{len(await tags)} rows tagged; meanwhile {len(seconds)} questions, answered in {middle_ms:.0f} ms each")


if __name__ == "__main__":
    with EmbeddedServer("gpu") as server:
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url)))
