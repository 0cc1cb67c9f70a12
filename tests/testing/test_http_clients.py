"""A scripted server under clients that are not ours: httpx, httpx2, openai and respx, sync and async."""

import asyncio
import subprocess
import sys
import threading

import anyio
import httpx
import httpx2
import openai
import pytest
import respx

from batchclient import BatchClient, ConfigError
from batchclient.testing import MockLLM, VirtualClock, respx_vllm

LIBRARIES = pytest.mark.parametrize("http", [httpx, httpx2], ids=["httpx", "httpx2"])
BODY = {"model": "gpt-9", "prompt": ["a", "b"], "max_tokens": 4}


@pytest.fixture
def mock():
    with MockLLM() as opened:
        opened.when("a").answer("A")
        yield opened


def transport_of(mock, http):
    return mock.httpx_transport() if http is httpx else mock.httpx2_transport()


def read(response):
    return [choice["text"] for choice in response.json()["choices"]]


@LIBRARIES
def test_its_url_reaches_it_through_the_librarys_own_clients(mock, http):
    url = f"{mock.base_url}/completions"
    assert read(http.post(url, json=BODY)) == ["A", "mock answer to: b"]

    async def main():
        async with http.AsyncClient() as client:
            return read(await client.post(url, json=BODY))

    assert asyncio.run(main()) == ["A", "mock answer to: b"]
    assert anyio.run(main, backend="trio") == ["A", "mock answer to: b"]
    assert [request.prompts for request in mock.requests] == [["a", "b"]] * 3


@LIBRARIES
def test_its_transport_reaches_it_whatever_the_url(mock, http):
    with http.Client(transport=transport_of(mock, http)) as client:
        assert read(client.post("http://anything.test/api/v1/completions", json=BODY)) == ["A", "mock answer to: b"]


@LIBRARIES
def test_faults_are_errors_of_the_library(mock, http):
    url = f"{mock.base_url}/completions"
    mock.when("a").time_out(times=1).hang(times=1).disconnect(times=1).disconnect(
        mid_reply=True, times=1
    ).refuse_connection()
    errors = [http.ReadTimeout, http.ReadTimeout, http.RemoteProtocolError, http.RemoteProtocolError, http.ConnectError]
    for error in errors:
        with pytest.raises(http.TransportError) as caught:
            http.post(url, json=BODY, timeout=0.01)
        assert type(caught.value) is error
    with pytest.raises(ConfigError, match="never end"):
        mock.when("a").hang()
        http.post(url, json=BODY, timeout=None)


@LIBRARIES
def test_in_an_event_loop_slow_answers_take_virtual_time(mock, http):
    mock.when("a").answer("late", delay_s=30)

    async def main():
        async with http.AsyncClient(timeout=60) as client:
            return read(await client.post(f"{mock.base_url}/completions", json=BODY))[0]

    with VirtualClock() as clock:
        assert asyncio.run(main()) == "late"
        assert 30 <= clock.elapsed_s < 31


@LIBRARIES
def test_closed_it_leaves_the_libraries_as_they_were(http):
    before = http.HTTPTransport.handle_request, http.AsyncHTTPTransport.handle_async_request
    with MockLLM() as first:
        second = MockLLM()
        second.open()
        first_url = first.base_url
        assert http.HTTPTransport.handle_request is not before[0]
    # Closed in any order.
    assert http.HTTPTransport.handle_request is not before[0]
    assert read(http.post(f"{second.base_url}/completions", json=BODY))
    second.close()
    assert (http.HTTPTransport.handle_request, http.AsyncHTTPTransport.handle_async_request) == before
    with pytest.raises(http.ConnectError):
        http.post(f"{first_url}/completions", json=BODY)


def test_two_servers_do_not_meet(mock):
    with MockLLM() as other:
        other.when("a").answer("other's")
        assert read(httpx.post(f"{other.base_url}/completions", json=BODY))[0] == "other's"
        assert read(httpx.post(f"{mock.base_url}/completions", json=BODY))[0] == "A"
        assert len(other.requests) == len(mock.requests) == 1


def test_what_goes_elsewhere_is_left_alone(mock):
    with pytest.raises(httpx.ConnectError):
        httpx.post("http://127.0.0.1:1/v1/completions", json=BODY)
    assert mock.requests == []


def test_one_that_was_never_opened_is_reached_by_its_transports_only():
    mock = MockLLM()
    with httpx.Client(transport=mock.httpx_transport()) as client:
        assert read(client.post(f"{mock.base_url}/completions", json=BODY))
    with pytest.raises(httpx.ConnectError):
        httpx.post(f"{mock.base_url}/completions", json=BODY)


def test_threads_may_ask_at_once(mock):
    def ask():
        with httpx.Client(transport=mock.httpx_transport()) as client:
            for _ in range(20):
                read(client.post(f"{mock.base_url}/completions", json=BODY))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [request.number for request in mock.requests] == list(range(1, 161))
    assert [call.number for call in mock.calls] == list(range(1, 321))


# openai ------------------------------------------------------------------------------------------------------------


def messages(text):
    return [{"role": "user", "content": text}]


