"""The command of examples/kubernetes' workers, as written there, with local servers in place of the cluster's."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis as redis_py
import yaml
from tests.live.server_process import free_port
from tests.redis import commands
from tests.redis.test_commands import wait_for

from batchclient.partition import endpoints_shard
from batchclient.simulator import EmbeddedServer

pytestmark = pytest.mark.redis
FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
COUNT = 200
LONGEST_S = 120.0
"""Each test starts processes, whose imports take seconds on a busy machine."""


def arguments_of_a_worker():
    """As the manifest starts each."""
    objects = list(yaml.safe_load_all((FOLDER / "worker.yaml").read_text()))
    (spec,) = [each["spec"] for each in objects if each["kind"] == "Deployment"]
    (container,) = spec["template"]["spec"]["containers"]
    return container["args"]


def start(arguments, local, redis_url, folder):
    """One worker; its port for metrics is any."""
    places = {"--redis": redis_url, "--metrics-port": f"127.0.0.1:{free_port()}"}
    for place, (option, value) in enumerate(zip(arguments, arguments[1:], strict=False), 1):
        arguments = [*arguments[:place], places.get(option, local.get(value, value)), *arguments[place + 1 :]]
    return commands.start(*arguments, cwd=folder)


def test_the_workers_of_the_manifest_do_the_work(shared_server, tmp_path):
    workers = [arguments_of_a_worker()] * 2
    urls = [value for option, value in zip(workers[0], workers[0][1:], strict=False) if option == "--base-url"]
    model = workers[0][workers[0].index("--model") + 1]
    with ExitStack() as stack:
        plain = stack.enter_context(redis_py.Redis(unix_socket_path=str(shared_server.socket)))
        plain.flushall()
        servers = [stack.enter_context(EmbeddedServer("instant", model=model)) for _ in urls]
        local = dict(zip(urls, (server.base_url for server in servers), strict=True))
        processes = [start(arguments, local, shared_server.url, tmp_path) for arguments in workers]
        for process in processes:
            stack.callback(process.communicate)
            stack.callback(process.kill)
        stream = workers[0][workers[0].index("--stream") + 1]
        group = "batchclient"
        for process in processes:
            assert any("working on" in line for line in process.stdout)
        for number in range(COUNT):
            body = json.dumps({"prompt": f"word {number}", "max_tokens": 1})
            plain.xadd(stream, {"id": str(number), "call": "complete", "body": body})
        wait_for(lambda: len(plain.keys("result:*")) == COUNT)
        assert sum(server.prompts for server in servers) == COUNT
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.wait(timeout=30) == 128 + signal.SIGTERM
        assert plain.xpending(stream, group)["pending"] == 0
        assert plain.xinfo_consumers(stream, group) == []


def test_a_worker_sends_to_its_own_servers_alone(shared_server, tmp_path):
    """One worker of two at work: its servers answer everything, the other servers nothing."""
    with ExitStack() as stack:
        plain = stack.enter_context(redis_py.Redis(unix_socket_path=str(shared_server.socket)))
        plain.flushall()
        servers = {
            one.base_url: one for one in (stack.enter_context(EmbeddedServer("instant", model="m")) for _ in "1234")
        }
        options = [option for url in servers for option in ("--base-url", url)]
        process = commands.start(
            "work", "--redis", shared_server.url, *options, "--endpoints-shard", "1/2", cwd=tmp_path
        )
        stack.callback(process.communicate)
        stack.callback(process.kill)
        for number in range(50):
            plain.xadd(
                "inference_queue", {"id": str(number), "call": "complete", "body": '{"prompt": "p", "max_tokens": 1}'}
            )
        wait_for(lambda: len(plain.keys("result:*")) == 50)
        own = set(endpoints_shard(list(servers), "1/2"))
        assert {url for url, server in servers.items() if server.prompts} <= own
        assert sum(servers[url].prompts for url in own) == 50


def test_more_workers_than_servers_are_refused(tmp_path):
    said = commands.run("work", "--base-url", "http://a/v1", "--endpoints-shard", "0/2", cwd=tmp_path)
    assert said[0] == 2
    assert "--endpoints-shard: 2 workers share 1 server: give each worker all servers" in said[2]
