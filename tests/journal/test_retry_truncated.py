"""Maps with ``Repair(truncated=…)``: an answer that was cut off goes on, or is asked for anew, and a job that was killed goes on with it."""

import asyncio
import json

import pytest
from pydantic import BaseModel
from tests.seams import connected
from tests.shell.scripted import Pages, Reply, ScriptedTransport, error, make_client

from batchclient import AnswerInvalid, Batching, ConfigError, Repair, SyncBatchClient
from batchclient.health import no_answers

LIBRARIES = ("asyncio",)
LENGTH = 20
"""Tokens of each story."""


class Teller(ScriptedTransport):
    """A greedy server: it tells a prompt's story from where the prompt, or the last message, has got to."""

    def __init__(self, *faults, says=lambda word: f" {word}", length=LENGTH, held_after=None, torn="", counts=True):
        super().__init__()
        self.faults = list(faults)
        self.says, self.length, self.torn, self.counts = says, length, torn, counts
        self.held_after = held_after
        self.bounds = []
        """Of each request."""

    async def send(self, request, timeouts):
        self.script = [self.tell]
        self.held = self.held_after is not None and len(self.sent) >= self.held_after
        return await super().send(request, timeouts)

    def tell(self, sent):
        body = sent.body
        self.bounds.append(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        if (fault := self.faults.pop(0) if self.faults else None) is not None:
            return fault
        story = [self.says(place) for place in range(self.length)]
        given = body.get("prompt")
        if given is None:
            messages = body["messages"]
            assert (messages[-1]["role"] == "assistant") == bool(body.get("continue_final_message"))
            assert not (body.get("continue_final_message") and body.get("add_generation_prompt", True))
            told = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
            done = next(count for count in range(self.length) if "".join(story[:count]).rstrip() == told)
        elif isinstance(given, list):
            done = len(given) - 2
            assert given[2:] == list(range(done))
        else:
            done = next(count for count in range(self.length) if given.endswith("?" + "".join(story[:count])))
        places = range(done, min(done + self.bounds[-1], self.length))
        text = "".join(story[place] for place in places)
        if given is None:
            text = "".join(story[: places.stop])[len(told) :]
        choice = {"index": 0, "finish_reason": "stop" if places.stop == self.length else "length"}
        text += "" if places.stop == self.length else self.torn
        if given is None:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if body.get("return_token_ids"):
            choice["token_ids"] = list(places)
        usage = {"prompt_tokens": 5 + done, "completion_tokens": len(places), "total_tokens": 5 + done + len(places)}
        return Reply(chunks=[json.dumps({"choices": [choice], "usage": usage if self.counts else None}).encode()])


async def mapped(
    server, documents=("Who?",), truncated=2, dialect=None, max_tokens_in_all=None, invalid=0, **arguments
):
    """Map the documents one by one; return the rows and the client's counts."""
    arguments = {"max_tokens": 8, "ordered": True, **arguments}
    async with make_client(server, limit=1, batching=Batching(max_size=1), dialect=dialect) as client:
        prompt = arguments.pop("prompt", lambda document: document)
        repair = Repair(invalid, truncated, max_tokens=max_tokens_in_all)
        rows = client.stream_map(documents, prompt, repair=repair, **arguments)
        return [row async for row in rows], client.statistics()


USAGE = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
STORY = "".join(f" {place}" for place in range(LENGTH))
IDS = [5, 6]


@pytest.mark.parametrize("case", ["text", "ids", "chat", "prefilled chat"])
async def test_an_answer_goes_on_as_one_long_answer_would(case):
    document, arguments = ("Who?" if case == "text" else IDS), {}
    if case == "ids":
        arguments = {"return_token_ids": True, "stop": [], "frequency_penalty": 0, "repetition_penalty": 1.0}
    if "chat" in case:
        document, arguments = [{"role": "user", "content": "Who?"}], {"dialect": "vllm", "call": "chat"}
    if case == "prefilled chat":
        document = [*document, {"role": "assistant", "content": " 0 1"}]
        arguments |= {"extra_body": {"continue_final_message": True, "add_generation_prompt": False}}
    server = Teller()
    (row,), statistics = await mapped(server, [document], min_tokens=9, **arguments)
    made = LENGTH - 2 * (case == "prefilled chat")
    answer = row.answer
    assert answer.text == STORY[-len(answer.text) :] and answer.text.count(" ") == made
    assert (answer.health, answer.finish_reason, row.attempts, answer.attempts) == ("ok", "stop", 3, 3)
    assert server.bounds == [8, 8, 16], "each try doubles the bound, and the last has all of it"
    assert [sent.body["min_tokens"] for sent in server.sent] == [9, 1, 0]
    assert answer.usage.completion_tokens == made
    assert answer.usage.prompt_tokens == (7 if case == "prefilled chat" else 5), "the prompt counts once"
    assert (statistics.regained_tokens, statistics.wasted_tokens) == (16, 0)
    if case == "ids":
        assert answer.choices[0].token_ids == tuple(range(LENGTH))
    if "chat" in case:
        assert answer.message == {"role": "assistant", "content": answer.text}


@pytest.mark.parametrize("call", ["complete", "chat"])
async def test_what_ended_below_the_bound_asked_for_is_not_asked_again(call, tmp_path):
    """The server's context ends there."""

    class Full(Teller):
        def tell(self, sent):
            reply = super().tell(sent)
            body = json.loads(reply.chunks[0])
            body["choices"][0]["finish_reason"] = "length"
            return Reply(chunks=[json.dumps(body).encode()])

    for most in (None, 8000):
        server, path = Full(length=9), tmp_path / f"{most}.journal"
        document = "Who?" if call == "complete" else [{"role": "user", "content": "Who?"}]
        arguments = {"max_tokens": 1000, "max_tokens_in_all": most, "dialect": "vllm", "call": call, "journal": path}
        for _ in range(2):
            (row,), statistics = await mapped(server, [document], 3, **arguments)
            assert (row.answer.health, row.answer.text.split()) == ("truncated", [str(place) for place in range(9)])
            assert (server.bounds, statistics.wasted_tokens) == ([1000], 0)


async def test_a_chat_joins_without_a_gap_where_a_template_cuts_blanks_off():
    server = Teller(says=lambda place: f"{place} ")
    (row,), _ = await mapped(server, [[{"role": "user", "content": "Who?"}]], dialect="vllm", call="chat")
    assert row.answer.text == row.answer.message["content"]
    assert row.answer.text.split() == STORY.split()


async def test_reasoning_in_a_text_is_no_message_to_go_on_with():
    for begins in ("<think>", "hm</think>"):
        server = Teller(says=lambda place: f" {place}" if place else begins)  # noqa: B023
        (row,), _ = await mapped(server, [[{"role": "user", "content": "Who?"}]], dialect="vllm", call="chat")
        assert row.answer.text.startswith(begins) and "continue_final_message" not in server.sent[-1].body
        assert server.bounds == [8, 16, 32]


async def test_what_was_cut_off_amid_its_reasoning_goes_on_too(tmp_path):
    thinks = lambda place: {0: "<think>", 12: "</think>"}.get(place, f" {place}")  # noqa: E731
    (row,), _ = await mapped(Teller(says=thinks), truncated=0, journal=tmp_path / "j")
    assert (row.answer.health, row.answer.finish_reason) == ("reasoning_only", "length")
    for journal in (None, tmp_path / "j"):
        server = Teller(says=thinks)
        (row,), _ = await mapped(server, journal=journal)
        assert (row.answer.health, row.answer.text.partition("</think>")[2]) == ("ok", STORY.partition(" 12")[2])
        assert server.bounds == ([8, 16] if journal else [8, 8, 16])


async def test_a_server_that_begins_another_message_is_asked_anew_in_the_same_try():
    message = {"role": "assistant", "content": None, "reasoning": "And so"}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}
    server = Teller(None, Reply(chunks=[json.dumps(body).encode()]))
    chat = [{"role": "user", "content": "Who?"}]
    (row,), counts = await mapped(server, [chat], 1, max_tokens_in_all=40, dialect="vllm", call="chat")
    assert (row.answer.text, row.health, server.bounds) == (STORY, "ok", [8, 32, 40])
    assert (counts.regained_tokens, counts.wasted_tokens) == (0, 13 + USAGE["total_tokens"])


