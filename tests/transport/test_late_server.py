"""Clients that begin before their servers listen, on real sockets."""

import asyncio

from batchclient import BatchClient
from tests.fakes.raw import RawServer


async def listening_after(server, seconds, stop):
    await asyncio.sleep(seconds)
    async with server:
        await stop.wait()


async def test_every_row_is_answered_once_by_servers_that_listen_after_the_first_row_was_made():
    servers = [RawServer() for _ in range(3)]
    for server in servers:
        async with server:
            pass  # It has a port now, where nobody listens.
    alone, *two = servers
    stop = asyncio.Event()
    tasks = [asyncio.create_task(listening_after(server, 0.3 * place, stop)) for place, server in enumerate(servers, 1)]
    rows = [f"{number}" for number in range(40)]
    arguments = {"model": "m", "wait_for_server_s": 20.0, "limit": 4}
    async with BatchClient(alone.url, **arguments) as one, BatchClient([each.url for each in two], **arguments) as both:
        answers = await asyncio.gather(one.batch_map(rows, "{}"), both.batch_map(rows, "{}"))
    for each in answers:
        assert [(answer.text, answer.attempts) for answer in each] == [(f"<{row}>", 1) for row in rows]
    sent = [[heard for heard in server.heard if heard.method == "POST"] for server in servers]
    for heard in (sent[0], sent[1] + sent[2]):
        assert sorted(prompt for each in heard for prompt in each.prompts) == sorted(rows), "none was a probe"
    stop.set()
    await asyncio.gather(*tasks)
