"""``SyncBatchTransport``: what threads see; what is shared and with whom is ``test_transport``'s."""

import gc
import importlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchclient import ConfigError
from batchclient._threads.bridge import Bridge
from batchclient.integrations import _transports as transports_module
from batchclient.simulator import EmbeddedServer, expected_text


@pytest.fixture(params=("httpx", "httpx2"))
def library(request):
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed here")


@pytest.fixture
def made(library):
    return importlib.import_module(f"batchclient.integrations.{library.__name__}").SyncBatchTransport


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer("instant", model="m") as embedded:
        yield embedded


def client_threads():
    """The threads of blocking clients. Other tests of this process may have left some."""
    return {each for each in threading.enumerate() if each.name == "batchclient"}


def body(prompt, **fields):
    return {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}


def test_200_threads_share_a_few_requests(library, made, server):
    prompts = [f"question {i}" for i in range(200)]
    transport = made(preset="throughput")
    before = server.requests
    with library.Client(transport=transport, timeout=30) as client, ThreadPoolExecutor(200) as pool:
        responses = list(pool.map(lambda p: client.post(f"{server.base_url}/completions", json=body(p)), prompts))
    assert transport.shared == 200
    # Threads start one after the other; together they still are few.
    assert server.requests - before <= 60
    texts = [response.json()["choices"][0]["text"] for response in responses]
    assert texts == [expected_text(prompt, max_tokens=1, temperature=0) for prompt in prompts]


def test_what_cannot_be_shared_goes_past(library, made, server):
    transport = made()
    with library.Client(transport=transport, timeout=30) as client:
        assert client.get(f"{server.base_url}/models").json()["data"][0]["id"] == "m"
        sent = body("once", max_tokens=5, stream=True)
        with client.stream("POST", f"{server.base_url}/completions", json=sent) as response:
            lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert (transport.shared, transport.passed_on) == (0, 2)


def test_the_networks_failures_are_the_librarys_own(library, made):
    with library.Client(transport=made()) as client:
        with pytest.raises(library.ConnectError) as caught:
            client.post("http://127.0.0.1:9/v1/completions", json=body("p"))
    assert caught.value.request.method == "POST"


def test_errors_are_the_servers_own(library, made):
    with EmbeddedServer("instant", model="m", faults=["status=429,retry_after=7"]) as server:
        url = f"{server.base_url}/completions"
        with library.Client(transport=made(), timeout=30) as client, library.Client(timeout=30) as plain:
            ours, theirs = client.post(url, json=body("p")), plain.post(url, json=body("p"))
    assert ours.status_code == theirs.status_code == 429
    assert ours.content == theirs.content
    assert ours.headers["retry-after"] == "7"


def test_the_read_timeout_bounds_the_call(library, made):
    with EmbeddedServer("instant", model="m", faults=["stall"]) as server:
        with library.Client(transport=made(), timeout=library.Timeout(30, read=0.2)) as client:
            with pytest.raises(library.ReadTimeout):
                client.post(f"{server.base_url}/completions", json=body("p"))


def test_closing_ends_calls_and_the_thread_and_is_final(library, made):
    others = client_threads()
    with EmbeddedServer("instant", model="m", faults=["stall"]) as server:
        transport = made()
        client = library.Client(transport=transport, timeout=30)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(client.post, f"{server.base_url}/completions", json=body("p"))
            while not server.requests:
                pass
            client.close()
            assert type(call.exception()) is library.ReadError
    with pytest.raises(RuntimeError, match="closed"):
        transport.handle_request(library.Request("POST", "http://llm.test/v1/completions", json=body("p")))
    client.close()
    assert client_threads() <= others


def test_a_call_that_meets_the_closing_breaks(library, made, server, monkeypatch):
    bridges = []

    def keep(on_end):
        bridges.append(Bridge(on_end))
        return bridges[0]

    monkeypatch.setattr(transports_module, "Bridge", keep)
    transport = made()
    # Closed by another thread, just after this one has looked.
    bridges[0].close()
    with pytest.raises(library.ReadError, match="closed"):
        transport.handle_request(library.Request("POST", f"{server.base_url}/completions", json=body("p")))
    transport.close()


def test_a_transport_that_is_dropped_ends_its_thread(library, made, server):
    others = client_threads()
    transport = made()
    transport.handle_request(library.Request("POST", f"{server.base_url}/completions", json=body("p")))
    (thread,) = client_threads() - others
    del transport
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_transport_is_refused(library, made):
    with pytest.raises(ConfigError, match="a blocking transport cannot carry shared requests") as caught:
        made(library.HTTPTransport(verify=False))
    assert caught.value.field == "transport"
