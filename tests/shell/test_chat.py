"""``chat()`` and ``response_model`` on the embedded server, in virtual time."""

import json
import pickle
from typing import Generic, Optional, TypeVar

import anyio
import pytest
from pydantic import BaseModel, Field, field_validator

from batchclient import (
    AnswerInvalid,
    Backoff,
    BatchClient,
    ConfigError,
    NotFound,
    Queue,
)
from batchclient.simulator import (
    Profile,
    SimulatedServer,
    SimulatorTransport,
    expected_text,
    render_messages,
)
from tests.fakes.old_vllm import WITHOUT_LISTS_OF_CHATS

STEPS = Profile("t", "", step_s=0.010, max_num_seqs=256, kv_tokens=1_000_000)


def user(text):
    return [{"role": "user", "content": text}]


def answer_to(text, max_tokens):
    return expected_text(render_messages(user(text)), max_tokens=max_tokens, temperature=0)


class Log(SimulatorTransport):
    """Also notes the paths and bodies of what was sent."""

    def __init__(self, server):
        super().__init__(server)
        self.sent = []

    async def send(self, request, timeouts):
        self.sent.append((request.path, json.loads(request.body)))
        return await super().send(request, timeouts)

    @property
    def paths(self):
        return [path for path, _ in self.sent]


def make(server=None, **arguments):
    log = Log(server or SimulatedServer(STEPS, model="m"))
    defaults = {"model": "m", "http": lambda url, headers: log}
    return BatchClient("http://simulated/v1", **{**defaults, **arguments}), log


async def gather(*calls):
    results = [None] * len(calls)

    async def one(place, call):
        try:
            results[place] = await call
        except Exception as error:
            results[place] = error

    async with anyio.create_task_group() as group:
        for place, call in enumerate(calls):
            group.start_soon(one, place, call)
    return results


# Lists and singles -------------------------------------------------------------------------------------------------


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


async def test_text_parts_share_lists():
    client, log = make()
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    async with client:
        answers = await gather(
            client.chat(parts, max_tokens=3, temperature=0), client.chat(user("hi"), max_tokens=3, temperature=0)
        )
    assert log.paths == ["/chat/completions/batch"]
    assert answers[0].text == answers[1].text


@pytest.mark.parametrize("size", [1, 3])
async def test_a_priority_is_passed_on_where_that_is_asked_for(size):
    client, log = make(queue=Queue(tell_server=True))
    async with client:
        await gather(*[client.chat(user(f"hi {i}"), max_tokens=2, priority=7) for i in range(size)])
    assert [body["priority"] for _, body in log.sent] == [-7]


@pytest.mark.parametrize(
    "fault",
    [
        "drop_choice",
        "double_choice",
        "cut",
        "abort",
        "garbage",
        "html",
        "status=503",
        "first_only",
        "no_lists",
        "error_event",
    ],
)
@pytest.mark.parametrize("size", [1, 9])
async def test_whatever_happens_to_a_reply_everyone_has_its_own_answer(fault, size):
    server = SimulatedServer(STEPS, model="m", faults=[f"{fault},count=1"])
    client, _ = make(server, retry=Backoff(base_s=0.05))
    async with client:
        answers = await gather(*[client.chat(user(f"hi {i}"), max_tokens=8, temperature=0) for i in range(size)])
    assert [answer.text for answer in answers] == [answer_to(f"hi {i}", 8) for i in range(size)]


# A server without the list route -----------------------------------------------------------------------------------


