"""A worker on a real redis-server: the rules of ``docs/guide/redis-kubernetes.md``, each a test."""

import asyncio
import time

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone
from tests.fakes.pages import serving
from tests.redis.conftest import GROUP, STREAM, bench_on, wait_for

from batchclient import BatchClient
from batchclient.errors import AuthenticationFailed, ConfigError
from batchclient.integrations.prometheus import Collector
from batchclient.integrations.redis import Worker

pytestmark = pytest.mark.redis
LONGEST_S = 60.0


async def test_a_message_has_one_result_and_leaves_the_stream(shared_server):
    async with bench_on(shared_server) as bench:
        [entry] = await bench.add("a")
        worker, _ = await bench.start(consumer="w")
        result = await wait_for(lambda: bench.result("a"))
        seconds = result.pop("seconds")
        assert result == {
            "id": "a",
            "message": entry.decode(),
            "status": "ok",
            "body": {
                "completion": "yes",
                "finish_reason": "stop",
                "usage": {"prompt_tokens": 1, "completion_tokens": 1},
                "health": "ok",
            },
            "attempts": 1,
            "deliveries": 1,
            "worker": "w",
        }
        assert 0 <= seconds < 30
        assert 86_000 < await bench.redis.ttl("result:a") <= 86_400
        assert await bench.redis.xlen(STREAM) == 0
        assert await bench.pending() == []
        await wait_for(lambda: worker.statistics().held == 0)
        assert (worker.statistics().results, worker.statistics().dead) == (1, 0)


async def test_no_message_is_gone_before_its_outcome_is_there(shared_server):
    """At every moment each message is in the stream, or a result, or a dead letter: never two of them, never none."""
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {f"p{number}": 400 for number in range(0, 400, 20)}
        await bench.add(*(f"p{number}" for number in range(400)))
        for _ in range(2):
            await bench.start(results="stream:out", consumer=f"w{_}")
        done = 0
        while done < 400:
            async with bench.redis.pipeline(transaction=True) as pipe:
                pipe.xlen(STREAM).xlen("out").xlen(f"{STREAM}:dead")
                left, results, dead = await pipe.execute()
            done = results + dead
            assert left + done == 400
        assert (results, dead) == (380, 20)


