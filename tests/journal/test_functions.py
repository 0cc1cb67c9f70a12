"""``run``: a function of rows asks again only what no earlier run has asked for that row."""

import asyncio
import contextvars
import gc
import threading
from collections import Counter
from itertools import count

import anyio
import pytest
from pydantic import BaseModel
from tests.journal.jobs import look, sent_prompts, states
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, error, make_client, plain, settle

from batchclient import (
    BadRequest,
    Batching,
    CallAborted,
    ClientClosed,
    ConfigError,
    Journal,
    SyncBatchClient,
    TooManyBadRows,
)
from batchclient.journal.held import HeldJournal, JournalInUse
from batchclient.simulator import EmbeddedServer

ROWS = [{"id": number, "text": f"text {number}"} for number in range(6)]


async def review(row, client):
    """Draft and judge; every other row is revised."""
    draft = await client.complete(f"draft {row['text']}", max_tokens=8)
    verdict = await client.complete(f"judge {draft.text}", max_tokens=1)
    if row["id"] % 2:
        draft = await client.complete(f"revise {draft.text} {verdict.text}", max_tokens=8)
    return draft.text


async def renamed(row, client):
    first = await client.complete(f"draft {row['text']}", max_tokens=8)
    second = await client.complete(f"judge {first.text}", max_tokens=1)
    third = await client.complete(f"revise {first.text} {second.text}", max_tokens=8) if row["id"] % 2 else first
    return third.text


async def reordered(row, client):
    """The drafts of both kinds are asked for at once, the judge's word at last."""
    known = answer_to(f"draft {row['text']}")
    revised = f"revise {known} {answer_to(f'judge {known}')}"
    if row["id"] % 2:
        await client.complete(revised, max_tokens=8)
    draft = await client.complete(f"draft {row['text']}", max_tokens=8)
    await client.complete(f"judge {draft.text}", max_tokens=1)
    return answer_to(revised) if row["id"] % 2 else draft.text


async def with_a_step_more(row, client):
    await client.complete(f"name {row['text']}", max_tokens=8)
    return await review(row, client)


async def with_another_judge(row, client):
    draft = await client.complete(f"draft {row['text']}", max_tokens=8)
    verdict = await client.complete(f"judge {draft.text}", max_tokens=2)
    return draft.text + verdict.text


def refusing(*bad, status=400):
    """A server that refuses some prompts; requests hold one prompt each."""

    class Server(ScriptedTransport):
        async def send(self, request, timeouts):
            self.script = [lambda sent: error(status) if sent.prompts[0] in bad else echo(sent)]
            return await super().send(request, timeouts)

    return Server()


async def run(function, rows=ROWS, journal=None, *, server=None, client=None, **arguments):
    """Return the results by index, and the server."""
    server = server or ScriptedTransport()
    async with make_client(server, limit=16, **(client or {})) as made:
        results = [result async for result in made.run(function, rows, journal=journal, **arguments)]
    return sorted(results, key=lambda result: result.index), server


async def first_of(rows, server):
    """Take the first result of a server that holds all but its first request."""
    results = []

    async def take():
        results.append(await anext(rows))

    async with anyio.create_task_group() as group:
        group.start_soon(take)
        await server.arrived(1)
        server.sent[0].release()
    return results[0]


def outcomes(results):
    return [result.answer if result.error is None else repr(result.error) for result in results]


@pytest.mark.parametrize(
    ("later", "sent"),
    [(review, 0), (renamed, 0), (reordered, 0), (with_a_step_more, 6), (with_another_judge, 6)],
)
async def test_a_later_run_sends_what_was_added_or_changed(path, later, sent):
    first, server = await run(review, journal=path)
    assert len(sent_prompts(server)) == 15 and not any(result.reused for result in first)
    assert [result.attempts for result in first] == [2, 3] * 3
    again, server = await run(later, journal=path)
    assert len(sent_prompts(server)) == sent
    assert all(result.reused for result in again) is (sent == 0)
    if later is not with_another_judge:
        assert outcomes(again) == outcomes(first)


