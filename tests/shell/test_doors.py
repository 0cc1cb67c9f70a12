"""What programs and libraries of others build on: servers, rows' calls, answers as JSON, times in the queue."""

import json
from array import array
from dataclasses import replace
from itertools import pairwise

import anyio
import pytest
from tests.seams import connected
from tests.shell.scripted import MetricsPage, Pages, Reply, ScriptedTransport, echo, error, make_client, settle
from tests.shell.test_detection import models
from tests.shell.test_sync import make_sync

from batchclient import (
    ConnectFailed,
    Batching,
    Choice, Classification, Completion, ConfigError, Embedding, Ranking, RowCall, Score, ServerInfo,
    ServerLoad, SyncBatchClient, Usage, read_call,
)  # fmt: skip
from batchclient.simulator import EmbeddedServer

# fmt: off
NO_LOAD = ServerLoad(running=0.0, waiting=0.0, kv_usage_ratio=0.0, preemptions=0.0, generation_tokens=0.0,
                     prefix_hit_tokens=0.0, prefix_query_tokens=0.0)


# Servers -------------------------------------------------------------------------------------------------------------


def test_servers_tells_what_each_is_and_how_busy_and_of_one_that_is_away_what_is_known():
    with EmbeddedServer(model="m") as server:
        with SyncBatchClient([f"{server.base_url}?key=secret", "http://127.0.0.1:9/v1"]) as client:
            one, other = client.servers()
    assert one == ServerInfo(server.base_url, "vllm", "0.32.0", ("m",), 32768, None, NO_LOAD, answered=True)
    assert other == ServerInfo("http://127.0.0.1:9/v1", answered=False)


def test_servers_tells_what_a_server_is_now_and_not_what_it_was():
    with EmbeddedServer(model="m") as server:
        port = server.port
        client = SyncBatchClient(server.base_url)
        assert [each.models for each in client.servers()] == [("m",)]
    with client, EmbeddedServer(model="n", port=port):
        assert [each.models for each in client.servers()] == [("n",)]


def test_a_server_that_has_died_did_not_answer_and_what_was_known_of_it_stays():
    with EmbeddedServer(model="m") as server:
        client = SyncBatchClient(server.base_url)
        (alive,) = client.servers()
    with client:
        (dead,) = client.servers()
    assert (alive.answered, dead.answered) == (True, False)
    assert dead == replace(alive, answered=False, load=None)


REFUSED = ConnectFailed("refused")
LOADING = {"/models": models("m", owned_by="llamacpp"), "/props": error(503, "Loading model")}


@pytest.mark.parametrize(("pages", "load", "answered", "takes_s"), [
    ({"/models": "hangs"}, "hangs", False, 4),
    ({"/models": Reply(502)}, Reply(502), False, 0),
    ({"/models": REFUSED}, REFUSED, False, 0),
    (LOADING, Reply(503), False, 0),
    ({"/models": Reply(404)}, Reply(404), True, 0),
    ({"/models": Reply(401)}, Reply(401), True, 0),
    ({"/models": "hangs"}, None, True, 2),
    ({"/models": models("m")}, "hangs", True, 2),
])
async def test_answered_is_whether_the_server_itself_said_anything_now(pages, load, answered, takes_s):
    """A server that hangs costs two pages' bounds. A gateway's 502 and a model that loads are no answers."""
    async with connected(calls=lambda url: ScriptedTransport(), metrics=lambda url: MetricsPage(reply=load),
                         detection=lambda url: Pages(pages), model="m") as client:
        began = anyio.current_time()
        (info,) = await client.servers()
        assert info.answered is answered
        assert round(anyio.current_time() - began) == takes_s


async def test_a_server_whose_dialect_is_given_answers_by_its_metrics_page():
    for load, answered in ((Reply(404), True), (None, True), (REFUSED, False)):
        async with connected(calls=lambda url: ScriptedTransport(), metrics=lambda url, load=load: MetricsPage(reply=load),
                             dialect="vllm", probe=True, model="m") as client:
            assert [each.answered for each in await client.servers()] == [answered]


async def test_a_server_may_be_removed_meanwhile():
    page = ScriptedTransport(held=True)
    async with connected(["http://a/v1", "http://b/v1"], calls=lambda url: ScriptedTransport(),
                         detection=lambda url: page if url == "http://b/v1" else ScriptedTransport()) as client:
        async with anyio.create_task_group() as group:
            told = []

            async def ask():
                told.append([each.url for each in await client.servers()])

            for _ in range(3):
                group.start_soon(ask)
            await settle()
            await client.remove_endpoint("http://b/v1", drain=False)
            page.release()
        told.append([each.url for each in await client.servers()])
    assert len(told) == 4
    assert all(urls[0] == "http://a/v1" for urls in told)
    assert told[-1] == ["http://a/v1"]


