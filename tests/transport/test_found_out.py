"""Finding out which server it is over real sockets, and beside mocked ones."""

import asyncio

import httpx
import pytest
import respx
from tests.transport.test_expected_requests import answer

from batchclient import BatchClient
from batchclient.simulator.app import EmbeddedServer

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
    with EmbeddedServer(profile="instant", model="org/model", guise=guise) as server:
        async with BatchClient(server.base_url, limit="auto") as client:
            endpoint = await known(client)
            assert endpoint.server.startswith(f"{guise} ")
            answers = await client.batch_map([f"Question {number}" for number in range(16)], "{}", max_tokens=2)
            assert len(answers) == 16
            assert endpoint.batch_size_cap == (4 if guise == "tgi" else 32)


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
        async with BatchClient(URL, http_client=own) as client:
            assert (await client.complete("p")).text == "<p>"
            await asyncio.sleep(0.3)
            assert (await client.complete("q")).text == "<q>"
    assert asked == [("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/v1/completions")]
