"""What a scripted server answers, and to whom: through a real client, on asyncio and on trio, without a socket."""

import asyncio
import json
import re

import anyio
import pytest
from pydantic import BaseModel

from batchclient import (
    BadRequest,
    BatchClient,
    BatchClientError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    RateLimited,
    ReadTimedOut,
    ServerFault,
)
from batchclient.testing import Answer, MockLLM
from tests.shell.clocks import run

ONCE = {"retry": type("Never", (), {"decide": lambda *args: None})()}
"""A client that tries nothing again."""


@pytest.fixture(params=["asyncio", "trio"])
def in_loop(request):
    return lambda function: anyio.run(function, backend=request.param)


def ask(mock, *prompts, settings=None, **params):
    """Complete prompts at once; answers or errors."""

    async def main():
        async with mock.client(**settings or {}) as client:
            calls = [client.complete(prompt, **params) for prompt in prompts]
            return await asyncio.gather(*calls, return_exceptions=True)

    return run(main)


def texts(*args, **params):
    return [getattr(answer, "text", answer) for answer in ask(*args, **params)]


def ask_chat(mock, *prompts, settings=None, **params):
    async def main():
        async with mock.client(**settings or {}) as client:
            return await asyncio.gather(
                *[client.chat([{"role": "user", "content": each}], **params) for each in prompts]
            )

    return run(main)


def test_each_caller_has_its_own_answer_on_either_library(in_loop):
    mock = MockLLM()
    mock.when("a").answer(" A")
    mock.when(re.compile("^b")).answer(lambda call: call.prompt.upper())
    got = {}

    async def main():
        async def call(client, prompt, max_tokens):
            got[prompt, max_tokens] = (await client.complete(prompt, max_tokens=max_tokens)).text

        async with mock.client() as client, anyio.create_task_group() as group:
            for max_tokens in (1, 64):  # plain lists, streamed lists
                for prompt in ("a", "bee", "c"):
                    group.start_soon(call, client, prompt, max_tokens)

    in_loop(main)
    expected = {"a": " A", "bee": "BEE", "c": "mock answer to: c"}
    assert got == {(prompt, size): text for prompt, text in expected.items() for size in (1, 64)}
    assert len(mock.requests) == 2, "all prompts with the same parameters travelled together"
    assert {request.streamed for request in mock.requests} == {False, True}


@pytest.mark.parametrize("max_tokens", [1, 64])
@pytest.mark.parametrize("text", ['with "quotes"\nand lines', "", "naïve 🙂", "a" * 1000])
def test_a_text_comes_whole_whatever_is_in_it(text, max_tokens):
    mock = MockLLM()
    mock.when("p").answer(text)
    (answer,) = ask(mock, "p", max_tokens=max_tokens)
    assert answer.text == text
    assert answer.finish_reason == "stop"


def test_the_rule_for_the_fewest_prompts_decides_and_among_equals_the_last():
    mock = MockLLM()
    mock.when("p").answer("first")
    mock.when("p").answer("last")
    mock.when(re.compile("[pq]")).answer("pattern")
    mock.when(lambda call: call.prompt == "r").answer("function")
    mock.when().answer("any")
    assert texts(mock, "p", "q", "r", "s") == ["last", "pattern", "function", "any"]


def test_answers_come_in_turn_and_the_last_one_stays():
    mock = MockLLM()
    mock.when("p").answer("one", "two")
    assert texts(mock, "p", "p", "p") == ["one", "two", "two"]


def test_a_step_is_over_after_its_times_and_then_other_rules_decide():
    mock = MockLLM()
    mock.when("p").answer("old")
    mock.when("p").answer("new", times=2)
    assert [texts(mock, "p")[0] for _ in range(4)] == ["new", "new", "old", "old"]


def test_token_ids_are_prompts_too():
    mock = MockLLM()
    mock.when([1, 2]).answer("ids")
    assert texts(mock, [1, 2], [1, 3]) == ["ids", "mock answer to: 1 3"]
    assert mock.prompts == [[1, 2], [1, 3]]


def test_a_function_may_choose_the_calls_and_sees_their_parameters():
    mock = MockLLM()
    mock.when(lambda call: call.params.get("max_tokens") == 3).answer(lambda call: f"{call.kind} {call.number}")
    assert texts(mock, "p", max_tokens=3) == ["completion 1"]
    assert texts(mock, "p", max_tokens=4) == ["mock answer to: p"]


def test_a_function_that_returns_none_leaves_the_call_to_other_rules():
    mock = MockLLM()
    mock.when("p").answer("other")
    mock.when("p").answer(lambda call: None)
    mock.when().answer(lambda call: None)
    assert texts(mock, "p", "q") == ["other", "mock answer to: q"]


