"""A Redis queue: a producer, a worker and a reader (pip install '.[server,redis]').

redis-server --port 6379
python examples/redis_queue.py

The three run here in one program. In earnest each has its own, and the worker is the command
`batchclient work`: any number of workers on any number of machines. `REDIS_URL` names another Redis.
"""

import asyncio
import os

from redis.asyncio import Redis

from batchclient import BatchClient
from batchclient.integrations.redis import Worker, enqueue, results
from batchclient.simulator import EmbeddedServer

STREAM = "documents"


async def produce(redis: Redis) -> list[str]:
    documents = [{"prompt": f"Summarise document {number}:", "max_tokens": 16} for number in range(300)]
    refused = {"prompt": "", "max_tokens": 0}
    return await enqueue(redis, [*documents, refused], stream=STREAM)


async def work(redis: Redis, base_url: str, stop: asyncio.Event) -> None:
    async with BatchClient(base_url) as client:
        worker = Worker(client, redis, STREAM)
        working = asyncio.create_task(worker.run())
        await stop.wait()
        worker.stop()  # calls under way end first
        await working
        print(f"the worker made {client.statistics().batches} requests")


async def read(redis: Redis, ids: list[str]) -> None:
    found = [result async for result in results(redis, ids, stream=STREAM, timeout_s=60)]
    failed = [result.error["type"] for result in found if result.error]
    print(f"{len(found) - len(failed)} results; dead letters: {failed}")


async def main(base_url: str) -> None:
    stop = asyncio.Event()
    url = os.environ.get("REDIS_URL", "redis://localhost:6379")
    async with Redis.from_url(url) as redis, asyncio.TaskGroup() as beside:
        beside.create_task(work(redis, base_url, stop))
        ids = await produce(redis)
        await read(redis, ids)
        stop.set()


if __name__ == "__main__":
    with EmbeddedServer() as server:
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url)))
