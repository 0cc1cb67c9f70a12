"""Blocking code in threads: calls that threads make at the same time share requests.

python examples/threads.py
"""

import os
from concurrent.futures import ThreadPoolExecutor

from batchclient import SyncBatchClient
from batchclient.simulator import EmbeddedServer

TICKETS = [f"Ticket {number}: the lamp flickers." for number in range(500)]


def main(base_url: str) -> None:
    # One client for all threads: a client per thread would share no request.
    with SyncBatchClient(base_url) as client, ThreadPoolExecutor(64) as pool:

        def label(ticket: str) -> str:
            return client.complete(f"{ticket}\nTopic, in one word:", max_tokens=4).text

        labels = list(pool.map(label, TICKETS))
        print(f"{len(labels)} labels from 64 threads in {client.statistics().batches} requests")


if __name__ == "__main__":
    with EmbeddedServer() as server:
        main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url))