def test_what_a_function_raises_is_said_at_the_end():
    with pytest.raises(ZeroDivisionError), MockLLM() as mock:
        mock.when("p").answer(lambda call: 1 // 0)
        mock.when("bad").answer(lambda call: 7)
        assert isinstance(texts(mock, "p")[0], BadRequest)
    with pytest.raises(ConfigError, match="not int"), MockLLM() as mock:
        mock.when("bad").answer(lambda call: 7)
        ask(mock, "bad")


def test_the_error_of_the_test_itself_is_not_replaced():
    with pytest.raises(KeyError), MockLLM(strict=True) as mock:
        ask(mock, "p")
        raise KeyError


async def test_objects_are_written_as_json():
    class City(BaseModel):
        name: str

    mock = MockLLM()
    mock.when("dict").answer({"name": "Rome"})
    mock.when("model").answer(City(name="Paris"))
    async with mock.client() as client:
        rome, paris, unknown = [
            (await client.complete(each, response_model=City)).parsed for each in ("dict", "model", "unknown")
        ]
    assert (rome.name, paris.name) == ("Rome", "Paris")
    assert isinstance(unknown, City), "what no rule is for still fits the schema"


def test_every_choice_of_n_has_the_answer():
    mock = MockLLM()
    mock.when("p").answer("x", "y")
    answer, other = ask(mock, "p", "p", n=2)
    assert [choice.text for choice in answer.choices] == ["x", "x"]
    assert [choice.text for choice in other.choices] == ["y", "y"]


async def test_chats_go_by_their_last_message_and_have_the_whole_conversation():
    mock = MockLLM()
    mock.when("Hi").answer(lambda call: f"{len(call.messages)} messages")
    async with mock.client() as client:
        parts = [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
        answer = await client.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}])
    assert answer.text == "2 messages"
    assert mock.prompts == ["Hi"]
    assert mock.calls[0].kind == "chat"
    assert mock.calls[0].messages[0]["role"] == "system"


@pytest.mark.parametrize("max_tokens", [8, 4000])
def test_chats_share_requests_where_the_server_takes_lists_of_them(max_tokens):
    mock = MockLLM()
    mock.when("a").answer("A")
    answers = ask_chat(mock, "a", "b", "c", max_tokens=max_tokens)
    assert [answer.text for answer in answers] == ["A", "mock answer to: b", "mock answer to: c"]
    assert len(mock.requests) == (1 if max_tokens == 8 else 3)


@pytest.mark.parametrize("prompt", ["weather", "again"])
@pytest.mark.parametrize("streamed", [False, True])
def test_tools_are_called(streamed, prompt):
    mock = MockLLM()
    calls = [("get", {"city": "Paris"}), ("get", {"city": "Rome"})]
    mock.when("weather").call_tools(calls)
    mock.when("again").answer(lambda call: Answer(tool_calls=calls))
    tools = [{"type": "function", "function": {"name": "get", "parameters": {}}}]

    async def main():
        async with mock.client() as client:
            messages = [{"role": "user", "content": prompt}]
            if not streamed:
                return await client.chat(messages, tools=tools)
            async with client.stream_chat(messages, tools=tools) as stream:
                async for _ in stream:
                    pass
            return stream.completion

    answer = run(main)
    calls = answer.choices[0].message["tool_calls"]
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])["city"]) for call in calls] == [
        ("get", "Paris"),
        ("get", "Rome"),
    ]
    assert len({call["id"] for call in calls}) == 2
    assert answer.finish_reason == "tool_calls"
    assert not answer.text


async def test_rules_for_one_kind_leave_the_others_alone():
    mock = MockLLM()
    mock.when().embed([1.0, 2.0])
    mock.when().call_tools({"get": {}})
    async with mock.client() as client:
        assert (await client.complete("p")).text == "mock answer to: p"
        assert (await client.chat([{"role": "user", "content": "p"}])).finish_reason == "tool_calls"
        assert list((await client.embed("p")).vector) == [1.0, 2.0]


async def test_vectors_are_scripted_or_the_embedded_servers():
    mock = MockLLM()
    mock.when("p").embed([0.5, -0.25])
    async with mock.client() as client:
        p, q, again = await asyncio.gather(*[client.embed(each) for each in ("p", "q", "q")])
    assert list(p.vector) == [0.5, -0.25]
    assert len(q.vector) == 2, "vectors of one reply are equally long"
    assert q.vector == again.vector != p.vector
    assert len(mock.requests) == 1


