"""LangChain's ``ChatOpenAI`` and ``OpenAIEmbeddings`` over ``BatchTransport``: the real packages (``make test-extra WHICH=integrations``)."""

import asyncio
import os
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
from batchclient import Batching

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip(
        "langchain_openai", reason="LangChain is not installed here: make test-extra WHICH=integrations"
    )
    import httpx2
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

import openai
from pydantic import BaseModel

from batchclient.integrations.httpx2 import BatchTransport
from batchclient.simulator import EmbeddedServer

pytestmark = pytest.mark.filterwarnings("default")
COUNT = 200


class Models:
    """LangChain's models over one transport.

    Args:
        server: which.
        settings: the transport's.
    """

    def __init__(self, server, **settings):
        self.transport = BatchTransport(**settings)
        self.http = httpx2.AsyncClient(transport=self.transport, timeout=60)
        self._common = {"model": "m", "base_url": server.base_url, "api_key": "k", "http_async_client": self.http}
        self._plain = {"model": "m", "base_url": server.base_url, "api_key": "k"}

    def make(self, kind, *, plain=False, **arguments):
        return kind(**(self._plain if plain else self._common), **arguments)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.http.aclose()


async def test_abatch_of_a_chain_shares_requests(counted):
    questions = [{"word": f"word {i}"} for i in range(COUNT)]
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "Define {word}.")])
    async with Models(counted) as models:
        chain = prompt | models.make(ChatOpenAI, max_tokens=4, temperature=0)
        answers = await chain.abatch(questions)
        requests, shared = counted.requests, models.transport.shared
        plain = prompt | models.make(ChatOpenAI, plain=True, max_tokens=4, temperature=0)
        plain = await plain.abatch(questions[::20])
    assert shared == COUNT
    assert requests <= 30
    assert [each.content for each in answers[::20]] == [each.content for each in plain]
    assert len({each.content for each in answers}) == COUNT
    # What LangChain makes of usage, here of shares of the list's.
    assert [each.usage_metadata["output_tokens"] for each in answers] == [4] * COUNT
    assert answers[0].usage_metadata["input_tokens"] > 0


async def test_completions_share_requests(counted):
    async with Models(counted) as models:
        llm = models.make(OpenAI, max_tokens=2, temperature=0)
        result = await llm.abatch([f"question {i}" for i in range(COUNT)])
    assert len(set(result)) == COUNT
    assert counted.requests <= 30


@pytest.fixture
def tokenizer(monkeypatch):
    """OpenAI's, which LangChain would fetch; LiteLLM brings a copy."""
    litellm = find_spec("litellm")
    if litellm is None:
        pytest.skip("the tokenizer's file comes with LiteLLM")
    monkeypatch.setenv(
        "TIKTOKEN_CACHE_DIR", str(Path(os.fsdecode(litellm.origin)).parent / "litellm_core_utils/tokenizers")
    )


@pytest.mark.parametrize("sends", ["token ids", "texts"])
async def test_embeddings_share_requests(counted, tokenizer, sends):
    texts = [f"text {i}" for i in range(COUNT)]
    async with Models(counted) as models:
        # By default LangChain counts tokens itself, and sends what it counted.
        checks = {"check_embedding_ctx_length": sends == "token ids"}
        ours = models.make(OpenAIEmbeddings, **checks)
        vectors = await asyncio.gather(*[ours.aembed_query(text) for text in texts])
        requests, shared = counted.requests, models.transport.shared
        documents = await ours.aembed_documents(texts[:10])
        plain = models.make(OpenAIEmbeddings, plain=True, **checks)
        plain = await plain.aembed_documents(texts[:10])
    assert shared == COUNT
    assert requests <= 30
    assert vectors[:10] == plain
    assert documents == plain
    assert len({tuple(vector) for vector in vectors}) == COUNT


class Definition(BaseModel):
    word: str
    is_noun: bool


async def test_structured_output(counted):
    # Answers of more than 32 tokens go alone unless told.
    async with Models(counted, batching=Batching(chat_list_tokens=64)) as models:
        llm = models.make(ChatOpenAI, max_tokens=60, temperature=0).with_structured_output(Definition)
        answers = await llm.abatch([f"word {i}" for i in range(COUNT)])
    assert all(isinstance(answer, Definition) for answer in answers)
    assert len({answer.word for answer in answers}) == COUNT
    assert counted.requests <= 30


def test_batch_in_threads_shares_requests(counted):
    from batchclient.integrations.httpx2 import SyncBatchTransport

    transport = SyncBatchTransport(preset="throughput")
    with httpx2.Client(transport=transport, timeout=60) as http:
        llm = ChatOpenAI(
            model="m", base_url=counted.base_url, api_key="k", http_client=http, max_tokens=4, temperature=0
        )
        answers = llm.batch([f"question {i}" for i in range(COUNT)], config={"max_concurrency": 64})
    assert transport.shared == COUNT
    assert counted.requests <= 100
    assert len({each.content for each in answers}) == COUNT


async def test_streams_go_past(counted):
    async with Models(counted) as models:
        pieces = [piece.content async for piece in models.make(ChatOpenAI, max_tokens=5).astream("hi")]
        assert (models.transport.shared, models.transport.passed_on) == (0, 1)
    assert len(pieces) > 5


def test_its_timeout_and_its_retries_are_kept(run, monkeypatch):
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_: 0.0)
    with EmbeddedServer("instant", model="m", faults=["stall"]) as server:

        async def main():
            async with Models(server) as models:
                with pytest.raises(openai.APITimeoutError):
                    await models.make(ChatOpenAI, timeout=0.1, max_retries=2).ainvoke("hi")

        run(main)
        # It sends three times, the transport each time once.
        assert server.requests == 3
