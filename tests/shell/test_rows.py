"""Maps of rows that are requests themselves: what is sent for each, and what comes back."""

import json

import pyarrow as pa
import pytest
from pydantic import BaseModel

from batchclient import (
    AnswerInvalid,
    BadRequest,
    BatchMapFailed,
    Completion,
    ConfigError,
    Embedding,
    Ranking,
    Repair,
    RowCall,
    Score,
)
from batchclient.simulator import score_of
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client
from tests.shell.test_detection import models
from tests.shell.test_pooling import Recorder
from tests.shell.test_server_model import Server
from tests.shell.test_sync import make_sync

LIBRARIES = ("asyncio",)
CHAT = [{"role": "user", "content": "Hi"}]


def batch(route, **body):
    return {"custom_id": f"c-{route}", "method": "POST", "url": f"/v1/{route}", "body": body}


async def results_of(server, rows, *, client=None, **arguments):
    async with make_client(server, **{"dialect": "vllm", **(client or {})}) as made:
        return [each async for each in made.stream_map(rows, ordered=True, **arguments)]


async def test_a_function_may_return_the_whole_call():
    """In the async and in the blocking client, of a list too."""

    def prompt(text):
        if text == "vector":
            return RowCall("embed", text, {})
        return RowCall("chat", CHAT, {"max_tokens": len(text)}) if text != "plain" else text

    server = Recorder()
    answers = [
        each.answer for each in await results_of(server, ["plain", "vector", "abc"], prompt=prompt, max_tokens=9)
    ]
    assert [type(each) for each in answers] == [Completion, Embedding, Completion]
    (chat,), (plain,) = server.bodies("/chat/completions"), server.bodies("/completions")
    assert (chat["messages"], chat["max_tokens"], plain["max_tokens"]) == (CHAT, 3, 9)
    with make_sync(Recorder()) as client:
        assert [type(each) for each in client.batch_map(["plain", "vector", "abc"], prompt)] == [
            type(each) for each in answers
        ]


async def test_each_row_is_its_own_call():
    server = Recorder()
    rows = [
        batch("chat/completions", messages=CHAT, max_tokens=3, n=2, temperature=0.5),
        batch("completions", prompt=[1, 2], model="m", max_tokens=2, user="me"),
        batch("embeddings", input="a text"),
        batch("score", text_1="q", text_2="d"),
        batch("score", text_1="q", text_2=["d", "e", "f"]),
        batch("rerank", query="q", documents=["d", "e", "f"], top_n=2),
    ]
    results = await results_of(server, rows)
    assert [each.error for each in results] == [None] * len(rows)
    chat, completion, vector, score, scores, ranking = answers = [each.answer for each in results]
    assert [type(each) for each in answers] == [Completion, Completion, Embedding, Score, Ranking, Ranking]
    assert (len(chat.choices), chat.message["role"]) == (2, "assistant")
    (body,) = server.bodies("/completions")
    assert (body["prompt"], body["model"], body["max_tokens"], body["user"]) in (
        ([1, 2], "m", 2, "me"),
        ([[1, 2]], "m", 2, "me"),
    )
    told = [score_of("q", each) for each in "def"]
    assert scores.places == (0, 1, 2)
    assert list(scores.scores) == pytest.approx(told, rel=1e-5)
    best = sorted(range(3), key=told.__getitem__, reverse=True)[:2]
    assert list(ranking.places) == best
    assert ranking.usage.prompt_tokens > 0
    assert score.score == pytest.approx(told[0], rel=1e-5)


