"""Messages that no worker can use, and a Redis that will not do: each named, and the next message goes on."""

import asyncio
import json
import time

import pytest
from redis.asyncio import Redis
from tests.redis.conftest import STREAM, bench_on, wait_for
from tests.redis.redis_server import RedisServer, cluster_options, program

from batchclient.errors import ConfigError
from batchclient.integrations.redis import Worker

pytestmark = pytest.mark.redis
LONGEST_S = 60.0
BODY = json.dumps({"prompt": "a", "max_tokens": 1})

UNUSABLE = {
    "not JSON": ({"body": "{"}, "BadMessage", "body is not JSON"),
    "no object": ({"body": "[1]"}, "BadMessage", "body is no JSON object"),
    "not UTF-8": ({"body": b'{"prompt": "\xff"}'}, "BadMessage", "body is not UTF-8"),
    "no body": ({"id": "x"}, "BadMessage", "the message has no field 'body'"),
    "another producer's": ({"payload": BODY}, "BadMessage", "the message has no field 'body'"),
    "an unknown call": ({"call": "sing", "body": BODY}, "BadMessage", "not 'sing'"),
    "no call": ({"body": '{"text": "a"}'}, "BadMessage", "call is missing"),
    "another call's body": ({"call": "chat", "body": BODY}, "BadMessage", "body has no field 'messages'"),
    "a body of more than 16 MiB": (
        {"body": json.dumps({"prompt": "a" * (16 << 20)})},
        "BadMessage",
        "16 MiB is the most",
    ),
    "a deadline in the past": ({"body": BODY, "deadline": "1000000000"}, "DeadlineExceeded", "deadline had passed"),
    "a deadline that is none": ({"body": BODY, "deadline": "soon"}, "BadMessage", "deadline is a time"),
    "a priority that is none": ({"body": BODY, "priority": "high"}, "BadMessage", "priority is a whole number"),
    "a parameter that no server has": ({"body": '{"prompt": "a", "max_token": 1}'}, "ConfigError", "max_token"),
    "a call that there is not": (
        {"call": "part", "body": "{}"},
        "BadMessage",
        "call is one of complete, chat, embed, classify",
    ),
    "a batch line of another route": ({"body": '{"url": "/v1/files", "body": {}}'}, "BadMessage", "url is one of"),
}


async def test_every_unusable_message_is_a_dead_letter_and_the_next_goes_on(shared_server):
    async with bench_on(shared_server) as bench:
        for name, (fields, _, _) in UNUSABLE.items():
            await bench.redis.xadd(STREAM, {"tenant": name, **fields})
        await bench.add("good")
        await bench.start()
        assert (await wait_for(lambda: bench.result("good")))["status"] == "ok"
        await wait_for(lambda: _is_empty(bench))
        letters = {fields[b"tenant"].decode(): fields for fields in await bench.dead()}
        assert letters.keys() == UNUSABLE.keys()
        for name, (fields, kind, words) in UNUSABLE.items():
            error = json.loads(letters[name][b"error"])
            assert error["type"] == kind, name
            assert words in error["message"] and "aaaa" not in error["message"], name
            assert {key.encode(): letters[name][key.encode()] for key in fields} == {
                key.encode(): value if isinstance(value, bytes) else value.encode() for key, value in fields.items()
            }
        assert set(bench.upstream.came) == {"good"}


async def _is_empty(bench):
    return not await bench.redis.xlen(STREAM)


async def test_a_deadline_goes_by_the_clock_of_redis(shared_server, monkeypatch):
    """This machine's clock is wrong by an hour; the deadlines are told by Redis' own."""
    async with bench_on(shared_server) as bench:
        seconds, _ = await bench.redis.time()
        monkeypatch.setattr(time, "time", lambda: seconds + 3600.0)
        await bench.add("in time", deadline=str(seconds + 60))
        await bench.start()
        await wait_for(lambda: bench.result("in time"))


async def test_a_deadline_that_passes_under_way_is_a_dead_letter(shared_server):
    async with bench_on(shared_server) as bench:
        bench.upstream.held = {"a"}
        seconds, _ = await bench.redis.time()
        await bench.add("a", deadline=str(seconds + 1.5))
        await bench.start()
        [letter] = await wait_for(bench.dead)
        assert b"DeadlineExceeded" in letter[b"error"] and letter[b"deliveries"] == b"1"


async def test_forms_of_messages(shared_server):
    """An OpenAI Batch line, an old queue's item, a message of the caller's own id."""
    async with bench_on(shared_server) as bench:
        line = {
            "custom_id": "line-1",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": "a", "max_tokens": 1},
        }
        await bench.redis.xadd(STREAM, {"body": json.dumps(line)})
        await bench.redis.xadd(STREAM, {"body": '{"id": 7, "prompt": "b", "max_tokens": 1}'})
        entry = await bench.redis.xadd(STREAM, {"body": '{"prompt": "c", "max_tokens": 1}'})
        await bench.start()
        for identity in ("line-1", "7", entry.decode()):
            assert (await wait_for(lambda identity=identity: bench.result(identity)))["id"] == identity


