"""Which of OpenAI's request bodies may share a request, and the calls they are."""

from tests.core import Kind
from batchclient.integrations.form import read_body

CHAT = [{"role": "user", "content": "hi"}]
TEXT = type("Text", (str,), {})("p")
"""As LangChain's ``message.text``."""


def test_calls():
    for path, body, kind, items, params in [
        ("/completions", {"prompt": "p", "n": 2}, Kind.COMPLETION, ["p"], {"n": 2}),
        ("/completions", {"prompt": ["p", "q"], "stream": False}, Kind.COMPLETION, ["p", "q"], {}),
        ("/completions", {"prompt": [TEXT, "q"], "user": TEXT}, Kind.COMPLETION, ["p", "q"], {"user": "p"}),
        ("/embeddings", {"input": [TEXT]}, Kind.EMBEDDING, ["p"], {}),
        ("/completions", {"prompt": [1, 2], "stream": None}, Kind.COMPLETION, [[1, 2]], {}),
        ("/completions", {"prompt": [[1, 2], [3]]}, Kind.COMPLETION, [[1, 2], [3]], {}),
        ("/chat/completions", {"messages": CHAT, "tools": []}, Kind.CHAT, [CHAT], {"tools": []}),
        ("/embeddings", {"input": ["a"], "dimensions": 4}, Kind.EMBEDDING, ["a"], {"dimensions": 4}),
    ]:
        calls = read_body(path, {"model": "m", **body})
        assert (calls.kind, calls.items, calls.model, calls.params) == (kind, items, "m", params)


def test_what_is_left_alone():
    for path, body in [
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
    ]:
        assert read_body(path, {"model": "m", **body}) is None


def test_what_is_no_object():
    for body in [None, [], b"{}", "x"]:
        assert read_body("/completions", body) is None