async def test_half_a_character_where_it_was_cut_is_made_whole():
    for call, document in (("complete", "Who?"), ("chat", [{"role": "user", "content": "Who?"}])):
        server = Teller(torn="\ufffd")
        (row,), _ = await mapped(server, [document], dialect="vllm", call=call)
        assert row.answer.text == STORY


class Answer(BaseModel):
    word: str


@pytest.mark.parametrize(
    "arguments",
    [
        {"call": "chat"},  # nobody knows the server
        {"call": "chat", "dialect": "openai", "max_tokens": None, "max_completion_tokens": 8},
        {"call": "chat", "dialect": "vllm", "response_format": {"type": "json_object"}},
        {"call": "chat", "dialect": "vllm", "tools": [{"type": "function"}]},
        {"call": "chat", "dialect": "vllm", "extra_body": {"add_generation_prompt": False}},
        {"document": IDS},  # their answer's ids are not asked for
        {"return_token_ids": True},
        {"echo": True},
        {"stop": ["\n\n"]},
        {"bad_words": ["a b"]},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"extra_body": {"guided_regex": "a*"}},
    ],
)
async def test_where_it_cannot_go_on_it_is_asked_for_anew(arguments):
    document = arguments.pop("document", "Who?")
    if "call" in arguments:
        document = [{"role": "user", "content": document}]
    server = Teller()
    (row,), statistics = await mapped(server, [document], **arguments)
    assert (row.answer.text, row.answer.health) == (STORY, "ok")
    assert server.bounds == [8, 16, 32]
    assert row.answer.usage.completion_tokens == LENGTH and row.attempts == 3
    assert (statistics.regained_tokens, statistics.wasted_tokens) == (0, 5 + 8 + 5 + 16)
    assert server.sent[0].body | {"max_tokens": 0, "max_completion_tokens": 0} == server.sent[2].body | {
        "max_tokens": 0,
        "max_completion_tokens": 0,
    }, "but for the bound it is the call that was given"