async def test_what_cannot_be_scripted_is_answered_as_the_embedded_server_does():
    mock = MockLLM(strict=True)
    mock.when().answer("x")
    async with mock.client() as client:
        score = await client.score("query", "document")
        ranked = await client.rerank("query", ["a", "b"])
        label = await client.classify("text")
    assert 0 <= score.score <= 1
    assert len(ranked) == 2
    assert label.label.startswith("LABEL_")
    assert [call.kind for call in mock.calls] == ["score", "score", "score", "classify"], "rerank asks for scores"
    mock.check()


async def test_a_stream_hands_out_the_pieces_that_were_scripted():
    mock = MockLLM()
    mock.when("p").answer(["One, ", "two, ", "three"])
    async with mock.client() as client:
        async with client.stream("p") as stream:
            assert [delta.text async for delta in stream if delta.text] == ["One, ", "two, ", "three"]
        assert (await client.complete("p")).text == "One, two, three"


def test_finish_reasons():
    mock = MockLLM()
    mock.when("p").answer("cut", finish_reason="length")
    mock.when("q").answer(lambda call: Answer("cut", finish_reason="content_filter"))
    assert [answer.finish_reason for answer in ask(mock, "p", "q")] == ["length", "content_filter"]


# Faults --------------------------------------------------------------------------------------------------------------


FAULTS = {
    "status": (lambda rule: rule.fail(503), ServerFault),
    "rate": (lambda rule: rule.fail(429, retry_after_s=2), RateLimited),
    "bad": (lambda rule: rule.fail(422, "no such thing"), BadRequest),
    "time out": (lambda rule: rule.time_out(), ReadTimedOut),
    "hang": (lambda rule: rule.hang(), ReadTimedOut),
    "slow": (lambda rule: rule.answer("late", delay_s=700), ReadTimedOut),
    "disconnect": (lambda rule: rule.disconnect(), ConnectionLost),
    "cut": (lambda rule: rule.disconnect(mid_reply=True), ConnectionLost),
    "refuse": (lambda rule: rule.refuse_connection(), ConnectFailed),
}


@pytest.mark.parametrize("max_tokens", [1, 64])
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("way", ["transport", "httpx"])
def test_faults_reach_the_caller_as_they_would_over_a_socket(name, way, max_tokens):
    script, error = FAULTS[name]
    with MockLLM() as mock:
        script(mock.when("p"))
        settings = {**ONCE, "outage_patience_s": 0}

        async def main():
            client = (
                mock.client(**settings) if way == "transport" else BatchClient(mock.base_url, model="m", **settings)
            )
            async with client:
                with pytest.raises(BatchClientError) as caught:
                    await client.complete("p", max_tokens=max_tokens)
            return caught.value

        caught = run(main)
        assert type(caught) is error
        if name == "rate":
            assert caught.retry_after_s == 2
        if name == "bad":
            assert "no such thing" in str(caught)
        statuses = {"status": 503, "rate": 429, "bad": 422, "cut": 200, "slow": 200}
        assert [request.status for request in mock.requests] == [statuses.get(name)]


def test_a_fault_is_over_after_its_times_and_the_client_tries_again():
    mock = MockLLM()
    mock.when("p").fail(503, times=2).answer("there")
    (answer,) = ask(mock, "p")
    assert answer.text == "there"
    assert answer.attempts == 3
    assert [request.status for request in mock.requests] == [503, 503, 200]


def test_a_faults_times_count_requests_and_an_answers_prompts():
    mock = MockLLM()
    mock.when().fail(503, times=1).answer("a", "b", "c")
    assert sorted(texts(mock, "p", "q", "r")) == ["a", "b", "c"]
    assert [len(request.calls) for request in mock.requests] == [3, 3]


def test_a_fault_takes_back_what_answers_used_up_in_the_same_request():
    mock = MockLLM()
    mock.when("p").answer("first", times=1)
    mock.when("q").fail(503, times=1).answer("Q")
    assert texts(mock, "p", "q") == ["first", "Q"]


def test_one_bad_prompt_fails_its_caller_alone():
    mock = MockLLM()
    mock.when("bad").fail(400)
    *good, bad = texts(mock, *"abcdef", "bad")
    assert good == [f"mock answer to: {each}" for each in "abcdef"]
    assert isinstance(bad, BadRequest)


async def test_a_delay_passes_in_the_loops_own_time():
    mock = MockLLM()
    mock.when("p").answer("late", delay_s=5)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with mock.client() as client:
        answer = await client.complete("p")
        after = loop.time() - began
        with pytest.raises(DeadlineExceeded):
            await client.complete("p", timeout_s=2)
    assert answer.text == "late"
    assert 5 <= after < 5.1


async def test_what_hangs_waits_for_the_callers_own_deadline():
    mock = MockLLM()
    mock.when("p").hang()
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with mock.client() as client:
        with pytest.raises(DeadlineExceeded):
            await client.complete("p", timeout_s=30)
    assert loop.time() - began == pytest.approx(30, abs=0.1)


