"""A program that works until a signal ends it: ``python -m tests.storm.program WORK BASE_URL``. It says when it has begun."""

import asyncio
import faulthandler
import signal
import sys
import threading
from contextlib import suppress

from batchclient import BatchClient, ClientClosed, SyncBatchClient

# What hangs is asked where it hangs.
faulthandler.register(signal.SIGUSR1, all_threads=True)


def begun():
    print("begun", flush=True)


OF_THE_CLIENT = {"model": "m", "limit": 8, "probe": False}


def make(url):
    return BatchClient(url, **OF_THE_CLIENT)


async def map_documents(url):
    async with make(url) as client:
        async for row in client.stream_map(iter(int, 1), str, max_tokens=1):
            if row.index == 0:
                begun()


async def call(url):
    async with make(url) as client:
        await client.complete("p")
        begun()
        while True:
            await asyncio.gather(*(client.complete(f"{n}", timeout_s=5.0) for n in range(20)))


async def until_closed(client, prompt):
    # The signal may come when ``aclose`` has failed it and before anybody has looked.
    with suppress(ClientClosed):
        await client.complete(prompt)


async def open_and_close(url):
    while True:
        client = make(url)
        calls = [asyncio.ensure_future(until_closed(client, f"{n}")) for n in range(20)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        begun()
        await client.aclose()
        await asyncio.gather(*calls)


async def one_round(client):
    await asyncio.gather(*(client.complete(f"{n}") for n in range(20)))


def run_again_and_again(url):
    client = make(url)
    while True:
        asyncio.run(one_round(client))
        begun()


def call_and_wait(url):
    """From the main thread, and from another beside it."""

    def beside():
        with suppress(ClientClosed):
            while True:
                client.complete("beside")

    with SyncBatchClient(url, **OF_THE_CLIENT) as client:
        threading.Thread(target=beside, daemon=True).start()
        while True:
            client.complete("p")
            begun()


def map_and_wait(url):
    with SyncBatchClient(url, **OF_THE_CLIENT) as client:
        for row in client.stream_map(iter(int, 1), str, max_tokens=1):
            if row.index == 0:
                begun()


def open_and_close_and_wait(url):
    while True:
        with SyncBatchClient(url, **OF_THE_CLIENT) as client:
            client.complete("p")
            begun()


WORKS = {
    "map": lambda url: asyncio.run(map_documents(url)),
    "call": lambda url: asyncio.run(call(url)),
    "aclose": lambda url: asyncio.run(open_and_close(url)),
    "asyncio.run": run_again_and_again,
    "blocking call": call_and_wait,
    "blocking map": map_and_wait,
    "blocking close": open_and_close_and_wait,
}

if __name__ == "__main__":
    WORKS[sys.argv[1]](sys.argv[2])