async def test_rows_of_one_shape_share_lists_and_a_row_has_its_time_and_its_priority():
    server = Recorder()
    rows = [{"prompt": f"p {n}", "params": {"max_tokens": 1 + n % 2, "priority": 1}} for n in range(8)]
    results = await results_of(server, rows, client={"preset": "throughput", "limit": 8}, max_tokens=9)
    assert [each.error for each in results] == [None] * 8
    bodies = server.bodies("/completions")
    assert {body["priority"] for body in bodies} == {-1}
    assert sum(len(body["prompt"]) if isinstance(body["prompt"], list) else 1 for body in bodies) == 8
    assert len(bodies) < 8
    server = Recorder()
    labelled = [{"prompt": f"p {n}", "params": {"max_tokens": 1, "user": f"u {n}"}} for n in range(4)]
    async with make_client(server, dialect="vllm", preset="throughput", limit=8) as client:
        await client.batch_map(labelled)
    assert client.statistics().alone == {"user, metadata or request_id": 4}
    assert sorted(body["user"] for body in server.bodies("/completions")) == ["u 0", "u 1", "u 2", "u 3"]
    (late,) = await results_of(Recorder(), [{"prompt": "p", "params": {"timeout_s": -1}}])
    assert late.error.field == "timeout_s"


@pytest.mark.parametrize("of_map", [{"user": "night"}, {"metadata": {"job": "x"}}, {"priority": 5}], ids=str)
async def test_what_a_map_says_for_all_its_rows_changes_nothing_for_rows_with_parameters_of_their_own(of_map):
    rows = [{"prompt": f"p {n}", "params": {"max_tokens": 1 + n % 2}} for n in range(200)]
    servers = [Recorder(), Recorder()]
    for server, given in zip(servers, ({}, of_map), strict=True):
        results = await results_of(server, rows, client={"preset": "throughput"}, **given)
        assert [each.error for each in results] == [None] * 200
    without, bodies = (server.bodies("/completions") for server in servers)
    assert len(bodies) == len(without)
    assert not any("priority" in body for body in bodies)


async def test_a_jobs_parameter_that_the_call_of_a_row_has_not_is_left_out_for_it():
    server = Recorder()
    rows = [batch("embeddings", input="a text"), batch("completions", prompt="p")]
    results = await results_of(server, rows, max_tokens=4)
    assert [each.error for each in results] == [None, None]
    assert "max_tokens" not in server.bodies("/embeddings")[0]
    assert server.bodies("/completions")[0]["max_tokens"] == 4


class Word(BaseModel):
    word: str


async def test_a_rows_own_form_beside_a_model_is_refused_and_one_that_always_answers_the_same_is_tried_once():
    server = ScriptedTransport(*[Reply(chunks=[b'{"choices":[{"index":0,"text":"no","finish_reason":"stop"}]}'])] * 9)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    rows = [{"prompt": "a", "params": {"response_format": form}}, {"prompt": "b", "params": {"temperature": 0}}]
    asked = {"response_model": Word, "repair": Repair(invalid=3), "max_tokens": 5}
    refused, tried = await results_of(server, rows, client={"dialect": "openai"}, **asked)
    assert isinstance(refused.error, ConfigError) and refused.error.field == "response_model"
    assert isinstance(tried.error, AnswerInvalid)
    assert [sent.body["prompt"] for sent in server.sent] == ["b"]


async def test_a_blocking_map_reads_a_table_as_the_async_one_does():
    chats = [json.dumps(CHAT), json.dumps([*CHAT, {"role": "assistant", "content": "So"}])]
    for table in (
        pa.table({"messages": chats}),
        pa.table({"prompt": ["p", "q"], "params": [{"max_tokens": 2, "stop": None}, {"max_tokens": 3, "stop": "x"}]}),
    ):
        servers = Recorder(), Recorder()
        await results_of(servers[0], table, client={"limit": 1})
        with make_sync(servers[1], dialect="vllm", limit=1) as client:
            assert [each.error for each in client.stream_map(table, ordered=True)] == [None, None]
        assert servers[1].asked == servers[0].asked


