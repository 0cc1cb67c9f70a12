"""The fixtures of real servers, shared by tests/live and tests/contract: their conftest.py imports them from here."""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchclient import BatchClient
from tests.gpu.targets import Target
from tests.live.real_time import go_first
from tests.live.server_process import DEFAULT_MODEL_DIR, NotInstalled, ServerProcess
from tests.live.servers import (
    SAME_IN_ANY_COMPANY,
    ContinuousTransformersServer,
    LlamaServer,
    TransformersServer,
    VllmServer,
)

OTHER_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "1"}
"""For a second vLLM beside the shared one, which computes on the first core."""


class LiveServer(Target):
    """A running server, and questions to it beside the client's; `process` is None where it was started by someone else."""

    def client(self, **settings: Any) -> BatchClient:
        return super().client(**{"timeout_s": 60, **settings})

    def post(self, **fields: Any) -> httpx.Response:
        """What it answers to a completion, without our client."""
        body = {"model": self.model, "prompt": "def f(", "max_tokens": 4, "temperature": 0, **fields}
        return httpx.post(self.base_url + "/completions", json=body, timeout=60)

    async def together(self, prompts: list[Any], **params: Any) -> Any:
        """The outcomes of calls made at once, and the client's statistics."""
        async with self.client() as client:
            calls = [client.complete(prompt, temperature=0, **params) for prompt in prompts]
            return await asyncio.gather(*calls, return_exceptions=True), client.statistics()


def running(process: ServerProcess) -> LiveServer:
    return LiveServer.of_process(process, None)


def skip_without(kind: type[ServerProcess], model_dir: Path = DEFAULT_MODEL_DIR) -> None:
    """Skip unless the run is one with real servers, and this one was set up. A vLLM that was not is an error."""
    which = "vllm" if issubclass(kind, VllmServer) else "servers"
    variable = f"BATCHCLIENT_TEST_{which.upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"needs a real {kind.kind}: run `make test-extra WHICH={which}` (it sets {variable}=1)")
    try:
        kind(model_dir=model_dir).check()
    except NotInstalled as missing:
        if which == "vllm":
            raise
        pytest.skip(str(missing))


@contextlib.contextmanager
def booted(flags: Sequence[str], model_dir: Path = DEFAULT_MODEL_DIR) -> Iterator[LiveServer]:
    """A real vLLM of its own for some tests."""
    skip_without(VllmServer, model_dir)
    with VllmServer(flags, model_dir=model_dir, env=OTHER_CORE) as server:
        yield running(server)


_started: dict[str, ServerProcess] = {}
"""By kind. Two conftests that import a fixture make two fixtures of it, and share one server."""


def _shared(kind: type[ServerProcess]) -> ServerProcess:
    if kind.kind not in _started:
        server = kind(SAME_IN_ANY_COMPANY if kind is VllmServer else ())
        server.start()
        if kind is VllmServer:
            go_first()
        _started[kind.kind] = server
    return _started[kind.kind]


def _server(kind: type[ServerProcess]) -> Iterator[LiveServer]:
    """The shared server of a kind. One that does not come up is an error, never a skip."""
    skip_without(kind)
    server = _shared(kind)
    yield running(server)
    server.stop()


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[LiveServer]:
    """A real vLLM."""
    url = os.environ.get("BATCHCLIENT_VLLM_URL")
    if url and os.environ.get("BATCHCLIENT_TEST_VLLM"):
        yield LiveServer.attached("vllm", url)
    else:
        yield from _server(VllmServer)


@pytest.fixture(autouse=True)
def shared_vllm_lives() -> None:
    """A shared server that has died fails the next test with the end of its log, at once: else every test waits for its return."""
    if "vllm" in _started and not _started["vllm"].is_running():
        died = _started["vllm"]
        pytest.fail(f"the shared vLLM has died; the end of {died.log_path}:\n{died.log_tail()}", pytrace=False)


@pytest.fixture(scope="session")
def llamacpp_server() -> Iterator[LiveServer]:
    """A llama-server with 4 slots of 2,048 tokens."""
    yield from _server(LlamaServer)


@pytest.fixture(scope="session")
def transformers_server() -> Iterator[LiveServer]:
    """A `transformers serve` that answers one request after the other."""
    yield from _server(TransformersServer)


@pytest.fixture(scope="session")
def transformers_cb_server() -> Iterator[LiveServer]:
    """A `transformers serve` with continuous batching."""
    yield from _server(ContinuousTransformersServer)