async def test_equal_rows_and_equal_calls_have_answers_of_their_own(path):
    numbers = count()

    def numbered(sent):
        reply = plain(sent).decode()
        return Reply(chunks=[reply.replace("|0>", f"|{next(numbers)}>").encode()])

    async def vote(row, client):
        first = await client.complete("vote", temperature=1)
        more = [None] * 3

        async def ask(place):
            more[place] = (await client.complete("vote", temperature=1)).text

        async with anyio.create_task_group() as group:
            for place in range(3):
                group.start_soon(ask, place)
        return sorted([first.text, *more])

    alone = {"batching": Batching(max_size=1)}
    rows = [{"text": "same"}, {"text": "same"}, {"text": "other"}]
    first, _ = await run(vote, rows, path, server=ScriptedTransport(*[numbered] * 12), client=alone)
    assert len({text for result in first for text in result.answer}) == 12
    assert [result.id.rpartition("-")[2] for result in first] == ["0", "1", "0"]
    again, silent = await run(vote, rows, path, client=alone)
    assert silent.sent == [] and outcomes(again) == outcomes(first)


async def test_an_answer_is_given_at_once_and_a_row_once_its_answers_are_on_the_disk(path, monkeypatch):
    may_sync, sync, synced = threading.Event(), HeldJournal.sync, []

    def waiting(self):
        lines = path.read_bytes().splitlines()[1:]
        assert not lines or may_sync.wait(20)
        sync(self)
        synced[:] = lines

    monkeypatch.setattr(HeldJournal, "sync", waiting)
    server = ScriptedTransport()
    async with make_client(server, limit=4) as client:
        results = client.run(review, ROWS, journal=path)

        async def let_write():
            # All 15 calls are made, each of an answer that is not on the disk.
            await server.arrived(1)
            while len(sent_prompts(server)) < 15:
                await anyio.sleep(0.001)
            assert not synced
            may_sync.set()

        async with anyio.create_task_group() as group:
            group.start_soon(let_write)
            async for result in results:
                assert sum(f'"id":"{result.id}"'.encode() in line for line in synced) == 2 + int(result.id) % 2


async def test_errors_for_good_are_kept_and_raised_again_others_asked_again(path):
    async def careful(row, client):
        try:
            return (await client.complete(row["text"])).text
        except BadRequest as refused:
            return f"refused: {refused.status}"

    async def careless(row, client):
        return (await client.complete(row["text"])).text

    alone = {"batching": Batching(max_size=1)}
    server = refusing("text 1", "text 4")
    first, _ = await run(careful, journal=path, server=server, client=alone)
    assert [result.answer for result in first if result.index in (1, 4)] == ["refused: 400"] * 2
    again, silent = await run(careless, journal=path, client=alone)
    assert silent.sent == []
    assert [type(result.error) for result in again] == [
        type(None),
        BadRequest,
        type(None),
        type(None),
        BadRequest,
        type(None),
    ]
    asked, server = await run(careless, journal=Journal(path, retry_failed=True), client=alone)
    assert sorted(sent_prompts(server)) == ["text 1", "text 4"] and all(result.error is None for result in asked)


async def test_a_failure_that_may_pass_is_asked_again(path):
    async def ask(row, client):
        return (await client.complete(row["text"])).text

    alone = {"batching": Batching(max_size=1)}
    first, _ = await run(ask, journal=path, server=refusing("text 2", status=401), client=alone)
    assert [result.index for result in first if result.error] == [2]
    _, server = await run(ask, journal=path, client=alone)
    assert sent_prompts(server) == ["text 2"]


class Opaque:
    __slots__ = ()


async def test_a_row_without_id_that_is_no_json_needs_an_id_for_a_journal(path):
    async def ask(row, client):
        return (await client.complete("Hi")).text

    rows = [{"text": "x"}, {"value": Opaque()}, {"id": "b", "value": Opaque()}, Opaque()]
    kept, _ = await run(ask, rows, path)
    assert [result.error and result.error.message.partition(":")[0] for result in kept] == [
        None,
        "document 1",
        None,
        "document 3",
    ]
    assert isinstance(kept[1].error, ConfigError) and kept[2].id == "b"
    free, _ = await run(ask, rows)
    assert [result.id for result in free][1:] == ["row-1", "b", "row-3"] and not any(result.error for result in free)


