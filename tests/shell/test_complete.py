"""One call and its company: own answers, shared requests, separate errors."""

import contextvars
import gc
import weakref

import anyio
import pytest
from pydantic import BaseModel

from batchclient import Backoff, BatchClient, BatchClientError, Batching, ConnectFailed, DemuxError, Usage
from tests.shell.scripted import ScriptedTransport, answer_to, echo, error, make_client, settle


async def call_all(client, prompts, **params):
    """The outcome of each call, all made in one turn."""
    outcomes = {}

    async def call(prompt):
        try:
            outcomes[prompt] = await client.complete(prompt, **params)
        except Exception as caught:
            outcomes[prompt] = caught

    async with anyio.create_task_group() as group:
        for prompt in prompts:
            group.start_soon(call, prompt)
    return outcomes


def by_content(server):
    """The requests' prompts; trio starts tasks in no order."""
    return sorted((sorted(prompts, key=str) for prompts in server.prompts), key=str)


@pytest.mark.parametrize("max_tokens", [1, 16])
async def test_each_of_200_concurrent_calls_gets_its_own_answer(max_tokens):
    server = ScriptedTransport()
    async with make_client(server, limit=64) as client:
        prompts = [f"prompt {number}" for number in range(200)]
        outcomes = await call_all(client, prompts, max_tokens=max_tokens)
    assert {prompt: outcomes[prompt].text for prompt in prompts} == {prompt: answer_to(prompt) for prompt in prompts}
    assert {each.streamed for each in server.sent} == {max_tokens > 4}
    assert sorted(prompt for prompts in server.prompts for prompt in prompts) == sorted(prompts)


async def test_a_server_that_ignores_n_is_asked_twice_and_then_by_one_call_in_64():
    def ignore_n(sent):
        sent.body.pop("n", None)
        return echo(sent)

    server = ScriptedTransport(*[ignore_n] * 4)
    async with make_client(server) as client:

        async def call(number):
            return await client.complete(f"p{number}", max_tokens=1, n=3)

        with pytest.raises(
            DemuxError, match="2 of 3 choices are missing from the reply: the server ignores n"
        ) as caught:
            await call(0)
        assert (caught.value.attempt, caught.value.retryable, len(server.sent)) == (2, False, 2)
        for number in range(61):
            with pytest.raises(DemuxError, match="one answer where several are asked for"):
                await call(number)
        assert len(server.sent) == 2
        assert len((await client.complete("one", max_tokens=1)).choices) == 1, "other calls go on"
        with pytest.raises(DemuxError, match="missing"):
            await call(62)
        # The server is another by now.
        for number in range(62):
            with pytest.raises(DemuxError, match="one answer where"):
                await call(number)
        assert [len((await call(number)).choices) for number in range(3)] == [3, 3, 3]


async def test_a_server_that_has_given_several_answers_is_asked_for_several_again():
    def lose_two(sent):
        sent.body.pop("n", None)
        return echo(sent)

    server = ScriptedTransport(echo, *[lose_two] * 4)
    async with make_client(server) as client:
        assert len((await client.complete("first", max_tokens=1, n=3)).choices) == 3
        for number in range(2):
            with pytest.raises(DemuxError, match="2 of 3 choices are missing from the reply$") as caught:
                await client.complete(f"p{number}", max_tokens=1, n=3)
            assert caught.value.attempt == 2
        assert len((await client.complete("last", max_tokens=1, n=3)).choices) == 3
    assert len(server.sent) == 6


async def test_attempts_are_those_that_were_sent():
    def ignore_n(sent):
        sent.body.pop("n", None)
        return echo(sent)

    servers = ScriptedTransport(*[ignore_n] * 2), ScriptedTransport()
    by_url = dict(zip(["http://a/v1", "http://b/v1"], servers, strict=True))
    async with BatchClient(list(by_url), model="m", probe=False, http=lambda url, _: by_url[url]) as client:
        for _ in range(8):
            sent_before = sum(len(server.sent) for server in servers)
            answer = await client.complete("p", max_tokens=1, n=3)
            assert answer.attempts == sum(len(server.sent) for server in servers) - sent_before


