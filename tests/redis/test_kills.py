"""SIGKILL of workers at random times: each message ends once, and little is sent again.

SLOW=1 for the long form: 50 kills of 4 workers in 20,000 messages, 20 of them refused.
"""

import json
import os
import time
from random import Random

import pytest
import redis as redis_py
from tests.crashes.server import account_server
from tests.redis import commands
from tests.redis.conftest import STREAM

pytestmark = pytest.mark.redis
IS_LONG = bool(os.environ.get("SLOW"))
LONGEST_S = 3600.0 if IS_LONG else 180.0
KILLS, MESSAGES, POISON, WORKERS = (50, 20_000, 20, 4) if IS_LONG else (3, 1_000, 5, 4)
HELD = 32
OPTIONS = ("--max-batch-size", "1", "--concurrency", "16", "--look-ahead", HELD, "--lease", "10", "--model", "m")


def fill(plain):
    pipe = plain.pipeline(transaction=False)
    step = MESSAGES // POISON
    for number in range(MESSAGES):
        prompt = f"bad {number}" if number % step == 0 else f"word {number}"
        pipe.xadd(STREAM, {"id": prompt, "body": json.dumps({"prompt": prompt, "max_tokens": 1})})
    pipe.execute()


def test_kills_of_workers_lose_and_double_nothing(redis_server, tmp_path):
    random = Random(7)
    with account_server() as server, redis_py.Redis(unix_socket_path=str(redis_server.socket)) as plain:
        server.pause_s = 0.02
        fill(plain)
        variables = {"REDIS_URL": redis_server.url, "BATCHCLIENT_BASE_URL": server.base_url}

        def start(number):
            # A name of its own each: a worker that begins again is another one.
            arguments = (*OPTIONS, "--results", "stream:out", "--consumer", f"w{number}", "--quiet")
            return commands.start("work", *arguments, cwd=tmp_path, **variables)

        workers = [start(number) for number in range(WORKERS)]
        try:
            for kill in range(KILLS):
                done = (kill + 1) * MESSAGES // (KILLS + 2)
                while plain.xlen("out") + plain.xlen(f"{STREAM}:dead") < done:
                    time.sleep(0.02)
                time.sleep(random.uniform(0.0, 0.05))
                place = random.randrange(WORKERS)
                workers[place].kill()
                workers[place].wait()
                workers[place].stdout.close()
                workers[place] = start(WORKERS + kill)
            while plain.xlen(STREAM):
                time.sleep(0.05)
            # A worker that has just begun catches no signal yet; one that waits for a message does.
            while sum(each["cmd"] == "xreadgroup" and "b" in each["flags"] for each in plain.client_list()) < WORKERS:
                time.sleep(0.05)
            for worker in workers:
                worker.terminate()
            assert {worker.wait(timeout=60) for worker in workers} == {143}
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
                worker.stdout.close()
        results = [fields[b"id"].decode() for _, fields in plain.xrange("out")]
        dead = [fields[b"id"].decode() for _, fields in plain.xrange(f"{STREAM}:dead")]
        assert len(results) == len(set(results)) == MESSAGES - POISON
        assert len(dead) == len(set(dead)) == POISON and all(one.startswith("bad ") for one in dead)
        assert not set(results) & set(dead)
        # What was in flight at a kill is sent again, and nothing else.
        again = server.came.total() - MESSAGES
        assert again <= KILLS * HELD
        print(f"{KILLS} kills: {again} of {MESSAGES} messages were sent again")