async def test_with_a_template_a_rows_parameters_are_taken_or_refused_as_by_the_command():
    server = Recorder()
    own, beside = {"text": "t", "params": {"max_tokens": 2}}, {"text": "t", "max_tokens": 2}
    taken, refused = await results_of(server, iter([own, beside]), prompt="{text}", max_tokens=8)
    assert taken.error is None and refused.error.field == "max_tokens"
    async with make_client(server) as client:
        with pytest.raises(ConfigError, match="'max_tokens' has the name of a parameter"):
            await client.batch_map([beside], "{text}", max_tokens=8)
    await results_of(server, iter([beside]), prompt=lambda row: row["text"], max_tokens=8)
    assert [body["max_tokens"] for body in server.bodies("/completions")] == [2, 8]


async def test_a_rows_fault_is_its_own_and_the_command_s_is_refused_at_once():
    rows = [{"prompt": "p"}, {"prompt": "p", "params": {"temperature": float("nan"), "max_tokens": 1}}, {"text": "t"}]
    results = await results_of(Recorder(), rows, max_tokens=1)
    assert [getattr(each.error, "field", None) for each in results] == [None, "temperature", "prompt"]
    async with make_client(Recorder()) as client:
        with pytest.raises(ConfigError, match="2 of 2 documents cannot be used, and nothing was sent.*'max_tokens'"):
            await client.batch_map([{"messages": CHAT, "max_tokens": 1}] * 2)
        for field, given in [
            ("rows", {"rows": "x"}),
            ("temprature", {"temprature": 0}),
            ("rows", {"prompt": "{a}", "rows": "prompt"}),
        ]:
            with pytest.raises(ConfigError) as caught:
                client.stream_map([], **given)
            assert caught.value.field == field
        assert await client.batch_map([{"text": "t", "max_tokens": 2}], "{text}", row_params="take", max_tokens=1)
        with pytest.raises(BatchMapFailed, match="row_params"):
            await client.batch_map(iter([{"prompt": "p", "max_tokens": 1}]))


async def test_rows_may_name_a_model_where_the_server_has_several():
    server = Server({"/models": models("a", "b")})
    rows = [{"prompt": "p", "params": {"model": "b"}}, {"prompt": "p"}]
    named, unnamed = await results_of(server, rows, client={"model": None}, max_tokens=1)
    assert named.error is None
    assert [sent.body["model"] for sent in server.sent] == ["b"]
    assert unnamed.error.field == "model"


async def test_the_rows_of_a_table_are_rows_like_others():
    own, beside = pa.table({"prompt": ["p"], "params": [{"max_tokens": 3}]}), {"prompt": ["p"], "max_tokens": [3]}
    for table, given, sent in [
        (own, {}, 3),
        (own, {"row_params": "ignore"}, 9),
        (pa.table(beside), {"row_params": "take"}, 3),
        (pa.table(beside), {"prompt": "{prompt}"}, 9),
        (pa.table(beside), None, 0),
    ]:
        server = Recorder()
        (result,) = await results_of(server, table, max_tokens=9, **(given or {}))
        assert getattr(result.error, "field", None) == (None if sent else "max_tokens")
        assert [body["max_tokens"] for body in server.bodies("/completions")] == ([sent] if sent else [])


async def test_a_document_that_fails_fails_its_row_alone_and_ends_its_other_calls():
    def refuse(sent):
        return error(400, "no") if "bad" in str(sent.body) else Reply(chunks=[b'{"data": [{"score": 1}]}'])

    rows = [batch("score", text_1="q", text_2=["d", "bad", "e"]), batch("rerank", query="q", documents="d")]
    failed, wrong = await results_of(ScriptedTransport(*[refuse] * 9), rows)
    assert isinstance(failed.error, BadRequest)
    assert wrong.error.field == "documents"


def test_a_blocking_client_takes_the_same_rows():
    with make_sync(ScriptedTransport()) as client:
        (answer,) = client.batch_map([{"prompt": "p", "max_tokens": 1}], row_params="take")
        assert answer.text == "<p|0>"
        with pytest.raises(ConfigError, match="cannot be used, and nothing was sent"):
            client.batch_map([{"prompt": "p", "max_tokens": 1}])
        (row,) = client.stream_map(iter([{"text": "t"}]), lambda each: each["text"], row_params="take")
        assert row.answer.text == "<t|0>"
