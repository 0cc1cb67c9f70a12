"""Whoever waits is held by what will wake it: an event loop knows its tasks only weakly, and a program may keep no reference to one."""

import asyncio
import gc
import json

import pytest

from batchclient import Backoff, Batching
from tests.shell.scripted import Reply, echo, error, make_client, settle
from tests.shell.test_detection import models
from tests.shell.test_maps import AsyncSource, texts
from tests.shell.test_server_model import Server

LIBRARIES = ("asyncio",)
"""Trio's nurseries hold their tasks."""


async def batch_map(client):
    await client.batch_map(texts(20), "{}")


async def map_of_an_async_source(client):
    await client.batch_map(AsyncSource(texts(20), slow_s=1), "{}")


async def ordered_rows(client):
    async for row in client.stream_map(texts(20), "{}", ordered=True, look_ahead=3):
        assert row.error is None


async def rows_through_a_generator(client):
    async def answers():
        async for row in client.stream_map(texts(20), "{}"):
            yield row.answer

    async for answer in answers():
        assert answer.text


async def call(client):
    await client.complete("p")


async def ranking(client):
    await client.rerank("q", texts(5))


async def pieces(client):
    async for piece in client.stream("p"):
        assert piece.text


async def drain(client):
    asyncio.get_running_loop().create_task(client.complete("p"))
    await settle()
    await client.drain()


def answer(sent):
    """Of a score, too."""
    if "text_2" in sent.body:
        scores = [{"index": place, "score": 1.0} for place in range(len(sent.body["text_2"]))]
        return Reply(chunks=[json.dumps({"data": scores}).encode()])
    return echo(sent)


def start_unheld(work):
    """Start a task that nobody refers to; return where its outcome will be."""
    outcomes = []

    async def run():
        try:
            outcomes.append(await work)
        except BaseException as error:
            outcomes.append(error)
            raise

    asyncio.get_running_loop().create_task(run())
    return outcomes


WORK = [batch_map, map_of_an_async_source, ordered_rows, rows_through_a_generator, call, ranking, pieces, drain]


@pytest.mark.parametrize(
    ("work", "how"),
    [
        *((work, "plain") for work in WORK),
        *((work, "no model") for work in (batch_map, call, pieces)),
        *((work, "single flight") for work in (batch_map, call)),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_task_that_nobody_holds_ends_as_any_other(work, how):
    """Nor does anybody hold the client. The first reply is an error, so that a retry is waited for, too."""
    server = Server({"/models": models("m")}, error(500), *[answer] * 30, held=True)
    batching = Batching(max_size=2, single_flight=how == "single flight")
    model = None if how == "no model" else "m"
    client = make_client(server, limit=4, batching=batching, retry=Backoff(base_s=1), model=model)
    outcomes = start_unheld(work(client))
    del client
    await settle()
    gc.collect()
    assert outcomes == []
    server.release()
    await asyncio.sleep(0.1)
    gc.collect()
    await asyncio.sleep(60)
    assert outcomes == [None]


async def test_a_task_that_nobody_holds_waits_until_its_client_is_resumed():
    client = make_client(Server({}))
    client.pause()
    started = [start_unheld(work(client)) for work in (batch_map, call, pieces)]
    await settle()
    gc.collect()
    assert started == [[], [], []]
    client.resume()
    await settle(100)
    assert started == [[None], [None], [None]]
