"""Redis killed and started again: work under way ends and is kept, reading goes on, no message is lost."""

import asyncio

import pytest
from tests.redis.conftest import STREAM, bench_on, wait_for

pytestmark = pytest.mark.redis
LONGEST_S = 90.0


async def test_outcomes_wait_for_redis_and_reading_goes_on(redis_server, caplog):
    async with bench_on(redis_server) as bench:
        prompts = [f"p{number}" for number in range(100)]
        bench.upstream.held = set(prompts)
        bench.upstream.refused = {"p3": 400}
        await bench.add(*prompts)
        worker, task = await bench.start(consumer="w", lease_s=60.0)
        await wait_for(lambda: worker.statistics().held == 32)
        redis_server.kill()
        bench.upstream.release()
        # Past the tries of redis-py's own.
        await wait_for(lambda: "Redis is away" in caplog.text or task.done())
        # What was read is answered without Redis, and kept; nothing further is read.
        await wait_for(lambda: sum(bench.upstream.came.values()) == 32 and not bench.upstream.under_way)
        assert worker.statistics().held == 32 and worker.statistics().results == 0 and not task.done()
        redis_server.start()
        await wait_for(lambda: worker.statistics().results == 99)
        assert worker.statistics().dead == 1
        assert await bench.redis.xlen(STREAM) == 0 and await bench.pending() == []
        assert set(bench.upstream.came.values()) == {1}
        assert "Redis is back" in caplog.text


async def test_a_worker_may_be_there_before_redis(redis_server):
    async with bench_on(redis_server) as bench:
        redis_server.kill()
        worker, task = await bench.start()
        await asyncio.sleep(0.2)
        assert not task.done()
        redis_server.start()
        await bench.add("a")
        await wait_for(lambda: bench.result("a"))


async def test_a_worker_that_stops_while_redis_is_away_loses_nothing(redis_server):
    async with bench_on(redis_server) as bench:
        bench.upstream.held = {"a"}
        await bench.add("a", "b")
        worker, task = await bench.start(lease_s=1.0, grace_s=0.5)
        await wait_for(lambda: bench.upstream.under_way)
        redis_server.kill()
        worker.stop()
        await task
        redis_server.start()
        bench.upstream.release()
        await bench.start(lease_s=1.0, consumer="next")
        assert (await wait_for(lambda: bench.result("a")))["deliveries"] == 2


async def test_kills_of_redis_lose_and_double_nothing(redis_server):
    async with bench_on(redis_server) as bench:
        prompts = [f"p{number}" for number in range(3000)]
        bench.upstream.pause_s = 0.002
        for start in range(0, 3000, 500):
            async with bench.redis.pipeline(transaction=False) as pipe:
                for prompt in prompts[start : start + 500]:
                    pipe.xadd(STREAM, {"id": prompt, "body": '{"prompt": "%s", "max_tokens": 1}' % prompt})
                await pipe.execute()
        workers = [(await bench.start(consumer=f"w{n}", lease_s=2.0, results="stream:out"))[0] for n in range(2)]
        for kill in range(1, 5):
            await wait_for(lambda kill=kill: sum(each.statistics().results for each in workers) > kill * 400)
            redis_server.kill()
            redis_server.start()
        await wait_for(lambda: _is_empty(bench))
        ids = [fields[b"id"].decode() for _, fields in await bench.redis.xrange("out")]
        assert sorted(ids) == sorted(prompts)
        assert await bench.dead() == []


async def _is_empty(bench):
    try:
        return not await bench.redis.xlen(STREAM)
    except Exception:
        return False
