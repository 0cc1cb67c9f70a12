"""Which of OpenAI's request bodies may share a request, and the calls they are."""

import pytest

from batchclient._core.kinds import Kind
from batchclient.integrations.form import read_body

CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "kind", "items", "params"),
    [
        ("/completions", {"prompt": "p", "n": 2}, Kind.COMPLETION, ["p"], {"n": 2}),
        ("/completions", {"prompt": ["p", "q"], "stream": False}, Kind.COMPLETION, ["p", "q"], {}),
        ("/completions", {"prompt": [1, 2], "stream": None}, Kind.COMPLETION, [[1, 2]], {}),
        ("/completions", {"prompt": [[1, 2], [3]]}, Kind.COMPLETION, [[1, 2], [3]], {}),
        ("/chat/completions", {"messages": CHAT, "tools": []}, Kind.CHAT, [CHAT], {"tools": []}),
        ("/embeddings", {"input": ["a"], "dimensions": 4}, Kind.EMBEDDING, ["a"], {"dimensions": 4}),
    ],
)
def test_calls(path, body, kind, items, params):
    calls = read_body(path, {"model": "m", **body})
    assert (calls.kind, calls.items, calls.model, calls.params) == (kind, items, "m", params)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completions", {"prompt": "p", "stream": True}),
        ("/completions", {"prompt": "p", "stream_options": {}}),
        ("/completions", {"prompt": "p", "stream_interval": 3}),
        ("/completions", {"prompt": "p", "priority": 1}),
        ("/completions", {"prompt": []}),
        ("/completions", {"prompt": ["p", [1]]}),
        ("/completions", {"prompt": [[]]}),
        ("/completions", {"prompt": [True, False]}),
        ("/completions", {"prompt": None}),
        ("/completions", {"prompt": "p", "model": ""}),
        ("/completions", {"prompt": "p", "model": None}),
        ("/completions", {"messages": CHAT}),
        ("/chat/completions", {"messages": []}),
        ("/chat/completions", {"messages": "hi"}),
        ("/embeddings", {"input": 3}),
        ("/responses", {"input": "p"}),
        ("/models", {}),
    ],
)
def test_what_is_left_alone(path, body):
    assert read_body(path, {"model": "m", **body}) is None


@pytest.mark.parametrize("body", [None, [], b"{}", "x"])
def test_what_is_no_object(body):
    assert read_body("/completions", body) is None
