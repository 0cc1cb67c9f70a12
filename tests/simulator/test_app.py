"""The embedded server on real sockets."""

import asyncio
import json
import os
import contextlib
import socket
import subprocess
import sys
import time

import httpx
import pytest
from typer.testing import CliRunner

from batchclient.simulator import EmbeddedServer, expected_text

FIELDS = {"max_tokens": 6, "temperature": 0}
TWO_EVENTS = {
    "stream": True,
    "stream_interval": 100_000,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer("instant") as running:
        yield running


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_a_plain_list(server):
    reply = httpx.post(f"{server.base_url}/completions", json={"prompt": ["a", "b"]} | FIELDS)
    assert reply.headers["content-length"] == str(len(reply.content))
    texts = [each["text"] for each in reply.json()["choices"]]
    assert texts == [expected_text("a", max_tokens=6, temperature=0), expected_text("b", max_tokens=6, temperature=0)]


def test_a_streamed_list(server):
    body = {"prompt": ["a", "b"]} | FIELDS | TWO_EVENTS
    with httpx.stream("POST", f"{server.base_url}/completions", json=body) as reply:
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in reply.iter_lines() if line]
    assert len(lines) == 2 * 2 + 1 + 1
    assert lines[-1] == "data: [DONE]"


def test_one_connection_serves_many_requests_and_large_bodies(server):
    with httpx.Client() as client:
        for size in (1, 1000, 1):
            prompts = [f"{i} " + "x" * 500 for i in range(size)]
            reply = client.post(f"{server.base_url}/completions", json={"prompt": prompts, "max_tokens": 1})
            assert len(reply.json()["choices"]) == size


