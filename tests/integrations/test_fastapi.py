"""FastAPI: the page's service has many users and one client a worker, under uvicorn and in the tests' own process."""

import asyncio
import importlib.metadata
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from batchclient import BatchClient, errors
from batchclient.simulator import EmbeddedServer

pytest.importorskip("fastapi", reason="fastapi is not installed here: make test-extra WHICH=integrations")
from fastapi.responses import StreamingResponse  # noqa: E402

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/guide/fastapi.md").read_text(), re.MULTILINE | re.DOTALL)
PAGE, OPERATION = BLOCKS[:2], BLOCKS[2:]
SERVICE = "\n\n".join(PAGE)
COUNTED = """
import os

import service

made = []


class Counted(service.BatchClient):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        made.append(self)


service.BatchClient = Counted
app = service.app


@app.get("/worker")
async def worker():
    now = made[0].statistics()
    limit = now.endpoints[0].limit
    return {"pid": os.getpid(), "clients": len(made), "cancelled": now.cancelled, "in_flight": now.in_flight, "limit": limit}
"""


@pytest.fixture
def service(mock_llm, monkeypatch, tmp_path):
    monkeypatch.setenv("BATCHCLIENT_BASE_URL", mock_llm.base_url)
    monkeypatch.setenv("BATCHCLIENT_MODEL", "m")
    file = tmp_path / "service.py"
    file.write_text(SERVICE)
    spec = importlib.util.spec_from_file_location("service", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use(service, act):
    async def main():
        async with service.app.router.lifespan_context(service.app):
            transport = httpx.ASGITransport(service.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as users:
                return await act(users)

    return asyncio.run(main())


# In this process --------------------------------------------------------------------------------------------------


def test_200_users_at_once_share_requests(service, mock_llm):
    async def act(users):
        replies = await asyncio.gather(*[users.post("/answer", json={"text": f"Question {i}?"}) for i in range(200)])
        assert [reply.json()["text"] for reply in replies] == [f"mock answer to: Question {i}?" for i in range(200)]

    use(service, act)
    assert len(mock_llm.requests) < 50


@pytest.mark.parametrize(
    ("fault", "status"),
    [(400, 400), (422, 400), (401, 500), (403, 500), (404, 500), (429, 503), (500, 502), (503, 503), (529, 503)],
)
def test_a_refusal_has_its_status(service, mock_llm, virtual_clock, caplog, fault, status):
    caplog.set_level("DEBUG", "service")
    mock_llm.when("x").fail(fault, message="the words of the server")
    reply = use(service, lambda users: users.post("/answer", json={"text": "x"}))
    assert reply.status_code == status
    assert ("the words of the server" in reply.text) == (status == 400)
    assert ("the words of the server" in caplog.text) == (status >= 500)
    assert ("retry-after" in reply.headers) == (status == 503)


def test_silence_is_a_504(service, mock_llm, virtual_clock):
    mock_llm.when("x").hang()
    reply = use(service, lambda users: users.post("/answer", json={"text": "x"}))
    assert (reply.status_code, virtual_clock.elapsed_s) == (504, 30)


@pytest.mark.parametrize("load", ["fail", "refuse_connection"])
def test_a_deadline_that_passes_while_the_server_is_busy_or_away_is_a_503(service, mock_llm, virtual_clock, load):
    service.BatchClient = lambda **given: BatchClient(**given | {"timeout_s": 1})

    async def act(users):
        # The server has answered before: its absence is an outage.
        await users.post("/answer", json={"text": "hello"})
        getattr(mock_llm.when("x"), load)(*([503] if load == "fail" else []))
        return await users.post("/answer", json={"text": "x"})

    reply = use(service, act)
    assert (reply.status_code, virtual_clock.elapsed_s) == (503, 1)


def test_a_call_whose_turn_comes_too_late_is_a_503_before_its_time(service, mock_llm, virtual_clock):
    mock_llm.when().answer("late", delay_s=20)

    async def ask(users, number):
        reply = await users.post("/answer", json={"text": f"{number}"})
        return reply.status_code, reply.headers.get("retry-after"), virtual_clock.elapsed_s

    async def act(users):
        return await asyncio.gather(*[ask(users, number) for number in range(800)])

    # The turn of some comes before enough answers were seen to judge by.
    assert set(use(service, act)) == {(200, None, 20), (503, "1", 20), (504, None, 30)}


def test_a_server_that_is_away_is_a_503(service, mock_llm, virtual_clock):
    mock_llm.when("x").refuse_connection()
    reply = use(service, lambda users: users.post("/answer", json={"text": "x"}))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")


def test_a_full_queue_is_a_503_at_once(service, mock_llm, virtual_clock):
    mock_llm.when().answer("late", delay_s=1)

    async def ask(users, number):
        reply = await users.post("/answer", json={"text": f"{number}"})
        return reply.status_code, reply.headers.get("retry-after"), virtual_clock.elapsed_s

    async def act(users):
        return await asyncio.gather(*[ask(users, number) for number in range(1500)])

    replies = use(service, act)
    refused = [reply for reply in replies if reply[0] == 503]
    assert set(refused) == {(503, "1", 0)}
    # What is in flight has left the queue.
    assert 1000 <= len(replies) - len(refused) <= 1000 + 256
    assert {reply[0] for reply in replies} == {200, 503}


def test_every_error_has_a_status(service):
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert any(each in service.STATUS_OF for each in kind.__mro__), name


def test_what_the_operator_has_to_mend_is_a_500_and_too_long_a_text_a_400(service):
    for kind in (errors.CertificateRefused, errors.OutOfSockets, errors.ConfigError):
        assert service.status_of(kind("words")) == 500, kind
    too_long = errors.ConfigError("words")
    too_long.retryable = True
    assert service.status_of(too_long) == 400


def leave(service, path, clock):
    """Post to the service, leave after 5 s, and return the client's statistics."""
    coming = [{"type": "http.request", "body": b'{"text": "x"}', "more_body": False}]

    async def receive():
        if coming:
            return coming.pop()
        await asyncio.sleep(5)
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    async def main():
        async with service.app.router.lifespan_context(service.app):
            scope = {
                "type": "http",
                # As uvicorn has it: with 2.4 Starlette would wait for a failed send.
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": "1.1",
                "method": "POST",
                "path": path,
                "query_string": b"",
                "headers": [(b"content-type", b"application/json")],
            }
            await service.app(scope, receive, send)
            await clock.settle()
            return service.app.state.client.statistics()

    return asyncio.run(main())


def test_a_user_who_leaves_ends_the_call(service, mock_llm, virtual_clock):
    mock_llm.when("x").hang()
    assert (leave(service, "/answer", virtual_clock).cancelled, virtual_clock.elapsed_s) == (1, 5)


def test_a_streaming_response_ends_by_itself(service, mock_llm, virtual_clock):
    @service.app.post("/stream")
    async def stream():
        pieces = service.app.state.client.stream("x", max_tokens=16)
        return StreamingResponse(piece.text async for piece in pieces)

    mock_llm.when("x").hang()
    assert (leave(service, "/stream", virtual_clock).cancelled, virtual_clock.elapsed_s) == (1, 5)


# Under uvicorn ----------------------------------------------------------------------------------------------------


@contextmanager
def served(folder, server, workers):
    """The service under uvicorn; its URL."""
    (folder / "service.py").write_text(SERVICE)
    (folder / "counted.py").write_text(COUNTED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "BATCHCLIENT_BASE_URL": server.base_url,
        "BATCHCLIENT_MODEL": "m",
        "WEB_CONCURRENCY": str(workers),
    }
    command = [sys.executable, "-m", "uvicorn", "counted:app", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert "Traceback" not in said, said
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def workers_of(url, wanted):
    """What each worker says of itself."""
    found, until = {}, time.monotonic() + 60
    while len(found) < wanted and time.monotonic() < until:
        try:
            said = httpx.get(f"{url}/worker", timeout=5).json()
        except httpx.TransportError:
            time.sleep(0.1)
            continue
        found[said["pid"]] = said
    return list(found.values())


def test_two_workers_have_a_client_each_and_half_the_limit(tmp_path):
    async def ask(url):
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as users:
            return await asyncio.gather(*[users.post("/answer", json={"text": f"Question {i}?"}) for i in range(200)])

    with EmbeddedServer("instant", model="m") as server, served(tmp_path, server, 2) as url:
        assert len(workers_of(url, 2)) == 2
        replies = asyncio.run(ask(url))
        assert {reply.status_code for reply in replies} == {200}
        assert server.prompts == 200
        assert server.requests < 100
        for said in workers_of(url, 2):
            assert (said["clients"], said["limit"]) == (1, 128)


def test_a_connection_that_closes_ends_its_call(tmp_path):
    with EmbeddedServer("instant", model="m", faults=["stall"]) as server, served(tmp_path, server, 1) as url:
        workers_of(url, 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/answer", json={"text": "x"}, timeout=0.5)
        until = time.monotonic() + 20
        while (said := httpx.get(f"{url}/worker").json())["cancelled"] == 0 and time.monotonic() < until:
            time.sleep(0.05)
        assert said["cancelled"] == 1


def test_a_service_that_is_ended_answers_first(tmp_path):
    with EmbeddedServer("instant", model="m", faults=["slow=1"]) as server, served(tmp_path, server, 1) as url:
        (worker,) = workers_of(url, 1)
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(httpx.post, f"{url}/answer", json={"text": "x"}, timeout=20)
            until = time.monotonic() + 20
            while httpx.get(f"{url}/worker").json()["in_flight"] == 0 and time.monotonic() < until:
                time.sleep(0.02)
            os.kill(worker["pid"], signal.SIGTERM)
            assert reply.result().status_code == 200


# The pages --------------------------------------------------------------------------------------------------------


def test_the_tests_of_the_pages_pass_on_the_service_of_the_pages(tmp_path):
    *more, tests = OPERATION
    (tmp_path / "service.py").write_text("\n\n".join((*PAGE, *more)))
    (tmp_path / "test_service.py").write_text(tests)
    plugin = (
        []
        if importlib.metadata.entry_points(group="pytest11").select(name="batchclient")
        else ["-p", "pytest_batchclient"]
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
    ]
    done = subprocess.run([*command, *plugin], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests.count('def test_')} passed" in done.stdout
