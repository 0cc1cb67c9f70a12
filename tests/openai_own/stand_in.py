"""A loopback server in the place of the mock that openai-python's own tests expect: it answers the routes they take here.

Rules:
- An answer is a valid object of OpenAI's API, as small as may be. A body without the fields that the API wants is a 400.
- Every other route is a 404, as at a server that knows no more than completions, chats and embeddings.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pages import serving

__all__ = ["stand_in"]

_MESSAGE = {"role": "assistant", "content": "content", "refusal": None}
_HEAD = {"id": "id", "created": 0, "model": "model"}
_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
_WANTED = {
    "/completions": {"model", "prompt"},
    "/chat/completions": {"model", "messages"},
    "/embeddings": {"model", "input"},
}


def _chat(count: int = 1) -> dict:
    choices = [{"index": n, "finish_reason": "stop", "logprobs": None, "message": _MESSAGE} for n in range(count)]
    return {**_HEAD, "object": "chat.completion", "choices": choices, "usage": _USAGE}


def _page(items: list) -> dict:
    return {"object": "list", "data": items, "first_id": "id", "last_id": "id", "has_more": False}


def _completion(body: dict) -> dict:
    given = body["prompt"]
    count = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
    choices = [
        {"index": n, "finish_reason": "stop", "logprobs": None, "text": "text"}
        for n in range(count * (body.get("n") or 1))
    ]
    return {**_HEAD, "object": "text_completion", "choices": choices, "usage": _USAGE}


def _embedding(body: dict) -> dict:
    given = body["input"]
    count = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
    # As numbers, whatever was asked for: it is what the API's description says, and what their mock made of it.
    data = [{"index": n, "object": "embedding", "embedding": [0.5, 0.25]} for n in range(count)]
    return {"object": "list", "model": "model", "data": data, "usage": {"prompt_tokens": 0, "total_tokens": 0}}


def _events(path: str) -> list[dict]:
    if path == "/completions":
        return [{**_completion({"prompt": "p"}), "usage": None}]
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, "delta": _MESSAGE}
    return [{**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}]


def answer(method: str, path: str, body: dict) -> tuple[int, dict]:
    """The status and the object for a request."""
    if method == "POST" and path in _WANTED:
        missing = _WANTED[path] - body.keys()
        if missing:
            return 400, {"error": {"message": f"missing: {sorted(missing)}", "type": "invalid_request_error"}}
        if path == "/chat/completions":
            return 200, _chat(body.get("n") or 1)
        return 200, _completion(body) if path == "/completions" else _embedding(body)
    if re.fullmatch(r"/chat/completions(/[^/]+(/messages)?)?", path):
        if path.endswith("/messages"):
            return 200, _page([{"id": "id", **_MESSAGE}])
        if path == "/chat/completions":
            return 200, _page([_chat()])
        if method == "DELETE":
            return 200, {"id": "id", "deleted": True, "object": "chat.completion.deleted"}
        return 200, _chat()
    return 404, {"error": {"message": "no such route", "type": "invalid_request_error"}}


def _reply(asked) -> tuple[int, bytes, dict]:
    body = asked.json if asked.body else {}
    path = asked.path.partition("?")[0]
    status, made = answer(asked.method, path, body)
    if status == 200 and body.get("stream") is True:
        events = "".join(f"data: {json.dumps(event)}\n\n" for event in _events(path)) + "data: [DONE]\n\n"
        return status, events.encode(), {"content-type": "text/event-stream"}
    return status, json.dumps(made).encode(), {"content-type": "application/json"}


@contextmanager
def stand_in() -> Iterator[str]:
    """Serve meanwhile; yields the base URL."""
    with serving(_reply) as server:
        yield server.root
