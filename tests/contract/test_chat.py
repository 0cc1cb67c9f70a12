"""What batchclient relies on in a server's chat routes, through the client and on the wire."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel, RootModel

from batchclient import AnswerInvalid, BadRequest, BatchClient, Batching, Completion, NotFound
from tests.contract.conftest import Server

TALKS = [[{"role": "user", "content": f"def function_{i}(argument"}] for i in range(16)]


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


def client(server: Server, **settings: Any) -> BatchClient:
    return BatchClient(server.base_url, model=server.model, **{"preset": "throughput", **settings})


async def together(server: Server, talks: list[Any], settings: dict[str, Any] | None = None, **params: Any) -> Any:
    async with client(server, **(settings or {})) as c:
        answers = await asyncio.gather(*[c.chat(talk, **params) for talk in talks], return_exceptions=True)
        return answers, c.statistics()


def shown(answer: Completion) -> Any:
    return [(c.index, c.text, c.finish_reason, c.message, c.extra.get("stop_reason")) for c in answer.choices]


def test_a_list_of_chats_answers_as_singles_do(server: Server) -> None:
    params = {"max_tokens": 12, "temperature": 0}
    alone, statistics = run(together(server, TALKS, {"batching": Batching(max_size=1)}, **params))
    assert set(statistics.list_sizes) == {1}
    answers, statistics = run(together(server, TALKS, **params))
    assert max(statistics.list_sizes) > 8, "the calls did not share requests"
    assert [shown(answer) for answer in answers] == [shown(answer) for answer in alone]
    assert [answer.output_tokens for answer in answers] == [answer.output_tokens for answer in alone] == [12] * 16
    shares = [answer.usage.prompt_tokens for answer in answers]
    assert sum(shares) == sum(answer.usage.prompt_tokens for answer in alone)
    assert all(answer.usage.prompt_tokens > 5 for answer in alone)


def test_plain_and_streamed_singles_agree(server: Server) -> None:
    # Tokens are streamed above four; tools would send the chat plain.
    async def both() -> Any:
        async with client(server) as c, httpx.AsyncClient(base_url=server.base_url) as raw:
            streamed = await c.chat(TALKS[0], max_tokens=9, temperature=0)
            body = {"model": server.model, "messages": TALKS[0], "max_tokens": 9, "temperature": 0}
            return streamed, (await raw.post("/chat/completions", json=body)).json()

    streamed, plain = run(both())
    assert streamed.time_to_first_token_s > 0
    assert streamed.text == plain["choices"][0]["message"]["content"]
    assert streamed.usage.completion_tokens == plain["usage"]["completion_tokens"] == 9
    assert streamed.usage.prompt_tokens == plain["usage"]["prompt_tokens"]


def test_logprobs_of_a_list_are_those_of_singles(server: Server) -> None:
    params = {"max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 1}
    answers, statistics = run(together(server, TALKS[:4], **params))
    assert statistics.list_sizes == {4: 1}
    alone, _ = run(together(server, TALKS[:4], {"batching": Batching(max_size=1)}, **params))
    for answer, single in zip(answers, alone, strict=True):
        own, other = answer.choices[0].logprobs["content"], single.choices[0].logprobs["content"]
        assert [entry["token"] for entry in own] == [entry["token"] for entry in other]
        assert len(own) == 4


def test_the_choices_of_n_come_alone_and_in_order(server: Server) -> None:
    answers, statistics = run(together(server, TALKS[:3], max_tokens=6, n=3, temperature=1.0, seed=5))
    assert statistics.alone == {"n": 3}
    assert [[choice.index for choice in answer.choices] for answer in answers] == [[0, 1, 2]] * 3
    assert all(answer.usage.completion_tokens == 18 for answer in answers)


def test_several_messages_and_text_parts_are_taken(server: Server) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    turns = [{"role": "system", "content": "brief"}, *parts, {"role": "assistant", "content": "so"}, *parts]
    answers, statistics = run(together(server, [parts, turns, TALKS[0]], max_tokens=3, temperature=0))
    assert statistics.list_sizes == {3: 1}
    alone, _ = run(
        together(server, [parts, turns, TALKS[0]], {"batching": Batching(max_size=1)}, max_tokens=3, temperature=0)
    )
    assert [shown(answer) for answer in answers] == [shown(answer) for answer in alone]


def test_one_bad_conversation_fails_alone(server: Server) -> None:
    long = [{"role": "user", "content": "x " * (server.max_model_len + 52)}]
    answers, _ = run(together(server, [*TALKS[:6], long], max_tokens=2, temperature=0))
    error = answers.pop()
    assert isinstance(error, BadRequest)
    assert str(server.max_model_len) in error.message
    assert all(isinstance(answer, Completion) for answer in answers)


def test_a_missing_model_is_said(server: Server) -> None:
    answers, _ = run(together(server, TALKS[:3], max_tokens=2, model="nope"))
    assert [type(answer) for answer in answers] == [NotFound] * 3


def test_an_image_is_refused_by_a_text_model_and_shows_nothing(server: Server) -> None:
    link = "data:image/png;base64,AAAABBBBCCCCDDDD"
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": link}}]}]
    answers, statistics = run(together(server, [image, TALKS[0]], max_tokens=2))
    assert isinstance(answers[0], BadRequest)
    assert "AAAABBBB" not in answers[0].message
    assert statistics.alone["content parts"] == 1


def test_tools_go_alone_and_plain(server: Server) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    answers, statistics = run(together(server, TALKS[:2], max_tokens=9, tools=[tool]))
    # Neither server was started with a tool parser.
    assert [type(answer) for answer in answers] == [BadRequest] * 2
    assert "tool" in answers[0].message
    assert statistics.alone == {"tools": 2}


def test_a_choice_is_one_of_those_demanded(server: Server) -> None:
    answers, statistics = run(
        together(server, TALKS[:6], max_tokens=8, temperature=0, structured_outputs={"choice": ["yes", "no"]})
    )
    assert statistics.list_sizes == {6: 1}
    assert {answer.text for answer in answers} <= {"yes", "no"}
    assert {answer.finish_reason for answer in answers} == {"stop"}


class Verdict(RootModel[Literal["yes", "no"]]):
    """A JSON text: within an object the real server's toy model writes blanks until it is cut off."""


