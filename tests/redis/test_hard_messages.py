"""Messages and servers that would end a worker, or cost other messages their deliveries."""

import asyncio
import json

import pytest
from tests.redis.conftest import STREAM, bench_on, wait_for

from batchclient.retry import Backoff

pytestmark = pytest.mark.redis
LONGEST_S = 60.0

BODIES = {
    "an id that no key can have": '{"id": "\\ud800", "prompt": "a"}',
    "half a surrogate pair": '{"prompt": "\\ud800"}',
    "a null byte": '{"prompt": "\\u0000"}',
    "no text": '{"prompt": null}',
    "a number": '{"prompt": 5}',
    "an object": '{"prompt": {}}',
    "no token": '{"prompt": []}',
    "a list of lists": '{"prompt": [[1], [2]]}',
    "nothing": '{"prompt": ""}',
    "chats of numbers": '{"messages": [1, 2]}',
    "a chat of text": '{"messages": "hello"}',
    "a chat of nothing": '{"messages": []}',
    "parts of no kind": '{"messages": [{"role": "user", "content": [{}, 1, null]}]}',
    "a number that is none": '{"prompt": "a", "temperature": NaN}',
    "an endless number": '{"prompt": "a", "max_tokens": 1e999}',
    "a long number": '{"prompt": "a", "seed": %s}' % ("9" * 4000),
    "a number too long to be read": '{"prompt": "a", "seed": %s}' % ("9" * 5000),
    "a model that is no name": '{"prompt": "a", "model": 5}',
    "a parameter of the client": '{"prompt": "a", "timeout_s": 5, "kind": "x", "item": 1, "waiter": 2}',
    "a stream": '{"prompt": "a", "stream": true}',
    "a stream that is none": '{"prompt": "a", "stream": "yes", "stream_options": 5}',
    "a schema that is none": '{"prompt": "a", "response_format": 5}',
    "a bias that is none": '{"prompt": "a", "logit_bias": [1]}',
    "extra fields": '{"prompt": "a", "extra_body": [1]}',
    "extra headers": '{"prompt": "a", "extra_headers": {"a": 1}}',
    "stops of many kinds": '{"prompt": "a", "stop": [1, null, {}]}',
    "many choices": '{"prompt": "a", "n": "2", "best_of": 5}',
    "a deep body": '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "no words": "null",
    "a line of nothing": '{"url": "/v1/completions", "body": {}}',
}


async def test_no_message_ends_a_worker(shared_server):
    async with bench_on(shared_server) as bench:
        for name, body in BODIES.items():
            await bench.redis.xadd(STREAM, {"body": body, "tenant": name})
        for call in ("embed", "classify"):
            for value in ("null", "5", "{}", "[]", '[{"a": 1}]', '"\\ud800"'):
                await bench.redis.xadd(STREAM, {"call": call, "body": f'{{"input": {value}}}'})
        await bench.redis.xadd(STREAM, {"body": '{"prompt": "a"}', "tenant": "t" * 5000, "deadline": "1e300"})
        await bench.redis.xadd(STREAM, {"body": '{"prompt": "a"}', "id": b"\xff", "traceparent": b"\xff"})
        await bench.add("good")
        count = await bench.redis.xlen(STREAM)
        worker, task = await bench.start(lease_s=60.0)
        await wait_for(lambda: worker.statistics().results + worker.statistics().dead == count or task.done())
        assert not task.done() and await bench.result("good")
        letters = [json.loads(fields[b"error"]) for fields in await bench.dead()]
        assert {letter["type"] for letter in letters} <= {"BadMessage", "ConfigError", "BadRequest", "DialectError"}


async def test_a_message_is_no_way_to_the_client_s_own_arguments(shared_server):
    async with bench_on(shared_server) as bench:
        names = ("timeout_s", "response_model", "repair", "journal", "resume", "progress", "look_ahead", "self")
        for name in names:
            await bench.redis.xadd(STREAM, {"id": name, "body": json.dumps({"prompt": "a", name: 1})})
        worker, _ = await bench.start()
        await wait_for(lambda: worker.statistics().results + worker.statistics().dead == len(names))
        letters = {fields[b"id"].decode(): json.loads(fields[b"error"]) for fields in await bench.dead()}
        assert letters.keys() == {*names} and {each["type"] for each in letters.values()} == {"ConfigError"}


async def test_a_message_of_too_many_fields_is_a_dead_letter(shared_server):
    """Lua hands on 8,000 values at most, and the message is acknowledged by then."""
    async with bench_on(shared_server) as bench:
        await bench.redis.xadd(STREAM, {"id": "many", **{f"f{number}": "x" for number in range(5000)}})
        worker, _ = await bench.start(lease_s=60.0)
        await bench.add("good")
        await wait_for(lambda: bench.result("good"))
        [letter] = await wait_for(bench.dead)
        assert letter[b"id"] == b"many" and b"no field 'body'" in letter[b"error"] and len(letter) == 2005


