"""The parts of ``MapBatches`` that need no Ray: its arguments, rows as documents, answers as columns."""

import asyncio
import sys
from array import array
from types import SimpleNamespace

import pyarrow as pa
import pytest

from batchclient import BadRequest, Choice, Classification, Completion, ConfigError, Embedding, Usage
from batchclient.integrations.ray import ADDED, MapBatches, columns_of
from tests.shell.scripted import ScriptedTransport, error

URL = "http://localhost:8000/v1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("BASE_URL", "MODEL", "API_KEY"):
        monkeypatch.delenv(f"BATCHCLIENT_{name}", raising=False)


def added_columns(call, answers):
    rows = [columns_of(answer) for answer in answers]
    return {name: [row.get(name) for row in rows] for name in ADDED[call]}


def completion(text, **message):
    return Completion((Choice(0, text, "stop", message=message or None),), Usage(3, 2))


def test_answers_and_errors_become_columns():
    refused = BadRequest("the prompt is too long")
    assert added_columns("complete", [completion("a"), refused]) == {
        "completion": ["a", None],
        "finish_reason": ["stop", None],
        "health": ["ok", None],
        "prompt_tokens": [3, None],
        "completion_tokens": [2, None],
        "error": [None, "BadRequest: the prompt is too long"],
    }


def test_a_chats_message_is_kept_where_it_says_more_than_its_text():
    tool = completion("", role="assistant", tool_calls=[{"id": "é"}])
    plain = completion("a", role="assistant", content="a")
    assert added_columns("chat", [tool, plain])["message"] == [
        '{"role": "assistant", "tool_calls": [{"id": "é"}]}',
        None,
    ]


def test_vectors_and_classes_become_columns():
    embedding = Embedding(array("f", [0.5, 1.0]), Usage(4, 0))
    assert added_columns("embed", [embedding])["embedding"] == [array("f", [0.5, 1.0])]
    classified = Classification("good", (0.25, 0.75))
    assert added_columns("classify", [classified]) == {
        "label": ["good"],
        "probabilities": [[0.25, 0.75]],
        "prompt_tokens": [None],
        "error": [None],
    }


def test_an_error_tells_no_prompt_and_no_place_within_its_batch():
    errors = [KeyError("a secret"), ConfigError("document 3: 'text' is empty", field="text")]
    assert added_columns("complete", errors)["error"] == [
        "KeyError",
        "ConfigError: 'text' is empty",
    ]


def test_a_wrong_argument_is_refused_when_the_class_is_made():
    for arguments, field, said in [
        ({"call": "rerank"}, "call", "call is one of complete, chat, embed, classify"),
        ({"prompt": "{}"}, "prompt", "write {name} instead of {}"),
        ({"prompt": "Say {text!r}"}, "prompt", "names no field"),
        ({"prompt": None}, "prompt", "give a template"),
        ({"journal": "x.journal"}, "journal", "Ray repeats the blocks"),
        ({"fail_if": ["truncated>5%"]}, "fail_if", "filter the data set by the column health"),
        ({"return_exceptions": False}, "return_exceptions", "errors are in the column error"),
        ({"n": 2}, "n", "a row holds one completion"),
        ({"max_token": 1}, "max_token", "max_token"),
        ({"limit": 0}, "limit", "a whole number of at least 1"),
        ({"base_url": "nowhere"}, "base_url", "does not begin with http"),
    ]:
        with pytest.raises(ConfigError) as refused:
            MapBatches(**{"base_url": URL, "prompt": "Say {text}", **arguments})
        assert refused.value.field == field
        assert said in str(refused.value)


def test_braces_that_are_text_are_no_field():
    MapBatches(URL, prompt="{{}} {text}")


def test_ray_is_not_imported_where_the_class_is_made():
    MapBatches(URL, prompt="{text}", model="m", max_tokens=1)
    assert "ray" not in sys.modules


def test_rows_may_be_requests(monkeypatch):
    chat = [{"role": "user", "content": "Hi"}]
    server = ScriptedTransport(*[lambda sent: error(400, "no")] * 4)
    transport = {"http": lambda url, headers: server, "probe": False}
    mapped = MapBatches(URL, rows="messages", row_params="take", model="m", **transport)
    # As much of Ray as is used; tests/ray has the whole.
    block = SimpleNamespace(to_arrow=lambda: pa.table({"messages": [chat, chat], "max_tokens": [1, None]}))
    accessor = SimpleNamespace(batch_to_block=lambda batch: batch, for_block=lambda made: made)
    monkeypatch.setitem(sys.modules, "ray.data.block", SimpleNamespace(BlockAccessor=accessor))
    errors = asyncio.run(mapped(block)).column("error").to_pylist()
    assert all("no" in each for each in errors) and len(errors) == 2
    assert [sent.body.get("max_tokens") for sent in server.sent] in ([1, None], [None, 1])
    block.to_arrow = lambda: pa.table({"messages": [chat, chat], "params": [{"max_tokens": 4}, None]})
    asyncio.run(mapped(block))
    assert [sent.body.get("max_tokens") for sent in server.sent[2:]] in ([4, None], [None, 4])
    block.to_arrow = lambda: pa.table({"messages": [chat], "error": ["old"]})
    with pytest.raises(ConfigError, match="has a column 'error' already"):
        asyncio.run(mapped(block))
    block.to_arrow = lambda: pa.table({"messages": [chat], "seed": [1]})
    (refused,) = (
        asyncio.run(MapBatches(URL, rows="messages", model="m", **transport)(block)).column("error").to_pylist()
    )
    assert "'seed' has the name of a parameter" in refused
    for given in ({}, {"rows": "batch"}, {"rows": "messages", "prompt": "{a}"}, {"rows": "messages", "call": "embed"}):
        with pytest.raises(ConfigError):
            MapBatches(URL, model="m", **given)
