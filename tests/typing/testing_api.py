"""The test tools as users have them. It is never run; ``mypy --strict`` must accept every line of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import assert_type

from pydantic import BaseModel

from batchclient import BatchClient
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import Answer, Call, EmbeddedServer, MockLLM, MockRequest, Rule, VirtualClock, respx_vllm


class City(BaseModel):
    name: str


def upper(call: Call) -> str:
    return str(call.prompt).upper()


def tool(call: Call) -> Answer | None:
    return Answer(tool_calls={"get": {"city": "Paris"}}) if call.kind == "chat" else None


async def scripting(mock_llm: MockLLM, virtual_clock: VirtualClock) -> None:
    assert_type(mock_llm.when("p").fail(503, times=2).answer("there"), Rule)
    mock_llm.when(re.compile("x")).answer(upper)
    mock_llm.when(lambda call: call.number > 3).answer(tool)
    mock_llm.when([1, 2]).answer(["a ", "piece"], {"name": "Rome"}, City(name="Paris"), delay_s=3)
    mock_llm.when().call_tools({"get": {"city": "Paris"}})
    mock_llm.when("v").embed([0.1, 2])
    mock_llm.when("q").hang()
    async with mock_llm.client(limit=4) as client:
        assert_type(client, BatchClient)
    async with BatchClient("http://m/v1", http=mock_llm.transport):
        pass
    mock_llm.assert_called_with("p", times=1, max_tokens=8)
    mock_llm.assert_batched("a", [1, 2], at_most=3)
    assert_type(mock_llm.requests, list[MockRequest])
    assert_type(mock_llm.prompts, list[str | list[int]])
    await virtual_clock.advance(1)
    assert_type(virtual_clock.elapsed_s, float)


def starting(llm_server: EmbeddedServer, llm_server_factory: Callable[..., EmbeddedServer]) -> None:
    assert_type(llm_server.base_url, str)
    llm_server_factory(guise="tgi")
    respx_vllm({"a": "b"}, strict=True)
    server = SimulatedServer("gpu")
    BatchClient("http://m/v1", http=lambda base_url, headers: SimulatorTransport(server))