async def test_calls_of_rows_begun_earlier_go_first(path):
    async def two(row, client):
        first = await client.complete(f"first {row}", max_tokens=4)
        return (await client.complete(f"second {first.text}", max_tokens=1)).text

    server = ScriptedTransport()
    async with make_client(server, limit=4, batching=Batching(max_size=1)) as client:
        ended = [result.index async for result in client.run(two, range(64))]
    order = [prompt.split()[0] for prompt in sent_prompts(server)]
    # Were they to go as they come, all 64 first calls would stand before a second one. trio's tasks go in no order.
    assert order.index("second") <= 24 and Counter(order[:64])["second"] >= 20 and len(ended) == 64


async def test_open_rows_are_bounded(path):
    begun = []

    async def hold(row, client):
        begun.append(row)
        return (await client.complete(f"{row}")).text

    server = ScriptedTransport(held=True)
    async with make_client(server, limit=20) as client, anyio.create_task_group() as group:
        results = client.run(hold, iter(range(1000)))
        group.start_soon(anext, results)
        await server.arrived(1)
        assert len(begun) == 80
        server.release()
        await anyio.sleep(0)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_closed_client_is_nobodys_result(path, swallows):
    async def ask(row, client):
        try:
            return (await client.complete(row["text"])).text
        except ClientClosed:
            if swallows:
                return "fallback"
            raise

    server = ScriptedTransport(held=True)
    async with make_client(server, limit=2, batching=Batching(max_size=1)) as client:
        rows = client.run(ask, ROWS, journal=path)
        results = [await first_of(rows, server)]
        await server.arrived(3)
        await client.aclose()
        with pytest.raises(ClientClosed):
            async for result in rows:
                results.append(result)
    assert all(result.answer == answer_to(result.document["text"]) for result in results)
    assert states(path) == ["answered"] * len(look(path))
    again, server = await run(ask, journal=path)
    assert outcomes(again) == [answer_to(row["text"]) for row in ROWS]


async def test_an_iterator_that_is_left_cancels_its_functions_and_keeps_what_came(path):
    cancelled = []

    async def ask(row, client):
        try:
            return (await client.complete(row["text"])).text
        except anyio.get_cancelled_exc_class():
            cancelled.append(row["id"])
            raise

    server = ScriptedTransport(held=True)
    async with make_client(server, limit=6, batching=Batching(max_size=1)) as client:
        async with client.run(ask, ROWS, journal=path) as rows:
            await first_of(rows, server)
        assert len(cancelled) == 5 and client.statistics().in_flight == 0
    assert states(path) == ["answered"]
    _, server = await run(ask, journal=path)
    assert len(sent_prompts(server)) == 5


@pytest.mark.parametrize("max_tokens", [8, -1], ids=["answered", "refused"])
async def test_what_a_loop_has_left_ends_at_once_and_frees_the_journal(path, max_tokens):
    async def ask(row, client):
        return (await client.complete(row["text"], max_tokens=8 if row["id"] else max_tokens)).text

    server = ScriptedTransport(Reply(), *[Reply(chunks=[1000, b""])] * 5)
    gc.disable()
    try:
        async with make_client(server, limit=6, batching=Batching(max_size=1)) as client:
            kept = []
            async for result in client.run(ask, ROWS, journal=path):
                kept.append(result)
                break
            await settle()
            assert client.statistics().in_flight == 0
            # The file is closed in a thread, which a busy machine may keep waiting.
            with anyio.fail_after(20):
                while (held := await anyio.to_thread.run_sync(opened, path)) is None:
                    await anyio.sleep(0.01)
            held.close()
    finally:
        gc.enable()


def opened(path):
    """The journal, unless another holds it."""
    try:
        return HeldJournal.open(path)
    except JournalInUse:
        return None


