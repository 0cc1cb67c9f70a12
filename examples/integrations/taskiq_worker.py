"""Tasks of taskiq that share requests: each task awaits its own call.

python examples/integrations/taskiq_worker.py [BASE_URL MODEL]

As a script it runs 300 tasks in its own process. As a worker, with a broker of yours in place of
the one in memory, in the folder of this file:

    BATCHCLIENT_BASE_URL=http://localhost:8000/v1 taskiq worker taskiq_worker:broker --workers 1 --max-async-tasks 512
"""

import asyncio
import os
from typing import Annotated

from taskiq import Context, InMemoryBroker, TaskiqDepends, TaskiqEvents, TaskiqState

from batchclient import BatchClient

# As many tasks at once as calls are to be in flight: taskiq's own numbers are 30 here and 100 in a worker.
broker = InMemoryBroker(max_async_tasks=512, max_stored_results=300)


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def start(state: TaskiqState) -> None:
    # One client for all tasks of the process. The server's URL and model are in the environment.
    # Several processes share a server's limit: --workers 2 and limit=128 each, for 256 sequences.
    state.client = BatchClient(timeout_s=60)


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def stop(state: TaskiqState) -> None:
    await state.client.aclose()


@broker.task
async def summarise(text: str, context: Annotated[Context, TaskiqDepends()]) -> str:
    """Summarise one text."""
    client: BatchClient = context.state.client
    answer = await client.complete(f"Summarise: {text}", max_tokens=16, temperature=0)
    return answer.text


async def main() -> None:
    await broker.startup()
    tasks = [await summarise.kiq(f"document {number}") for number in range(300)]
    results = [await task.wait_result(timeout=60) for task in tasks]
    answered = sum(not result.is_err for result in results)
    print(f"{answered} tasks done in {broker.state.client.statistics().batches} requests")
    await broker.shutdown()


if __name__ == "__main__":
    from _server import server

    with server() as (base_url, model):
        os.environ["BATCHCLIENT_BASE_URL"], os.environ["BATCHCLIENT_MODEL"] = base_url, model
        asyncio.run(main())
