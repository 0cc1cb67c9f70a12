"""An upstream that calls tools: a chat with `tools` is answered with two calls, whose arguments come in pieces when it is streamed.

Standard library only. The embedded server calls no tools, as a vLLM without tool parser.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)  # type: ignore[attr-defined]
        head = {"id": "chatcmpl-tools", "created": 1_700_000_000, "model": body["model"]}
        calls = tool_calls(body)
        if body.get("stream"):
            deltas = [{"role": "assistant", "content": None}]
            deltas += [{"tool_calls": [piece]} for i, call in enumerate(calls) for piece in _pieces(call, i)]
            choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
            choices.append([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}])
            events = [head | {"object": "chat.completion.chunk", "choices": each} for each in choices]
            if (body.get("stream_options") or {}).get("include_usage"):
                events.append(head | {"object": "chat.completion.chunk", "choices": [], "usage": USAGE})
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            self._answer("text/event-stream", text)
        else:
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            self._answer(
                "application/json",
                json.dumps(head | {"object": "chat.completion", "choices": [choice], "usage": USAGE}),
            )

    def _answer(self, content_type: str, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class ToolUpstream:
    """The upstream on a free loopback port, as a context manager; `bodies` are the requests as they came."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self.bodies: list[dict[str, Any]] = []
        self._server.bodies = self.bodies  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
