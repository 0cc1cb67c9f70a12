"""Messages in, results and dead letters out: ``enqueue``, ``move_list``, ``results``, ``dead_letters``."""

import asyncio
import json

import pytest
from redis.exceptions import RedisError
from tests.redis.conftest import STREAM, bench_on, wait_for

from batchclient.errors import ConfigError, DeadlineExceeded
from batchclient.integrations.redis import dead_letters, drop_dead, enqueue, move_list, results, retry_dead

pytestmark = pytest.mark.redis
LONGEST_S = 60.0


def call(identity, **fields):
    return {"id": identity, "prompt": identity, "max_tokens": 1, **fields}


async def test_what_is_enqueued_comes_back_as_results(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {"bad": 400}
        ids = await enqueue(bench.redis, [call("a"), {"prompt": "b", "max_tokens": 1}, call("bad", tenant="t")])
        assert (ids[0], ids[2]) == ("a", "bad")
        await bench.start()
        found = {result.id: result async for result in results(bench.redis, ids, timeout_s=30)}
        assert found.keys() == set(ids)
        assert (found["a"].status, found["a"].body["completion"], found["a"].error) == ("ok", "yes", None)
        assert found["bad"].status == "error" and found["bad"].error["type"] == "BadRequest"


async def test_results_of_a_stream(shared_server):
    async with bench_on(shared_server) as bench:
        ids = await enqueue(bench.redis, [call(f"p{number}") for number in range(700)])
        await bench.start(results="stream:out")
        seen = []
        async for result in results(bench.redis, ids, results="stream:out", timeout_s=30):
            seen.append(result)
        assert sorted(result.id for result in seen) == sorted(ids)
        assert {(result.status, result.body["completion"], result.attempts, result.deliveries) for result in seen} == {
            ("ok", "yes", 1, 1)
        }
        assert await bench.redis.get("result:p1") is None


@pytest.mark.parametrize("place", ["keys", "stream:out"])
async def test_a_message_has_its_own_outcome_and_not_that_of_an_older_one_of_its_id(shared_server, place):
    """A file is enqueued again under its ids: yesterday one row was refused, and one answered."""
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {"old-a": 400, "new-b": 400}
        old = await enqueue(bench.redis, [call("a", prompt="old-a"), call("b", prompt="old-b")])
        worker, _ = await bench.start(results=place)
        reading = {result.id: result.status async for result in results(bench.redis, old, results=place, timeout_s=30)}
        assert reading == {"a": "error", "b": "ok"}
        bench.upstream.held = {"new-a", "new-b"}
        new = await enqueue(bench.redis, [call("a", prompt="new-a"), call("b", prompt="new-b")])
        assert new == old == ["a", "b"]
        with pytest.raises(DeadlineExceeded, match="2 are missing"):
            await anext(results(bench.redis, new, results=place, timeout_s=0.1))
        bench.upstream.release()
        found = {result.id: result.status async for result in results(bench.redis, new, results=place, timeout_s=30)}
        assert found == {"a": "ok", "b": "error"}
        # A plain text knows no message, and a dead letter lies there for long: an answer goes before it.
        plain = {one.id: one.status async for one in results(bench.redis, ["a"], results=place, timeout_s=1)}
        assert plain == {"a": "ok"}


async def test_an_older_message_that_ends_later_leaves_the_newer_one_its_result(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"old"}
        await enqueue(bench.redis, [call("a", prompt="old", id='"message": "9-9"')])
        worker, _ = await bench.start()
        await wait_for(lambda: bench.upstream.under_way)
        [new] = await enqueue(bench.redis, [call("a", prompt="new", id='"message": "9-9"')])
        first = await anext(results(bench.redis, [new], timeout_s=30))
        bench.upstream.release()
        await wait_for(lambda: worker.statistics().results == 2)
        assert await anext(results(bench.redis, [new], timeout_s=1)) == first


async def test_a_key_of_another_hand_stops_no_other_result_and_stays_as_it_is(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"b"}
        ids = await enqueue(bench.redis, [call("a"), call("b")])
        await bench.redis.hset("result:b", "of", "another")
        worker, _ = await bench.start()
        await wait_for(lambda: worker.statistics().results == 1)
        reading = results(bench.redis, [*ids, "c"], timeout_s=30)
        assert (await anext(reading)).id == "a"
        waiting = asyncio.create_task(anext(reading))
        await asyncio.wait((waiting,), timeout=0.1)
        await enqueue(bench.redis, [call("c")])
        assert (await waiting).id == "c"
        with pytest.raises(ConfigError, match="the key 'result:b' holds no result, and is left as it is"):
            await anext(reading)
        bench.upstream.release()
        await wait_for(lambda: worker.statistics().dead)
        [one] = [result async for result in results(bench.redis, ids[1:2], timeout_s=30)]
        assert (one.status, one.error["type"]) == ("error", "ConfigError") and "'result:b'" in one.error["message"]
        assert await bench.redis.hgetall("result:b") == {b"of": b"another"}
        assert await bench.redis.xlen(STREAM) == 0


async def test_the_params_of_a_row_are_its_calls_however_it_came_into_the_stream(shared_server):
    """The same requests as of a map: also a priority, a parameter that is new, and a chat."""
    rows = [
        {"id": "a", "prompt": "a", "params": {"max_tokens": 7, "temperature": 0, "new": 1}},
        {"id": "b", "prompt": "b", "params": {"priority": 3, "model": "other", "max_tokens": 1}},
    ]
    async with bench_on(shared_server) as bench, bench.upstream.client() as client:
        bodies, send = {}, bench.upstream.send

        async def noted(request, timeouts):
            if request.method == "POST":
                body = json.loads(request.body)
                # Whether it streams is the client's; and of a row's priority a map tells the server, too.
                kept = {name: each for name, each in body.items() if "stream" not in name and name != "priority"}
                bodies.setdefault(body["prompt"], []).append(kept)
            return await send(request, timeouts)

        bench.upstream.send = noted
        await client.batch_map(rows, rows="prompt")
        await enqueue(bench.redis, rows)
        for row in rows:
            await bench.redis.xadd(STREAM, {"body": json.dumps(row)})
        worker, _ = await bench.start(client=client)
        await wait_for(lambda: worker.statistics().results + worker.statistics().dead == 4)
        assert worker.statistics().dead == 0
        for of_one in bodies.values():
            assert of_one[0] == of_one[1] == of_one[2]
        for refused in ({"params": {"max_tokens": "x"}}, {"max_tokens": "x"}, {"stream": True}, {"tenant": "t" * 257}):
            with pytest.raises(ConfigError, match="message 1: (max_tokens|stream|tenant) is "):
                await enqueue(bench.redis, [{"prompt": "a", **refused}])


async def test_results_that_do_not_come(shared_server):
    async with bench_on(shared_server) as bench:
        with pytest.raises(DeadlineExceeded, match="2 are missing"):
            async for _ in results(bench.redis, ["a", "b"], timeout_s=0.1):
                pass
        with pytest.raises(ConfigError, match="ids: which results"):
            async for _ in results(bench.redis):
                pass


async def test_without_results_messages_end_all_the_same(shared_server):
    async with bench_on(shared_server) as bench:
        await enqueue(bench.redis, [call("a")])
        worker, _ = await bench.start(results="none")
        await wait_for(lambda: worker.statistics().results == 1)
        assert await bench.redis.xlen(STREAM) == 0 and await bench.redis.keys("result:*") == []


async def test_a_full_stream_is_waited_for(shared_server):
    async with bench_on(shared_server) as bench:
        task = asyncio.create_task(enqueue(bench.redis, (call(f"p{n}") for n in range(100)), max_queued=30))
        await wait_for(lambda: _length(bench, 30))
        assert not task.done()
        worker, _ = await bench.start()
        seen = 0
        while not task.done():
            seen = max(seen, await bench.redis.xlen(STREAM))
        assert len(await task) == 100 and seen <= 30
        await wait_for(lambda: worker.statistics().results == 100)


async def _length(bench, count):
    return await bench.redis.xlen(STREAM) == count


async def test_a_message_that_no_worker_could_use_is_refused_with_its_number(shared_server):
    async with bench_on(shared_server) as bench:
        with pytest.raises(ConfigError, match="message 2: call is one of complete"):
            await enqueue(bench.redis, [call("a"), call("b", call="sing"), call("c")])
        assert await bench.redis.xlen(STREAM) == 1


async def test_a_message_with_the_id_of_an_earlier_one_is_refused_with_both_numbers(shared_server):
    line = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "p"}}
    async with bench_on(shared_server) as bench:
        with pytest.raises(ConfigError, match="^message 3: it has the id of message 1, and one id has one result$"):
            await enqueue(bench.redis, [call("a"), {"prompt": "b"}, line])
        assert await bench.redis.xlen(STREAM) == 2


