"""Blocking code: a thread pool whose calls share requests, and a database read row by row.

python examples/threads.py [BASE_URL MODEL]
"""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from _server import server

from batchclient import SyncBatchClient


def main(base_url: str, model: str) -> None:
    with SyncBatchClient(base_url, model=model, preset="throughput") as client:
        # Many threads: to each of them its call looks like one of its own.
        ask = partial(client.complete, max_tokens=4, temperature=0)
        with ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(ask, [f"The capital of country {number} is" for number in range(1000)]))
        print(f"{len(answers)} answers in {client.statistics().batches} requests")

        # One thread: the map keeps the server busy. It reads the cursor in this thread, to which
        # the connection belongs.
        database = sqlite3.connect(":memory:")
        database.execute("create table tickets (id integer primary key, text text)")
        database.executemany("insert into tickets (text) values (?)", [(f"ticket {number}",) for number in range(300)])
        tickets = database.execute("select id, text from tickets")
        rows = client.stream_map(tickets, lambda ticket: f"Urgent? {ticket[1]}", max_tokens=1, temperature=0)
        labels = [(row.completion.text, row.document[0]) for row in rows if row.completion is not None]
        database.executemany("update tickets set text = text || ':' || ? where id = ?", labels)
        print(
            f"{len(labels)} tickets labelled, the first: {database.execute('select text from tickets').fetchone()[0]}"
        )
        database.close()


if __name__ == "__main__":
    with server() as (base_url, model):
        main(base_url, model)
