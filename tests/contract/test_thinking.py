"""A budget for thinking on each server as the embedded one plays it, by the servers' sources; ``tests/live`` has the real ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batchclient import BatchClient, ConfigError
from batchclient.simulator import EmbeddedServer, OutputLengths, expected_text, render_messages
from tests.guises import GUISES

ROWS, BUDGET, THOUGHT = 50, 20, 100
LENGTHS = OutputLengths(given=(9,))
PROMPTS = [f"Question {number}?" for number in range(ROWS)]
CHATS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
GREEDY = {"temperature": 0, "max_tokens": 16}


def asked(guise: str, kind: str, *, flag: bool, rows: int = ROWS, **params: Any) -> tuple[Any, Any, int]:
    """The outcomes of a map of the rows, the client's statistics, and how many requests the server has seen."""
    options = {"guise": GUISES[guise], "output_lengths": LENGTHS, "thinking_tokens": THOUGHT, "reasoning_parser": flag}

    async def story(server: EmbeddedServer) -> Any:
        async with BatchClient(server.base_url, model=server.model) as client:
            documents = (CHATS if kind == "chat" else PROMPTS)[:rows]
            given = {"thinking_tokens": BUDGET, **GREEDY, **params}
            call = "chat" if kind == "chat" else "complete"
            outcomes = await client.batch_map(documents, lambda each: each, call=call, return_exceptions=True, **given)
            return list(outcomes), client.statistics()

    with EmbeddedServer("instant", **options) as server:
        outcomes, statistics = asyncio.run(asyncio.wait_for(story(server), 60))
        return outcomes, statistics, server.requests


def said(answer: Any) -> str:
    return answer.text.rpartition("</think>")[2].lstrip("\n")


def answers_of(kind: str) -> list[str]:
    prompts = [render_messages(chat) for chat in CHATS] if kind == "chat" else PROMPTS
    return [expected_text(prompt, lengths=LENGTHS, **GREEDY) for prompt in prompts]


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize(
    ("guise", "flag"), [("vllm", True), ("vllm", False), ("sglang", True), ("sglang", False), ("llamacpp", True)]
)
def test_each_server_holds_it_or_is_stopped_and_gone_on_with(guise: str, flag: bool, kind: str) -> None:
    answers, statistics, requests = asked(guise, kind, flag=flag)
    assert [said(answer) for answer in answers] == answers_of(kind)
    assert {answer.health for answer in answers} == {"ok"}
    assert max(answer.usage.reasoning_tokens for answer in answers) <= BUDGET + 8
    assert not statistics.over_thinking_budget
    if kind == "chat" and (flag or guise == "llamacpp"):
        assert requests <= ROWS, "the server has a field for it"


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("guise", ["tgi", "openai"])
def test_where_there_is_no_way_it_is_refused_by_name_and_nothing_is_sent(guise: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"thinking_tokens .* nothing was sent") as refused:
        asked(guise, kind, flag=False, rows=20)
    assert refused.value.field == "thinking_tokens"


@pytest.mark.parametrize("guise", ["vllm", "sglang", "llamacpp"])
def test_no_thinking_at_all(guise: str) -> None:
    answers, statistics, requests = asked(guise, "chat", flag=True, rows=20, thinking_tokens=0)
    assert [said(answer) for answer in answers] == answers_of("chat")[:20]
    assert not statistics.reasoning_tokens and requests <= 20


def test_a_server_that_drops_it_is_told_of_in_each_row() -> None:
    """A budget of -1, which wins, is none to a vLLM."""
    answers, statistics, _ = asked("vllm", "chat", flag=True, max_tokens=150, extra_body={"thinking_token_budget": -1})
    assert statistics.over_thinking_budget == ROWS
    assert {answer.usage.reasoning_tokens for answer in answers} == {THOUGHT}
