"""Maps with ``Repair(invalid=…)``: a row whose answer does not fit is asked again."""

import json

import anyio
import pytest
from pydantic import BaseModel

from batchclient import (
    AnswerInvalid,
    Batching,
    ConfigError,
    DeadlineExceeded,
    Repair,
    SyncBatchClient,
)

from .scripted import Reply, ScriptedTransport, error, make_client, settle


class Place(BaseModel):
    city: str


GOOD = '{"city": "Rome"}'
BAD = '{"town": "Rome"}'
ALONE = {"batching": Batching(max_size=1)}


def saying(*texts, reason="stop"):
    """Replies to single prompts, each with three tokens in and two out."""

    def reply(text):
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        body = {"choices": [{"index": 0, "text": text, "finish_reason": reason}], "usage": usage}
        return Reply(chunks=[json.dumps(body).encode()])

    return [reply(text) for text in texts]


async def mapped(server, documents=("x",), invalid=2, **arguments):
    """Map the documents one by one; return the rows, the map and the client's counts."""
    async with make_client(server, limit=1, **ALONE) as client:
        rows = client.stream_map(
            documents,
            "{}",
            response_model=Place,
            repair=Repair(invalid=invalid),
            max_tokens=3,
            ordered=True,
            **arguments,
        )
        return [row async for row in rows], rows, client.statistics()


async def test_an_answer_that_does_not_fit_is_asked_again():
    server = ScriptedTransport(*saying(BAD, "no JSON", GOOD, GOOD))
    (first, second), rows, statistics = await mapped(server, ["a", "b"])
    assert first.answer.parsed == second.answer.parsed == Place(city="Rome")
    assert (first.attempts, second.attempts) == (2, 2)
    assert server.prompts == [["a"], ["b"], ["a"], ["b"]]
    assert server.sent[2].body == server.sent[0].body, "a call goes again as it was"
    assert rows.counts.invalid == 2
    # The answers that are thrown away cost as much as the others.
    assert (statistics.wasted_tokens, statistics.prompt_tokens, statistics.completion_tokens) == (10, 12, 8)


async def test_a_row_is_asked_so_often_and_then_fails():
    server = ScriptedTransport(*saying(BAD, BAD, BAD))
    (row,), rows, statistics = await mapped(server)
    assert type(row.error) is AnswerInvalid
    assert row.error.completion.text == BAD
    assert (row.answer, row.attempts, len(server.sent), rows.counts.invalid) == (None, 3, 3, 3)
    assert statistics.wasted_tokens == 15


@pytest.mark.parametrize("invalid", [0, 1])
async def test_without_it_or_with_an_answer_that_was_cut_off_nothing_is_sent_again(invalid):
    server = ScriptedTransport(*saying(BAD[:5] if invalid else BAD, reason="length" if invalid else "stop"))
    (row,), rows, statistics = await mapped(server, invalid=invalid)
    assert type(row.error) is AnswerInvalid
    assert (row.attempts, len(server.sent), rows.counts.invalid, statistics.wasted_tokens) == (1, 1, 1, 5)


async def test_an_answer_of_unknown_length_wastes_the_tokens_that_are_known():
    body = {"choices": [{"index": 0, "text": BAD, "finish_reason": "stop"}]}
    server = ScriptedTransport(Reply(chunks=[json.dumps(body).encode()]), *saying(GOOD))
    _, rows, statistics = await mapped(server)
    assert (rows.counts.invalid, statistics.wasted_tokens) == (1, 0)


async def test_a_fault_of_the_server_is_no_invalid_answer():
    server = ScriptedTransport(*saying(BAD), *[error(400)] * 3)
    (row,), rows, _ = await mapped(server)
    assert type(row.error).__name__ == "BadRequest"
    assert (row.attempts, rows.counts.invalid) == (2, 1)


