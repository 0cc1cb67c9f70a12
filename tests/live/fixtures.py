"""The fixtures of real servers, shared by tests/live and tests/contract: their conftest.py imports them from here."""

import contextlib
import functools
import json
import os
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.other_servers import ContinuousTransformersServer, LlamaServer, TransformersServer
from tests.live.real_time import go_first
from tests.live.server_process import DEFAULT_MODEL_DIR, NotInstalled, ServerProcess
from tests.live.vllm_server import SAME_IN_ANY_COMPANY, VllmServer

MODELS_TRY_S = 10.0


@dataclass(frozen=True)
class LiveServer:
    """A running server; `process` is None where it was started by someone else (BATCHCLIENT_VLLM_URL)."""

    base_url: str  # ends in /v1
    model: str
    process: ServerProcess | None


# Two conftests that import the fixture make two fixtures of it: the cache has them share one server.
@functools.cache
def _booted() -> VllmServer:
    server = VllmServer(SAME_IN_ANY_COMPANY)
    server.start()
    go_first()
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


def skip_without_vllm() -> None:
    """Skip unless the run is one with a real vLLM."""
    if not os.environ.get("BATCHCLIENT_TEST_VLLM"):
        pytest.skip("needs a real vLLM: run `make test-extra WHICH=vllm` (it sets BATCHCLIENT_TEST_VLLM=1)")


@contextlib.contextmanager
def booted(flags: Sequence[str], model_dir: Path = DEFAULT_MODEL_DIR) -> Iterator[LiveServer]:
    """A real vLLM of its own for some tests, beside the shared one: it computes on the other core."""
    skip_without_vllm()
    with VllmServer(flags, model_dir=model_dir, env={"VLLM_CPU_OMP_THREADS_BIND": "1"}) as server:
        yield LiveServer(server.base_url, server.model, server)


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[LiveServer]:
    """A real vLLM. A server that does not come up is an error, never a skip."""
    skip_without_vllm()
    url = os.environ.get("BATCHCLIENT_VLLM_URL")
    if url:
        yield _attached(url)
        return
    server = _booted()
    yield LiveServer(server.base_url, server.model, server)
    server.stop()


@pytest.fixture(autouse=True)
def shared_vllm_lives() -> None:
    """A shared server that has died fails the next test with the end of its log, at once: else every test waits for its return."""
    if _booted.cache_info().currsize and not _booted().is_running():
        pytest.fail(
            f"the shared vLLM has died; the end of {_booted().log_path}:\n{_booted().log_tail()}", pytrace=False
        )


@functools.cache
def _booted_other(kind: type[ServerProcess]) -> ServerProcess:
    server = kind()
    server.start()
    return server


def other_server(kind: type[ServerProcess]) -> Iterator[LiveServer]:
    """A server that is not vLLM: skipped where it was not set up, an error where it does not come up."""
    if not os.environ.get("BATCHCLIENT_TEST_SERVERS"):
        pytest.skip("needs servers of others: run `make test-extra WHICH=servers` (it sets BATCHCLIENT_TEST_SERVERS=1)")
    try:
        server = _booted_other(kind)
    except NotInstalled as missing:
        pytest.skip(str(missing))
    yield LiveServer(server.base_url, server.model, server)
    server.stop()


@pytest.fixture(scope="session")
def llamacpp_server() -> Iterator[LiveServer]:
    """A llama-server with 4 slots of 2,048 tokens."""
    yield from other_server(LlamaServer)


@pytest.fixture(scope="session")
def transformers_server() -> Iterator[LiveServer]:
    """A `transformers serve` that answers one request after the other."""
    yield from other_server(TransformersServer)


@pytest.fixture(scope="session")
def transformers_cb_server() -> Iterator[LiveServer]:
    """A `transformers serve` with continuous batching."""
    yield from other_server(ContinuousTransformersServer)
