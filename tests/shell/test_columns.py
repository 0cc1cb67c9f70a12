"""``answers.columns()``: the answers of a map as columns beside the documents' own."""

import sys
from types import SimpleNamespace

import pyarrow
import pytest
from pydantic import BaseModel

from batchclient import AnswerInvalid, BatchMapFailed, ConfigError, MissingField, SyncBatchClient
from batchclient.simulator import EmbeddedServer
from batchclient.types import Choice, Completion
from tests.shell.scripted import Reply, ScriptedTransport, echo, make_client
from tests.shell.test_map_results import BOTH

LIBRARIES = ("asyncio",)
"""Nothing here has to do with the event loop."""

TABLE = pyarrow.table({"text": ["a", None, "c"], "n": [1, 2, 3]})


class Frame:
    """As polars': its stream is Arrow's, and its columns are names."""

    def __init__(self, table=TABLE):
        self.columns = table.column_names
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


Series = type("Series", (list,), {"__init__": lambda self, name, values: list.__init__(self, values)})


@BOTH
async def test_a_frame_gets_the_answers_as_columns_of_its_length_and_order(batch_map):
    answers = await batch_map(ScriptedTransport(*[echo] * 9), TABLE, "Say {text}", return_exceptions=True)
    columns = answers.columns()
    assert list(columns) == ["completion", "finish_reason", "health", "prompt_tokens", "completion_tokens", "error"]
    assert [text and text[:7] for text in columns["completion"]] == ["<Say a|", None, "<Say c|"]
    assert columns["health"] == ["truncated", None, "truncated"]
    assert columns["prompt_tokens"] == [2, None, 2]
    assert columns["error"] == [None, "MissingField: document 1: 'text' is empty", None]
    joined = pyarrow.table({**dict(zip(TABLE.column_names, TABLE.columns, strict=True)), **columns})
    assert joined.num_rows == 3
    assert joined.schema.field("completion_tokens").type == pyarrow.int64()


@BOTH
async def test_an_empty_cell_raises_where_every_failed_row_does_and_the_answers_are_there(batch_map):
    rows = TABLE.to_pylist()
    # As lists of rows, too: nothing is refused for a cell that is empty.
    for documents in (TABLE, rows, [None, "c"]):
        prompt, options = ("{}", {}) if documents[0] is None else ("Say {text}", {"row_params": "ignore"})
        with pytest.raises(BatchMapFailed) as caught:
            await batch_map(ScriptedTransport(*[echo] * 9), documents, prompt, **options)
        results = caught.value.results
        assert [type(each) for each in results].count(MissingField) == 1
        assert len(results.columns()["error"]) == len(documents)
    server = ScriptedTransport()
    with pytest.raises(ConfigError, match="nothing was sent: document 1: the document has no field 'text'"):
        await batch_map(server, [{"text": "a"}, {"test": "b"}], "Say {text}")
    assert server.sent == []


async def test_texts_without_a_template_are_refused_once_with_the_template_of_texts():
    async with make_client(ScriptedTransport()) as client:
        with pytest.raises(ConfigError) as caught:
            await client.batch_map(["a", "b", "c", "d"], max_tokens=8)
    missing = "a template is missing: plain texts take '{}', or 'Summarise: {}'"
    told = f"4 of 4 documents cannot be used, and nothing was sent: documents 0, 1, 2: {missing}; and 1 more"
    assert (caught.value.message, caught.value.field) == (told, "prompt")


@pytest.mark.parametrize("name", ["messages", "conversations", "prompt"])
async def test_an_empty_request_is_a_missing_field(name):
    async with make_client(ScriptedTransport()) as client:
        for rows in (None, name):
            (error,) = await client.batch_map([{name: None}], rows=rows, return_exceptions=True)
            assert type(error) is MissingField
            assert error.field == name


async def test_a_clash_names_the_column_and_the_prefix():
    async with make_client(ScriptedTransport(*[echo] * 9)) as client:
        clashing = pyarrow.table({"text": ["a"], "error": [1], "my_error": [2]})
        for table in (clashing, Frame(clashing)):
            answers = await client.batch_map(table, "Say {text}")
            for prefix in ("", "my_"):
                with pytest.raises(
                    ConfigError, match=rf"column '{prefix}error' of its own; .*prefix='answer_"
                ) as caught:
                    answers.columns(prefix)
                assert caught.value.field == "prefix"
            assert "error" not in answers.columns(prefix="answer_")
            assert answers.columns(prefix="answer_")["answer_error"] == [None]
        assert "error" in (await client.batch_map([{"text": "a", "error": 1}], "Say {text}")).columns()