async def test_the_first_chat_of_a_client_goes_on_and_so_does_a_journal_s(path):
    models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}
    chat = [{"role": "user", "content": "Who?"}]
    # The last asks for pages in another map at the same time: each page is asked for once all the same.
    for journal, first, maps in ((None, 2, 1), (path, 0, 1), (path, 2, 1), (None, 2, 2)):
        server, pages = Teller(), Pages({"/models": Reply(chunks=[json.dumps(models).encode()])})
        client = connected(
            calls=lambda url: server, detection=lambda url: pages, asks_first=True, probe=True, model="m",
            batching=Batching(max_size=1), limit=1,
        )  # fmt: skip
        async with client:
            made = [
                client.batch_map(
                    [chat], lambda row: row, call="chat", max_tokens=8, repair=Repair(truncated=first), journal=journal
                )
                for _ in range(maps)
            ]
            texts = [answers[0].text for answers in await asyncio.gather(*made)]
            counts = client.statistics()
        if first:
            assert texts == [STORY] * maps
            assert (counts.regained_tokens, counts.wasted_tokens) == (maps * 16, 0)
            assert pages.asked == ["/models", "/version"]


async def test_what_is_a_loop_or_short_as_asked_or_several_choices_is_left_as_it_is():
    for says, arguments in (
        (lambda _: "na " * 40, {}),
        (lambda place: f" {place}", {"max_tokens": 4}),
        (lambda place: f" {place}", {"extra_body": {"ignore_eos": True}}),
        (lambda place: f" {place}", {"call": "chat", "max_tokens": None}),
    ):
        server = Teller(says=says)
        document = [{"role": "user", "content": "Who?"}] if "call" in arguments else "Who?"
        await mapped(server, [document], **arguments)
        assert len(server.sent) == 1, arguments
    server = ScriptedTransport()
    (row,), _ = await mapped(server, n=2)
    assert row.health == "truncated" and len(server.sent) == 1


async def test_the_row_has_what_came_where_going_on_fails():
    # A server that cannot go on after all is asked anew; and of one that is ill the row keeps what it has.
    server = Teller(None, error(400))
    (row,), _ = await mapped(server)
    assert (row.answer.text, server.bounds) == (STORY, [8, 8, 16, 32])
    for faults in ([error(400), error(400)], [error(404)] * 2, [error(501)] * 2):
        server = Teller(None, *faults)
        (row,), statistics = await mapped(server)
        assert (row.error, row.health, row.answer.text) == (None, "truncated", STORY[: len(row.answer.text)])
        assert statistics.wasted_tokens == 0, "it was of use"


async def test_there_are_no_more_tokens_than_the_bound():
    for most, bounds, health in ((12, [8, 4], "truncated"), (8, [8], "truncated"), (30, [8, 22], "ok")):
        server = Teller()
        (row,), _ = await mapped(server, truncated=1, max_tokens_in_all=most)
        assert (server.bounds, row.health) == (bounds, health)


async def test_nor_where_the_server_counts_no_tokens(path):
    arguments = {"truncated": 3, "max_tokens_in_all": 40}
    chat = {"document": [{"role": "user", "content": "Who?"}], "call": "chat"}
    for more, bounds in (({}, [8, 8, 16, 8]), (chat, [8, 16, 32, 40])):
        server, more = Teller(length=50, counts=False), dict(more)
        (row,), _ = await mapped(server, [more.pop("document", "Who?")], **arguments, **more)
        assert (server.bounds, row.answer.text.count(" ")) == (bounds, 40)
    # Parts in a journal, of unknown length.
    server = Teller(length=50, counts=False)
    await mapped(server, truncated=1, max_tokens_in_all=12, journal=path)
    await mapped(server, truncated=1, max_tokens_in_all=14, journal=path)
    assert server.bounds == [8, 4, 14]


