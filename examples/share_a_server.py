"""A bulk job and a colleague on one server: the job leaves places free, and ends in time all the same.

python examples/share_a_server.py
"""

import asyncio
import os
import time

from openai import AsyncOpenAI

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer

TEXTS = [f"Text {number} of the night." for number in range(200)]
FINISH_BY_S = 30.0


async def colleague(base_url: str) -> list[float]:
    """Ask for a few chats, one after the other; return the seconds of each."""
    took_s = []
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        model = (await client.models.list()).data[0].id
        for number in range(5):
            began = time.monotonic()
            await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": f"{number}: good morning"}], max_tokens=5
            )
            took_s.append(time.monotonic() - began)
            await asyncio.sleep(0.2)
    return took_s


async def main(base_url: str) -> None:
    async with BatchClient(base_url) as client:
        job = asyncio.create_task(client.batch_map(TEXTS, "Sum up: {}", max_tokens=10, finish_by_s=FINISH_BY_S))
        took_s = await colleague(base_url)
        answers = await job
    print(f"{len(answers)} answers in time; the colleague's {len(took_s)} chats took at most {max(took_s):.2f} s")


if __name__ == "__main__":
    with EmbeddedServer("gpu", max_num_seqs=32) as server:
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url)))