async def test_two_may_end_an_iterator_whose_functions_tidy_up():
    async def ask(row, client):
        try:
            return (await client.complete(row["text"])).text
        finally:
            with anyio.CancelScope(shield=True):
                await settle()

    server = ScriptedTransport(held=True)
    async with make_client(server, limit=6, batching=Batching(max_size=1)) as client:
        rows = client.run(ask, ROWS)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(anext, rows, None)
                await server.arrived(6)
                group.start_soon(rows.aclose)
                await rows.aclose()


def test_a_call_that_the_function_leaves_behind_ends_with_the_iterator():
    ends = []

    async def leave_behind(row, client):
        async def behind():
            with pytest.raises(ClientClosed) as ended:
                await client.complete("held", max_tokens=8)
            ends.append(ended.type)

        ends.append(asyncio.ensure_future(behind()))
        await asyncio.sleep(0)
        await client.complete(row["text"], max_tokens=8)

    async def story():
        server = ScriptedTransport(Reply(chunks=[1000, b""]))
        async with make_client(server, batching=Batching(max_size=1)) as client:
            async with client.run(leave_behind, ROWS[:1]) as rows:
                assert [row.error async for row in rows] == [None]
            await asyncio.wait_for(ends[0], 10)
            assert client.statistics().in_flight == 0

    asyncio.run(story())
    assert ends[1:] == [ClientClosed]


async def test_rows_that_had_ended_are_handed_out_though_the_client_is_closed_amid_the_others(path):
    async def ask(row, client):
        return (await client.complete(row["text"], max_tokens=8)).text

    async def close_soon():
        while not client.statistics().succeeded:
            await anyio.sleep(0)
        await settle()
        await client.aclose()

    server, results, raised = ScriptedTransport(Reply(), Reply(chunks=[1000, b""])), [], []
    async with (
        make_client(server, limit=2, batching=Batching(max_size=1)) as client,
        anyio.create_task_group() as group,
        client.run(ask, ROWS[:2], journal=path) as rows,
    ):
        group.start_soon(close_soon)
        try:
            async for result in rows:
                results.append(result.error)
        except ClientClosed as error:
            raised.append(error)
    # On trio either row may be the first to send.
    assert (results, len(raised)) == ([None], 1)


async def test_calls_wait_while_the_disk_is_slower_than_the_answers(path, monkeypatch):
    sync, free = HeldJournal.sync, threading.Event()

    def stands(held):
        free.wait(30)
        sync(held)

    async def loop(row, client):
        for step in range(1_000_000):
            await client.complete(f"{row['id']} {step}", max_tokens=8)

    async def stand_still():
        """Return how many calls were made when for a while none is made any more."""
        made = -1
        while client.statistics().submitted > made:
            made = client.statistics().submitted
            assert made < 50_000, "nothing holds them back"
            await anyio.sleep(0.1)
        return made

    monkeypatch.setattr("batchclient._maps.journaled.GROUP_S", 0.005)
    server = ScriptedTransport()
    async with make_client(server, limit=64) as client, client.run(loop, ROWS, journal=path) as rows:
        async with anyio.create_task_group() as group:
            group.start_soon(anext, rows, None)
            await server.arrived(1)
            monkeypatch.setattr(HeldJournal, "sync", stands)
            made = await stand_still()
            free.set()
            while client.statistics().submitted == made:
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()


async def test_a_call_that_the_function_leaves_is_not_kept(path):
    async def race(row, client):
        with anyio.move_on_after(patience_s):
            return (await client.complete("slow")).text
        return (await client.complete("fast")).text

    server, patience_s = ScriptedTransport(Reply(chunks=[1, b""])), 0.01
    results, _ = await run(race, ROWS[:1], path, server=server)
    patience_s = 30.0
    assert outcomes(results) == [answer_to("fast")] and len(look(path)) == 1
    again, server = await run(race, ROWS[:1], path)
    assert sent_prompts(server) == ["slow"] and outcomes(again) == [answer_to("slow")]


