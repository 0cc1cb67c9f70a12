"""The same cases against the embedded server and against a real vLLM, so that the one cannot drift from the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from batchclient.simulator.app import EmbeddedServer
from tests.live.fixtures import booted, vllm_server  # noqa: F401 (the second is a fixture)


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


SERVERS = ["embedded", pytest.param("vllm", marks=pytest.mark.vllm)]


def pooling_server(request: pytest.FixtureRequest, flags: Sequence[str], model_dir: Path) -> Iterator[Server]:
    """A server that generates nothing: the embedded one, or a vLLM booted with these flags."""
    if request.param == "vllm":
        with booted(flags, model_dir) as live:
            yield Server(live.base_url, live.model, 512, real=True)
        return
    with EmbeddedServer(profile="instant", model="tiny", max_model_len_tokens=512) as embedded:
        yield Server(embedded.base_url, embedded.model, 512, real=False)
