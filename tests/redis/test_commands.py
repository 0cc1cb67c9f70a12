"""``batchclient work``, ``enqueue`` and ``dead`` as processes, on a real Redis and the embedded server."""

import json
import signal
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest
import redis as redis_py
from tests.live.server_process import free_port
from tests.redis import commands
from tests.redis.conftest import STREAM
from tests.redis.test_queue import ODD

from batchclient.simulator import EmbeddedServer

pytestmark = pytest.mark.redis
LONGEST_S = 120.0


@pytest.fixture(scope="module")
def llm():
    with EmbeddedServer("instant", model="m", faults=["bad_prompt=refuse me"]) as server:
        yield server


@pytest.fixture
def plain(shared_server):
    with redis_py.Redis(unix_socket_path=str(shared_server.socket)) as plain:
        plain.flushall()
        yield plain


@pytest.fixture
def work(shared_server, llm, tmp_path):
    """Starts workers, which end with the test."""
    begun = []

    def start(*arguments, **variables):
        variables = {"REDIS_URL": shared_server.url, "VLLM_URL": llm.root_url} | variables
        begun.append(commands.start("work", *arguments, cwd=tmp_path, **variables))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(condition):
    until = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return value


def rows(count):
    return "".join(json.dumps({"id": f"d{number}", "text": f"word {number}"}) + "\n" for number in range(count))


def test_rows_become_results(work, plain, shared_server, tmp_path):
    (tmp_path / "in.jsonl").write_text(rows(100) + '{"text": "refuse me"}\nno row\n{"id": "", "text": "a"}\n')
    status, _, said = commands.run(
        "enqueue", "in.jsonl", "--prompt", "Say {text}", "--max-tokens", 3, cwd=tmp_path, REDIS_URL=shared_server.url
    )
    assert (status, said) == (
        1,
        "line 102 is not JSON: Expecting value (column 1)\n"
        "line 103: id is empty, or no text and no whole number: nobody could name its result\n"
        "101 messages in inference_queue; 2 rows are unusable\n",
    )
    (tmp_path / "odd.csv").write_bytes(b'id;text\r\nx;"caf\xe9 \\"noir\\"; no"\r\n')
    options = ("--delimiter", ";", "--escape", "\\", "--encoding", "latin-1", "--stream", "csv")
    assert (
        commands.run("enqueue", "odd.csv", "--prompt", "{text}", *options, cwd=tmp_path, REDIS_URL=shared_server.url)[0]
        == 0
    )
    [(_, fields)] = plain.xrange("csv")
    assert (fields[b"id"], json.loads(fields[b"body"])) == (b"x", {"prompt": 'caf\xe9 "noir"; no'})
    plain.delete("csv")
    worker = work()
    wait_for(lambda: plain.xlen(STREAM) == 0)
    assert json.loads(plain.get("result:d7"))["body"]["usage"]["completion_tokens"] == 3
    assert plain.dbsize() == 102
    status, out, _ = commands.run("dead", "list", cwd=tmp_path, REDIS_URL=shared_server.url)
    [line] = out.splitlines()
    entry, _, at, deliveries, _, error = line.split("\t")
    assert status == 0 and deliveries == "1" and error.startswith("BadRequest: ") and at.endswith("Z")
    assert "refuse me" not in line
    status, out, _ = commands.run("dead", "list", "--json", cwd=tmp_path, REDIS_URL=shared_server.url)
    assert json.loads(json.loads(out)["fields"]["body"])["prompt"] == "Say refuse me"
    assert commands.run("dead", "retry", entry, cwd=tmp_path, REDIS_URL=shared_server.url)[1] == "1 put back\n"
    wait_for(lambda: plain.xlen(f"{STREAM}:dead") == 1 and plain.xlen(STREAM) == 0)
    assert commands.run("dead", "drop", "--all", cwd=tmp_path, REDIS_URL=shared_server.url)[1] == "1 dropped\n"
    worker.send_signal(signal.SIGTERM)
    said, _ = worker.communicate(timeout=30)
    assert worker.returncode == 143
    assert said.splitlines()[-1] == "100 results, 2 dead letters; 0 handed back"
    assert shared_server.url in said.splitlines()[0]
    assert plain.xinfo_consumers(STREAM, "batchclient") == []


