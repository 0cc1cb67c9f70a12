"""The scripted server's replies have the form of the embedded server's, which the contract suite compares with the real vLLM."""

import json

import pytest

from batchclient.simulator import SimulatedServer
from batchclient.testing import MockLLM

CHAT = [{"role": "user", "content": "Hi"}]
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
REQUESTS = {
    "completion": ("/v1/completions", {"prompt": "Hi"}),
    "list": ("/v1/completions", {"prompt": ["Hi", "Ho"], "return_token_ids": True}),
    "token ids": ("/v1/completions", {"prompt": [[1, 2], [3]]}),
    "two choices": ("/v1/completions", {"prompt": ["Hi", "Ho"], "n": 2}),
    "streamed list": ("/v1/completions", {"prompt": ["Hi", "Ho"], "stream": True, "stream_interval": 100_000, **USAGE}),
    "stream": ("/v1/completions", {"prompt": "Hi", "stream": True}),
    "chat": ("/v1/chat/completions", {"messages": CHAT}),
    "chat stream": ("/v1/chat/completions", {"messages": CHAT, "stream": True, **USAGE}),
    "chat list": ("/v1/chat/completions/batch", {"messages": [CHAT, CHAT]}),
    "embedding": ("/v1/embeddings", {"input": ["Hi", "Ho"]}),
    "packed embedding": ("/v1/embeddings", {"input": ["Hi", "Ho"], "encoding_format": "base64"}),
    "score": ("/score", {"text_1": "Hi", "text_2": ["a", "b"]}),
    "rerank": ("/rerank", {"query": "Hi", "documents": ["a", "b"]}),
    "class": ("/classify", {"input": ["a", "b"]}),
    "no prompt": ("/v1/completions", {}),
    "empty list": ("/v1/completions", {"prompt": []}),
    "no messages": ("/v1/chat/completions", {}),
    "no choices": ("/v1/completions", {"prompt": "Hi", "n": 0}),
    "options without a stream": ("/v1/completions", {"prompt": "Hi", **USAGE}),
}


def form(value):
    """A JSON value without its content: a text's or number's type, a list's items, an object's fields in order."""
    if isinstance(value, dict):
        return [(name, form(each)) for name, each in value.items()]
    if isinstance(value, list):
        items = [form(each) for each in value]
        # Vectors, token ids and the like are as long as they are.
        return items if any(isinstance(each, list) for each in items) else sorted({str(each) for each in items})
    return type(value).__name__


def events_of(body):
    return [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]


def forms(reply):
    status, headers, body = reply
    if not dict(headers)["content-type"].startswith("text/event-stream"):
        return status, form(json.loads(body))
    *events, done = events_of(body)
    return status, done, [form(json.loads(event)) for event in events]


def ask_embedded(path, body):
    server = SimulatedServer("instant", model="m")
    server.receive(1, "POST", path, body, 0.0)
    parts = server.poll(0.0)
    return parts[0].status, parts[0].headers, b"".join(part.body for part in parts)


def ask_mock(path, body):
    mock = MockLLM(model="m")
    if path.startswith("/v1"):
        # As many tokens as the embedded server's answer has.
        mock.when().answer(["1", "2", "3"])
    reply = mock.receive("POST", path, {}, body)
    return reply.status, reply.headers, b"".join(reply.pieces)


@pytest.mark.parametrize("name", REQUESTS)
def test_replies_have_the_same_form(name):
    path, fields = REQUESTS[name]
    generated = {"max_tokens": 4} if "input" not in fields and path.startswith("/v1") else {}
    body = json.dumps({"model": "m", **generated, **fields}).encode()
    # A scripted answer ends by itself, the embedded server's at ``max_tokens``.
    assert forms(ask_mock(path, body)) == forms(ask_embedded(path, body))
