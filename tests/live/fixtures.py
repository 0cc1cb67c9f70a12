"""The fixture `vllm_server`, shared by tests/live and tests/contract: their conftest.py imports it from here."""

import functools
import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.live.vllm_server import VllmServer

MODELS_TRY_S = 10.0


@dataclass(frozen=True)
class LiveServer:
    """A running vLLM; `process` is None where it was started by someone else (BATCHCLIENT_VLLM_URL)."""

    base_url: str  # ends in /v1
    model: str
    process: VllmServer | None


# Two conftests that import the fixture make two fixtures of it: the cache has them share one server.
@functools.cache
def _booted() -> VllmServer:
    server = VllmServer()
    server.start()
    return server


def _attached(url: str) -> LiveServer:
    base_url = url.rstrip("/")
    if not base_url.endswith("/v1"):
        base_url += "/v1"
    # No proxy: the server is on this machine or one the caller reaches directly.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{base_url}/models", timeout=MODELS_TRY_S) as answer:
        model: str = json.load(answer)["data"][0]["id"]
    return LiveServer(base_url, model, None)


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[LiveServer]:
    """A real vLLM. A server that does not come up is an error, never a skip."""
    if not os.environ.get("BATCHCLIENT_TEST_VLLM"):
        pytest.skip("needs a real vLLM: run `make test-vllm` (it sets BATCHCLIENT_TEST_VLLM=1)")
    url = os.environ.get("BATCHCLIENT_VLLM_URL")
    if url:
        yield _attached(url)
        return
    server = _booted()
    yield LiveServer(server.base_url, server.model, server)
    server.stop()