def test_rows_that_are_requests_are_messages_and_an_id_comes_once(plain, shared_server, tmp_path):
    chat = [{"role": "user", "content": "Hi"}]
    lines = [
        {"id": "a", "messages": chat, "params": {"max_tokens": 2, "priority": 1, "new": 1}, "tenant": "t"},
        {"prompt": [1, 2]},
        {"id": "a", "messages": chat},
        {"messages": chat, "params": {"timeout_s": 1}},
        {"id": "b", "messages": chat, "params": {"messages": []}},
        {"id": "c", "messages": chat, "params": {"tenant": "t"}},
        {"id": "d", "messages": chat, "params": {"stream": True}},
        {"id": "e", "messages": chat, "params": {"max_tokens": "x"}},
        {"id": "f", "messages": chat, "tenant": "t" * 257},
        {"id": "f", "messages": chat},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # Another file may have the same ids, and a result of each.
    options = ("in.jsonl", "--stream", "own", "--id-prefix", "in/")
    status, _, said = commands.run("enqueue", *options, cwd=tmp_path, REDIS_URL=shared_server.url)
    assert status == 1
    assert "line 2: the row has no field 'messages'\n" in said
    assert "line 3 has the id of the row in line 1, and one id has one result\n" in said
    assert "line 4: timeout_s: a message has a deadline instead\n" in said
    for number, name in enumerate(("messages", "tenant", "stream", "max_tokens", "tenant"), 5):
        assert f"line {number}: {name} is " in said
    # A refused row has no result, and takes no id.
    [(_, fields), (_, last)] = plain.xrange("own")
    assert last[b"id"] == b"in/f"
    assert (fields[b"id"], fields[b"call"], fields[b"tenant"], fields[b"priority"]) == (b"in/a", b"chat", b"t", b"1")
    assert json.loads(fields[b"body"]) == {"messages": chat, "max_tokens": 2, "extra_body": {"new": 1}}
    refused = '{"prompt": "p", "max_tokens": 1}\n'
    status, _, said = commands.run("enqueue", "-", cwd=tmp_path, stdin=refused, REDIS_URL=shared_server.url)
    assert (status, "--row-params take" in said) == (2, True)
    plain.delete("own")


@pytest.mark.parametrize(
    ("name", "text", "options", "beside"),
    [
        ("in.csv", "id,text,deadline,tenant\na,hello,30,t\n", ["--prompt", "{text}"], set()),
        ("in.csv", "id,text,deadline\na,hello,2026-12-31\n", ["--prompt", "{text}", "--row-params", "take"], set()),
        ("in.csv", "id,prompt,deadline\na,hello,2026-12-31\n", [], set()),
        ("in.jsonl", '{"id": "a", "prompt": "hello", "deadline": "soon"}\n', ["--row-params", "ignore"], set()),
        ("in.jsonl", '{"id": "a", "prompt": "hello", "deadline": 9e9, "tenant": "t"}\n', [], {"deadline", "tenant"}),
    ],
)
def test_columns_are_data_beside_a_template_and_in_a_table(plain, shared_server, tmp_path, name, text, options, beside):
    (tmp_path / name).write_text(text)
    arguments = ("enqueue", name, *options, "--stream", "own")
    assert commands.run(*arguments, cwd=tmp_path, REDIS_URL=shared_server.url)[0] == 0
    [(_, fields)] = plain.xrange("own")
    assert json.loads(fields[b"body"]) == {"prompt": "hello"}
    assert {each.decode() for each in fields} == {"id", "call", "body"} | beside


def test_the_environment_of_an_older_worker(work, plain, llm, shared_server, tmp_path):
    """Its variables, its list, its keys: `BATCH_SIZE` prompts in a request, of those that came within the time."""
    for number in range(64):
        plain.rpush(STREAM, json.dumps({"id": number, "prompt": f"word {number}", "max_tokens": 2}))
    status, _, said = commands.run("enqueue", "--from-list", STREAM, cwd=tmp_path, REDIS_URL=shared_server.url)
    assert (status, said) == (0, "64 messages in inference_queue\n")
    before = llm.requests
    work(VLLM_URL=f"{llm.root_url}/,", BATCH_SIZE="16", BATCH_TIMEOUT_MS="400", BATCHCLIENT_MODEL="m")
    wait_for(lambda: plain.xlen(STREAM) == 0)
    assert json.loads(plain.get("result:63"))["status"] == "ok"
    assert 4 <= llm.requests - before <= 16


def test_no_server_is_refused_and_options_win(shared_server, llm, plain, work, tmp_path):
    status, _, error = commands.run("work", cwd=tmp_path, REDIS_URL=shared_server.url)
    assert status == 2 and "--base-url" in error
    plain.xadd(STREAM, {"id": "a", "body": '{"prompt": "a", "max_tokens": 1}'})
    work("--base-url", llm.base_url, VLLM_URL="http://127.0.0.1:9", BATCHCLIENT_BASE_URL="http://127.0.0.1:9/v1")
    wait_for(lambda: plain.get("result:a"))


def test_a_refused_key_ends_the_worker_and_takes_no_message(shared_server, plain, tmp_path):
    plain.xadd(STREAM, {"id": "a", "body": '{"prompt": "a", "max_tokens": 1}'})
    with EmbeddedServer("instant", model="m", api_key="right") as llm:
        status, _, said = commands.run(
            "work", "--model", "m", cwd=tmp_path, REDIS_URL=shared_server.url, VLLM_URL=llm.root_url,
            BATCHCLIENT_API_KEY="wrong",
        )  # fmt: skip
    assert status == 2 and "Error: " in said and "wrong" not in said
    assert plain.xlen(STREAM) == 1 and plain.xlen(f"{STREAM}:dead") == 0


def test_metrics_are_served(work, plain):
    port = free_port()
    plain.xadd(STREAM, {"id": "a", "body": '{"prompt": "a", "max_tokens": 1}'})
    work("--metrics-port", str(port))
    wait_for(lambda: plain.get("result:a"))
    counted = 'batchclient_worker_messages_total{outcome="results"} 1.0'
    page = wait_for(lambda: counted in (text := urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()) and text)
    assert 'batchclient_calls_total{outcome="succeeded"} 1.0' in page
    numbers = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("batchclient_worker_"))
    assert numbers['batchclient_worker_message_duration_seconds_count{outcome="results"}'] == "1"
    assert {name for name in numbers if "duration" not in name} == {
        *(
            f'batchclient_worker_messages_total{{outcome="{word}"}}'
            for word in ("results", "dead", "left", "released", "lost")
        ),
        "batchclient_worker_lag",
        "batchclient_worker_pending",
        "batchclient_worker_lease_renewals_total",
    }


