"""Mocks of httpx2 that are not ours, pytest-httpx2's among them: they see what we send by it, and nothing reaches the network."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import httpx2
import pytest

from batchclient import Backoff, BatchClient, ConnectionLost, Http
from batchclient.integrations.httpx2 import BatchTransport, SyncBatchTransport
from batchclient.openai import AsyncOpenAI, OpenAI
from batchclient.testing import MockLLM, VirtualClock, respx_vllm

ASKED = {"model": "m", "max_tokens": 1}


@pytest.fixture
def url():
    """A real server's. It must not be reached."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


async def by_drop_in(url, prompts):
    async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        made = [client.completions.create(prompt=each, **ASKED) for each in prompts]
        return [answer.choices[0].text for answer in await asyncio.gather(*made)]


async def by_blocking_drop_in(url, prompts):
    with OpenAI(base_url=url, api_key="k", max_retries=0) as client, ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda each: client.completions.create(prompt=each, **ASKED), prompts))
    return [answer.choices[0].text for answer in answers]


async def by_transport(url, prompts):
    async with httpx2.AsyncClient(transport=BatchTransport()) as http:
        made = [http.post(f"{url}/completions", json={"prompt": each, **ASKED}) for each in prompts]
        return [answer.json()["choices"][0]["text"] for answer in await asyncio.gather(*made)]


async def by_blocking_transport(url, prompts):
    with httpx2.Client(transport=SyncBatchTransport()) as http, ThreadPoolExecutor(len(prompts)) as pool:
        answers = pool.map(lambda each: http.post(f"{url}/completions", json={"prompt": each, **ASKED}), prompts)
        return [answer.json()["choices"][0]["text"] for answer in answers]


async def by_client(url, prompts):
    async with BatchClient(url, model="m", http=Http(backend="httpx2")) as client:
        return [each.text for each in await client.batch_map(prompts, "{}", max_tokens=1)]


WAYS = pytest.mark.parametrize(
    "way",
    [by_drop_in, by_blocking_drop_in, by_transport, by_blocking_transport, by_client],
    ids=lambda way: way.__name__,
)


@WAYS
async def test_pytest_httpx2_answers_what_would_be_sent(way, url, httpx2_mock):
    route = httpx2_mock.post(f"{url}/completions").mock(side_effect=respx_vllm({"p0": "A", "p1": "B"}))
    assert await way(url, ["p0", "p1"]) == ["A", "B"]
    assert 1 <= route.call_count <= 2


@WAYS
async def test_a_replaced_transport_sees_what_would_be_sent(way, url, monkeypatch):
    """As pytest's ``monkeypatch``, httpx2-pytest and OpenTelemetry's instrumentation replace it."""
    seen = []
    mock = MockLLM()

    async def handle_async_request(transport, request):
        await request.aread()
        seen.append(type(transport))
        return mock.respond(request)

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", handle_async_request)
    assert await way(url, ["p0", "p1"]) == ["mock answer to: p0", "mock answer to: p1"]
    assert set(seen) == {httpx2.AsyncHTTPTransport}


@pytest.mark.parametrize("way", [by_drop_in, by_transport, by_client], ids=lambda way: way.__name__)
async def test_what_is_asked_beside_the_calls_is_mocked_too(way, url, httpx2_mock):
    seen = set()
    asked = asyncio.Event()
    answer = respx_vllm()

    async def hold_until_both_pages_are_asked_for(request):
        seen.add(request.url.path)
        if {"/v1/models", "/metrics"} <= seen:
            asked.set()
        if request.method == "POST":
            await asked.wait()
        return answer(request)

    httpx2_mock.route(host="127.0.0.1").mock(side_effect=hold_until_both_pages_are_asked_for)
    with VirtualClock():
        assert await way(url, [f"p{number}" for number in range(400)])
    assert {"/v1/completions", "/v1/models", "/metrics"} <= seen


@pytest.mark.parametrize(
    ("backend", "mock", "raised"),
    [
        ("httpx", "respx_mock", httpx.ReadError("broken")),
        ("httpx2", "httpx2_mock", httpx2.ReadError("broken")),
        ("httpx2", "httpx2_mock", httpx.ReadError("broken")),
    ],
    ids=["httpx", "httpx2", "httpx's under httpx2"],
)
async def test_a_mocked_break_of_a_connection_ends_the_call(backend, mock, raised, url, request):
    route = request.getfixturevalue(mock).post(f"{url}/completions").mock(side_effect=raised)
    async with BatchClient(url, model="m", http=Http(backend=backend), retry=Backoff(max_attempts=1)) as client:
        with pytest.raises(ConnectionLost):
            await client.complete("p", max_tokens=1)
    # It has no connection that might have been closed while it was idle.
    assert route.call_count == 1


async def test_another_backend_that_was_asked_for_is_used(url, httpx2_mock, respx_mock):
    route = respx_mock.post(f"{url}/completions").mock(side_effect=respx_vllm(" fine"))
    async with AsyncOpenAI(base_url=url, api_key="k", http=Http(backend="httpx")) as client:
        assert (await client.completions.create(prompt="p", **ASKED)).choices[0].text == " fine"
    async with httpx2.AsyncClient(transport=BatchTransport(http=Http(backend="httpx"))) as http:
        answer = await http.post(f"{url}/completions", json={"prompt": "p", **ASKED})
    assert answer.json()["choices"][0]["text"] == " fine"
    assert route.call_count == 2


async def test_a_backend_of_none_is_the_default(url, httpx2_mock):
    route = httpx2_mock.post(f"{url}/completions").mock(side_effect=respx_vllm(" fine"))
    async with AsyncOpenAI(base_url=url, api_key="k", http=Http(backend=None)) as client:
        await client.completions.create(prompt="p", **ASKED)
    async with httpx2.AsyncClient(transport=BatchTransport(http=Http(backend=None))) as http:
        await http.post(f"{url}/completions", json={"prompt": "p", **ASKED})
    assert route.call_count == 2
