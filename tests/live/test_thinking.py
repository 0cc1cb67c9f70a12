"""A budget for thinking on real servers: a model that thinks 500 tokens, and then answers with twelve words (scripts/make_thinking_model.py)."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.fixtures import LiveServer, booted, running, skip_without
from tests.live.servers import SAME_IN_ANY_COMPANY, THINKING_MODEL_DIR, LlamaServer

from batchclient import BatchClient, Repair

ROWS, JOB = 200, 50
ANSWER = " So the answer of this toy model is always these twelve words"
BUDGET, ROOM = 20, 16
PROMPTS = [f"Question {number}:" for number in range(ROWS)]
CHATS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
FORMS = ["chat", "text", "ids", "opened"]
"""Chats, and completions: of a text, of token ids, of a text that begins the thinking itself."""


@pytest.fixture(scope="module")
def parsing() -> Iterator[LiveServer]:
    """A vLLM that holds budgets."""
    with booted((*SAME_IN_ANY_COMPANY, "--reasoning-parser", "qwen3"), THINKING_MODEL_DIR) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[LiveServer]:
    """A vLLM that refuses them."""
    with booted(SAME_IN_ANY_COMPANY, THINKING_MODEL_DIR) as server:
        yield server


def llama(*flags: str) -> Iterator[LiveServer]:
    skip_without(LlamaServer, THINKING_MODEL_DIR)
    with LlamaServer(flags, model_dir=THINKING_MODEL_DIR) as server:
        yield running(server)


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[LiveServer]:
    """A llama-server that holds budgets."""
    yield from llama()


@pytest.fixture(scope="module")
def heedless() -> Iterator[LiveServer]:
    """A llama-server whose chat template has no tags, so that it drops a chat's budget in silence."""
    yield from llama("--chat-template", "chatml")


def asked(server: LiveServer, form: str, rows: int = ROWS, **params: Any) -> tuple[list[Any], Any]:
    """The answers to as many calls, and the client's statistics."""

    async def story() -> Any:
        async with server.client() as client:
            documents = await _documents(client, form, rows)
            call = "chat" if form == "chat" else "complete"
            given = {"thinking_tokens": BUDGET, "max_tokens": ROOM, "temperature": 0, **params}
            results = await client.batch_map(documents, lambda document: document, call=call, **given)
            return list(results), client.statistics()

    return asyncio.run(asyncio.wait_for(story(), 300))


async def _documents(client: BatchClient, form: str, rows: int) -> list[Any]:
    match form:
        case "chat":
            return CHATS[:rows]
        case "ids":
            await client.complete("Which server is it?", max_tokens=1)
            return [await client.tokenize(prompt) for prompt in PROMPTS[:rows]]
        case "opened":
            return [f"{prompt}<think>" for prompt in PROMPTS[:rows]]
    return PROMPTS[:rows]


def said(answer: Any) -> str:
    """What an answer says behind its thinking."""
    return answer.text.rpartition("</think>")[2].lstrip("\n")


def thought(answer: Any) -> int:
    """The words of an answer's reasoning, each a token."""
    reasoning = (answer.message or {}).get("reasoning") or (answer.message or {}).get("reasoning_content")
    return len((reasoning or answer.text.partition("</think>")[0].removeprefix("<think>")).split())


def assert_held(answers: list[Any], statistics: Any, *, spare: int = 0) -> None:
    """Each thought to its budget, and then said all of its answer."""
    assert {said(answer) for answer in answers} == {ANSWER}
    assert {(answer.health, answer.finish_reason) for answer in answers} == {("ok", "stop")}
    assert all(BUDGET - 2 <= thought(answer) <= BUDGET + spare for answer in answers)
    assert all(BUDGET - 2 <= answer.usage.reasoning_tokens <= BUDGET + spare for answer in answers)
    assert not statistics.over_thinking_budget
    assert statistics.reasoning_tokens == sum(answer.usage.reasoning_tokens for answer in answers)


# Held by the server


@pytest.mark.vllm
@pytest.mark.parametrize("form", FORMS)
def test_vllm_with_a_parser_holds_a_budget(parsing: LiveServer, form: str) -> None:
    answers, statistics = asked(parsing, form)
    assert_held(answers, statistics)
    # One request each, and no part of any answer twice.
    assert {answer.usage.completion_tokens for answer in answers} == {BUDGET + (14 if form == "opened" else 15)}


@pytest.mark.llamacpp
@pytest.mark.parametrize("form", FORMS)
def test_llamacpp_holds_a_budget(llamacpp: LiveServer, form: str) -> None:
    assert_held(*asked(llamacpp, form))