async def test_no_server_is_asked_that_is_not_to_be_asked():
    server = ScriptedTransport()
    async with make_client(server) as client:
        assert await client.servers() == [ServerInfo("http://scripted/v1")]
    assert server.sent == []


# What was decided ----------------------------------------------------------------------------------------------------


async def test_the_story_tells_what_was_decided_of_which_server_when_and_why():
    # Nothing else is asked: a virtual loop waits for no name of a real network.
    arguments = {"model": "m", "limit": 8, "probe": False}
    server = ScriptedTransport(echo, ConnectFailed("secret"))
    async with connected("http://a/v1?key=secret", calls=lambda url: server, **arguments) as client:
        assert client.story() == []
        await client.complete("p", max_tokens=1)
        await client.complete("q", max_tokens=1)
        client.retune(limit=4)
        told = client.story()
    assert {decision.server for decision in told} == {"http://a/v1"}
    whats = [decision.what for decision in told]
    assert (whats[0], whats[-1], "healthy" in whats or "recovering" in whats) == ("ejected", "limit 8 → 4", True)
    assert "secret" not in str(told)
    assert all(one.at_s <= other.at_s for one, other in pairwise(told))


# Time in the queue ---------------------------------------------------------------------------------------------------


async def test_queued_s_is_the_time_until_the_answering_request_was_sent():
    """Attempts before it and the pauses between count."""
    server = ScriptedTransport(error(503, headers={"retry-after": "3"}))
    async with make_client(server) as client:
        late = await client.complete("a", max_tokens=1)
        at_once = await client.complete("b", max_tokens=1)
    assert (late.attempts, round(late.queued_s, 2)) == (2, 3.0)
    assert at_once.queued_s < 0.1


async def test_who_joins_a_generation_has_waited_for_its_own_time():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=1, batching=Batching(max_size=1, single_flight=True)) as client:
        outcomes = []

        async def ask(prompt, after_s):
            await anyio.sleep(after_s)
            outcomes.append((prompt, await client.complete(prompt, max_tokens=1, temperature=0)))

        async with anyio.create_task_group() as group:
            for prompt, after_s in (("first", 0), ("shared", 1), ("shared", 3), ("shared", 6)):
                group.start_soon(ask, prompt, after_s)
            await anyio.sleep(5)
            server.sent[0].release()
            await anyio.sleep(2)
            server.release()
    waited = sorted(round(answer.queued_s) for prompt, answer in outcomes if prompt == "shared")
    assert waited == [0, 2, 4]


def test_an_answer_from_a_journal_was_not_queued(tmp_path):
    for expected in (False, True):
        with make_sync(ScriptedTransport()) as client:
            (answer,) = client.batch_map(["a"], "{}", journal=tmp_path / "journal", max_tokens=1)
        assert (answer.queued_s is None) is expected


# Answers as JSON -----------------------------------------------------------------------------------------------------

