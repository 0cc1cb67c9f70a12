"""The commands and the program of ``docs/guide/redis-kubernetes.md`` run as they stand, but for the ports."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis as redis_py
from tests.redis import commands
from tests.redis.redis_server import program
from tests.redis.test_commands import wait_for

from batchclient.simulator import EmbeddedServer

pytestmark = pytest.mark.redis
LONGEST_S = 120.0
PAGE = (Path(__file__).parents[2] / "docs/guide/redis-kubernetes.md").read_text()
SERVICES, ENQUEUE, DEAD, MOVE, *_ = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(PROGRAM,) = re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page(shared_server, tmp_path):
    redis_line, _, *workers = SERVICES.splitlines()
    # The server of these tests has no port, and else the same options.
    assert redis_line == "redis-server --port 6379 --appendonly yes"
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "batchclient").write_text(f'#!/bin/sh\nexec {sys.executable} -m batchclient "$@"\n')
    cli = Path(program()).parent.parent / "usr/bin/redis-cli"
    libraries = ":".join(map(str, (cli.parents[1] / "lib").glob("*-linux-gnu")))
    (scripts / "redis-cli").write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {cli if cli.is_file() else "/usr/bin/redis-cli"} -s {shared_server.socket} "$@"\n'
    )
    for script in scripts.iterdir():
        script.chmod(0o755)
    environment = commands.environment(
        REDIS_URL=shared_server.url, PATH=f"{scripts}:{os.environ['PATH']}", PYTHONPATH=os.environ.get("PYTHONPATH", "")
    )

    def shell(text):
        done = subprocess.run(
            ["sh", "-ec", text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with (
        EmbeddedServer("instant", model="m") as llm,
        redis_py.Redis(unix_socket_path=str(shared_server.socket)) as plain,
    ):
        plain.flushall()
        running = [
            subprocess.Popen(
                shlex.split(line.replace("http://localhost:8000/v1", llm.base_url)), cwd=tmp_path, env=environment,
                stderr=subprocess.DEVNULL, executable=str(scripts / "batchclient"),
            )
            for line in workers
        ]  # fmt: skip
        try:
            *enqueue, get = ENQUEUE.splitlines()
            shell("\n".join(enqueue))
            wait_for(lambda: plain.get("result:doc-1"))
            assert '"completion"' in shell(get)
            (tmp_path / "program.py").write_text(
                PROGRAM.replace("Redis()", f"Redis(unix_socket_path={str(shared_server.socket)!r})")
            )
            said = shell(f"{sys.executable} program.py")
            assert [line.split()[1] for line in said.splitlines()] == ["ok", "ok"]
            plain.xadd("inference_queue", {"id": "bad", "body": "{"})
            wait_for(lambda: plain.xlen("inference_queue:dead"))
            listed, retry, drop = DEAD.splitlines()
            assert "BadMessage" in shell(listed)
            shell(retry)
            wait_for(lambda: plain.xlen("inference_queue:dead"))
            assert shell(drop) == "1 dropped\n"
        finally:
            for worker in running:
                worker.send_signal(signal.SIGTERM)
            assert [worker.wait(timeout=60) for worker in running] == [143, 143]
        plain.flushall()
        plain.rpush("inference_queue", '{"id": 1, "prompt": "a"}')
        shell(MOVE)
        assert plain.xlen("inference_queue") == 1


def test_the_example(shared_server):
    with redis_py.Redis(unix_socket_path=str(shared_server.socket)) as plain:
        plain.flushall()
    command = [sys.executable, "-W", "error", str(Path(__file__).parents[2] / "examples/redis_queue.py")]
    environment = {**os.environ, "REDIS_URL": shared_server.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("300 results; dead letters: ['BadRequest']\n")
