"""Finding out which server it is over real sockets, and beside mocked ones."""

import asyncio
import json
from functools import partial, wraps
from unittest import mock

import httpcore
import httpcore2
import httpx
import httpx2
import pytest
import respx
from tests.fakes.pages import serving
from tests.transport.test_expected_requests import answer

from batchclient import BatchClient, Http
from batchclient.simulator import EmbeddedServer
from tests.guises import GUISES
from batchclient.testing import MockLLM
from batchclient.transport._libraries import is_mocked

URL = "http://server.test/v1"


async def known(client):
    """Call until it is known which server it is."""
    for _ in range(200):
        await client.complete("Hello", max_tokens=2)
        (endpoint,) = client.statistics().endpoints
        if endpoint.server is not None and " " in endpoint.server:
            return endpoint
        await asyncio.sleep(0.05)
    raise AssertionError("it was not found out")


@pytest.mark.parametrize("guise", ["vllm", "tgi", "sglang"])
async def test_a_url_is_enough(guise):
    with EmbeddedServer(profile="instant", model="org/model", guise=GUISES[guise]) as server:
        async with BatchClient(server.base_url, limit="auto") as client:
            endpoint = await known(client)
            assert endpoint.server.startswith(f"{guise} ")
            answers = await client.batch_map([f"Question {number}" for number in range(16)], "{}", max_tokens=2)
            assert len(answers) == 16
            assert endpoint.batch_size_cap == (4 if guise == "tgi" else 32)


async def test_a_server_that_takes_no_lists_says_so_by_a_header_while_it_still_loads_its_model(backend):
    def loading(asked):
        if asked.method == "GET":
            return 503, {"error": "loading"}, {"Server": "BaseHTTP/0.6 Python/3.12.3"}
        choice = {"index": 0, "text": asked.json["prompt"], "finish_reason": "stop"}
        return 200, {"choices": [choice]}, {}

    with serving(loading) as running:
        async with BatchClient(running.url, model="m", http=Http(backend=backend)) as client:
            prompts = [f"p{number}" for number in range(6)]
            assert [each.text for each in await asyncio.gather(*map(client.complete, prompts))] == prompts
        assert [type(each.json["prompt"]) for each in running.asked if each.method == "POST"] == [str] * 6


@pytest.mark.parametrize("model", ["m", None])
async def test_a_server_that_a_list_kills_lives(model, backend, caplog):
    caplog.set_level("INFO", "batchclient")
    prompts = [f"p{number}" for number in range(6)]
    # Without a cache of Hugging Face's its page is empty.
    models = "" if model else {"object": "list", "data": [{"id": "m", "object": "model", "created": 1}]}

    def like_mlx_server(asked):
        """As mlx_lm.server 0.32: a list of prompts ends the thread that generates, and all is 404 from then on."""
        if asked.method == "GET":
            return 200, models, {}
        if any(not isinstance(each.json["prompt"], str) for each in running.asked if each.method == "POST"):
            return 404, {"error": "generation thread died"}, {}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "text": asked.json["prompt"], "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": usage}, {}

    with serving(like_mlx_server) as running:
        made = partial(BatchClient, running.url, model=model, http=Http(backend=backend))
        async with made() as one, made() as other:
            assert [each.text for each in await asyncio.gather(*map(one.complete, prompts))] == prompts
            assert [each.text for each in await other.batch_map(prompts, "{}")] == prompts
    said = [record.reason for record in caplog.records if record.event == "no_lists"]
    assert said == ["it is built on Python's http.server, as mlx_lm.server is"] * 2, "once by each client"


async def test_a_mocked_library_sees_the_first_list_before_any_question():
    async with BatchClient(URL, model="m") as client:
        # The client was there before the mock.
        with respx.mock as router:
            router.route(host="server.test").mock(side_effect=answer)
            assert len(await asyncio.gather(*[client.complete(f"{number}") for number in range(3)])) == 3
            assert [json.loads(call.request.content)["prompt"] for call in router.calls] == [["0", "1", "2"]]


class Wrapper:
    """As ``wrapt``'s, by which OpenTelemetry wraps functions: it shows the attributes of what it wraps."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __getattr__(self, name):
        return getattr(self.wrapped, name)


@pytest.mark.parametrize("backend", [None, "httpx", "httpx2"])
def test_a_mock_of_a_library_is_seen_and_a_wrapper_that_passes_all_on_is_none(backend):
    ways = {
        None: (httpx.AsyncHTTPTransport, httpcore.AsyncConnectionPool),
        "httpx": (httpx.AsyncHTTPTransport, httpcore.AsyncConnectionPool),
        "httpx2": (httpx2.AsyncHTTPTransport, httpcore2.AsyncConnectionPool),
    }[backend]
    name = "handle_async_request"
    for owner in ways:
        own = getattr(owner, name)
        recording = wraps(own)(lambda *args: None)
        for other in (Wrapper(own), recording, mock.AsyncMock(), mock.create_autospec(own)):
            with mock.patch.object(owner, name, other):
                assert is_mocked(backend) is not isinstance(other, Wrapper)
    with MockLLM():
        assert is_mocked(backend)
    assert not is_mocked(backend)


async def test_a_mocked_server_that_knows_no_such_page_loses_nothing(caplog):
    caplog.set_level("DEBUG", "batchclient")

    async def slowly(request):
        await asyncio.sleep(0.8)
        return answer(request)

    with respx.mock(assert_all_called=True, assert_all_mocked=True) as router:
        router.post(f"{URL}/completions").mock(side_effect=slowly)
        async with BatchClient(URL, model="m") as client:
            assert (await client.complete("p")).text == "<p>"
        assert [call.request.method for call in router.calls] == ["POST"]
    assert "asking for /models failed" in caplog.text, "it did ask"
    assert {record.levelname for record in caplog.records if record.name == "batchclient"} == {"DEBUG"}


async def test_the_question_for_the_model_goes_through_a_users_own_client():
    asked = []

    def handle(request):
        asked.append((request.method, request.url.path))
        if request.method == "GET":
            return httpx.Response(200, json={"object": "list", "data": [{"id": "theirs", "owned_by": "vllm"}]})
        return answer(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as own:
        async with BatchClient(URL, http=own) as client:
            assert (await client.complete("p")).text == "<p>"
            await asyncio.sleep(0.3)
            assert (await client.complete("q")).text == "<q>"
    assert asked == [("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/v1/completions")]
