"""Tasks of Celery that share requests: a pool of threads, and one client for all of them.

python examples/integrations/celery_threads.py [BASE_URL MODEL]

As a script it runs a worker and 300 tasks in its own process. As a worker, with a broker of yours
in place of the one in memory, in the folder of this file:

    BATCHCLIENT_BASE_URL=http://localhost:8000/v1 celery -A celery_threads worker --pool threads --concurrency 64

A pool of processes (Celery's default) shares nothing: each process would have a client of its own.
"""

import os
from functools import cache

from celery import Celery
from celery.signals import worker_init, worker_shutdown

from batchclient import SyncBatchClient

app = Celery("celery_threads", broker="memory://", backend="cache+memory://")
# A thread takes one task at a time. With Redis as the broker, a task longer than the visibility timeout runs twice.
app.conf.update(worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)


@cache
def client() -> SyncBatchClient:
    """Return the client of the process. The server's URL and model are in the environment."""
    return SyncBatchClient(timeout_s=60)


@worker_init.connect
def begin(**_: object) -> None:
    # Before the threads: several that asked at once for the first time would make a client each.
    client()


@worker_shutdown.connect
def finish(**_: object) -> None:
    # The threads have ended their tasks by then.
    client().close()


@app.task
def summarise(text: str) -> str:
    """Summarise one text."""
    return client().complete(f"Summarise: {text}", max_tokens=16, temperature=0).text


def main() -> None:
    from celery.contrib.testing.worker import start_worker

    with start_worker(app, pool="threads", concurrency=64, perform_ping_check=False, loglevel="ERROR"):
        tasks = [summarise.delay(f"document {number}") for number in range(300)]
        texts = [task.get(timeout=60) for task in tasks]
        print(f"{len(texts)} tasks done in {client().statistics().batches} requests")


if __name__ == "__main__":
    from _server import server

    with server() as (base_url, model):
        os.environ["BATCHCLIENT_BASE_URL"], os.environ["BATCHCLIENT_MODEL"] = base_url, model
        main()