async def test_a_reading_of_large_messages_is_small(shared_server):
    async with bench_on(shared_server) as bench:
        prompt = "x" * (3 << 20)
        bench.upstream.held = {prompt}
        for _ in range(30):
            await bench.redis.xadd(STREAM, {"body": '{"prompt": "%s"}' % prompt})
        worker, _ = await bench.start(look_ahead=1000, grace_s=0.0)
        await wait_for(lambda: worker.statistics().held >= 22)
        await wait_for(lambda: _nobody_reads(bench))
        # 64 MiB, and a reading of 16 MiB.
        assert worker.statistics().held <= (64 + 16) // 3 + 1


async def _nobody_reads(bench):
    before = (await bench.redis.info("commandstats"))["cmdstat_xreadgroup"]["calls"]
    await asyncio.sleep(0.3)
    return (await bench.redis.info("commandstats"))["cmdstat_xreadgroup"]["calls"] == before


async def test_servers_that_have_never_answered_cost_no_delivery(shared_server):
    """A worker that begins before its servers, with a model's name of its own."""
    async with bench_on(shared_server) as bench:
        bench.upstream.is_away = True
        await bench.add("a", "b", "c")
        worker, _ = await bench.start(lease_s=0.5, max_deliveries=1)
        await wait_for(lambda: worker.statistics().released >= 6)
        bench.upstream.is_away = False
        await wait_for(lambda: worker.statistics().results == 3)
        assert worker.statistics().dead == 0
        assert (await bench.result("c"))["deliveries"] == 1


async def test_where_servers_refuse_all_work_one_message_at_a_time_is_tried(shared_server, caplog):
    async with bench_on(shared_server) as bench:
        prompts = [f"p{number}" for number in range(60)]
        bench.upstream.refused = dict.fromkeys(prompts, 503)
        await bench.add(*prompts)
        worker, _ = await bench.start(lease_s=0.5, max_deliveries=2)
        await wait_for(lambda: "one message at a time is tried" in caplog.text)
        await wait_for(lambda: not worker.statistics().held)
        before = worker.statistics()
        tries = bench.upstream.came.total()
        await wait_for(lambda: worker.statistics().released >= before.released + 2)
        # A message has five tries by the client.
        assert bench.upstream.came.total() - tries <= 2 * 5
        bench.upstream.refused = {}
        await wait_for(lambda: worker.statistics().results == 60)
        assert (worker.statistics().dead, worker.statistics().left) == (0, 0)
        assert (await bench.result("p59"))["deliveries"] == 1


async def test_a_message_that_is_refused_while_others_are_answered_is_a_dead_letter_in_the_end(shared_server):
    once = Backoff(max_attempts=1)
    async with bench_on(shared_server) as bench, bench.upstream.client(retry=once) as client:
        bench.upstream.refused = {"bad": 429}
        bench.upstream.pause_s = 0.002
        await bench.add("bad")
        worker, _ = await bench.start(client=client, lease_s=0.5, max_deliveries=2)
        added = 0
        while not worker.statistics().dead and added < 20_000:
            await bench.add(*(f"p{number}" for number in range(added, added + 20)))
            added += 20
            await wait_for(lambda: worker.statistics().held < 30)
        [letter] = await bench.dead()
        assert letter[b"id"] == b"bad" and b"TooManyDeliveries" in letter[b"error"] and worker.statistics().left == 2
        await wait_for(lambda: worker.statistics().results == added)


async def test_eight_messages_that_are_always_refused_keep_no_other_from_its_turn(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.refused = {f"bad{number}": 503 for number in range(16)}
        await bench.add(*bench.upstream.refused)
        worker, _ = await bench.start(lease_s=60.0)
        await wait_for(lambda: worker.statistics().released >= 16)
        await bench.add("good")
        await wait_for(lambda: bench.result("good"))


async def test_servers_with_another_model_are_asked_anew(shared_server):
    async with bench_on(shared_server) as bench, bench.upstream.client(model=None) as client:
        await bench.add("a")
        worker, _ = await bench.start(client=client)
        await wait_for(lambda: bench.result("a"))
        bench.upstream.refused = {"b": [404]}
        await bench.add("b")
        assert (await wait_for(lambda: bench.result("b")))["deliveries"] == 1
        assert worker.statistics().dead == 0


async def test_the_clients_own_timeout_bounds_a_message_without_a_deadline(shared_server):
    async with bench_on(shared_server) as bench, bench.upstream.client(timeout_s=0.2) as client:
        bench.upstream.held = {"long"}
        await bench.add("long")
        worker, _ = await bench.start(client=client)
        await wait_for(lambda: bench.upstream.under_way)
        await wait_for(lambda: not bench.upstream.under_way)
        assert worker.statistics().results == 0
        bench.upstream.release()