@pytest.mark.vllm
@pytest.mark.parametrize("form", ["chat", "text"])
def test_vllm_does_not_think_at_all(parsing: LiveServer, form: str) -> None:
    answers, _ = asked(parsing, form, rows=20, thinking_tokens=0)
    assert {(said(answer), thought(answer) if form == "text" else 0) for answer in answers} == {(ANSWER, 0)}


@pytest.mark.llamacpp
@pytest.mark.parametrize("form", ["chat", "text"])
def test_llamacpp_does_not_think_at_all(llamacpp: LiveServer, form: str) -> None:
    answers, _ = asked(llamacpp, form, rows=20, thinking_tokens=0)
    assert {(said(answer), thought(answer) if form == "text" else 0) for answer in answers} == {(ANSWER, 0)}


@pytest.mark.vllm
def test_a_stream_of_a_chat_is_held(parsing: LiveServer) -> None:
    async def story() -> str:
        async with parsing.client() as client:
            stream = client.stream_chat(CHATS[0], thinking_tokens=BUDGET, max_tokens=ROOM)
            return "".join([piece.text async for piece in stream])

    assert asyncio.run(story()) == ANSWER


# Stopped, closed, gone on with


@pytest.mark.vllm
@pytest.mark.parametrize("form", FORMS)
def test_without_a_field_vllms_thinking_is_stopped_and_its_answer_whole(plain: LiveServer, form: str) -> None:
    assert_held(*asked(plain, form), spare=8)


# Told


@pytest.mark.vllm
def test_a_vllm_that_does_not_hold_a_budget_is_told_of(parsing: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """As one that drops the field: -1 is no bound to it."""
    assert_told(parsing, caplog, thinking_token_budget=-1)


@pytest.mark.llamacpp
def test_a_llamacpp_that_drops_a_budget_is_told_of(heedless: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    assert_told(heedless, caplog)


def assert_told(server: LiveServer, caplog: pytest.LogCaptureFixture, **extra: int) -> None:
    with caplog.at_level(logging.WARNING, "batchclient"):
        # Amid their thinking all are cut off, so that it takes no longer.
        answers, statistics = asked(server, "chat", max_tokens=2 * BUDGET, extra_body=extra)
    assert {thought(answer) for answer in answers} == {3 * BUDGET + 1}
    assert statistics.over_thinking_budget == ROWS == statistics.health["reasoning_only"]
    assert statistics.reasoning_tokens == pytest.approx(ROWS * (3 * BUDGET + 1), rel=0.05)
    events = [record for record in caplog.records if "thinking_ignored" in str(record.__dict__)]
    assert len(events) == 1


# Without a budget


@pytest.mark.vllm
def test_an_answer_that_only_thinks_has_reasoning_only(parsing: LiveServer) -> None:
    without: dict[str, Any] = {"thinking_tokens": None, "rows": 16}
    for ends in ({"max_tokens": 12}, {"max_tokens": 200, "stop": [" bak"]}):
        answers, statistics = asked(parsing, "chat", **without, **ends)
        assert all(not answer.text and answer.message["reasoning"] for answer in answers)
        assert statistics.health["reasoning_only"] == len(answers)
    # Reasoning is not gone on with: it is asked for anew.
    answers, statistics = asked(parsing, "chat", **without, max_tokens=12, repair=Repair(truncated=1))
    assert {(answer.health, answer.usage.completion_tokens) for answer in answers} == {("reasoning_only", 24)}
    assert statistics.wasted_tokens >= 16 * 12 and not statistics.regained_tokens


# A job


@pytest.mark.vllm
def test_a_job_loses_no_row_to_thinking_and_reports_the_servers_tokens(parsing: LiveServer, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS[:JOB]))
    before = [parsing.gauge(f"vllm:{kind}_tokens_total") for kind in ("prompt", "generation")]
    command = [sys.executable, "-m", "batchclient", "map", source, "-o", out, "--base-url", parsing.base_url]
    command += ["--model", parsing.model, "--thinking-tokens", "200", "--max-tokens", ROOM]
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["completion"] for row in rows] == [ANSWER] * JOB
    assert {row["usage"]["completion_tokens"] for row in rows} == {215}
    assert {len(row["message"]["reasoning"].split()) for row in rows} == {200}
    read, made = (
        round(parsing.gauge(f"vllm:{kind}_tokens_total") - was)
        for kind, was in zip(("prompt", "generation"), before, strict=True)
    )
    assert made == 215 * JOB
    assert f"tokens: {read:,} in, {made:,} out" in done.stderr
