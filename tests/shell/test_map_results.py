"""``batch_map``'s outcome: answers, or one error that holds answers and errors; never half of the work lost."""

import asyncio
import threading

import anyio
import pytest

from batchclient import (
    Batching,
    BadRequest,
    BatchMapFailed,
    CallAborted,
    ClientClosed,
    Completion,
    ConfigError,
    MissingField,
    ServerFault,
    TooManyBadRows,
)
from batchclient.retry import Backoff
from tests.shell.clocks import run
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, echo, error, make_client, settle
from tests.shell.test_maps import AsyncSource, Source, texts
from tests.shell.test_sync import make_sync


LIBRARIES = ("asyncio",)
"""``test_maps`` has both; a blocking client's is asyncio anyway."""


async def awaiting(server, documents, prompt="{}", **arguments):
    async with make_client(server, limit=8, batching=Batching(max_size=4), retry=Backoff(max_attempts=1)) as client:
        return await client.batch_map(documents, prompt, **arguments)


async def blocking(server, documents, prompt="{}", **arguments):
    with make_sync(server, limit=8, batching=Batching(max_size=4), retry=Backoff(max_attempts=1)) as client:
        return client.batch_map(documents, prompt, **arguments)


BOTH = pytest.mark.parametrize("batch_map", [awaiting, blocking])


def refuse(*bad, status=400, message="this prompt is bad"):
    def step(sent):
        return error(status, message) if any(prompt in bad for prompt in sent.prompts) else echo(sent)

    return ScriptedTransport(*[step] * 200)


@BOTH
async def test_one_bad_document_costs_no_other_its_answer(batch_map):
    server = refuse("text 7")
    with pytest.raises(BatchMapFailed) as caught:
        await batch_map(server, texts(300))
    results = caught.value.results
    assert [type(result) for result in results] == [Completion] * 7 + [BadRequest] + [Completion] * 292
    assert [result.text for result in results[8:]] == [answer_to(text) for text in texts(300)[8:]]
    assert str(caught.value) == (
        "1 of 300 documents failed: document 7: BadRequest: 400: this prompt is bad."
        " All answers and errors are in its results"
    )
    assert caught.value.__cause__ is results[7]
    assert not caught.value.retryable


@BOTH
async def test_the_first_failures_are_shown_and_the_others_counted(batch_map):
    with pytest.raises(BatchMapFailed) as caught:
        await batch_map(ScriptedTransport(), iter([*texts(5), *[None] * 1095]))
    why = "the document is empty"
    shown = f"documents 5, 6, 7: {why}"
    assert str(caught.value).startswith(f"1,095 of 1,100 documents failed: {shown}; and 1,092 more. ")


@BOTH
async def test_with_return_exceptions_nothing_is_raised(batch_map):
    answers = await batch_map(refuse("text 1"), texts(3), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Completion, BadRequest, Completion]


@BOTH
async def test_a_map_that_failed_may_succeed_later_if_each_of_its_failures_may(batch_map):
    with pytest.raises(BatchMapFailed) as caught:
        await batch_map(refuse("text 1", "text 2", status=500), texts(8))
    assert caught.value.retryable
    assert {type(result) for result in caught.value.results} == {Completion, ServerFault}


# What is shown -----------------------------------------------------------------------------------------------------


@BOTH
async def test_neither_prompts_nor_words_of_others_errors_are_shown(batch_map):
    def prompt(document):
        if "secret" in document:
            raise LookupError(document)
        return document

    bad = "a prompt that the server does not like"
    server = refuse(bad, message=f"cannot do {bad!r}")
    with pytest.raises(BatchMapFailed) as caught:
        await batch_map(server, ["a secret", bad, "fine"], prompt)
    assert "secret" not in str(caught.value) + repr(caught.value)
    assert bad not in str(caught.value) + repr(caught.value)
    assert "document 0: LookupError; document 1: BadRequest: " in str(caught.value)
    assert [type(result) for result in caught.value.results] == [LookupError, BadRequest, Completion]


# Documents that cannot be used -------------------------------------------------------------------------------------

ROWS = [{"text": "a"}, {"text": float("nan")}, {"text": "\ud800"}, {"title": "b"}, {"text": None}, {"text": "c"}]
WHY = [
    "the prompt holds a lone surrogate at character 4, which no UTF-8 can carry",
    "the document has no field 'text'; it has: title",
]


