"""The same cases against the embedded server and against a real vLLM, so that the one cannot drift from the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from batchclient.simulator.app import EmbeddedServer
from tests.contract.peers import CAN, Peer
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


@pytest.fixture(scope="session", params=[*CAN, pytest.param("real vllm", marks=pytest.mark.vllm)])
def peer(request: pytest.FixtureRequest) -> Peer:
    """Each of the servers that generate text, spoken to as what it is."""
    if request.param == "real vllm":
        live = request.getfixturevalue("vllm_server")
        return Peer("real vllm", replace(CAN["vllm"], model=live.model), live.base_url)
    return Peer(request.param, CAN[request.param])


@pytest.fixture(scope="session", params=["known", "unknown"])
def simulated(request: pytest.FixtureRequest, guise: str) -> Peer:
    """Each guise, spoken to as what it is and as a server of which nothing is known."""
    return Peer(guise, CAN[guise], known=request.param == "known")


@pytest.fixture(scope="session", params=CAN)
def guise(request: pytest.FixtureRequest) -> str:
    """Each guise that generates text."""
    return str(request.param)