def over_a_socket(port, *pieces):
    """What is answered to these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        for piece in pieces:
            raw.sendall(piece)
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
        return answer


@pytest.mark.parametrize(
    ("header", "body"),
    [("content-length: 1000000", b"x" * 101), ("transfer-encoding: chunked", b"65\r\n" + b"x" * 101 + b"\r\n")],
    ids=["length", "chunks"],
)
def test_a_body_over_the_bound_is_not_read_to_its_end(header, body):
    with EmbeddedServer("instant", max_body_bytes=100) as server:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n".encode()
        answer = over_a_socket(server.port, head, body)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer.lower()
        ok = httpx.post(f"{server.base_url}/completions", json={"prompt": "a", "max_tokens": 1})
        assert ok.status_code == 200


@pytest.mark.parametrize("size", [15_000, 150_000, 155_000, 3_000_000])
def test_what_is_still_sent_of_a_body_over_the_bound_is_no_client_that_left(size):
    # Another profile than "instant": the refusal waits for the server's next step, and the rest of the body comes before it.
    with EmbeddedServer("gpu", max_body_bytes=4000) as server:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
            with contextlib.suppress(ConnectionError):
                raw.sendall(head + b"x" * size)
            assert raw.recv(13) == b"HTTP/1.1 413 "


def test_a_body_nested_without_end_is_the_callers_fault(server):
    for body in (b"[" * 100_000, b'{"prompt":' * 100_000, b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        reply = httpx.post(f"{server.base_url}/completions", content=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == 400


def test_other_routes_and_statistics(server):
    assert httpx.get(f"{server.base_url}/models").json()["data"][0]["id"] == server.model
    assert httpx.get(f"{server.root_url}/health").status_code == 200
    assert "vllm:num_requests_running" in httpx.get(f"{server.root_url}/metrics").text
    assert httpx.get(f"{server.root_url}/nope").status_code == 404
    before = server.prompts
    httpx.post(f"{server.base_url}/completions", json={"prompt": ["a", "b", "c"]})
    assert server.prompts == before + 3
    assert server.statistics()["list_sizes"][3] >= 1


@pytest.mark.parametrize("stream", [{}, TWO_EVENTS])
def test_a_client_that_leaves_aborts_its_sequences(stream):
    with EmbeddedServer("gpu") as server, httpx.Client(timeout=0.5) as client:
        body = {"prompt": ["a"] * 20, "max_tokens": 5000, "temperature": 0} | stream
        with (
            pytest.raises(httpx.ReadTimeout),
            client.stream("POST", f"{server.base_url}/completions", json=body) as reply,
        ):
            reply.read()
        wait_until(lambda: server.statistics()["aborted_sequences"] == 20)
        found = server.statistics()
        assert (found["running"], found["waiting"], found["disconnects"], found["open_requests"]) == (0, 0, 1, 0)


def test_time_passes_and_events_come_one_by_one():
    with EmbeddedServer("gpu", speed=0.1) as server:
        arrivals = []
        body = {"prompt": "a", "max_tokens": 5, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{server.base_url}/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line:
                    arrivals.append(time.monotonic())
    # A step takes 120 ms at a tenth of the speed: half a second in all.
    assert arrivals[4] - arrivals[0] > 0.05


FAULTS = {
    "refuse": httpx.RemoteProtocolError,
    "disconnect": httpx.RemoteProtocolError,
    "cut": httpx.RemoteProtocolError,
    "stall": httpx.ReadTimeout,
    "stall_body": httpx.ReadTimeout,
}


@pytest.mark.parametrize("stream", [{}, TWO_EVENTS])
@pytest.mark.parametrize("kind", FAULTS)
def test_faults_of_the_connection(server, kind, stream):
    server.set_faults(f"{kind},count=1")
    with httpx.Client(timeout=0.3) as client:
        with pytest.raises(FAULTS[kind]):
            client.post(f"{server.base_url}/completions", json={"prompt": ["a", "b"]} | FIELDS | stream)
        assert client.post(f"{server.base_url}/completions", json={"prompt": "a"}).status_code == 200
    server.set_faults()


def test_faults_that_answer(server):
    server.set_faults("status=429,retry_after=3,count=1")
    reply = httpx.post(f"{server.base_url}/completions", json={"prompt": "a"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    with pytest.raises(ValueError, match="no fault"):
        server.set_faults("nonsense")
    assert httpx.post(f"{server.root_url}/simulator/faults", json=["nonsense"]).status_code == 400
    server.set_faults()


def test_stop_breaks_connections_and_start_brings_the_same_address_back():
    server = EmbeddedServer("instant", faults=["stall"])
    assert repr(server).endswith("down>")
    with server:
        url = f"{server.base_url}/completions"
        with httpx.Client() as client:
            # A stalled request, then the server goes.
            request = json.dumps({"prompt": "a"}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(request)}\r\n\r\n".encode()
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(head + request)
                wait_until(lambda: server.requests == 1)
                server.stop()
                raw.settimeout(5)
                try:
                    assert raw.recv(10) == b""
                except ConnectionResetError:
                    pass
            with pytest.raises(httpx.ConnectError):
                client.post(url, json={"prompt": "a"})
            server.start()
            with pytest.raises(RuntimeError, match="already running"):
                server.start()
            server.set_faults()
            assert client.post(url, json={"prompt": "a"}).status_code == 200
            assert server.requests == 1


def test_a_child_process():
    with EmbeddedServer("instant", process=True, model="m", faults=["status=503,count=1"]) as server:
        url = f"{server.base_url}/completions"
        assert httpx.post(url, json={"prompt": "a"}).status_code == 503
        reply = httpx.post(url, json={"model": "m", "prompt": "a", "seed": 1})
        assert reply.json()["choices"][0]["text"] == expected_text("a", seed=1)
        assert server.requests == 2
        port = server.port
        server.stop()
        server.start()
        assert server.port == port
        assert server.requests == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.root_url}/health")


def test_wrong_options_fail_where_they_are_given():
    with pytest.raises(ValueError, match="no profile"):
        EmbeddedServer("nope")
    with pytest.raises(ValueError, match="no fault"):
        EmbeddedServer("instant", faults=["nope"])
    with pytest.raises(TypeError):
        EmbeddedServer("instant", colour="red")


async def many(server, requests, connections):
    limits = httpx.Limits(max_connections=connections)
    async with httpx.AsyncClient(limits=limits, timeout=30) as client:

        async def one(i):
            body = {"prompt": [f"prompt {i}", f"other {i}"]} | FIELDS | (TWO_EVENTS if i % 2 else {})
            reply = await client.post(f"{server.base_url}/completions", json=body)
            return reply.text

        return await asyncio.gather(*(one(i) for i in range(requests)))


def test_many_at_once_get_their_own():
    with EmbeddedServer("gpu", speed=50) as server:
        texts = asyncio.run(many(server, 100, 20))
        for i, text in enumerate(texts):
            whole = expected_text(f"prompt {i}", max_tokens=6, temperature=0)
            # A stream has the first token apart.
            assert (whole if i % 2 == 0 else whole[8:]) in text
        assert server.statistics()["open_requests"] == 0


def test_the_engine_needs_no_web_framework():
    code = "import sys, batchclient.simulator.engine, batchclient.simulator; print('starlette' in sys.modules, 'uvicorn' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert found.stdout.split() == ["False", "False"]


def cli(*arguments):
    from batchclient.cli.app import make_app

    return CliRunner().invoke(make_app(["simulate"]), ["simulate", *arguments])


def test_cli_lists_and_refuses():
    assert "tiny-cpu" in cli("--profiles").output
    assert "bad_prompt" in cli("--faults").output
    for arguments in (["--profile", "nope"], ["--fault", "nope"], ["--speed", "0"], ["--output-lengths", "x"]):
        assert cli(*arguments).exit_code == 2


def test_cli_says_when_the_port_is_taken(server):
    result = cli("--port", str(server.port))
    assert result.exit_code == 2
    assert f"127.0.0.1:{server.port}" in result.output
    assert "in use" in result.output


def test_cli_names_the_extra_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = cli("--port", "0")
    assert result.exit_code == 1
    assert "batchclient[server]" in result.output
