"""``order="longest_first"`` and ``expected_tokens``: which rows go first, and what that changes about no row."""

import json

import anyio
import pytest

from batchclient import Batching, CallAborted, ConfigError, Journal
from tests.shell import clocks
from tests.shell.scripted import Reply, ScriptedTransport, echo, make_client, settle

ALONE = {"batching": Batching(max_size=1)}
FIRST = {"order": "longest_first"}


def rows(*expected):
    """Documents by the tokens that are expected of their answers."""
    return [{"prompt": f"row {at}", "params": {"expected_tokens": tokens}} for at, tokens in enumerate(expected)]


def sent_rows(server):
    return [int(prompt.removeprefix("row ")) for (prompt,) in server.prompts]


def slowly(sent):
    """An echo that takes its time."""
    reply = echo(sent)
    return Reply(reply.status, reply.headers, [0.05, *reply.chunks])


def said(sent):
    """An answer whose prompt says how long it is: ``row 7 of 300 ...``."""
    tokens = int(sent.prompts[0].split()[3])
    choice = {"index": 0, "text": "x", "finish_reason": "stop"}
    usage = {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}
    body = {"id": "c", "model": "m", "choices": [choice], "usage": usage}
    if sent.streamed:
        return Reply(chunks=[0.05, b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"])
    return Reply(chunks=[0.05, json.dumps(body).encode()])


async def test_of_the_open_rows_those_with_the_longest_expected_answers_go_first():
    expected = [5, 700, 60, 8, 900, 3, 70]
    server = ScriptedTransport()
    async with make_client(server, limit=1, **ALONE) as client:
        answers = await client.batch_map(rows(*expected), max_tokens=1000, **FIRST)
    assert sent_rows(server) == [4, 1, 6, 2, 3, 0, 5]
    assert [answer.text for answer in answers] == [f"<row {at}|0>" for at in range(7)]
    # Not a word of it is sent.
    assert b"expected" not in b"".join(sent.request.body for sent in server.sent)


async def test_a_row_s_priority_stands_before_its_length():
    made = rows(5, 700, 60, 900)
    made[0]["params"]["priority"] = 1
    server = ScriptedTransport()
    async with make_client(server, limit=1, **ALONE) as client:
        await client.batch_map(made, max_tokens=1000, **FIRST)
    assert sent_rows(server) == [0, 3, 1, 2]


@pytest.mark.parametrize("tokens", [{10: 4, 100: 40, 1000: 400}, {10: 400, 100: 40, 1000: 4}], ids=["grow", "shrink"])
async def test_what_came_of_prompts_of_a_size_tells_which_rows_go_first(tokens):
    """Also where long prompts have short answers. An answer that has not come yet may be the longest."""
    sizes = [*tokens] * 12
    texts = [f"row {at} of {tokens[size]} {'x' * size}" for at, size in enumerate(sizes)]
    server = ScriptedTransport(*[said] * 36)
    async with make_client(server, limit=1, **ALONE) as client:
        await client.batch_map(texts, "{}", max_tokens=1000, **FIRST)
        lengths = client.statistics().lengths
    order = [int(prompt.split()[3]) for (prompt,) in server.prompts]
    # The first of each size are tried; from there on all goes by what came.
    assert order[6:] == sorted(order[6:], reverse=True) and order[-9:] == [4] * 9
    assert lengths.answers == 33 and lengths.mean_error == 0


async def test_no_row_is_overtaken_by_more_than_four_look_aheads():
    server = ScriptedTransport(*[slowly] * 61)
    async with make_client(server, limit=1, **ALONE) as client:
        await client.batch_map(rows(1, *[500] * 60), max_tokens=1000, look_ahead=4, **FIRST)
    # The four that are open, and one that the scheduler has in its queue, are younger.
    assert 12 <= sent_rows(server).index(0) <= 18


async def test_without_the_word_rows_go_as_they_come_whatever_is_expected():
    server = ScriptedTransport()
    async with make_client(server, limit=1, **ALONE) as client:
        await client.batch_map(rows(5, 700, 60), max_tokens=1000)
    assert sent_rows(server) == [0, 1, 2]


def test_with_a_journal_rows_come_in_order_all_the_same(tmp_path):
    server = ScriptedTransport()

    async def main():
        async with make_client(server, limit=1, **ALONE) as client:
            results = client.stream_map(rows(5, 700, 60), ordered=True, journal=tmp_path / "journal", **FIRST)
            return [row.index async for row in results]

    assert clocks.run(main) == [0, 1, 2]
    assert sent_rows(server) == [1, 2, 0]


async def test_in_order_it_needs_a_journal_and_the_error_names_both_ways():
    async with make_client(ScriptedTransport()) as client:
        with pytest.raises(ConfigError, match="give ordered=False, or a journal") as refused:
            client.stream_map(["a"], "{}", ordered=True, **FIRST)
        assert refused.value.field == "order"
        with pytest.raises(ConfigError, match=r"Queue\(order=…\)"):
            client.stream_map(["a"], "{}", order="shortest_first")
        with pytest.raises(ConfigError, match="order is for texts that are generated"):
            client.stream_map(["a"], "{}", call="embed", **FIRST)


async def test_what_waits_for_its_turn_ends_with_abort_and_is_answered_in_a_drain():
    for way in ("abort", "drain"):
        server, results = ScriptedTransport(held=True), []
        async with make_client(server, limit=2, **ALONE) as client, anyio.create_task_group() as group:

            async def take(client=client, results=results):
                results.extend([row async for row in client.stream_map(rows(*range(1, 11)), **FIRST)])

            group.start_soon(take)
            await server.arrived(2)
            if way == "abort":
                client.abort()
            else:
                group.start_soon(client.drain)
                await settle()
                server.release()
        assert [type(row.error) for row in results] == [CallAborted if way == "abort" else type(None)] * 10


async def test_what_waits_for_its_turn_is_not_sent_once_the_map_is_left():
    server = ScriptedTransport()
    async with make_client(server, limit=1, **ALONE) as client:
        async with client.stream_map(rows(*range(1, 31)), **FIRST) as results:
            async for _ in results:
                break
        sent = len(server.sent)
        await settle()
        assert len(server.sent) == sent < 30
        assert (await client.complete("row 99")).text == "<row 99|0>"


# expected_tokens -----------------------------------------------------------------------------------------------------


def test_an_expected_length_is_no_part_of_a_row_for_journal_and_dedupe(tmp_path):
    server = ScriptedTransport()

    async def main():
        async with make_client(server, **ALONE) as client:
            for tokens in ([5, 9], [70, 90], [None, None]):
                journal = Journal(tmp_path / "journal", dedupe=True)
                made = [{"prompt": "the same", "params": {"expected_tokens": each}} for each in tokens]
                answers = await client.batch_map(made, journal=journal)
                assert [answer.text for answer in answers] == ["<the same|0>"] * 2
            await client.batch_map([{"prompt": "the same"}], expected_tokens=7, journal=journal)
            return client.statistics().reused

    assert clocks.run(main) == 6  # of seven
    assert len(server.sent) == 1


async def test_calls_with_other_expectations_share_an_answer():
    server = ScriptedTransport(held=True)
    shared = Batching(single_flight=True)
    async with make_client(server, batching=shared) as client, anyio.create_task_group() as group:
        for tokens in (5, 500):
            group.start_soon(lambda tokens=tokens: client.complete("p", temperature=0, expected_tokens=tokens))
        await settle()
        server.release()
        await settle()
        assert client.statistics().shared == 1
    assert len(server.sent) == 1


@pytest.mark.parametrize("wrong", [0, -3, 2.5, True, "9", 10**400])
async def test_a_length_that_is_none_is_refused_where_it_is_given(wrong):
    server = ScriptedTransport()
    async with make_client(server) as client:
        for given in ({"expected_tokens": wrong}, {"extra_body": {"expected_tokens": wrong}}):
            with pytest.raises(
                ConfigError, match="expected_tokens is a whole number from 1 to 1,000,000,000"
            ) as refused:
                await client.complete("p", **given)
            assert refused.value.field == "expected_tokens"
        with pytest.raises(ConfigError, match="expected_tokens is for texts that are generated"):
            await client.embed("p", expected_tokens=5)
        with pytest.raises(ConfigError, match="expected_tokens is for texts that are generated"):
            client.stream_map(["a"], "{}", call="classify", extra_body={"expected_tokens": 5})
        await client.complete("p", extra_body={"expected_tokens": 5})
        await client.chat([{"role": "user", "content": "p"}], expected_tokens=None)
    assert b"expected" not in b"".join(sent.request.body for sent in server.sent)
