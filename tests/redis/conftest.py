"""A redis-server for the tests of a module; a worker, a stream and a connection for each test."""

import asyncio
import contextlib
import json
import time
from collections import Counter

import pytest

pytest.importorskip("redis", reason="needs the extra redis")

from redis.asyncio import Redis
from tests.redis.redis_server import RedisServer, program
from tests.redis.upstream import Upstream

from batchclient.integrations.redis import Worker

STREAM, GROUP = "inference_queue", "batchclient"
LONGEST_S = 30.0


@pytest.fixture(scope="session")
def shared_server():
    if program() is None:
        pytest.skip("there is no redis-server: make test-extra WHICH=redis fetches Debian's")
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server():
    """A server that the test may kill."""
    if program() is None:
        pytest.skip("there is no redis-server: make test-extra WHICH=redis fetches Debian's")
    with RedisServer() as server:
        yield server


class Bench:
    """What a test has: a connection, a server of prompts, and workers that end with it."""

    def __init__(self, server, stack):
        self.server = server
        self.redis = Redis(unix_socket_path=str(server.socket))
        self.upstream = Upstream()
        self._stack = stack

    async def start(self, *, client=None, **options):
        """A worker at work, and the task that runs it."""
        client = client or await self._stack.enter_async_context(self.upstream.client())
        redis = Redis(unix_socket_path=str(self.server.socket))
        self._stack.push_async_callback(redis.aclose)
        worker = Worker(client, redis, STREAM, **({"lease_s": 5.0, "grace_s": 5.0} | options))
        task = asyncio.create_task(worker.run())

        async def end():
            task.cancel()
            await asyncio.wait((task,))

        self._stack.push_async_callback(end)
        return worker, task

    async def add(self, *prompts, **fields):
        """Enqueue prompts as an old producer would, without our code; return the entries."""
        return [
            await self.redis.xadd(
                STREAM, {"id": prompt, "body": json.dumps({"prompt": prompt, "max_tokens": 1}), **fields}
            )
            for prompt in prompts
        ]

    async def result(self, identity):
        value = await self.redis.get(f"result:{identity}")
        return None if value is None else json.loads(value)

    async def dead(self):
        return [fields for _, fields in await self.redis.xrange(f"{STREAM}:dead")]

    async def pending(self, consumer=None):
        return await self.redis.xpending_range(STREAM, GROUP, "-", "+", 1000, consumer)

    async def consumers(self):
        return {each["name"].decode(): each["pending"] for each in await self.redis.xinfo_consumers(STREAM, GROUP)}

    async def handed_back(self):
        """The messages that any worker may take at once, and that count as not delivered, by their consumer."""
        return Counter(
            each["consumer"].decode()
            for each in await self.pending()
            if each["time_since_delivered"] >= 10_000 and not each["times_delivered"]
        )

    async def read_as(self, consumer, count=1):
        """Read messages as a worker that then does nothing more."""
        with contextlib.suppress(Exception):
            await self.redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        [[_, entries]] = await self.redis.xreadgroup(GROUP, consumer, {STREAM: ">"}, count=count)
        return [entry for entry, _ in entries]


@contextlib.asynccontextmanager
async def bench_on(server):
    async with contextlib.AsyncExitStack() as stack:
        bench = Bench(server, stack)
        stack.push_async_callback(bench.redis.aclose)
        await bench.redis.flushall()
        yield bench


async def wait_for(condition, longest_s=LONGEST_S):
    """Wait until a condition holds, asked again and again; return its value."""
    until = time.monotonic() + longest_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < until, "it did not come to pass"
        await asyncio.sleep(0.01)
