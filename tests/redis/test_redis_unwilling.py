"""A Redis that is there and will not: full, busy, read-only, without a disk, or frozen."""

import asyncio
import contextlib
import gc
import time

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError
from tests.live.server_process import free_port
from tests.redis.conftest import GROUP, STREAM, bench_on, wait_for
from tests.redis.redis_server import RedisServer, cluster_options, program

from batchclient.errors import ConfigError
from batchclient.integrations.redis import Worker, dead_letters, retry_dead

pytestmark = pytest.mark.redis
LONGEST_S = 60.0


@contextlib.asynccontextmanager
async def full(redis, folder):
    await redis.config_set("maxmemory", 1)
    yield
    await redis.config_set("maxmemory", 0)


@contextlib.asynccontextmanager
async def without_a_disk(redis, folder):
    await redis.config_set("save", "3600 1")
    # A folder in the place of the snapshot's file.
    (folder / "dump.rdb").mkdir()
    with contextlib.suppress(Exception):
        await redis.bgsave()
    await wait_for(lambda: _has_no_disk(redis))
    yield
    await redis.config_set("save", "")


async def _has_no_disk(redis):
    return (await redis.info("persistence"))["rdb_last_bgsave_status"] == "err"


@contextlib.asynccontextmanager
async def read_only(redis, folder):
    await redis.replicaof("127.0.0.1", "1")
    yield
    await redis.replicaof("NO", "ONE")


@contextlib.asynccontextmanager
async def busy(redis, folder):
    await redis.config_set("lua-time-limit", 1)
    path = redis.connection_pool.connection_kwargs["path"]
    async with Redis(unix_socket_path=path) as other:
        running = asyncio.create_task(other.eval("while true do end", 0))
        await asyncio.sleep(0.05)
        yield
        await redis.script_kill()
        await asyncio.wait((running,))
        running.exception()


@pytest.mark.parametrize("unwilling", [full, without_a_disk, read_only, busy])
async def test_a_worker_outlasts_a_redis_that_will_not(redis_server, unwilling, caplog):
    async with bench_on(redis_server) as bench:
        prompts = [f"p{number}" for number in range(20)]
        bench.upstream.held = set(prompts)
        bench.upstream.refused = {"p3": 400}
        await bench.add(*prompts)
        worker, task = await bench.start(look_ahead=8, lease_s=60.0, results="stream:out")
        await wait_for(lambda: bench.upstream.under_way == 8)
        async with unwilling(bench.redis, redis_server.folder):
            bench.upstream.release()
            # A full Redis stores outcomes all the same: their messages go.
            await wait_for(lambda: "Redis is away" in caplog.text or worker.statistics().results or task.done())
            assert not task.done()
        await wait_for(lambda: worker.statistics().results + worker.statistics().dead == 20)
        ids = [fields[b"id"].decode() for _, fields in await bench.redis.xrange("out")]
        assert sorted(ids) == sorted({*prompts} - {"p3"}) and len(await bench.dead()) == 1
        assert await bench.redis.xlen(STREAM) == 0 and await bench.pending() == []
        assert set(bench.upstream.came.values()) == {1}


async def test_after_a_failover_a_worker_finds_the_master_under_the_same_name(tmp_path):
    """The old master goes on as a replica, and closes no connection."""
    if program() is None:
        pytest.skip("there is no redis-server: make test-extra WHICH=redis fetches Debian's")
    ports = free_port(), free_port()
    at_once = ("--repl-diskless-sync-delay", "0")
    with (
        RedisServer("--port", str(ports[0]), *at_once) as old,
        RedisServer("--port", str(ports[1]), *at_once) as new,
    ):
        link = old.folder / "link"
        link.symlink_to(old.socket)
        async with bench_on(old) as bench, bench.upstream.client() as client:
            async with Redis(unix_socket_path=str(link)) as redis, Redis(unix_socket_path=str(new.socket)) as after:
                worker = Worker(client, redis, STREAM, lease_s=5.0)
                task = asyncio.create_task(worker.run())
                await bench.add("a")
                await wait_for(lambda: bench.result("a"))
                await after.replicaof("127.0.0.1", str(ports[0]))
                await wait_for(lambda: _is_synced(after))
                link.unlink()
                link.symlink_to(new.socket)
                await after.replicaof("NO", "ONE")
                await bench.redis.replicaof("127.0.0.1", str(ports[1]))
                await after.xadd(STREAM, {"id": "b", "body": '{"prompt": "b", "max_tokens": 1}'})
                await wait_for(lambda: after.get("result:b"))
                worker.stop()
                await task
                assert await after.xinfo_consumers(STREAM, GROUP) == []


async def _is_synced(redis):
    return (await redis.info("replication")).get("master_link_status") == "up"