async def test_a_server_without_the_list_route_is_sent_singles_from_then_on():
    client, log = make(SimulatedServer(STEPS, model="m", guise=WITHOUT_LISTS_OF_CHATS), retry=Backoff(max_attempts=1))
    async with client:
        answers = await gather(*[client.chat(user(f"hi {i}"), max_tokens=4, temperature=0) for i in range(5)])
        assert [answer.text for answer in answers] == [answer_to(f"hi {i}", 4) for i in range(5)]
        await gather(*[client.chat(user(f"hi {i}"), max_tokens=4) for i in range(5)])
        assert client.statistics().alone["lists refused"] >= 5
        # Completions have lists all the same.
        await gather(*[client.complete(f"hi {i}", max_tokens=4) for i in range(5)])
        assert not client.statistics().endpoints[0].lists_refused
    assert log.paths == ["/chat/completions/batch"] + ["/chat/completions"] * 10 + ["/completions"]


async def test_a_missing_model_is_the_callers_error():
    client, _ = make(retry=Backoff(max_attempts=1))
    async with client:
        answers = await gather(*[client.chat(user("hi"), max_tokens=2, model="nope") for _ in range(3)])
        assert [type(answer) for answer in answers] == [NotFound] * 3
        assert "nope" in answers[0].message
        # Lists are not given up for it.
        await gather(*[client.chat(user(f"hi {i}"), max_tokens=2) for i in range(3)])
        assert client.statistics().list_sizes[3] == 2


# Forms -------------------------------------------------------------------------------------------------------------


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)


async def test_an_answer_is_an_instance_of_the_model_given():
    client, log = make()
    async with client:
        chats = [client.chat(user(f"who {i}"), max_tokens=30, response_model=Person) for i in range(3)]
        completions = [client.complete(f"who {i}", max_tokens=30, response_model=Person) for i in range(3)]
        answers = await gather(*chats, *completions)
    assert all(type(answer.parsed) is Person for answer in answers)
    assert len({answer.parsed.name for answer in answers}) == 6
    # One schema, so one list each.
    assert sorted(log.paths) == ["/chat/completions/batch", "/completions"]
    assert log.sent[0][1]["response_format"]["json_schema"]["schema"] == Person.model_json_schema()


ItemT = TypeVar("ItemT")


class Box(BaseModel, Generic[ItemT]):
    item: ItemT


class Node(BaseModel):
    next: Optional["Node"]


async def test_the_name_and_the_root_of_a_form_are_what_servers_take():
    """OpenAI takes names of 64 letters, digits, ``_`` and ``-``, and an object at the root, no reference."""
    client, log = make()
    long, named = type("L" * 65, (Person,), {}), type("Größe", (Person,), {})
    names = {Box[int]: "Box_int_", Box[list[Node]]: "Box_list_Node__", Node: "Node", long: "L" * 64, named: "Gr__e"}
    async with client:
        for model, name in names.items():
            answer = await client.complete("a", max_tokens=60, response_model=model)
            assert type(answer.parsed) is model
            form = log.sent[-1][1]["response_format"]["json_schema"]
            assert (form["name"], form["schema"]["type"], "$ref" in form["schema"]) == (name, "object", False)


async def test_calls_with_different_models_never_share():
    class Other(BaseModel):
        x: bool

    client, log = make()
    async with client:
        one, other = await gather(
            client.chat(user("a"), max_tokens=30, response_model=Person),
            client.chat(user("a"), max_tokens=30, response_model=Other),
        )
    assert (type(one.parsed), type(other.parsed), len(log.sent)) == (Person, Other, 2)


async def test_every_choice_is_parsed():
    client, _ = make()
    async with client:
        answer = await client.chat(user("a"), max_tokens=30, n=3, response_model=Person)
    assert [type(choice.parsed) for choice in answer.choices] == [Person] * 3
    assert answer.parsed is answer.choices[0].parsed


async def test_an_answer_that_was_cut_off_says_so_and_shows_nothing():
    client, _ = make()
    async with client:
        with pytest.raises(AnswerInvalid) as caught:
            await client.chat(user("a"), max_tokens=3, response_model=Person)
    error = caught.value
    assert "no Person" in error.message
    assert "finish_reason: length" in error.message
    assert error.completion.text.startswith('{"name"')
    assert error.completion.text[:9] not in str(error) + repr(error)
    assert (error.retryable, error.attempt, error.__cause__, error.__context__) == (False, 1, None, None)
    assert pickle.loads(pickle.dumps(error)).completion == error.completion


