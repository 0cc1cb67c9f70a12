"""DSPy over LiteLLM's sessions: the real package (``make test-extra WHICH=integrations``)."""

import asyncio
import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from batchclient import Batching

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else LiteLLM's import asks the network
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    dspy = pytest.importorskip("dspy", reason="DSPy is not installed here: make test-extra WHICH=integrations")
    import litellm

import httpx

from batchclient.integrations.httpx import BatchTransport, SyncBatchTransport

pytestmark = pytest.mark.filterwarnings("default")
COUNT = 64


@pytest.fixture
def model(counted):
    """DSPy's model; its own engine, the default, takes no client and no transport."""
    litellm.in_memory_llm_clients_cache.flush_cache()
    yield dspy.LM(
        "openai/m", engine="litellm", api_base=counted.base_url, api_key="k", max_tokens=32, cache=False, num_retries=0
    )
    litellm.in_memory_llm_clients_cache.flush_cache()


async def test_coroutines_share_requests(counted, model, monkeypatch):
    transport = BatchTransport()
    async with httpx.AsyncClient(transport=transport, timeout=60) as http:
        monkeypatch.setattr(litellm, "aclient_session", http)
        answers = await asyncio.gather(*[model.acall(f"question {i}") for i in range(COUNT)])
        shared = transport.shared
    assert shared == COUNT
    assert counted.requests <= COUNT / 3
    assert len({text for (text,) in answers}) == COUNT


def test_threads_of_a_program_share_requests(counted, model, monkeypatch):
    transport = SyncBatchTransport(preset="throughput", batching=Batching(linger_s=0.1))
    with httpx.Client(transport=transport, timeout=60) as http, ThreadPoolExecutor(16) as pool:
        monkeypatch.setattr(litellm, "client_session", http)
        answers = list(pool.map(lambda i: model(f"question {i}"), range(COUNT)))
    assert transport.shared == COUNT
    assert counted.requests < COUNT / 2
    assert len({text for (text,) in answers}) == COUNT