async def test_a_functions_own_errors_are_its_rows(path):
    async def odd(row, client):
        answer = await client.complete(row["text"])
        if row["id"] == 1:
            raise ValueError("mine")
        if row["id"] == 2:
            raise asyncio.CancelledError
        if row["id"] == 3:
            await client.complete("", max_tokens="many")
        return answer.text

    results, _ = await run(odd, ROWS[:5], path)
    assert [type(result.error).__name__ for result in results] == [
        "NoneType",
        "ValueError",
        "RuntimeError",
        "ConfigError",
        "NoneType",
    ]
    with pytest.raises(TooManyBadRows, match="failed>50%"):
        await run(odd, [ROWS[1], ROWS[2], ROWS[4]], path, fail_if=["failed>50%"])


async def test_results_in_order_counts_and_the_callers_variables(path):
    variable, seen, told = contextvars.ContextVar("variable", default=0), set(), []
    variable.set(7)

    async def ask(row, client):
        seen.add(variable.get())
        await anyio.sleep(0.003 * (row["id"] == 0))
        return (await client.complete(row["text"])).text

    async def rows():
        for row in ROWS:
            yield row

    server = ScriptedTransport()
    async with make_client(server, limit=16) as client:
        results = client.run(ask, rows(), journal=path, ordered=True, progress=told.append)
        assert [result.index async for result in results] == [0, 1, 2, 3, 4, 5]
    assert seen == {7}
    assert (told[-1].read, told[-1].answered, told[-1].reused, told[-1].completion_tokens) == (6, 6, 0, 12)
    assert results.health["truncated"] == 6


async def test_abort_ends_calls_that_wait_for_their_turn():
    async def ask(row, client):
        return (await client.complete(f"{row}")).text

    server = ScriptedTransport(held=True)
    async with (
        make_client(server, limit=2, batching=Batching(max_size=1)) as client,
        anyio.create_task_group() as group,
    ):
        results = []

        async def take():
            results.extend([result async for result in client.run(ask, range(10))])

        group.start_soon(take)
        await server.arrived(2)
        client.abort()
    assert [type(result.error) for result in results] == [CallAborted] * 10


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"function": lambda row, client: None}, "function"),
        ({"journal": Journal("x", dedupe=True)}, "journal"),
        ({"progress": 3}, "progress"),
        ({"fail_if": ["truncated>1%"]}, "fail_if"),
        ({"rows": "text"}, "rows"),
    ],
)
async def test_wrong_arguments_are_refused_at_once(arguments, field):
    async with make_client(ScriptedTransport()) as client:
        with pytest.raises(ConfigError) as refused:
            client.run(**{"function": review, "rows": ROWS, **arguments})
        assert refused.value.field == field


async def test_a_maps_journal_is_another_jobs(path):
    async with make_client(ScriptedTransport()) as client:
        async for _ in client.stream_map(["x"], "{}", journal=path):
            pass
        with pytest.raises(ConfigError, match="of another job: call"):
            await anext(client.run(review, ROWS, journal=path))


class Parsed(BaseModel):
    number: int


async def each_call(row, client):
    parsed = await client.chat([{"role": "user", "content": "A number."}], max_tokens=30, response_model=Parsed)
    vector = await client.embed(row["text"])
    kind = await client.classify(row["text"])
    score = await client.score(row["text"], "a document")
    ranked = await client.rerank(row["text"], ["one", "two", "three"], top_n=2)
    return [
        parsed.parsed.number, list(vector.vector[:3]), kind.label, round(score.score, 6),
        [(each.index, each.document, round(each.score, 6)) for each in ranked], await client.rerank("q", []),
    ]  # fmt: skip


def test_every_call_is_kept_also_from_a_blocking_client(path):
    with EmbeddedServer(model="m") as server:
        results = []
        for _ in range(2):
            with SyncBatchClient(server.base_url, model="m") as client:
                results.append([*client.run(each_call, ROWS[:2], journal=path, ordered=True)])
                sent = client.statistics().submitted
    first, again = results
    assert [result.error for result in first] == [None, None]
    assert outcomes(again) == outcomes(first) and all(result.reused for result in again) and sent == 0
