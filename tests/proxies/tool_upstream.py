"""An upstream that calls tools: a chat with `tools` is answered with two calls, whose arguments come in pieces when it is streamed.

The embedded server calls no tools, as a vLLM without tool parser.
"""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.pages import Asked

PIECE = 5
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def tool_calls(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What is answered: the first tool, called for the last message's text, and once more for that text reversed."""
    name, text = body["tools"][0]["function"]["name"], body["messages"][-1]["content"]
    return [
        {
            "id": f"call_{i}_{said}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"of": said})},
        }
        for i, said in enumerate((text, text[::-1]))
    ]


def _pieces(call: dict[str, Any], index: int) -> list[dict[str, Any]]:
    """One call as vLLM streams it: id and name first, then the arguments."""
    arguments = call["function"]["arguments"]
    first = {"index": index} | call | {"function": {"name": call["function"]["name"], "arguments": ""}}
    cut = [arguments[at : at + PIECE] for at in range(0, len(arguments), PIECE)]
    return [first, *({"index": index, "function": {"arguments": piece}} for piece in cut)]


def answer(asked: Asked) -> tuple[int, bytes, dict[str, str]]:
    """One request's reply."""
    body = asked.json
    head = {"id": "chatcmpl-tools", "created": 1_700_000_000, "model": body["model"]}
    calls = tool_calls(body)
    if not body.get("stream"):
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        said = json.dumps(head | {"object": "chat.completion", "choices": [choice], "usage": USAGE})
        return 200, said.encode(), {"content-type": "application/json"}
    deltas = [{"role": "assistant", "content": None}]
    deltas += [{"tool_calls": [piece]} for i, call in enumerate(calls) for piece in _pieces(call, i)]
    choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}])
    events = [head | {"object": "chat.completion.chunk", "choices": each} for each in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(head | {"object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return 200, text.encode(), {"content-type": "text/event-stream"}
