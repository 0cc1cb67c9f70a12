"""Who is under contract: every guise of the embedded server, in virtual time, and a real vLLM; and in one table what each of them can do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.guises import GUISES
from tests.seams import connected
from tests.shell import clocks

from batchclient import BadRequest, BatchClient, DemuxError, NotFound
from batchclient.simulator import SimulatedServer, SimulatorTransport


@dataclass(frozen=True)
class Can:
    """What a server can do, as it is seen through its dialect.

    Args:
        dialect: what it is spoken to as.
        model: what a call names.
        longest_list: prompts per request, at most; 1: it takes no lists.
        counts_plain: whether each caller of a plain list has its usage.
        counts_streamed: the same for a streamed list.
        n: whether it makes several choices per prompt; else the error.
        logprobs: whether it tells them; else the error, or ``None``: they are left out.
        ids: whether prompts may be token ids; else the error.
        returns_ids: whether it tells token ids; else the error, or ``None``: they are left out.
        wrong_model: the error; ``None``: it takes any name.
        refuses_long: whether it refuses a prompt above its model's length.
        kinds: what else it can be asked for: ``chat``, ``embed``, ``rerank``, ``tokenize``.
    """

    dialect: str
    model: str = "tiny"
    longest_list: int = 1024
    counts_plain: bool = False
    counts_streamed: bool = False
    n: bool | type[Exception] = True
    logprobs: bool | type[Exception] | None = True
    ids: bool | type[Exception] = True
    returns_ids: bool | type[Exception] | None = None
    wrong_model: type[Exception] | None = None
    refuses_long: bool = True
    kinds: frozenset[str] = frozenset({"chat"})


ALL = frozenset({"chat", "embed", "rerank", "tokenize"})
CAN = {
    "vllm": Can("vllm", counts_plain=True, counts_streamed=True, returns_ids=True, wrong_model=NotFound, kinds=ALL),
    "sglang": Can("sglang", counts_plain=True, counts_streamed=True, returns_ids=True, kinds=ALL),
    "tgi": Can(
        "tgi",
        model="tgi",
        longest_list=4,
        counts_streamed=True,
        n=BadRequest,
        logprobs=BadRequest,
        ids=BadRequest,
        returns_ids=BadRequest,
        wrong_model=BadRequest,
        kinds=frozenset({"chat", "tokenize"}),
    ),
    "llamacpp": Can("llamacpp", counts_plain=True, counts_streamed=True, returns_ids=True, kinds=ALL),
    "trtllm": Can("trtllm", returns_ids=BadRequest),
    "openai": Can("openai", wrong_model=NotFound, kinds=frozenset({"chat", "embed"})),
    "strict": Can("openai", wrong_model=NotFound, returns_ids=BadRequest),
    "transformers": Can(
        "openai",
        longest_list=1,
        n=DemuxError,
        logprobs=None,
        ids=BadRequest,
        returns_ids=BadRequest,
        wrong_model=BadRequest,
        kinds=frozenset(),
    ),
}
"""By guise; those that generate text."""
TEI = Can("tei", kinds=ALL - {"chat"})
"""It generates none."""

REAL_ONLY: dict[str, dict[str, Any]] = {
    # The serial one takes a prompt of any length, and generates nonsense after it.
    "transformers": {"refuses_long": False},
}
"""What the real server does otherwise than its guise."""


@dataclass(frozen=True)
class Peer:
    """One server under contract.

    Args:
        name: the guise, or ``real vllm``.
        can: what it can do.
        base_url: of a real one; ``None``: it is simulated, in virtual time.
        known: whether it is spoken to as what it is, or as a server of which nothing is known.
        options: of the simulated server.
    """

    name: str
    can: Can
    base_url: str | None = None
    known: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def with_(self, **options: Any) -> Peer:
        """The same server, started with other options."""
        return replace(self, options=self.options | options)

    def run(self, story: Callable[[BatchClient], Awaitable[Any]], **settings: Any) -> Any:
        """Run a story with a client of the server; return what it returns."""
        settings = {
            "model": self.can.model,
            "preset": "throughput",
            "dialect": self.can.dialect if self.known else None,
            "probe": False,
        } | settings
        if self.base_url is not None:
            return asyncio.run(asyncio.wait_for(self._tell(story, None, settings), 120))
        options = {"profile": "instant", "model": "tiny", "max_model_len_tokens": 2048} | self.options
        return clocks.run(self._tell, story, SimulatedServer(guise=GUISES[self.name], **options), settings)

    async def _tell(
        self, story: Callable[[BatchClient], Awaitable[Any]], server: SimulatedServer | None, settings: dict[str, Any]
    ) -> Any:
        calls = None
        if server is not None:
            transport = SimulatorTransport(server)
            calls = lambda url: transport  # noqa: E731
        async with connected(self.base_url or "http://simulated/v1", calls=calls, **settings) as client:
            return await story(client)