async def test_a_result_that_cannot_be_stored_keeps_its_message(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a"}
        await bench.add("a")
        _, task = await bench.start(results="stream:out")
        await wait_for(lambda: bench.upstream.under_way)
        await bench.redis.set("out", "in the way")
        bench.upstream.release()
        with pytest.raises(ConfigError, match="results: the key 'out' is a string, not a stream"):
            await task
        assert await bench.redis.xlen(STREAM) == 1
        assert (await bench.handed_back()).total() == 1


async def test_what_takes_ten_leases_is_delivered_once(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a"}
        await bench.add("a")
        first, _ = await bench.start(consumer="w1", lease_s=0.4)
        second, _ = await bench.start(consumer="w2", lease_s=0.4)
        await wait_for(lambda: bench.upstream.under_way)
        await wait_for(lambda: first.statistics().renewals + second.statistics().renewals >= 30)
        bench.upstream.release()
        result = await wait_for(lambda: bench.result("a"))
        assert result["deliveries"] == 1 and bench.upstream.came["a"] == 1


async def test_another_takes_a_message_only_after_its_lease(shared_server):
    async with bench_on(shared_server) as bench:
        await bench.add("a")
        began = time.monotonic()
        await bench.read_as("dead-worker")
        await bench.start(lease_s=1.0)
        await wait_for(lambda: bench.upstream.came["a"])
        assert time.monotonic() - began >= 1.0
        assert (await wait_for(lambda: bench.result("a")))["deliveries"] == 2


async def test_of_two_results_the_second_is_not_stored(shared_server):
    """A worker that lost its lease, and does not know that yet, is the slower of two."""
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a"}
        [entry] = await bench.add("a")
        worker, _ = await bench.start(consumer="slow", lease_s=60.0, results="stream:out")
        await wait_for(lambda: bench.upstream.under_way)
        await bench.redis.xclaim(STREAM, GROUP, "quick", 0, [entry])
        await bench.redis.xadd("out", {"id": "a", "worker": "quick"})
        await bench.redis.xack(STREAM, GROUP, entry)
        await bench.redis.xdel(STREAM, entry)
        bench.upstream.release()
        await wait_for(lambda: worker.statistics().lost)
        assert [fields[b"worker"] for _, fields in await bench.redis.xrange("out")] == [b"quick"]


async def test_a_lost_lease_ends_the_call(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a"}
        [entry] = await bench.add("a")
        worker, _ = await bench.start(lease_s=0.6)
        await wait_for(lambda: bench.upstream.under_way)
        await bench.redis.xclaim(STREAM, GROUP, "other", 0, [entry])
        await wait_for(lambda: worker.statistics().lost and not bench.upstream.under_way)
        # The other keeps the message: a renewal takes nothing back.
        assert [each["consumer"] for each in await bench.pending()] == [b"other"]


async def test_deliveries_and_attempts_are_told(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {"a": [503, 503]}
        await bench.add("a")
        await bench.read_as("dead-worker")
        await bench.start(lease_s=0.3)
        result = await wait_for(lambda: bench.result("a"))
        assert (result["deliveries"], result["attempts"]) == (2, 3)


async def test_what_was_delivered_too_often_is_a_dead_letter_without_a_call(shared_server):
    async with bench_on(shared_server) as bench:
        [entry] = await bench.add("a", traceparent="00-1-2-01")
        await bench.read_as("dead-worker")
        await bench.redis.xclaim(STREAM, GROUP, "dead-worker", 0, [entry], retrycount=5)
        await bench.start(consumer="w", lease_s=0.3)
        [letter] = await wait_for(bench.dead)
        at = float(letter.pop(b"at"))
        assert abs(at - time.time()) < 30
        assert letter == {
            b"id": b"a",
            b"body": b'{"prompt": "a", "max_tokens": 1}',
            b"traceparent": b"00-1-2-01",
            b"message": entry,
            b"error": b'{"type": "TooManyDeliveries", "message": "delivered 6 times without an outcome"}',
            b"deliveries": b"6",
            b"worker": b"w",
        }
        assert not bench.upstream.came and await bench.redis.xlen(STREAM) == 0


async def test_a_refused_call_is_a_dead_letter_at_once_and_harms_no_other(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {"bad": 400}
        await bench.add("good", "bad", "better")
        await bench.start()
        [letter] = await wait_for(bench.dead)
        assert letter[b"id"] == b"bad" and b'"BadRequest"' in letter[b"error"]
        assert bench.upstream.came["bad"] == 1
        await wait_for(lambda: bench.result("good"))
        await wait_for(lambda: bench.result("better"))


async def test_an_error_that_may_pass_leaves_the_message_to_its_lease(shared_server):
    """Without a pause between the tries, and at most as often as it may be delivered."""
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {"a": 500}
        await bench.add("a", "b")
        worker, _ = await bench.start(lease_s=0.5, max_deliveries=2)
        await wait_for(lambda: worker.statistics().left == 1)
        tried = bench.upstream.came["a"]
        assert [each["times_delivered"] for each in await bench.pending()] == [1]
        [letter] = await wait_for(bench.dead)
        assert letter[b"deliveries"] == b"3" and bench.upstream.came["a"] == 2 * tried


async def test_a_restart_gives_no_further_delivery(shared_server):
    """What was left to its lease is not handed back: workers that are restarted do not try it for ever."""
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {"a": 500}
        [entry] = await bench.add("a")
        tries = []
        for _ in range(2):
            worker, task = await bench.start(lease_s=0.3, max_deliveries=1)
            await wait_for(lambda worker=worker: worker.statistics().left or worker.statistics().dead)
            worker.stop()
            await task
            assert worker.statistics().released == 0
            tries.append(bench.upstream.came["a"])
        [letter] = await bench.dead()
        assert (letter[b"message"], letter[b"deliveries"]) == (entry, b"2") and tries[0] == tries[1]


class Deaf(Redis):
    """Loses the reply to each script that ended messages: redis-py asks again by itself, or the worker must."""

    lost = 0

    async def execute_command(self, *args, **options):
        if args[0] != "EVALSHA":
            return await super().execute_command(*args, **options)
        before = await super().execute_command("XLEN", STREAM)
        reply = await super().execute_command(*args, **options)
        if await super().execute_command("XLEN", STREAM) == before:
            return reply
        self.lost += 1
        if self.lost % 2:
            raise RedisGone("the reply is lost")
        return await super().execute_command(*args, **options)


@pytest.mark.parametrize("place", ["keys", "stream:out", "none"])
async def test_an_outcome_whose_reply_was_lost_is_this_worker_s(shared_server, place):
    async with bench_on(shared_server) as bench, bench.upstream.client() as client:
        bench.upstream.refused = {"bad": 400, "worse": 400}
        async with Deaf(unix_socket_path=str(shared_server.socket)) as redis:
            worker = Worker(client, redis, STREAM, results=place)
            task = asyncio.create_task(worker.run())
            for number, prompt in enumerate(("good", "bad", "worse", "better"), 1):
                await bench.add(prompt)
                await wait_for(lambda number=number: redis.lost == number and not worker.statistics().held)
            done = worker.statistics()
            assert (done.results, done.dead, done.lost) == (2, 2, 0)
            worker.stop()
            await task


async def test_a_worker_runs_once(shared_server):
    async with bench_on(shared_server) as bench:
        worker, task = await bench.start()
        await wait_for(lambda: bench.redis.exists(STREAM))
        worker.stop()
        await task
        await bench.add("a")
        with pytest.raises(RuntimeError, match="the worker was stopped: make another one"):
            await worker.run()
        assert not bench.upstream.came


async def test_the_pages_of_a_client_have_the_sum_of_its_workers_also_of_those_that_ended(shared_server):
    async with bench_on(shared_server) as bench, bench.upstream.client() as client:

        def told():
            samples = [sample for family in Collector(client).collect() for sample in family.samples]
            told = {sample.name + sample.labels.get("outcome", ""): sample.value for sample in samples}
            names = ("messages_totalresults", "pending", "lag")
            return tuple(told.get(f"batchclient_worker_{name}") for name in names)

        bench.upstream.held = {"b", "c"}
        await bench.add("a", "b")
        first, task = await bench.start(client=client)
        await wait_for(lambda: first.statistics().pending)
        async with Redis(unix_socket_path=str(shared_server.socket)) as redis:
            await redis.xadd("other", {"id": "c", "body": '{"prompt": "c", "max_tokens": 1}'})
            second = Worker(client, redis, "other", results="none")
            other = asyncio.create_task(second.run())
            await wait_for(lambda: second.statistics().pending and first.statistics().results)
            assert told() == (1, first.statistics().pending + 1, 0)
            bench.upstream.release()
            await wait_for(lambda: first.statistics().results + second.statistics().results == 3)
            first.stop()
            await task
            assert told() == (3, second.statistics().pending, 0)
            second.stop()
            await other
            assert told() == (3, 0, None)


async def test_in_an_outage_nothing_is_read_and_nothing_dies(shared_server):
    async with bench_on(shared_server) as bench, bench.upstream.client() as client:
        await bench.add("first")
        worker, _ = await bench.start(client=client, lease_s=0.6, max_deliveries=1)
        await wait_for(lambda: bench.result("first"))
        bench.upstream.is_away = True
        await bench.add("probe")
        await wait_for(lambda: client.statistics().endpoints[0].state in ("ejected", "probing"))
        # The reading that began before the outage has ended.
        await wait_for(lambda: _nobody_reads(bench))
        await bench.add(*(f"p{number}" for number in range(100)))
        before = worker.statistics().renewals
        # The one message that finds out whether the server is back; its lease is kept meanwhile.
        await wait_for(lambda: worker.statistics().renewals >= before + 8)
        assert worker.statistics().held == 1 and worker.statistics().left == 0
        bench.upstream.is_away = False
        await wait_for(lambda: worker.statistics().results == 102)
        assert worker.statistics().dead == 0


async def test_messages_wait_for_a_model_that_was_answered_and_none_dies(shared_server):
    def answer(asked):
        if asked.method == "GET":
            return 404, {}
        server.posts += 1
        if 5 < server.posts <= 10:
            return 404, {"error": {"message": "no such model"}}
        return 200, {"id": "1", "choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]}

    with serving(answer) as server:
        server.posts = 0
        async with bench_on(shared_server) as bench, BatchClient(server.url, model="m", limit=1) as client:
            worker, _ = await bench.start(client=client)
            await bench.add(*(f"p{number}" for number in range(20)))
            await wait_for(lambda: worker.statistics().results == 20)
            done = worker.statistics()
            assert (done.dead, done.left, done.released, server.posts) == (0, 0, 5, 25)


async def _nobody_reads(bench):
    return not (await bench.redis.info("clients"))["blocked_clients"]


async def test_a_worker_holds_no_more_than_its_look_ahead(shared_server):
    async with bench_on(shared_server) as bench:
        await bench.add(*(f"p{number}" for number in range(1000)))
        bench.upstream.pause_s = 0.001
        worker, _ = await bench.start(look_ahead=40)
        await wait_for(lambda: worker.statistics().results)
        while (done := worker.statistics()).results < 1000:
            assert done.held <= 40 and len(await bench.pending()) <= 40
            await asyncio.sleep(0.002)
        assert bench.upstream.most <= 16


@pytest.mark.parametrize(("kinds", "queued"), [(1, 0), (2, 16)])
async def test_the_default_look_ahead_is_twice_the_limit(shared_server, kinds, queued):
    """As many calls are begun as may be in flight; where they cannot all share requests, all."""
    async with bench_on(shared_server) as bench, bench.upstream.client() as client:
        prompts = [f"p{number}" for number in range(100)]
        bench.upstream.held = set(prompts)
        for number, prompt in enumerate(prompts):
            await bench.redis.xadd(STREAM, {"body": f'{{"prompt": "{prompt}", "max_tokens": {1 + number % kinds}}}'})
        worker, _ = await bench.start(client=client)
        await wait_for(lambda: worker.statistics().held == 32 and client.statistics().in_flight == 16)
        await wait_for(lambda: client.statistics().queued == queued)
        assert bench.upstream.most == 16


async def test_a_time_limit_begins_with_the_sending(shared_server):
    """As in a map: what waits in the worker for its turn loses no time."""
    async with bench_on(shared_server) as bench, bench.upstream.client(limit=4, timeout_s=0.6) as client:
        bench.upstream.pause_s = 0.2
        await bench.add(*(f"p{number}" for number in range(24)))
        worker, _ = await bench.start(client=client, look_ahead=24)
        await wait_for(lambda: worker.statistics().results == 24)
        done = worker.statistics()
        assert (done.left, done.released, done.dead, bench.upstream.most) == (0, 0, 0, 4)


async def test_of_what_waits_the_highest_priority_goes_first_and_tenants_take_turns(shared_server):
    async with bench_on(shared_server) as bench, bench.upstream.client(limit=1) as client:
        bench.upstream.held = {"first"}
        await bench.add("first")
        worker, _ = await bench.start(client=client, look_ahead=20)
        await wait_for(lambda: bench.upstream.under_way)
        await bench.add("a1", "a2", "a3", tenant="a")
        await bench.add("b1", tenant="b")
        await bench.add("urgent", priority=1)
        await wait_for(lambda: worker.statistics().held == 6)
        bench.upstream.release()
        await wait_for(lambda: worker.statistics().results == 6)
        assert list(bench.upstream.came) == ["first", "urgent", "a1", "b1", "a2", "a3"]


async def test_a_stopped_worker_ends_its_calls_and_hands_the_rest_back(shared_server):
    async with bench_on(shared_server) as bench:
        prompts = [f"p{number}" for number in range(40)]
        bench.upstream.held = set(prompts)
        await bench.add(*prompts)
        worker, task = await bench.start(lease_s=60.0, consumer="w1")
        await wait_for(lambda: bench.upstream.under_way == 16 and worker.statistics().held == 32)
        worker.stop()
        # The queued ones go back at once; those under way may end.
        await wait_for(lambda: worker.statistics().released == 16)
        under_way = set(bench.upstream.came)
        bench.upstream.release()
        await task
        assert {one for one in prompts if await bench.result(one)} == under_way
        assert await bench.handed_back() == {"w1": 16}
        began = time.monotonic()
        await bench.start(lease_s=60.0, consumer="w2")
        results = [await wait_for(lambda one=one: bench.result(one)) for one in prompts]
        assert time.monotonic() - began < 20
        # A message that was handed back was not delivered in vain.
        assert {each["deliveries"] for each in results} == {1}
        assert set(bench.upstream.came.values()) == {1}


async def test_what_does_not_end_in_the_grace_is_handed_back(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a"}
        await bench.add("a")
        worker, task = await bench.start(grace_s=0.2)
        await wait_for(lambda: bench.upstream.under_way)
        worker.stop()
        await task
        assert worker.statistics().released == 1 and not bench.upstream.under_way
        assert (await bench.handed_back()).total() == 1


async def test_a_cancelled_worker_hands_everything_back(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a"}
        await bench.add("a")
        _, task = await bench.start(grace_s=60.0)
        await wait_for(lambda: bench.upstream.under_way)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bench.handed_back()).total() == 1


async def test_a_key_that_is_refused_from_the_first_stops_the_worker(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = dict.fromkeys("abc", 401)
        await bench.add("a", "b", "c")
        _, task = await bench.start()
        with pytest.raises(AuthenticationFailed):
            await task
        assert await bench.redis.xlen(STREAM) == 3 and await bench.dead() == []
        # What was tried is handed back, too.
        assert (await bench.handed_back()).total() == len(await bench.pending()) > 0


async def test_a_key_that_is_withdrawn_costs_no_message(shared_server):
    async with bench_on(shared_server) as bench:
        prompts = [f"p{number}" for number in range(200)]
        bench.upstream.refused = dict.fromkeys(prompts, 401)
        await bench.add("good")
        worker, task = await bench.start()
        await wait_for(lambda: bench.result("good"))
        await bench.add(*prompts)
        # One message at a time is tried, until twenty in a row were refused.
        await wait_for(lambda: worker.statistics().released > 8 and not worker.statistics().held)
        assert not task.done() and await bench.dead() == [] and await bench.redis.xlen(STREAM) == 200
        bench.upstream.refused = {}
        await wait_for(lambda: worker.statistics().results == 201)
        assert (await bench.result("p199"))["deliveries"] == 1


async def test_consumers_of_dead_workers_are_deleted_and_no_message_with_them(shared_server):
    async with bench_on(shared_server) as bench:
        await bench.add("a")
        await bench.read_as("crashed")
        await bench.start(lease_s=0.3, consumer="w")
        await wait_for(lambda: bench.result("a"))
        await wait_for(lambda: _has_left(bench, "crashed"))


async def _has_left(bench, consumer):
    return consumer not in await bench.consumers()


async def test_a_group_that_is_gone_is_made_again(shared_server):
    async with bench_on(shared_server) as bench:
        await bench.add("a")
        await bench.start()
        await wait_for(lambda: bench.result("a"))
        await bench.redis.flushall()
        await bench.add("b")
        await wait_for(lambda: bench.result("b"))


async def test_a_group_that_is_destroyed_under_a_call_costs_no_message(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a", "b"}
        await bench.add("a", "b")
        worker, _ = await bench.start(lease_s=0.6)
        await wait_for(lambda: bench.upstream.under_way == 2)
        await bench.redis.xgroup_destroy(STREAM, GROUP)
        await wait_for(lambda: bench.redis.xinfo_groups(STREAM))
        bench.upstream.release()
        await wait_for(lambda: bench.result("a"))
        await wait_for(lambda: bench.result("b"))
        await wait_for(lambda: _has_nothing(bench))
        assert await bench.dead() == []


async def _has_nothing(bench):
    return not await bench.redis.xlen(STREAM) and not await bench.pending()


async def test_a_stream_that_is_deleted_under_a_call_ends_no_worker(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a"}
        await bench.add("a")
        await bench.start(lease_s=0.6)
        await wait_for(lambda: bench.upstream.under_way)
        await bench.redis.delete(STREAM)
        bench.upstream.release()
        await bench.add("b")
        await wait_for(lambda: bench.result("b"))
        assert await bench.result("a") is None


async def test_the_servers_are_asked_for_their_model_until_one_answers(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.is_away = True
        client = bench.upstream.client(model=None)
        async with client:
            await bench.add("a")
            _, task = await bench.start(client=client)
            # Some tries; the worker bears them all.
            await wait_for(lambda: bench.upstream.tries > 6)
            assert not task.done()
            bench.upstream.is_away = False
            assert (await wait_for(lambda: bench.result("a")))["status"] == "ok"