def test_openais_clients_go_by_its_url(mock):
    mock.when("weather").call_tools({"get": {"city": "Paris"}})
    mock.when("v").embed([0.5, 0.25])
    with openai.OpenAI(base_url=mock.base_url, api_key="k", max_retries=0) as client:
        answer = client.chat.completions.create(model="gpt-9", messages=messages("weather"))
        call = answer.choices[0].message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("get", '{"city":"Paris"}')
        assert answer.model == "gpt-9"
        assert client.embeddings.create(model="e", input=["v"]).data[0].embedding == [0.5, 0.25]
        assert client.models.list().data[0].id == "mock"
    assert mock.requests[0].headers["authorization"] == "Bearer k"

    async def main():
        async with openai.AsyncOpenAI(base_url=mock.base_url, api_key="k", max_retries=0) as client:
            stream = await client.chat.completions.create(model="m", messages=messages("weather"), stream=True)
            deltas = [chunk.choices[0].delta async for chunk in stream]
            assert [delta.role for delta in deltas if delta.role] == ["assistant"], "its role is said once"
            return "".join(each.function.arguments for delta in deltas for each in delta.tool_calls or [])

    assert asyncio.run(main()) == '{"city":"Paris"}'


def test_openais_errors_are_its_own(mock):
    mock.when("busy").fail(429, retry_after_s=1)
    mock.when("gone").refuse_connection()
    mock.when("slow").time_out()
    with openai.OpenAI(base_url=mock.base_url, api_key="k", max_retries=0) as client:
        for prompt, error in (
            ("busy", openai.RateLimitError),
            ("gone", openai.APIConnectionError),
            ("slow", openai.APITimeoutError),
        ):
            with pytest.raises(error) as caught:
                client.chat.completions.create(model="m", messages=messages(prompt))
            assert type(caught.value) is error


# BatchClient ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_a_client_by_its_url_sends_the_same_as_one_that_is_wired(mock, library):
    async def ask(client):
        async with client, anyio.create_task_group() as group:
            for prompt in "abc":
                group.start_soon(lambda each: client.complete(each, max_tokens=8), prompt)

    anyio.run(ask, mock.client(api_key="k"), backend=library)
    anyio.run(ask, BatchClient(mock.base_url, model="mock", api_key="k"), backend=library)
    wired, by_url = mock.requests
    # trio starts tasks in any order.
    assert sorted(wired.prompts) == sorted(by_url.prompts) == ["a", "b", "c"]
    assert {**wired.body, "prompt": ""} == {**by_url.body, "prompt": ""}
    assert wired.headers["authorization"] == by_url.headers["authorization"] == "Bearer k"


def test_a_broken_connection_is_no_race_on_a_kept_one(mock):
    mock.when("a").disconnect(times=1).answer("A")

    async def main():
        async with BatchClient(mock.base_url, model="m") as client:
            return await client.complete("a", max_tokens=4)

    assert asyncio.run(main()).attempts == 2, "it was an attempt, not a socket that was closed while idle"


async def test_the_users_own_http_client_is_used(mock):
    own = httpx.AsyncClient(transport=mock.httpx_transport())
    async with own, mock.client(http=own) as client:
        assert (await client.complete("a")).text == "A"


# respx ---------------------------------------------------------------------------------------------------------------


def complete(*prompts, **params):
    async def main():
        async with BatchClient("http://llm.test/v1", model="m") as client:
            return await asyncio.gather(*[client.complete(each, **params) for each in prompts], return_exceptions=True)

    return asyncio.run(main())


@pytest.mark.parametrize("max_tokens", [1, 64])
@pytest.mark.parametrize(
    "answers",
    ["fine", {"a": "fine", "b": "fine"}, lambda call: "fine", None],
    ids=["text", "mapping", "function", "none"],
)
def test_respx_answers_lists_and_streams(answers, max_tokens):
    with respx.mock:
        route = respx.post("http://llm.test/v1/completions").mock(side_effect=respx_vllm(answers))
        got = complete("a", "b", max_tokens=max_tokens)
    expected = ["mock answer to: a", "mock answer to: b"] if answers is None else ["fine", "fine"]
    assert [answer.text for answer in got] == expected
    assert route.call_count == 1


def test_respx_and_a_mock_with_faults_and_assertions(mock):
    mock.when("b").fail(503, times=1).answer("B", delay_s=0.001)
    with respx.mock:
        respx.route(host="llm.test").mock(side_effect=mock.respond)
        a, b = complete("a", "b", max_tokens=8)
    assert (a.text, b.text, b.attempts) == ("A", "B", 2)
    mock.assert_batched("a", "b")


def test_respx_in_blocking_code(mock):
    mock.when("a").answer("slow", delay_s=0.001)
    with respx.mock:
        respx.route(host="llm.test").mock(side_effect=mock.respond)
        assert read(httpx.post("http://llm.test/v1/completions", json=BODY)) == ["slow", "mock answer to: b"]


@LIBRARIES
def test_a_mock_transport_of_the_library_takes_the_handler(mock, http):
    with http.Client(transport=http.MockTransport(mock.respond)) as client:
        assert read(client.post("http://llm.test/v1/completions", json=BODY))[0] == "A"
    mock.when("a").answer("late", delay_s=0.001)

    async def main():
        async with http.AsyncClient(transport=http.MockTransport(mock.respond)) as client:
            return read(await client.post("http://llm.test/v1/completions", json=BODY))[0]

    assert asyncio.run(main()) == "late"


def test_wrong_answers_and_wrong_requests_are_refused(mock):
    with pytest.raises(ConfigError, match="answers are a text"):
        respx_vllm(7)
    with pytest.raises(ConfigError, match="not of builtins"):
        mock.respond(object())


def test_importing_the_tools_loads_no_http_library_beyond_our_own():
    program = (
        "import sys, batchclient.testing; print({'httpx2', 'openai', 'respx', 'pytest', 'uvicorn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
