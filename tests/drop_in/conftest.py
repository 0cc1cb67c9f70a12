"""The embedded server; both clients."""

import openai
import pytest

from batchclient.openai import AsyncOpenAI
from batchclient.simulator import EmbeddedServer


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer() as server:
        yield server


class Pair:
    """The drop-in and openai's own client, for the same server."""

    def __init__(self, url, **arguments):
        given = {"base_url": url, "api_key": "key", "max_retries": 0, **arguments}
        self.ours = AsyncOpenAI(**given, preset="throughput", dialect="vllm")
        self.theirs = openai.AsyncOpenAI(**given)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.ours.close()
        await self.theirs.close()


@pytest.fixture
def pair():
    """Makes a pair for a base URL."""
    return Pair