async def test_a_completion_says_what_its_own_call_took():
    server = ScriptedTransport()
    # Of a server that is not known, a list's first usage could be a sum.
    async with make_client(server, dialect="vllm") as client:
        outcomes = await call_all(client, ["a", "bbbb"], max_tokens=16)
        alone = await client.complete("ccc", max_tokens=1)
    assert outcomes["a"].usage == Usage(1, 2)
    assert outcomes["bbbb"].usage == Usage(4, 2)
    assert outcomes["a"].attempts == 1
    assert outcomes["a"].time_to_first_token_s >= 0
    assert outcomes["a"].finish_reason == "length"
    assert outcomes["a"].extra["id"] == outcomes["bbbb"].extra["id"] == "cmpl-0"
    assert alone.usage == Usage(3, 2)
    assert alone.time_to_first_token_s is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"max_tokens": 1}, {"max_tokens": 2}),
        ({"logprobs": 1}, {"logprobs": True}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"model": "m"}, {"model": "other"}),
        ({"seed": 1}, {}),
        ({"stop": ["x"]}, {"stop": "x"}),
        ({"priority": 1}, {"priority": 2}),
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
    ],
)
async def test_another_parameter_never_shares_a_list(one, other):
    server = ScriptedTransport()
    async with make_client(server) as client, anyio.create_task_group() as group:
        for params in (one, other, one, other):
            group.start_soon(lambda params=params: client.complete("p", **params))
    assert [each.prompts for each in server.sent] == [["p", "p"], ["p", "p"]]


async def test_a_text_of_a_derived_class_is_a_text():
    class Text(str):
        pass

    server = ScriptedTransport()
    async with make_client(server) as client, anyio.create_task_group() as group:
        for prompt in (Text("derived"), "plain", [1, 2]):
            group.start_soon(client.complete, prompt)
    assert by_content(server) == [["derived", "plain"], [[1, 2]]]


caller_says = contextvars.ContextVar("caller_says", default="nobody")


async def test_sends_do_not_run_in_a_callers_context():
    heard = []

    def listen(sent):
        heard.append(caller_says.get())
        return echo(sent)

    server = ScriptedTransport(listen, error(500), listen)
    client_made_by = caller_says.set("maker")
    client = make_client(server)
    caller_says.reset(client_made_by)

    async def call(name):
        caller_says.set(name)
        await client.complete(name)

    async with client, anyio.create_task_group() as group:
        group.start_soon(call, "first")
        group.start_soon(call, "second")
        await server.arrived(1)
        # The next fails and is sent again by a timer.
        group.start_soon(call, "third")
    assert heard == ["maker", "maker"]


async def test_sends_that_another_callers_step_causes_do_not_run_in_its_context():
    """``resume`` and a cancellation grant at once, in the step of whoever made them."""
    heard = []

    def listen(sent):
        heard.append(caller_says.get())
        return echo(sent)

    server = ScriptedTransport(listen, listen)
    async with make_client(server) as client, anyio.create_task_group() as group:
        client.pause()
        group.start_soon(client.complete, "p")
        await settle()
        token = caller_says.set("the one who resumes")
        client.resume()
        caller_says.reset(token)
    assert heard == ["nobody"]


@pytest.mark.parametrize(("dialect", "longest"), [("vllm", 1024), ("tgi", 4)])
async def test_a_list_is_no_longer_than_its_sort_of_server_takes(dialect, longest):
    server = ScriptedTransport()
    batching = Batching(max_size=4096)
    async with make_client(server, dialect=dialect, limit=4096, batching=batching) as client:
        await call_all(client, [f"{number}" for number in range(1400)], max_tokens=1)
    assert max(map(len, server.prompts)) == longest


async def test_a_lone_call_on_an_idle_client_waits_for_nothing():
    server = ScriptedTransport()
    async with make_client(server, preset="throughput") as client:
        before = anyio.current_time()
        await client.complete("p")
        assert anyio.current_time() == before


class Form(BaseModel):
    a: int


REFUSED = {
    "complete": lambda client: client.complete("p", max_tokens=4),
    "streamed inside": lambda client: client.complete("p", max_tokens=64),
    "chat": lambda client: client.chat([{"role": "user", "content": "p"}]),
    "a form": lambda client: client.complete("p", response_model=Form),
    "score": lambda client: client.score("q", "p"),
    "rerank": lambda client: client.rerank("q", ["p", "r"]),
    "log_likelihood": lambda client: client.log_likelihood("p"),
    "stream": lambda client: anext(client.stream("p")),
    "batch_map": lambda client: client.batch_map(["p"], "{}"),
}


def break_off(sent):
    raise ConnectFailed("no")


@pytest.mark.parametrize("fault", [error(401), break_off], ids=["refused", "no connection"])
@pytest.mark.parametrize("ask", REFUSED)
async def test_a_failed_call_is_gone_with_its_error_without_the_garbage_collector(ask, fault):
    """The error holds the frames that it was raised in; were it held by one, the prompt would stay."""
    async with make_client(ScriptedTransport(*[fault] * 9), retry=Backoff(max_attempts=1)) as client:
        gc.collect()
        gc.disable()
        try:
            try:
                await REFUSED[ask](client)
            except BatchClientError as caught:
                kept = weakref.ref(caught)
            await settle()
            assert kept() is None
        finally:
            gc.enable()