# Strictness ----------------------------------------------------------------------------------------------------------


def test_where_strict_a_prompt_without_a_rule_is_refused_and_said_at_the_end():
    with pytest.raises(AssertionError) as caught, MockLLM(strict=True) as mock:
        mock.when("Summarise: the cat").answer("cat")
        cat, dog = texts(mock, "Summarise: the cat", "Summarise: the dog")
        assert cat == "cat"
        assert isinstance(dog, BadRequest)
    assert str(caught.value) == (
        "no rule was for 1 of the prompts:\n  completion 'Summarise: the dog'; nearest: 'Summarise: the cat'"
    )
    assert [call.prompt for call in mock.unscripted] == ["Summarise: the dog"]


def test_where_not_strict_nothing_is_said():
    with MockLLM() as mock:
        ask(mock, "p")
    assert [call.prompt for call in mock.unscripted] == ["p"]


def test_reset_forgets_all():
    with MockLLM(strict=True) as mock:
        mock.when("p").answer("x")
        ask(mock, "p", "q")
        mock.reset()
        assert mock.requests == mock.calls == mock.unscripted == []
        mock.strict = False
        assert texts(mock, "p") == ["mock answer to: p"]


# Wrong use -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda mock: mock.when(7), "prompt"),
        (lambda mock: mock.when([]), "prompt"),
        (lambda mock: mock.when(re.compile(b"x")), "prompt"),
        (lambda mock: mock.when(lambda: True), "prompt"),
        (lambda mock: mock.when("p").answer(), "answers"),
        (lambda mock: mock.when("p").answer(lambda one, two: "x"), "answers"),
        (lambda mock: mock.when("p").answer(7), "answers"),
        (lambda mock: mock.when("p").answer([]), "answers"),
        (lambda mock: mock.when("p").answer(lambda call: "x", finish_reason="stop"), "finish_reason"),
        (lambda mock: mock.when("p").answer("x", times=0), "times"),
        (lambda mock: mock.when("p").answer("x", times=True), "times"),
        (lambda mock: mock.when("p").answer("x", delay_s=-1), "delay_s"),
        (lambda mock: mock.when("p").answer("x", delay_s=float("nan")), "delay_s"),
        (lambda mock: mock.when("p").answer("x").fail(503), "times"),
        (lambda mock: mock.when("p").fail(200), "status"),
        (lambda mock: mock.when("p").fail("503"), "status"),
        (lambda mock: mock.when("p").fail(503, retry_after_s=-1), "retry_after_s"),
        (lambda mock: mock.when("p").embed([]), "answers"),
        (lambda mock: mock.when("p").embed(["x"]), "vector"),
        (lambda mock: mock.when("p").embed([float("nan")]), "vector"),
        (lambda mock: mock.when("p").call_tools({}), "tool_calls"),
        (lambda mock: mock.when("p").call_tools({"get": "Paris"}), "tool_calls"),
        (lambda mock: Answer(7), "text"),
        (lambda mock: Answer(delay_s=-1), "delay_s"),
        (lambda mock: Answer(tool_calls=["get"]), "tool_calls"),
        (lambda mock: MockLLM(model=""), "model"),
    ],
)
def test_bad_input_is_refused_where_it_is_given(wrong, field):
    with pytest.raises(ConfigError) as caught:
        wrong(MockLLM())
    assert caught.value.field == field


def test_a_request_that_is_none_is_refused_as_vllm_does():
    mock = MockLLM()
    for body in (b"{", b"[]", b"{}", b'{"prompt": 7}'):
        assert mock.receive("POST", "/v1/completions", {}, body).status == 400
    for body in (b"{}", b'{"messages": 7}', b'{"messages": []}', b'{"messages": [{}]}'):
        assert mock.receive("POST", "/v1/chat/completions", {}, body).status == 400
        assert mock.receive("POST", "/v1/chat/completions/batch", {}, body).status == 400
    assert mock.receive("POST", "/v1/embeddings", {}, b"{}").status == 400
    assert mock.receive("POST", "/v1/nothing", {}, b"{}").status == 404
    assert mock.requests == []


def test_pages_about_the_server_are_there_and_are_no_calls():
    mock = MockLLM(model="own")
    reply = mock.receive("GET", "/v1/models", {}, b"")
    assert json.loads(b"".join(reply.pieces))["data"][0]["id"] == "own"
    assert mock.receive("GET", "/metrics", {}, b"").status == 200
    assert mock.receive("GET", "/prefix/v1/models", {}, b"").status == 200
    assert mock.requests == []