async def test_a_row_s_bound_above_it_fails_the_row():
    rows = [{"prompt": "Who?", "params": {"max_tokens": each}} for each in (14, 13)]
    found, _ = await mapped(Teller(), rows, 1, max_tokens_in_all=13, rows="prompt", prompt=None)
    assert [type(row.error) for row in found] == [ConfigError, type(None)]
    assert found[0].error.field == "repair.max_tokens"


async def test_the_same_job_with_retries_mends_those_rows_alone(path):
    documents = ["Who?", "Where?", [9, 9]]
    short = {"Where?": 3}

    class Some(Teller):
        def tell(self, sent):
            self.length = short.get(str(sent.prompts[0]), LENGTH)
            return super().tell(sent)

    server = Some()
    rows, _ = await mapped(server, documents, 0, journal=path)
    assert [row.health for row in rows] == ["truncated", "ok", "truncated"]
    server = Some()
    again, statistics = await mapped(server, documents, 1, max_tokens_in_all=40, journal=path)
    assert [row.answer.text for row in again] == [STORY, " 0 1 2", STORY]
    assert [(row.id, row.reused, row.attempts) for row in again] == [
        (row.id, row.reused or place == 1, 1 + (place != 1)) for place, row in enumerate(rows)
    ]
    assert (server.bounds, statistics.regained_tokens, statistics.reused) == ([32, 40], 8, 1)
    server = Some()
    for retries in (0, 1):
        last, _ = await mapped(server, documents, retries, journal=path)
        assert [row.answer for row in last] == [row.answer for row in again] and not server.sent


async def test_tokens_are_wasted_once():
    said = [('{"word"', "length"), ("no", "stop"), ("no", "stop"), ('{"word": ""}', "stop")]
    replies = [{"choices": [{"index": 0, "text": text, "finish_reason": why}], "usage": USAGE} for text, why in said]
    server = ScriptedTransport(*[Reply(chunks=[json.dumps(reply).encode()]) for reply in replies])
    (row,), counts = await mapped(server, response_model=Answer, invalid=3, max_tokens=5)
    assert (row.answer.parsed, counts.wasted_tokens) == (Answer(word=""), 3 * USAGE["total_tokens"])


async def test_a_journal_s_answer_that_did_not_fit_as_it_was_cut_off_is_asked_for_anew(path):
    class Json(Teller):
        def tell(self, sent):
            long = ['{"word":', ' "', *"abcdefghij", '"}']
            story = long if sent.prompts[0] == "Who?" else ['{"word":', ' ""}']
            self.says, self.length = story.__getitem__, len(story)
            return super().tell(sent)

    for retries, bounds in ((0, [8, 8]), (0, []), (1, [16]), (1, [])):
        server = Json()
        (_, row), _ = await mapped(server, ["Short?", "Who?"], retries, journal=path, response_model=Answer)
        assert server.bounds == bounds
        if retries:
            assert row.answer.parsed == Answer(word="abcdefghij")
        else:
            assert type(row.error) is AnswerInvalid and row.health == "truncated"


async def test_a_job_that_was_killed_goes_on_with_what_had_come(path):
    server = Teller(held_after=1)
    async with make_client(server, limit=1, batching=Batching(max_size=1)) as client:
        rows = client.stream_map(["Who?"], lambda text: text, journal=path, repair=Repair(truncated=2), max_tokens=8)
        row = asyncio.ensure_future(anext(rows))
        await server.arrived(2)
    assert (await row).health is None
    assert rows.health == no_answers()
    server = Teller()
    (row,), _ = await mapped(server, journal=path)
    assert (row.answer.text, row.attempts, server.bounds) == (STORY, 3, [8, 16])


@pytest.mark.parametrize(
    ("repair", "arguments"),
    [
        ({"truncated": -1}, {}),
        ({"truncated": True}, {}),
        ({"truncated": 17}, {}),
        ({"max_tokens": 9}, {}),
        ({"truncated": 1, "max_tokens": 0}, {}),
        ({"truncated": 1, "max_tokens": 32}, {"extra_body": {"max_tokens": 64}}),
        ({"truncated": 1}, {"call": "embed"}),
    ],
)
def test_a_wrong_number_is_refused(repair, arguments):
    with SyncBatchClient("http://127.0.0.1:9/v1", model="m") as client, pytest.raises(ConfigError) as caught:
        client.batch_map(["x"], "{}", repair=Repair(**repair), **arguments)
    assert caught.value.field in ("repair.truncated", "repair.max_tokens")