async def test_an_answer_that_does_not_fit_shows_nothing():
    class Strict(BaseModel):
        name: str = Field(max_length=1000)
        age: int

        @field_validator("age")
        @classmethod
        def check(cls, age):
            raise ValueError(f"not {age} secrets")

    class Broken(Strict):
        @field_validator("name")
        @classmethod
        def fail(cls, name):
            raise KeyError(name)

    client, _ = make()
    async with client:
        for model, said in ((Strict, "value_error"), (Broken, "a validator raised KeyError")):
            with pytest.raises(AnswerInvalid) as caught:
                await client.chat(user("a"), max_tokens=30, response_model=model)
            assert caught.value.message == f"the answer is no {model.__name__}: {said}"
            assert caught.value.retryable


async def test_of_several_choices_those_that_fit_are_kept():
    first = []

    class Second(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def check(cls, name):
            first.append(name)
            if len(first) == 2:
                raise ValueError("no")
            return name

    client, _ = make()
    async with client:
        with pytest.raises(AnswerInvalid, match="choice 1 of the answer is no Second") as caught:
            await client.complete("a", max_tokens=30, n=3, response_model=Second)
    assert [choice.parsed is not None for choice in caught.value.completion.choices] == [True, False, True]


@pytest.mark.parametrize("model", [dict, Person(name="a", age=1), "Person", int])
async def test_what_is_no_model_is_refused(model):
    client, log = make()
    async with client:
        with pytest.raises(ConfigError) as caught:
            await client.chat(user("a"), response_model=model)
        with pytest.raises(ConfigError):
            client.stream_map(["a"], "{}", response_model=model)
    assert (caught.value.field, log.sent) == ("response_model", [])


@pytest.mark.parametrize(
    "params", [{"response_format": {}}, {"guided_json": {}}, {"extra_body": {"structured_outputs": {}}}]
)
async def test_two_demands_are_refused(params):
    client, _ = make()
    async with client:
        with pytest.raises(ConfigError, match="both demand a form"):
            await client.complete("a", response_model=Person, **params)


# Maps --------------------------------------------------------------------------------------------------------------


async def test_a_map_may_ask_for_instances():
    client, _ = make()
    async with client:
        answers = await client.batch_map(["a", "b"], "who is {}", max_tokens=30, response_model=Person)
        assert [type(answer.parsed) for answer in answers] == [Person, Person]
        rows = [row async for row in client.stream_map(["a"], "who is {}", max_tokens=3, response_model=Person)]
        assert type(rows[0].error) is AnswerInvalid
        assert rows[0].completion is None


async def test_a_map_may_hold_conversations():
    client, log = make()
    async with client:
        answers = await client.batch_map(["a", "b", "c"], user, max_tokens=30, temperature=0)
        assert [answer.message["content"] for answer in answers] == [answer_to(each, 30) for each in "abc"]
        people = await client.batch_map(["a", "b"], user, max_tokens=30, response_model=Person)
        assert [type(answer.parsed) for answer in people] == [Person, Person]
    assert log.paths == ["/chat/completions/batch"] * 2


async def test_a_map_of_chats_gives_what_chat_gives():
    own = [{"role": "system", "content": "s"}, *user("u")]
    client, log = make()
    async with client:
        texts = await client.batch_map(["a", "b"], "Say {}", call="chat", max_tokens=5, temperature=0)
        (conversation,) = await client.batch_map(["a"], lambda _: own, call="chat", max_tokens=5, temperature=0)
        alone = await client.chat(own, max_tokens=5, temperature=0)
    assert [answer.text for answer in texts] == [answer_to("Say a", 5), answer_to("Say b", 5)]
    assert conversation.text == alone.text
    assert conversation.message["role"] == "assistant"
    assert all("/chat/completions" in path for path in log.paths)