@BOTH
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("call", ["complete", "chat", "embed"])
async def test_a_list_that_cannot_be_used_whole_is_refused_before_anything_is_sent(batch_map, kind, call):
    server = ScriptedTransport()
    with pytest.raises(ConfigError) as caught:
        await batch_map(server, kind(ROWS), "Say {text}", call=call)
    # An empty field is its row's failure alone.
    shown = "; ".join(f"document {place}: {why}" for place, why in enumerate(WHY, 2))
    assert str(caught.value) == f"2 of 6 documents cannot be used, and nothing was sent: {shown}"
    assert caught.value.field == "prompt"
    assert server.sent == []


@BOTH
@pytest.mark.parametrize("how", [iter, Source])
async def test_elsewhere_a_document_that_cannot_be_used_is_a_failure_of_its_own(batch_map, how):
    server = ScriptedTransport()
    with pytest.raises(BatchMapFailed, match="^4 of 6 documents failed: document 1: 'text' is empty") as caught:
        await batch_map(server, how(ROWS), "Say {text}")
    kinds = [Completion, MissingField, ConfigError, MissingField, MissingField, Completion]
    assert [type(result) for result in caught.value.results] == kinds


@BOTH
async def test_so_it_is_where_errors_are_returned(batch_map):
    answers = await batch_map(ScriptedTransport(), ROWS, "Say {text}", return_exceptions=True)
    assert [type(answer) for answer in answers] == [
        Completion,
        MissingField,
        ConfigError,
        MissingField,
        MissingField,
        Completion,
    ]


@BOTH
async def test_so_it_is_where_the_prompt_is_a_function_which_is_called_once_for_each(batch_map):
    called = []

    def prompt(document):
        called.append(document)
        return document["text"]

    with pytest.raises(BatchMapFailed) as caught:
        await batch_map(ScriptedTransport(), ROWS, prompt)
    assert len(called) == 6
    assert [type(result) for result in caught.value.results] == [
        Completion, ConfigError, ConfigError, KeyError, ConfigError, Completion,
    ]  # fmt: skip


@BOTH
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("txt"), "KeyError: 'txt'"), (KeyError("a document's own text"), "KeyError"), (KeyError("x" * 41), "KeyError"),
        (KeyError(7), "KeyError"), (KeyError(), "KeyError"), (ValueError("a document's own text"), "ValueError"),
    ],
)  # fmt: skip
async def test_a_function_that_fails_is_told_by_the_missing_key_or_else_by_its_class(batch_map, error, said):
    def prompt(document):
        raise error

    with pytest.raises(BatchMapFailed) as caught:
        await batch_map(ScriptedTransport(), ["a"], prompt)
    assert str(caught.value).startswith(f"1 of 1 documents failed: document 0: {said}. All answers")


@BOTH
async def test_a_document_whose_own_code_fails_is_a_failure_of_its_own(batch_map):
    class Broken(dict):
        def __getitem__(self, name):
            raise OSError("the disk")

    with pytest.raises(BatchMapFailed, match="1 of 2 documents failed: document 1: OSError"):
        await batch_map(ScriptedTransport(), [{"text": "a"}, Broken(text="b")], "Say {text}")


def test_others_have_turns_while_a_long_list_is_checked(monkeypatch):
    monkeypatch.setattr("batchclient._maps.results.now", lambda: asyncio.get_running_loop().time())

    class Slow(dict):
        def __getitem__(self, name):
            asyncio.get_running_loop().clock += 0.001
            return "text"

    async def main():
        times = []

        async def other():
            while True:
                times.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        await settle(1)
        await awaiting(ScriptedTransport(), [Slow(text="")] * 700, "{text}")
        task.cancel()
        return times

    times = run(main)
    assert max(later - earlier for earlier, later in zip(times, times[1:], strict=False)) < 0.01


# Sources that fail -------------------------------------------------------------------------------------------------


def failing(count):
    yield from texts(count)
    raise OSError("the disk and a secret")


async def failing_slowly(count):
    for text in texts(count):
        yield text
    raise OSError("the disk and a secret")