async def test_polars_gets_its_own_columns(monkeypatch):
    # It takes a list for one value of all rows.
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(Series=Series))
    monkeypatch.setattr(Frame, "__module__", "polars.dataframe.frame")
    async with make_client(ScriptedTransport(*[echo] * 9)) as client:
        answers = await client.batch_map(Frame(), "Say {text}", return_exceptions=True)
    columns = answers.columns()
    assert {type(each) for each in columns.values()} == {Series}
    assert columns["error"][1] == "MissingField: document 1: 'text' is empty"


def test_vectors_and_classes_are_columns_too_and_failed_rows_leave_them():
    with EmbeddedServer("instant") as server:
        with SyncBatchClient(server.base_url, model=server.model) as client:
            vectors = client.batch_map(TABLE, "{text}", call="embed", return_exceptions=True).columns()
            classes = client.batch_map(TABLE, "{text}", call="classify", return_exceptions=True).columns()
            nothing = client.batch_map(TABLE.slice(1, 1), "{text}", call="embed", return_exceptions=True).columns()
    assert list(vectors) == list(nothing) == ["embedding", "prompt_tokens", "error"]
    assert [each and len(each) for each in vectors["embedding"]] == [64, None, 64]
    assert pyarrow.array(vectors["embedding"]).type == pyarrow.list_(pyarrow.float64())
    assert list(classes) == ["label", "probabilities", "prompt_tokens", "error"]
    assert classes["label"][1] is None
    assert sum(classes["probabilities"][0]) == pytest.approx(1)


class Place(BaseModel):
    city: str


async def test_an_answer_that_does_not_fit_has_its_health():
    body = b'{"choices": [{"index": 0, "text": "{}", "finish_reason": "stop"}]}'
    async with make_client(ScriptedTransport(Reply(chunks=[body]))) as client:
        answers = await client.batch_map(["a"], "{}", response_model=Place, max_tokens=9, return_exceptions=True)
    assert type(answers[0]) is AnswerInvalid
    columns = answers.columns()
    assert columns["health"] == ["invalid"]
    assert columns["error"][0].startswith("AnswerInvalid: ")


async def test_a_cell_is_a_text_a_number_or_numbers_and_anything_else_is_json():
    called = {"role": "assistant", "tool_calls": [{"id": "a"}]}
    choice = Choice(0, "", "stop", logprobs={"tokens": ["a"]}, token_ids=(1, 2), message=called)
    async with make_client(ScriptedTransport(*[echo] * 9)) as client:
        answers = await client.batch_map(["a", "b"], "{}")
    answers[0] = Completion((choice,))
    columns = answers.columns()
    assert columns["message"] == ['{"role": "assistant", "tool_calls": [{"id": "a"}]}', None]
    assert columns["logprobs"] == ['{"tokens": ["a"]}', None]
    assert columns["token_ids"] == [[1, 2], None]
    assert columns["prompt_tokens"] == [None, 1]


@pytest.mark.parametrize("rows", [[], [None]])
async def test_labels_and_their_probabilities_are_columns_also_where_no_row_has_one(rows):
    asked = {"labels": ["good", "bad"]}
    probabilities = ["probability_good", "probability_bad", "probability_other"]
    async with make_client(ScriptedTransport(), dialect="vllm") as client:
        for params in (asked, {"extra_body": asked}):
            answers = await client.batch_map(rows, "{}", **params, return_exceptions=True)
            assert answers.columns()["label"] == rows
            assert [*answers.columns()][-2:] == ["label", "error"]
        for params in (asked | {"probabilities": True}, {"extra_body": asked | {"probabilities": True}}):
            answers = await client.batch_map(rows, "{}", **params, return_exceptions=True)
            assert [*answers.columns()][-5:] == ["label", *probabilities, "error"]
            assert [answers.columns()[name] for name in probabilities] == [rows] * 3


async def test_probabilities_by_label_are_a_column_each():
    async with make_client(ScriptedTransport(*[echo] * 9)) as client:
        answers = await client.batch_map(["a", "b"], "{}")
    answers[1] = SimpleNamespace(as_dict=lambda: {"label": "good", "probabilities": {"good": 0.75, "bad": 0.25}})
    columns = answers.columns()
    assert columns["label"] == [None, "good"]
    assert columns["probability_good"] == [None, 0.75]
    assert columns["probability_bad"] == [None, 0.25]
    assert list(columns)[-1] == "error"