def test_sigterm_ends_a_worker_that_only_begins(tmp_path):
    """Also as process 1 of a container, which a signal without a handler does not end."""
    command = [sys.executable, "-X", "importtime", "-m", "batchclient", "work", "--base-url", "http://a/v1"]
    environment = commands.environment(REDIS_URL="redis://127.0.0.1:9")
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as worker:
        next(line for line in worker.stderr if line.split()[-1:] == ["httpx"])
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    assert worker.returncode == 143


def test_sigterm_while_redis_stands_still(work, redis_server):
    """A worker that has nothing ends; another hands its message back once Redis goes on."""
    with (
        EmbeddedServer("instant", model="m", faults=["stall"]) as slow,
        redis_py.Redis(unix_socket_path=str(redis_server.socket)) as plain,
    ):
        arguments = ("--model", "m", "--grace", "0.2")
        holding = work(*arguments, REDIS_URL=redis_server.url, VLLM_URL=slow.root_url)
        plain.xadd(STREAM, {"id": "a", "body": '{"prompt": "a", "max_tokens": 1}'})
        wait_for(lambda: slow.requests)
        redis_server.freeze()
        holding.send_signal(signal.SIGTERM)
        waiting = work(*arguments, REDIS_URL=redis_server.url)
        assert waiting.stdout.readline().startswith("working on ")
        waiting.send_signal(signal.SIGTERM)
        waiting.communicate(timeout=30)
        redis_server.thaw()
        assert holding.communicate(timeout=30)[0].splitlines()[-1].endswith("1 handed back")
        assert (waiting.returncode, holding.returncode) == (143, 143)
        assert [each["pending"] for each in plain.xinfo_consumers(STREAM, "batchclient")] == [1]


STATES = {
    "nothing to do": ([], {}, "working on "),
    "no server is there": (["--model", "m"], {"VLLM_URL": "http://127.0.0.1:9"}, "has begun"),
    "the server refuses all work": (["--model", "m"], {"faults": ["status=503"]}, "one message at a time"),
    "no server tells its model": ([], {"VLLM_URL": "http://127.0.0.1:9"}, "working on "),
    "no redis is there": (["--model", "m"], {"REDIS_URL": "redis://127.0.0.1:9"}, "Redis is away"),
}