async def test_a_list_asks_those_again_whose_answers_did_not_fit():
    def of_list(sent):
        choices = [
            {"index": place, "text": BAD if prompt == "b" else GOOD, "finish_reason": "stop"}
            for place, prompt in enumerate(sent.prompts)
        ]
        return Reply(chunks=[json.dumps({"choices": choices}).encode()])

    server = ScriptedTransport(of_list, *saying(GOOD))
    async with make_client(server, limit=8) as client:
        answers = await client.batch_map(["a", "b", "c"], "{}", response_model=Place, repair=Repair(invalid=1))
    assert [answer.parsed.city for answer in answers] == ["Rome"] * 3
    assert server.prompts == [["a", "b", "c"], ["b"]]


async def test_the_deadline_is_of_the_row_and_not_of_each_asking():
    def slow(sent):
        reply = saying(BAD)[0]
        return Reply(chunks=[0.4, *reply.chunks])

    server = ScriptedTransport(*[slow] * 9)
    began = anyio.current_time()
    (row,), rows, _ = await mapped(server, invalid=9, timeout_s=1.0)
    assert type(row.error) is DeadlineExceeded
    assert anyio.current_time() - began == pytest.approx(1.0, abs=0.05)
    assert (len(server.sent), rows.counts.invalid) == (3, 2)


async def test_a_map_that_is_left_asks_nothing_again():
    server = ScriptedTransport(*saying(BAD, GOOD), held=True)
    async with make_client(server, limit=1, **ALONE) as client:
        rows = client.stream_map(["x"], "{}", response_model=Place, repair=Repair(invalid=1))
        async with anyio.create_task_group() as group:

            async def take():
                async for _ in rows:
                    raise AssertionError("the map was left")

            group.start_soon(take)
            await server.arrived(1)
            server.sent[0].release()
            while not rows.counts.invalid:
                await anyio.lowlevel.checkpoint()
            await rows.aclose()
        await settle()
        assert client.statistics().in_flight == client.statistics().queued == 0
    assert len(server.sent) == 1


async def test_progress_has_their_number():
    told = []
    await mapped(ScriptedTransport(*saying(BAD, BAD, GOOD)), progress=told.append)
    assert (told[-1].invalid, told[-1].answered, told[-1].read) == (2, 1, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"response_model": None},
        {"temperature": 0},
        {"temperature": 0.0},
        {"seed": 7},
        {"seed": 0},
        {"extra_body": {"temperature": 0}},
        {"extra_body": {"seed": 7}},
    ],
)
async def test_a_wrong_number_and_a_form_of_asking_that_gives_the_same_are_refused(arguments):
    server = ScriptedTransport()
    async with make_client(server) as client:
        with pytest.raises(ConfigError) as caught:
            client.stream_map(["x"], "{}", **{"response_model": Place, "repair": Repair(invalid=1), **arguments})
    assert (caught.value.field, server.sent) == ("repair.invalid", [])
    for number in (-1, 101, True, 1.0, None):
        with pytest.raises(ConfigError, match="a whole number from 0 to 100"):
            Repair(invalid=number)


def test_threads_have_it_too():
    with SyncBatchClient("http://127.0.0.1:1/v1", model="m") as client:
        for method in (client.batch_map, client.stream_map):
            with pytest.raises(ConfigError) as caught:
                method(["x"], "{}", repair=Repair(invalid=1))
            assert caught.value.field == "repair.invalid"
            for old in ("retry_invalid", "retry_truncated", "max_tokens_at_most"):
                with pytest.raises(ConfigError, match=f"{old} is now repair=Repair"):
                    method(["x"], "{}", **{old: 1})


async def test_without_retries_every_parameter_goes():
    async with make_client(ScriptedTransport(*saying(GOOD)), **ALONE) as client:
        answers = await client.batch_map(
            ["x"], "{}", response_model=Place, repair=Repair(invalid=0), temperature=0, seed=7
        )
    assert answers[0].parsed == Place(city="Rome")
