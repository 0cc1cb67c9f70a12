"""Parts: a range of a file into a file of its own, sealed once, whatever worker does it."""

import hashlib
import json

import pytest
import redis as redis_py
from tests.redis import commands
from tests.redis.conftest import STREAM
from tests.redis.test_commands import llm, rows, wait_for, work  # noqa: F401

from batchclient.simulator import EmbeddedServer

pytestmark = pytest.mark.redis
LONGEST_S = 120.0


@pytest.fixture
def plain(shared_server):
    with redis_py.Redis(unix_socket_path=str(shared_server.socket)) as plain:
        plain.flushall()
        yield plain


@pytest.fixture
def cut(shared_server, tmp_path):
    """Enqueue the parts of a file; the status and what was said."""

    def run(*arguments, source="in.jsonl"):
        given = ("--prompt", "Say {text}", "--max-tokens", 2, "-o", "out/{part}.jsonl", *arguments)
        status, _, said = commands.run("enqueue", source, *given, cwd=tmp_path, REDIS_URL=shared_server.url)
        return status, said

    return run


def test_parts_are_the_file_in_order(work, plain, cut, tmp_path):  # noqa: F811
    (tmp_path / "in.jsonl").write_text(rows(250) + "no row\n")
    assert cut("--parts", 60) == (0, "5 messages in inference_queue\n")
    names = [json.loads(fields[b"body"])["output"] for _, fields in plain.xrange(STREAM)]
    workers = [work("--model", "m", "--consumer", f"w{number}") for number in range(2)]
    wait_for(lambda: plain.xlen(STREAM) == 0)
    files = sorted((tmp_path / "out").iterdir())
    # Hidden files of unsealed parts would be among them.
    assert [str(path) for path in files] == names
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert [line.get("id") for line in lines[:250]] == [f"d{number}" for number in range(250)]
    assert all(line["usage"]["completion_tokens"] == 2 for line in lines[:250])
    assert lines[250] == {
        "line": 251,
        "error": {"type": "BadRow", "message": "line 251 is not JSON: Expecting value (column 1)"},
    }
    results = [json.loads(plain.get(f"result:in.jsonl:{path.stem}"))["body"] for path in files]
    assert [(each["rows"], each["failed"]) for each in results] == [(60, 0)] * 4 + [(11, 1)]
    assert [each["sha256"] for each in results] == [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    assert all(worker.poll() is None for worker in workers)


def test_the_same_range_has_the_same_name_and_is_sealed_once(work, plain, cut, tmp_path):  # noqa: F811
    (tmp_path / "in.jsonl").write_text(rows(100))
    assert cut("--parts", 50)[0] == cut("--parts", 50)[0] == 0
    outputs = [json.loads(fields[b"body"])["output"] for _, fields in plain.xrange(STREAM)]
    assert len(outputs) == 4 and len(set(outputs)) == 2
    work("--model", "m")
    wait_for(lambda: plain.xlen(STREAM) == 0)
    assert len(list((tmp_path / "out").iterdir())) == 2
    bodies = [json.loads(plain.get(key))["body"] for key in plain.keys("result:*")]
    assert {(each["rows"], each["bytes"] > 0) for each in bodies} == {(50, True)}
    # Enqueued again they are refused, or left out.
    status, said = cut("--parts", 50)
    assert status == 2 and "the file exists; --resume leaves out the parts that are there" in said
    (tmp_path / "out" / f"{0:015d}-{len(rows(50)):015d}.jsonl").unlink()
    assert cut("--parts", 50, "--resume") == (0, "1 messages in inference_queue\n")


def test_a_killed_worker_leaves_no_half_part(plain, work, cut, tmp_path):  # noqa: F811
    (tmp_path / "in.jsonl").write_text(rows(40))
    with EmbeddedServer("instant", model="m", faults=["stall,after=1,count=1"]) as slow:
        assert cut("--parts", 40)[0] == 0
        worker = work("--model", "m", "--max-batch-size", "10", "--lease", "10", VLLM_URL=slow.root_url)
        wait_for(lambda: slow.requests >= 4)
        worker.kill()
        worker.communicate()
        assert [path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")] == []
        # As if the lease had run out.
        for each in plain.xpending_range(STREAM, "batchclient", "-", "+", 10):
            plain.xclaim(STREAM, "batchclient", each["consumer"], 0, [each["message_id"]], idle=20_000, justid=True)
        work("--model", "m", "--lease", "10", VLLM_URL=slow.root_url)
        wait_for(lambda: plain.xlen(STREAM) == 0)
    [sealed] = [path for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")]
    assert len(sealed.read_text().splitlines()) == 40


def test_unusable_parts_are_dead_letters(work, plain, cut, tmp_path):  # noqa: F811
    (tmp_path / "in.jsonl").write_text(rows(10))
    cut("--parts", 10)
    [(entry, fields)] = plain.xrange(STREAM)
    body = json.loads(fields[b"body"])
    plain.delete(STREAM)
    wrong = {
        "absent": {"input": str(tmp_path / "absent.jsonl")},
        "elsewhere": {"input": "/etc/passwd"},
        "written elsewhere": {"output": "/tmp/other.jsonl"},
        "another file": {"size": body["size"] + 1},
        "no range": {"start": 5, "end": 2},
        "no template": {"prompt": "no field"},
        "a journal": {"params": {"journal": str(tmp_path / "taken")}},
    }
    for name, change in wrong.items():
        plain.xadd(STREAM, {"id": name, "call": "part", "body": json.dumps(body | change)})
    plain.xadd(STREAM, {"id": "good", "call": "part", "body": json.dumps(body)})
    work("--model", "m")
    wait_for(lambda: plain.get("result:good"))
    wait_for(lambda: plain.xlen(STREAM) == 0)
    errors = {fields[b"id"].decode(): json.loads(fields[b"error"]) for _, fields in plain.xrange(f"{STREAM}:dead")}
    assert errors.keys() == wrong.keys()
    assert errors["absent"]["type"] == "FileNotFoundError"
    assert "folder of --parts-under" in errors["elsewhere"]["message"]
    assert "folder of --parts-under" in errors["written elsewhere"]["message"]
    assert "another than the one that was enqueued" in errors["another file"]["message"]
    assert "journal is no field" in errors["a journal"]["message"] and not (tmp_path / "taken").exists()


def test_a_refused_key_seals_no_part(plain, work, cut, tmp_path):  # noqa: F811
    (tmp_path / "in.jsonl").write_text(rows(10))
    cut("--parts", 10)
    with EmbeddedServer("instant", model="m", api_key="right") as locked:
        worker = work("--model", "m", VLLM_URL=locked.root_url, BATCHCLIENT_API_KEY="wrong")
        worker.communicate(timeout=60)
    assert worker.returncode == 2 and plain.xlen(STREAM) == 1
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "name", "said"),
    [
        (["--parts", "5"], "in.csv", "--parts: in.csv is CSV, which is not cut at a byte"),
        (["--parts", "5", "-o", "out.jsonl"], "in.jsonl", "--output: put {part} into the file's name"),
        (["--parts", "5", "--call", "sing"], "in.jsonl", "--call: one of "),
        (["--parts", "5"], "absent.jsonl", "absent.jsonl: No such file or directory"),
        (["--parts", "5"], "-", "--parts: IN is read by the workers"),
    ],
)
def test_what_cannot_be_cut_is_refused(plain, cut, tmp_path, arguments, name, said):
    (tmp_path / "in.csv").write_text("text\na\n")
    (tmp_path / "in.jsonl").write_text(rows(1))
    status, error = cut(*arguments, source=name)
    assert status == 2 and error.startswith(f"Error: {said}")
    assert plain.xlen(STREAM) == 0