async def test_dead_letters_are_looked_at_put_back_and_dropped(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {f"p{number}": 400 for number in range(250)}
        await enqueue(bench.redis, [call(f"p{number}", priority=3) for number in range(250)])
        worker, _ = await bench.start(consumer="w")
        await wait_for(lambda: worker.statistics().dead == 250)
        letters = [letter async for letter in dead_letters(bench.redis)]
        assert {letter.id for letter in letters} == {f"p{number}" for number in range(250)}
        first = letters[0]
        assert (first.error["type"], first.deliveries, first.worker) == ("BadRequest", 1, "w")
        assert first.fields.keys() == {"id", "body", "priority"}
        assert await drop_dead(bench.redis, [first.entry, "0-1"]) == 1
        bench.upstream.refused = {"p249": 400}
        assert await retry_dead(bench.redis) == 249
        await wait_for(lambda: worker.statistics().results == 248)
        [again] = await wait_for(bench.dead)
        assert again[b"id"] == b"p249" and again[b"priority"] == b"3"
        assert await drop_dead(bench.redis) == 1 and await bench.dead() == []


ODD = (
    {"deliveries": "\u00b2"},
    {"deliveries": "9" * 5000, "at": "nan", "message": "x-y"},
    {"error": '{"type": ' + "[" * 100_000 + "]" * 100_000 + "}"},
    {"error": '{"type": ' + "[" * 900 + "]" * 900 + "}"},
    {"error": '{"type": 1, "message": "half \\ud800", "\\ud800": "x"}'},
    {"error": b"\xff\xfe", "id": b"\xff", "worker": b"\xff", "at": b"\xff", "deliveries": b"\xff", b"\xff": b"\xff"},
    {"body": '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"},
    {"body": b'\xff\xfe{"prompt": 1}'},
    {"body": '{"id": "\\ud800", "url": 5}'},
    {f"f{number}": "x" for number in range(5000)},
)
"""Dead letters as another hand may write them. The last has more fields than a script hands on."""


async def test_an_odd_dead_letter_stops_neither_the_others_nor_their_results(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {"first": 400, "last": 400}
        ids = await enqueue(bench.redis, [call("first")])
        worker, _ = await bench.start()
        await wait_for(bench.dead)
        for fields in ODD:
            await bench.redis.xadd(f"{STREAM}:dead", {"id": "odd", "body": "{}", **fields})
        ids += await enqueue(bench.redis, [call("last"), call("good")])
        found = {result.id: result.status async for result in results(bench.redis, ids, timeout_s=30)}
        assert found == {"first": "error", "last": "error", "good": "ok"}
        letters = [letter async for letter in dead_letters(bench.redis)]
        assert len(letters) == len(ODD) + 2
        assert all(type(each.deliveries) is int and 0.0 <= each.at < 1e12 for each in letters)
        assert all(isinstance(value, str) and value.encode() for each in letters for value in each.error.values())
        bench.upstream.refused = {}
        assert await retry_dead(bench.redis) == len(ODD) + 1  # all but the one of too many fields
        await wait_for(lambda: worker.statistics().results == 3)
        await wait_for(lambda: worker.statistics().dead == 2 + len(ODD) - 1)
        assert await drop_dead(bench.redis) == len(ODD)


@pytest.mark.parametrize("source", ["old_queue", STREAM])
async def test_an_old_workers_list_becomes_a_stream(shared_server, source):
    async with bench_on(shared_server) as bench:
        for number in range(300):
            await bench.redis.rpush(source, f'{{"id": "p{number}", "prompt": "p{number}", "max_tokens": 1}}')
        assert await move_list(bench.redis, source) == 300
        assert [fields[b"body"][:12] for _, fields in await bench.redis.xrange(STREAM, count=2)] == [
            b'{"id": "p0",',
            b'{"id": "p1",',
        ]
        worker, _ = await bench.start()
        await wait_for(lambda: worker.statistics().results == 300)
        assert await bench.result("p299")
        assert await move_list(bench.redis, "old_queue") == 0


async def test_a_stream_is_no_list_and_a_list_no_stream(shared_server):
    async with bench_on(shared_server) as bench:
        await bench.redis.rpush(STREAM, "x")
        with pytest.raises(ConfigError, match="--from-list"):
            await enqueue(bench.redis, [call("a")])
        await bench.redis.set("text", "x")
        with pytest.raises(ConfigError, match="source: the key 'text' is a string"):
            await move_list(bench.redis, "text", stream="other")


async def test_ids_of_batch_lines_are_those_of_their_results(shared_server):
    async with bench_on(shared_server) as bench:
        line = {"custom_id": "line-1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}
        ids = await enqueue(bench.redis, [line, {"prompt": "b"}])
        assert ids[0] == "line-1"
        await bench.start()
        assert {result.id async for result in results(bench.redis, ids, timeout_s=30)} == set(ids)


async def test_an_error_of_redis_shows_no_message(redis_server):
    async with bench_on(redis_server) as bench:
        await bench.redis.xgroup_create(STREAM, "other", mkstream=True)
        await bench.redis.config_set("maxmemory", 1)
        with pytest.raises(RedisError) as refused:
            await enqueue(bench.redis, [{"id": "a", "prompt": "a secret"}])
        assert "maxmemory" in str(refused.value) and "secret" not in str(refused.value)


@pytest.mark.parametrize("source", [None, "old_queue", STREAM])
async def test_whoever_makes_the_stream_makes_its_group(shared_server, source):
    """An autoscaler sees the lag before the first worker."""
    async with bench_on(shared_server) as bench:
        if source is None:
            await enqueue(bench.redis, [call("a"), call("b")], group="workers")
        else:
            await bench.redis.rpush(source, '{"prompt": "a"}', '{"prompt": "b"}')
            await move_list(bench.redis, source, group="workers")
        [group] = await bench.redis.xinfo_groups(STREAM)
        assert (group["name"], group["pending"]) == (b"workers", 0)
        assert group.get("lag", 2) == 2  # Redis 7 tells
        # A stream that is there is left as it is.
        await enqueue(bench.redis, [call("c")])
        assert len(await bench.redis.xinfo_groups(STREAM)) == 1


async def test_a_producer_may_have_the_right_to_add_alone(redis_server):
    async with bench_on(redis_server) as bench:
        await bench.redis.execute_command("ACL", "SETUSER", "default", "on", "nopass", "~*", "+@all", "-xgroup")
        assert await enqueue(bench.redis, [call("a")]) == ["a"]
        assert await bench.redis.xinfo_groups(STREAM) == []


async def test_a_move_that_broke_off_goes_on_although_producers_have_begun_again(shared_server):
    async with bench_on(shared_server) as bench:
        await bench.redis.rpush(f"{STREAM}:list", *(f'{{"id": "{number}"}}' for number in range(3)))
        await bench.redis.rpush(STREAM, *(f'{{"id": "{number}"}}' for number in range(3, 600)))
        assert await move_list(bench.redis, STREAM) == 600
        ids = [json.loads(fields[b"body"])["id"] for _, fields in await bench.redis.xrange(STREAM)]
        assert ids == [str(number) for number in range(600)]
        assert await bench.redis.keys("*") == [STREAM.encode()]


async def test_results_are_read_page_by_page(shared_server):
    async with bench_on(shared_server) as bench:
        result = {
            "message": "1-1",
            "status": "ok",
            "body": "{}",
            "attempts": 1,
            "deliveries": 1,
            "worker": "w",
            "seconds": 1,
        }
        async with bench.redis.pipeline(transaction=False) as pipe:
            for number in range(3000):
                pipe.xadd("out", {"id": str(number), **result})
            await pipe.execute()
        await bench.redis.config_resetstat()
        reading = results(bench.redis, results="stream:out")
        assert (await anext(reading)).id == "0"
        assert (await bench.redis.info("commandstats"))["cmdstat_xrange"]["calls"] <= 2
        await reading.aclose()


@pytest.mark.parametrize("stored", ["yes", "[]", '{"completion": "yes"}', "\udcff"])
async def test_a_result_that_no_worker_has_stored_is_refused_by_its_id(shared_server, stored):
    async with bench_on(shared_server) as bench:
        await bench.redis.set("result:a", stored.encode(errors="surrogateescape"))
        with pytest.raises(ConfigError, match="the result of 'a' was stored by something else"):
            await anext(results(bench.redis, ["a"], timeout_s=1))