async def test_a_message_that_somebody_deleted_is_forgotten(shared_server):
    async with bench_on(shared_server) as bench:
        [entry, _] = await bench.add("a", "b")
        await bench.read_as("crashed", 2)
        await bench.redis.xdel(STREAM, entry)
        await bench.start(lease_s=0.3)
        await wait_for(lambda: bench.result("b"))
        await wait_for(lambda: _has_nothing_pending(bench))


async def _has_nothing_pending(bench):
    return not await bench.pending()


async def test_messages_from_before_the_group_are_worked_on(shared_server):
    async with bench_on(shared_server) as bench:
        await bench.add("early")
        await bench.start()
        await wait_for(lambda: bench.result("early"))


@pytest.mark.parametrize("key", ["stream", "dead", "results"])
async def test_a_key_that_is_no_stream_is_refused_by_name(shared_server, key):
    async with bench_on(shared_server) as bench:
        name = {"stream": STREAM, "dead": "letters", "results": "out"}[key]
        await bench.redis.rpush(name, "x")
        _, task = await bench.start(dead="letters", results="stream:out")
        with pytest.raises(ConfigError, match=f"{key}: the key '{name}' is a list, not a stream"):
            await task


class _Old(Redis):
    async def info(self, section=None, *args, **options):
        return await super().info(section, *args, **options) | {"redis_version": "6.2.14"}


async def test_a_redis_below_7_is_refused(shared_server):
    async with bench_on(shared_server) as bench:
        async with _Old(unix_socket_path=str(shared_server.socket)) as redis, bench.upstream.client() as client:
            with pytest.raises(ConfigError, match=r"the server is Redis 6\.2\.14, and 7\.0 is the oldest"):
                await Worker(client, redis, STREAM).run()


async def test_a_redis_that_forgets_is_warned_of(redis_server, caplog):
    async with bench_on(redis_server) as bench:
        await bench.redis.config_set("appendonly", "no")
        await bench.redis.config_set("maxmemory-policy", "allkeys-lru")
        worker, task = await bench.start()
        await bench.add("a")
        await wait_for(lambda: bench.result("a"))
        worker.stop()
        await task
        assert "Redis keeps nothing on a disk" in caplog.text
        assert "maxmemory-policy is allkeys-lru" in caplog.text


async def test_a_redis_that_keeps_what_it_has_is_no_warning(shared_server, caplog):
    async with bench_on(shared_server) as bench:
        await bench.start()
        await bench.add("a")
        await wait_for(lambda: bench.result("a"))
        assert caplog.text == ""


async def test_a_wrong_password_is_refused_and_not_waited_for(redis_server):
    async with bench_on(redis_server) as bench:
        await bench.redis.config_set("requirepass", "secret")
        async with (
            Redis(unix_socket_path=str(redis_server.socket), password="wrong") as redis,
            bench.upstream.client() as client,
        ):
            with pytest.raises(Exception, match="WRONGPASS|invalid username-password"):
                await asyncio.wait_for(Worker(client, redis, STREAM).run(), 30)


async def test_all_keys_of_a_stream_with_a_tag_are_in_one_slot():
    if program() is None:
        pytest.skip("there is no redis-server: make test-extra WHICH=redis fetches Debian's")
    with RedisServer(*cluster_options()) as server:
        async with bench_on(server) as bench, bench.upstream.client() as client:
            await bench.redis.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            await wait_for(lambda: _is_ok(bench.redis))
            stream = "{queue}"
            bench.upstream.refused = {"bad": 400}
            for prompt in ("good", "bad"):
                await bench.redis.xadd(stream, {"id": prompt, "body": json.dumps({"prompt": prompt, "max_tokens": 1})})
            worker = Worker(client, bench.redis, stream, lease_s=5.0)
            task = asyncio.create_task(worker.run())
            await wait_for(lambda: worker.statistics().results + worker.statistics().dead == 2)
            worker.stop()
            await task
            assert await bench.redis.get("result:{queue}:good")
            assert await bench.redis.xlen("{queue}:dead") == 1


async def _is_ok(redis):
    return "cluster_state:ok" in str(await redis.execute_command("CLUSTER", "INFO"))


async def test_other_connections_are_refused(shared_server):
    async with bench_on(shared_server) as bench, bench.upstream.client() as client:
        import redis

        with pytest.raises(ConfigError, match=r"redis is a redis\.asyncio\.Redis"):
            Worker(client, redis.Redis(), STREAM)
        async with Redis(decode_responses=True) as decoding:
            with pytest.raises(ConfigError, match="without decode_responses=True"):
                Worker(client, decoding, STREAM)