USAGE = Usage(3, 2)
TOLD = {"prompt_tokens": 3, "completion_tokens": 2}
SPOKEN = {"role": "assistant", "content": "a"}
ANSWERS = {
    "a completion": (Completion((Choice(0, "a", "stop"),), USAGE),
                     {"completion": "a", "finish_reason": "stop", "health": "ok", "usage": TOLD}),
    "an estimate is marked": (Completion((Choice(0, "a", "stop"),), Usage(3, 2, True, True)),
                              {"completion": "a", "finish_reason": "stop", "health": "ok",
                               "usage": TOLD | {"prompt_tokens_estimated": True, "completion_tokens_estimated": True}}),
    "several choices, no usage": (Completion((Choice(0, "a", "stop"), Choice(1, "b", "length"))),
                                  {"completion": "a", "finish_reason": "stop", "health": "truncated", "usage": None,
                                   "choices": [{"completion": "a", "finish_reason": "stop"},
                                               {"completion": "b", "finish_reason": "length"}]}),
    "what was asked for": (Completion((Choice(0, "a", "stop", {"tokens": ["a"]}, (7,), {"prompt_logprobs": [None]}),)),
                           {"completion": "a", "finish_reason": "stop", "health": "ok", "usage": None,
                            "logprobs": {"tokens": ["a"]}, "token_ids": [7], "prompt_logprobs": [None]}),
    "numbers that JSON cannot write": (Completion((Choice(0, "a", "stop", {"token_logprobs": [float("-inf")]}),)),
                                       {"completion": "a", "finish_reason": "stop", "health": "ok", "usage": None,
                                        "logprobs": {"token_logprobs": [None]}}),
    "a message that says no more": (Completion((Choice(0, "a", "stop", message=SPOKEN),)),
                                    {"completion": "a", "finish_reason": "stop", "health": "ok", "usage": None}),
    "a message that says more": (Completion((Choice(0, "a", "stop", message=SPOKEN | {"reasoning": "b"}),)),
                                 {"completion": "a", "finish_reason": "stop", "health": "ok", "usage": None,
                                  "message": SPOKEN | {"reasoning": "b"}}),
    "a vector, to nine digits": (Embedding(array("f", [0.1, 1.0]), Usage(3, 0)),
                                 {"embedding": [0.100000001, 1.0], "usage": {"prompt_tokens": 3}}),
    "a score": (Score(0.5), {"score": 0.5, "usage": None}),
    "a class": (Classification("x", (0.25, 0.75), Usage(3, 0, True)),
                {"label": "x", "probabilities": [0.25, 0.75],
                 "usage": {"prompt_tokens": 3, "prompt_tokens_estimated": True}}),
    "a ranking": (Ranking((1, 0), (0.5, 0.25)),
                  {"results": [{"index": 1, "score": 0.5}, {"index": 0, "score": 0.25}], "usage": None}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_fields_of_json_as_map_writes_them(name):
    answer, fields = ANSWERS[name]
    assert answer.as_dict() == fields
    assert json.loads(json.dumps(answer.as_dict())) == fields


def test_a_vector_may_stay_the_array_that_it_is():
    vector = array("f", [0.1])
    assert Embedding(vector).as_dict(raw=True)["embedding"] is vector


# Calls of rows -------------------------------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "Hi"}]
LINE = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "big", "messages": MESSAGES, "max_tokens": 5}}
ROWS = {
    "a prompt with a parameter of its own": (
        {"prompt": "Hi", "max_tokens": 5},
        RowCall("complete", "Hi", {"max_tokens": 5}, own=frozenset({"max_tokens"})),
    ),
    "a conversation": ({"messages": MESSAGES}, RowCall("chat", MESSAGES, {})),
    "a line of an OpenAI Batch file": (LINE, RowCall("chat", MESSAGES, {"max_tokens": 5}, "big",
                                                     own=frozenset({"max_tokens", "model"}))),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_read_as_a_map_reads_it(name):
    row, call = ROWS[name]
    assert read_call(row) == call


def test_a_rows_parameters_stand_before_the_jobs():
    made = read_call({"prompt": "Hi", "max_tokens": 5}, params={"max_tokens": 9, "temperature": 0})
    assert made.params == {"max_tokens": 5, "temperature": 0}


def scored(documents, **params):
    body = {"model": "m", "text_1": "q", "text_2": documents, **params}
    return {"custom_id": "1", "url": "/v1/score", "body": body}


def ranked(documents, **params):
    body = {"model": "m", "query": "q", "documents": documents, **params}
    return {"custom_id": "1", "url": "/v1/rerank", "body": body}


REFUSED = {
    "a wrong value": ({"prompt": "Hi", "max_tokens": -5}, {}, "max_tokens"),
    "a name that no server knows": ({"prompt": "Hi"}, {"params": {"max_tokns": 5}}, "max_tokns"),
    "a priority that is none": ({"prompt": "Hi", "priority": 10**9}, {}, "priority"),
    "a form that the row has not": ({"prompt": "Hi"}, {"form": "messages"}, "messages"),
    "a template, which is the caller's to fill in": ({"prompt": "Hi"}, {"form": "template"}, "form"),
    "a call that there is not": ({"prompt": "Hi"}, {"call": "bogus"}, "call"),
    "a score of a prompt": ({"prompt": "Hi"}, {"call": "score"}, "call"),
    "documents that are none": (scored(5), {}, "documents"),
    "no documents": (scored([]), {}, "documents"),
    "documents that are a mapping": (scored({"a": 1}), {}, "documents"),
    "a wrong parameter of a score": (scored(["d"], priority=1.5), {}, "priority"),
    "a wrong number of documents wanted": (ranked(["d"], top_n="x"), {}, "top_n"),
    "a model that cannot be written": ({"prompt": "Hi", "model": "\ud83d"}, {}, "model"),
    "no text": ({"prompt": 5}, {}, "prompt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_is_refused_before_anything_is_sent(name):
    row, options, field = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        read_call(row, **options)
    assert caught.value.field == field
