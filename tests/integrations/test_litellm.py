"""LiteLLM over ``BatchTransport``: the real package (``make test-extra WHICH=integrations``)."""

import asyncio
import os
import warnings

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    litellm = pytest.importorskip("litellm", reason="LiteLLM is not installed here: make test-extra WHICH=integrations")

import httpx
import httpx2
import openai

from batchclient.integrations.httpx import BatchTransport
from batchclient.integrations.httpx2 import BatchTransport as Httpx2Transport
from batchclient.simulator import EmbeddedServer, expected_text

pytestmark = pytest.mark.filterwarnings("default")
COUNT = 200


def chat(server, i, **arguments):
    messages = [{"role": "user", "content": f"question {i}"}]
    return litellm.acompletion(
        model="openai/m",
        messages=messages,
        max_tokens=4,
        temperature=0,
        api_base=server.base_url,
        api_key="k",
        **arguments,
    )


@pytest.fixture
def session(monkeypatch):
    """LiteLLM's own clients over a transport; it keeps those it made."""
    transport = BatchTransport()
    litellm.in_memory_llm_clients_cache.flush_cache()
    monkeypatch.setattr(litellm, "aclient_session", httpx.AsyncClient(transport=transport, timeout=60))
    yield transport
    litellm.in_memory_llm_clients_cache.flush_cache()


async def test_a_session_of_its_own_shares_requests(counted, session):
    async with litellm.aclient_session:
        answers = await asyncio.gather(*[chat(counted, i) for i in range(COUNT)])
        shared = session.shared
    assert shared == COUNT
    assert counted.requests <= 30
    assert len({each.choices[0].message.content for each in answers}) == COUNT
    assert [each.usage.completion_tokens for each in answers] == [4] * COUNT


async def test_a_client_that_is_given_shares_requests(counted):
    transport = Httpx2Transport()
    async with httpx2.AsyncClient(transport=transport, timeout=60) as http:
        client = openai.AsyncOpenAI(base_url=counted.base_url, api_key="k", http_client=http)
        answers = await asyncio.gather(*[chat(counted, i, client=client) for i in range(COUNT)])
        shared = transport.shared
    assert shared == COUNT
    assert counted.requests <= 30
    assert len({each.choices[0].message.content for each in answers}) == COUNT


async def test_completions_and_embeddings_share_requests(counted, session):
    common = {"api_base": counted.base_url, "api_key": "k"}
    async with litellm.aclient_session:
        texts = await asyncio.gather(
            *[
                litellm.atext_completion(
                    model="text-completion-openai/m", prompt=f"q {i}", max_tokens=2, temperature=0, **common
                )
                for i in range(COUNT)
            ]
        )
        completions = counted.requests
        # It sends ``"encoding_format": null`` unless told; vLLM refuses that.
        vectors = await asyncio.gather(
            *[
                litellm.aembedding(model="openai/m", input=[f"text {i}"], encoding_format="float", **common)
                for i in range(COUNT)
            ]
        )
    assert [each.choices[0].text for each in texts] == [
        expected_text(f"q {i}", max_tokens=2, temperature=0) for i in range(COUNT)
    ]
    assert len({tuple(each.data[0]["embedding"]) for each in vectors}) == COUNT
    assert completions <= 30
    assert counted.requests - completions <= 30


def test_its_retries_are_its_own(run, session):
    with EmbeddedServer("instant", model="m", faults=["status=500"]) as server:

        async def main():
            async with litellm.aclient_session:
                with pytest.raises(litellm.InternalServerError):
                    await chat(server, 1, max_retries=0)

        run(main)
        assert server.requests == 1


def test_its_router_is_the_one_that_retries(run, session):
    with EmbeddedServer("instant", model="m", faults=["status=500"]) as server:

        async def main():
            async with litellm.aclient_session:
                params = {"model": "openai/m", "api_base": server.base_url, "api_key": "k"}
                router = litellm.Router(
                    [{"model_name": "m", "litellm_params": params}],
                    num_retries=2,
                    retry_after=0,
                    disable_cooldowns=True,
                )
                with pytest.raises(litellm.InternalServerError):
                    await router.acompletion(model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=4)

        run(main)
        assert server.requests == 3