class Flag(BaseModel):
    on: bool


def test_a_model_is_demanded_and_checked(server: Server) -> None:
    answers, statistics = run(together(server, TALKS[:6], max_tokens=12, temperature=0, response_model=Verdict))
    assert statistics.list_sizes == {6: 1}
    assert {answer.parsed.root for answer in answers} <= {"yes", "no"}
    answers, _ = run(together(server, TALKS[:6], max_tokens=2, temperature=0, response_model=Flag))
    for answer in answers:
        assert isinstance(answer, AnswerInvalid)
        assert "finish_reason: length" in answer.message
        assert answer.completion.output_tokens == 2


def test_a_stream_is_the_whole_answer_in_pieces(server: Server) -> None:
    async def streamed() -> Any:
        async with client(server) as c:
            stream = c.stream_chat(TALKS[0], max_tokens=9, temperature=0)
            deltas = [delta async for delta in stream]
            whole = await c.chat(TALKS[0], max_tokens=9, temperature=0)
            return deltas, stream.completion, whole

    deltas, completion, whole = run(streamed())
    assert len(deltas) > 2
    assert "".join(delta.text for delta in deltas) == completion.text == whole.text
    assert completion.usage == whole.usage
    assert deltas[0].message["role"] == "assistant"
    assert deltas[-1].finish_reason == completion.finish_reason == "length"


def test_a_completion_may_be_streamed_too(server: Server) -> None:
    async def streamed() -> Any:
        async with client(server) as c:
            stream = c.stream("def f(", max_tokens=9, temperature=0, n=1)
            return "".join([delta.text async for delta in stream]), stream.completion

    text, completion = run(streamed())
    assert text == completion.text
    assert completion.usage.completion_tokens == 9


def test_leaving_a_stream_stops_the_server(server: Server) -> None:
    async def leave() -> float:
        async with client(server) as c, httpx.AsyncClient() as raw:
            for _ in range(5):
                async with c.stream_chat(TALKS[0], max_tokens=1500, ignore_eos=True) as stream:
                    await stream.__anext__()
            root = server.base_url.removesuffix("/v1")
            for _ in range(100):
                page = (await raw.get(f"{root}/metrics")).text
                lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running")]
                running = sum(float(line.rsplit(" ", 1)[1]) for line in lines)
                if not running:
                    break
                await asyncio.sleep(0.1)
            return running

    assert run(leave()) == 0


def test_a_streamed_list_is_the_servers_own_fault(server: Server) -> None:
    # Should this fail on a newer server, lists of chats could be streamed: see docs/guide/generate.md. The embedded
    # server answers whole, whatever is asked.
    body = {"model": server.model, "messages": TALKS[:2], "max_tokens": 5, "temperature": 0, "stream": True}
    reply = httpx.post(f"{server.base_url}/chat/completions/batch", json=body, timeout=60).json()
    assert reply["usage"]["completion_tokens"] == (2 if server.real else 10)


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/completions/batch"])
def test_the_routes_exist(server: Server, path: str) -> None:
    assert httpx.get(f"{server.base_url}{path}").status_code == 405