@pytest.mark.parametrize("begins", [True, False])
async def test_a_worker_ends_although_redis_does_not_answer(redis_server, begins):
    async with bench_on(redis_server) as bench:
        if begins:
            redis_server.freeze()
        worker, task = await bench.start(grace_s=0.5)
        if not begins:
            bench.upstream.held = {"a"}
            await bench.add("a")
            await wait_for(lambda: bench.upstream.under_way)
            redis_server.freeze()
        began = time.monotonic()
        worker.stop()
        await asyncio.wait((task,), timeout=30)
        redis_server.thaw()
        assert task.done() and time.monotonic() - began < 12


async def test_a_redis_that_stops_for_a_while_costs_no_message(redis_server):
    async with bench_on(redis_server) as bench:
        bench.upstream.held = {"a"}
        await bench.add("a")
        redis = Redis(unix_socket_path=str(redis_server.socket), socket_timeout=0.3)
        async with redis, bench.upstream.client() as client:
            worker = Worker(client, redis, STREAM, lease_s=60.0)
            task = asyncio.create_task(worker.run())
            await wait_for(lambda: bench.upstream.under_way)
            redis_server.freeze()
            bench.upstream.release()
            await asyncio.sleep(0.5)
            redis_server.thaw()
            await bench.add("b")
            await wait_for(lambda: worker.statistics().results + worker.statistics().lost == 2)
            assert await bench.result("a") and await bench.result("b") and not task.done()
            worker.stop()
            await task


async def test_a_short_time_limit_of_the_connection_shortens_the_readings(shared_server, caplog):
    async with bench_on(shared_server) as bench:
        redis = Redis(unix_socket_path=str(shared_server.socket), socket_timeout=0.45)
        async with redis, bench.upstream.client() as client:
            worker = Worker(client, redis, STREAM)
            task = asyncio.create_task(worker.run())
            await asyncio.sleep(1.0)
            await bench.add("a")
            assert (await wait_for(lambda: bench.result("a")))["deliveries"] == 1
            worker.stop()
            await task
            assert caplog.text == ""


async def test_a_cluster_wants_a_hash_tag():
    if program() is None:
        pytest.skip("there is no redis-server: make test-extra WHICH=redis fetches Debian's")
    with RedisServer(*cluster_options()) as server:
        async with bench_on(server) as bench, bench.upstream.client() as client:
            with pytest.raises(ConfigError, match=r"stream: a Redis Cluster .* as in '\{queue\}'"):
                await Worker(client, bench.redis, "queue").run()
            with pytest.raises(ConfigError, match=r"dead: a Redis Cluster .* as in '\{queue\}'"):
                await Worker(client, bench.redis, "{queue}", dead="letters").run()


@contextlib.asynccontextmanager
async def user_with(redis, *rights):
    """A connection of a user with these rights."""
    await redis.execute_command("ACL", "SETUSER", "w", "reset", "on", "nopass", "~*", *rights)
    path = redis.connection_pool.connection_kwargs["path"]
    async with Redis(unix_socket_path=path, username="w", password="any") as limited:
        yield limited
    await redis.execute_command("ACL", "DELUSER", "w")


async def test_a_worker_needs_no_dangerous_command(shared_server, caplog):
    async with bench_on(shared_server) as bench, bench.upstream.client() as client:
        bench.upstream.refused = {"bad": 400}
        await bench.add("a", "bad")
        await bench.read_as("dead-worker")
        async with user_with(bench.redis, "+@all", "-@dangerous") as limited:
            worker = Worker(client, limited, STREAM, lease_s=0.3)
            task = asyncio.create_task(worker.run())
            await wait_for(lambda: (worker.statistics().results, worker.statistics().dead) == (1, 1) or task.done())
            worker.stop()
            await task
            assert [each.id async for each in dead_letters(limited)] == ["bad"] and await retry_dead(limited) == 1
        assert caplog.text == "" and (await bench.consumers()).keys() == {"dead-worker"}


@pytest.mark.parametrize("rights", ["-evalsha", "-xautoclaim -xpending -xreadgroup -evalsha -xinfo"])
async def test_a_refusal_in_several_tasks_is_one_error(shared_server, rights):
    unheard = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context["message"]))
    async with bench_on(shared_server) as bench, bench.upstream.client() as client:
        bench.upstream.pause_s = 0.001
        await bench.add(*(f"p{number}" for number in range(1000)))
        async with user_with(bench.redis, "+@all") as limited:
            worker = Worker(client, limited, STREAM, lease_s=0.3)
            task = asyncio.create_task(worker.run())
            await wait_for(lambda: worker.statistics().results)
            await bench.redis.execute_command("ACL", "SETUSER", "w", *rights.split())
            with pytest.raises(NoPermissionError):
                await asyncio.wait_for(task, 30)
            del worker, task
            gc.collect()
    assert unheard == []
