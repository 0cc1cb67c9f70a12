"""The same cases against the embedded server and against a real vLLM, so that the one cannot drift from the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from batchclient.simulator.app import EmbeddedServer
from tests.live.fixtures import vllm_server  # noqa: F401 (a fixture)


@dataclass(frozen=True)
class Server:
    """A server under contract."""

    base_url: str
    model: str
    max_model_len: int
    real: bool


@pytest.fixture(scope="session", params=["embedded", pytest.param("vllm", marks=pytest.mark.vllm)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each of the servers in turn."""
    if request.param == "vllm":
        live = request.getfixturevalue("vllm_server")
        yield Server(live.base_url, live.model, 2048, real=True)
        return
    with EmbeddedServer(profile="instant", model="tiny", max_model_len_tokens=2048) as embedded:
        yield Server(embedded.base_url, embedded.model, 2048, real=False)
