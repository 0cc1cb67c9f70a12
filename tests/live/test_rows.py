"""Rows that carry their request, by ``batchclient map`` on a real vLLM: what each asks for comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from tests.live.fixtures import LiveServer

pytestmark = pytest.mark.vllm

SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CHAT = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Hello world!"}]
JSON = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "look"}}


def mapped(server: LiveServer, folder: Path, rows: list[dict[str, Any]], status: int = 0) -> list[dict[str, Any]]:
    """The rows of the output of a command that ends with this status."""
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "batchclient", "map", source, "-o", out, "--base-url", server.base_url]
    done = subprocess.run([*command, "--model", server.model], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_a_chat_has_what_its_row_asks_for(vllm_server: LiveServer, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = [
        {"max_tokens": 3, "ignore_eos": True},
        {"max_tokens": 8, "response_format": JSON},
        {"max_tokens": 8, "tools": [TOOL], "tool_choice": NAMED},
        {"max_tokens": 2, "n": 2, "temperature": 1.0, "seed": 1},
        {"max_tokens": 2, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 1, "return_token_ids": True},
    ]
    short, structured, called, several, likely, ids = mapped(
        vllm_server, tmp_path, [{"messages": CHAT, "params": {"temperature": 0, **params}} for params in asked], 1
    )
    assert short["usage"]["completion_tokens"] == 3
    # The tiny model says nothing of the kind by itself, and may begin with blanks for ever.
    assert structured["completion"].startswith("{")
    # A vLLM with a parser of tool calls is another server: this one tells which tool it was asked for.
    assert 'tool_choice=function "look" requires' in called["error"]["message"]
    assert len(several["choices"]) == 2
    assert len(likely["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert len(ids["token_ids"]) == 1


def test_token_ids_are_a_prompt(vllm_server: LiveServer, tmp_path: Path) -> None:
    ids = vllm_server.post(prompt="def f(", return_token_ids=True).json()["choices"][0]["prompt_token_ids"]
    rows = [{"prompt": prompt, "params": {"temperature": 0, "max_tokens": 4}} for prompt in (ids, "def f(")]
    by_ids, by_text = mapped(vllm_server, tmp_path, rows)
    assert by_ids["completion"] == by_text["completion"]
    assert by_ids["usage"]["prompt_tokens"] == len(ids)


def test_a_batch_file_of_vllm_is_answered_in_batch_form(vllm_server: LiveServer, tmp_path: Path) -> None:
    """The first lines are as those of vLLM's page about ``vllm run-batch``; then a line of another route, and a wrong one."""
    chat = {"model": vllm_server.model, "messages": CHAT, "max_completion_tokens": 5}
    text = {"model": vllm_server.model, "prompt": "def f(", "max_tokens": 4, "n": 2, "temperature": 1}
    bodies = {
        "a": ("chat/completions", chat),
        "b": ("chat/completions", chat | {"max_completion_tokens": 2}),
        "c": ("completions", text),
        "d": ("chat/completions", chat | {"temperature": -1}),
    }
    rows = [
        {"custom_id": own, "method": "POST", "url": f"/v1/{route}", "body": body}
        for own, (route, body) in bodies.items()
    ]
    lines = mapped(vllm_server, tmp_path, rows, 1)
    assert [line["custom_id"] for line in lines] == [*bodies]
    first, second, third, wrong = (line["response"]["body"] for line in lines)
    for body, tokens in ((first, 5), (second, 2)):
        usage = ChatCompletion.model_validate(body, strict=True).usage
        assert usage is not None and usage.completion_tokens == tokens
    assert len(Completion.model_validate(third, strict=True).choices) == 2
    assert lines[3]["response"]["status_code"] == 400 and "temperature" in wrong["error"]["message"]
    assert [json.loads(line) for line in (tmp_path / "out.jsonl.errors").read_text().splitlines()] == lines[3:]