@pytest.mark.parametrize(
    ("batch_map", "source"), [(awaiting, failing), (awaiting, failing_slowly), (blocking, failing)]
)
@pytest.mark.parametrize("return_exceptions", [False, True])
async def test_a_source_that_fails_costs_no_document_its_answer(batch_map, source, return_exceptions):
    with pytest.raises(BatchMapFailed) as caught:
        await batch_map(refuse("text 3"), source(20), return_exceptions=return_exceptions)
    assert isinstance(caught.value.__cause__, OSError)
    assert [type(result) for result in caught.value.results] == [*[Completion] * 3, BadRequest, *[Completion] * 16]
    assert str(caught.value) == (
        "reading the documents failed after 20: OSError."
        " Of these 1 failed: document 3: BadRequest: 400: this prompt is bad."
        " All answers and errors are in its results"
    )
    assert not caught.value.retryable


async def test_a_client_closed_meanwhile_costs_no_document_its_answer():
    server = ScriptedTransport(echo)
    outcomes = []
    async with (
        make_client(server, limit=2, batching=Batching(max_size=2)) as client,
        anyio.create_task_group() as group,
    ):

        async def map_all():
            try:
                await client.batch_map(AsyncSource(texts(20), slow_s=1), "{}")
            except BatchMapFailed as failed:
                outcomes.append(failed)

        group.start_soon(map_all)
        await anyio.sleep(5.5)
        await client.aclose()
    (failed,) = outcomes
    assert [result.text for result in failed.results] == [answer_to(text) for text in texts(5)]
    assert isinstance(failed.__cause__, ClientClosed)
    assert "ClientClosed: the client was closed before all documents were read" in str(failed)


async def test_aborted_documents_stand_beside_those_that_were_answered():
    server = ScriptedTransport(held=True)
    outcomes = []
    async with (
        make_client(server, limit=2, batching=Batching(max_size=1)) as client,
        anyio.create_task_group() as group,
    ):

        async def map_all():
            try:
                await client.batch_map(texts(4), "{}")
            except BatchMapFailed as failed:
                outcomes.extend(failed.results)

        group.start_soon(map_all)
        await server.arrived(2)
        server.sent[0].release()
        await settle()
        client.abort()
    assert [type(outcome) for outcome in outcomes] == [Completion, CallAborted, CallAborted, CallAborted]


BAD = b'{"error": {"message": "bad", "code": 400}}'


class SlowFirst(ScriptedTransport):
    """Answers the first row once the documents are read to their end; after 3,000 looks it gives up."""

    def __init__(self):
        super().__init__()
        self.is_over = threading.Event()

    def documents(self, count):
        yield from texts(count)
        self.is_over.set()

    async def send(self, request, timeouts):
        looks = 0
        while b'"text 0"' in request.body and not self.is_over.is_set():
            await anyio.sleep(0.01)
            looks += 1
            assert looks < 3_000, "the documents are not read to their end"
        return await super().send(request, timeouts)


@BOTH
async def test_one_slow_row_stops_no_other(batch_map):
    server = SlowFirst()
    answers = await batch_map(server, server.documents(2_000), look_ahead=64, fail_if=["failed>1%"])
    assert [answer.text for answer in answers] == [answer_to(text) for text in texts(2_000)]


@BOTH
async def test_the_first_failures_are_those_of_the_first_documents_whenever_they_come(batch_map):
    bad = texts(6)

    def step(sent):
        if sent.prompts == ["text 0"]:
            return Reply(400, {}, [0.2, BAD])
        return error(400, "bad") if any(prompt in bad for prompt in sent.prompts) else echo(sent)

    with pytest.raises(BatchMapFailed) as caught:
        await batch_map(ScriptedTransport(*[step] * 200), texts(300))
    why = "documents 0, 1, 2: BadRequest: 400: bad"
    assert f"6 of 300 documents failed: {why}; and 3 more" in str(caught.value)


@BOTH
async def test_a_map_that_ends_early_has_the_results_before_the_first_open_row(batch_map):
    """The 50th row decides. Then rows 56 and so on have failed, and rows 52 to 55 have not ended."""

    def step(sent):
        first = int(sent.prompts[0].split()[1])
        return Reply(400, {}, [{48: 0.1, 52: 30}.get(first, 0.01), BAD])

    with pytest.raises(TooManyBadRows) as caught:
        await batch_map(ScriptedTransport(*[step] * 1000), texts(4000), fail_if=["failed>5%"])
    assert caught.value.is_early and [type(result) for result in caught.value.results] == [BadRequest] * 52