@pytest.mark.parametrize("state", STATES)
def test_sigterm_in_each_state_hands_back_what_is_held_and_counts_no_delivery(work, plain, state):
    arguments, variables, said = STATES[state]
    with EmbeddedServer("instant", model="m", faults=variables.get("faults", [])) as llm:
        for number in range(0 if state == "nothing to do" else 20):
            plain.xadd(STREAM, {"id": str(number), "body": '{"prompt": "a", "max_tokens": 1}'})
        urls = {"VLLM_URL": llm.root_url} | {name: url for name, url in variables.items() if name.endswith("URL")}
        worker = work("--grace", "0.5", "--concurrency", "4", *arguments, **urls)
        next(line for line in worker.stdout if said in line)
        if "Redis" not in said:
            wait_for(lambda: plain.exists(STREAM) and plain.xinfo_groups(STREAM))
        began = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
        assert worker.returncode == 143 and time.monotonic() - began < 10
        assert plain.xlen(STREAM) == (0 if state == "nothing to do" else 20) and plain.keys("*:dead") == []
        if "Redis" not in said:
            left = plain.xpending_range(STREAM, "batchclient", "-", "+", 100)
            assert all(each["times_delivered"] == 0 and each["time_since_delivered"] >= 60_000 for each in left)


def test_a_second_signal_ends_a_worker_at_once(work, plain, shared_server):
    with EmbeddedServer("instant", model="m", faults=["stall"]) as slow:
        worker = work("--grace", "600", VLLM_URL=slow.root_url)
        plain.xadd(STREAM, {"id": "a", "body": '{"prompt": "a", "max_tokens": 1}'})
        wait_for(lambda: slow.requests)
        worker.send_signal(signal.SIGINT)
        wait_for(lambda: plain.xinfo_groups(STREAM)[0]["pending"])
        time.sleep(0.3)
        assert worker.poll() is None
        worker.send_signal(signal.SIGINT)
        worker.communicate(timeout=10)
        assert worker.returncode == 130


def test_what_a_stopped_worker_holds_is_another_s_at_once(work, plain):
    with EmbeddedServer("instant", model="m", faults=["stall,count=1"]) as slow:
        worker = work("--grace", "0.2", "--model", "m", VLLM_URL=slow.root_url)
        plain.xadd(STREAM, {"id": "a", "body": '{"prompt": "a", "max_tokens": 1}'})
        wait_for(lambda: slow.requests)
        worker.send_signal(signal.SIGTERM)
        assert worker.communicate(timeout=30)[0].splitlines()[-1].endswith("1 handed back")
        assert worker.returncode == 143
        began = time.monotonic()
        work("--model", "m", VLLM_URL=slow.root_url)
        result = json.loads(wait_for(lambda: plain.get("result:a")))
        assert time.monotonic() - began < 20 and result["deliveries"] == 1


def test_a_full_or_closed_redis_is_told_in_a_line(redis_server, tmp_path):
    with redis_py.Redis(unix_socket_path=str(redis_server.socket)) as plain:
        plain.config_set("maxmemory", 1)
        row = '{"prompt": "a secret"}\n'
        status, _, said = commands.run(
            "enqueue", "-", "--format", "jsonl", cwd=tmp_path, stdin=row, REDIS_URL=redis_server.url
        )
        assert status == 1 and "maxmemory" in said and "secret" not in said
        plain.config_set("maxmemory", 0)
        plain.config_set("requirepass", "right")
        url = f"unix://user:wrong@{redis_server.socket}"
        for command in (
            ("enqueue", "-", "--format", "jsonl"),
            ("dead", "list"),
            ("work", "--base-url", "http://a/v1", "--model", "m"),
        ):
            status, _, said = commands.run(*command, cwd=tmp_path, stdin=row, REDIS_URL=url)
            assert (
                status == 2 and "wrong" not in said.replace("wrong number", "") and "invalid username-password" in said
            )


def test_a_dead_letter_is_one_line_whatever_a_producer_wrote(plain, shared_server, tmp_path):
    plain.xadd(f"{STREAM}:dead", {"id": "a\tb\n\x1b[2J", "body": "{", "error": "[]", "deliveries": "x", "at": "1e300"})
    for fields in ODD:
        plain.xadd(f"{STREAM}:dead", {"body": "{}", **fields})
    status, out, _ = commands.run("dead", "list", cwd=tmp_path, REDIS_URL=shared_server.url)
    [line, *others] = out.splitlines()
    assert status == 0 and line.split("\t")[1:4] == [r"a\tb\n\u001b[2J", "1970-01-01T00:00:00Z", "0"]
    assert len(others) == len(ODD) and {other.count("\t") for other in others} == {5}
    status, out, _ = commands.run("dead", "list", "--json", cwd=tmp_path, REDIS_URL=shared_server.url)
    assert status == 0 and len([json.loads(line) for line in out.splitlines()]) == len(ODD) + 1
