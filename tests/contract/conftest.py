"""The same cases against the embedded server and against a real vLLM, so that the one cannot drift from the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from batchclient.simulator import EmbeddedServer
from tests.contract.peers import CAN, REAL_ONLY, Peer
from tests.live.fixtures import booted, llamacpp_server, shared_vllm_lives, transformers_server, vllm_server  # noqa: F401 (but for the first, fixtures)


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


REAL = ("vllm", "llamacpp", "transformers")
"""Real servers: fixtures ``…_server``, markers by the same names."""


@pytest.fixture(
    scope="session", params=[*CAN, *(pytest.param(f"real {name}", marks=getattr(pytest.mark, name)) for name in REAL)]
)
def peer(request: pytest.FixtureRequest) -> Peer:
    """Each of the servers that generate text, spoken to as what it is."""
    if request.param in CAN:
        return Peer(request.param, CAN[request.param])
    name = request.param.removeprefix("real ")
    live = request.getfixturevalue(f"{name}_server")
    return Peer(request.param, replace(CAN[name], model=live.model, **REAL_ONLY.get(name, {})), live.base_url)


@pytest.fixture(scope="session", params=["known", "unknown"])
def simulated(request: pytest.FixtureRequest, guise: str) -> Peer:
    """Each guise, spoken to as what it is and as a server of which nothing is known."""
    return Peer(guise, CAN[guise], known=request.param == "known")


@pytest.fixture(scope="session", params=CAN)
def guise(request: pytest.FixtureRequest) -> str:
    """Each guise that generates text."""
    return str(request.param)


SERVERS = ["embedded", pytest.param("vllm", marks=pytest.mark.vllm)]


def pooling_server(request: pytest.FixtureRequest, flags: Sequence[str], model_dir: Path) -> Iterator[Server]:
    """A server that generates nothing: the embedded one, or a vLLM booted with these flags."""
    if request.param == "vllm":
        with booted(flags, model_dir) as live:
            yield Server(live.base_url, live.model, 512, real=True)
        return
    with EmbeddedServer(profile="instant", model="tiny", max_model_len_tokens=512) as embedded:
        yield Server(embedded.base_url, embedded.model, 512, real=False)
