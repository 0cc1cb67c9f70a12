"""Lists that fail in ways that nobody foresaw: only the culprit fails, and a server that takes no lists is spoken to singly."""

import asyncio
import json
import re

import pytest
from tests.fakes.raw import RawServer, make, whole
from tests.fakes.raw import response

from batchclient import AuthenticationFailed, ServerFault

JSON = [("content-type", "application/json")]


def error(status, message="no"):
    return response(json.dumps({"error": {"message": message, "code": int(status[:3])}}).encode(), status, JSON)


INSIDE_200 = response(json.dumps({"error": "Unexpected endpoint or method. (POST)"}).encode(), headers=JSON)
A_PAGE = response(b"<html><body>Welcome</body></html>", headers=[("content-type", "text/html")])
CLOSES = b"closes"
A_500 = error("500 Internal Server Error", "Internal Server Error")

UNLIKE_LISTS = [error(f"{status} No") for status in (404, 405, 412, 415)]


def answer(heard):
    """The right answer, to completions and to chats."""
    if "messages" not in heard.json:
        return whole(heard)
    said = heard.json["messages"][-1]["content"]
    choice = {"index": 0, "message": {"role": "assistant", "content": f"<{said}>"}, "finish_reason": "stop"}
    body = {"id": "1", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    return response(json.dumps(body).encode(), headers=JSON)


def serves(fails):
    """A script: say what ``fails`` says of a request, and answer where it says nothing."""

    async def script(connection):
        while heard := await connection.request():
            said = fails(heard)
            if said == CLOSES:
                return
            await connection.write(said or answer(heard))

    return script


def is_list(heard):
    return heard.path.endswith("/batch") or isinstance(heard.json.get("prompt"), list)


@pytest.mark.parametrize(
    "says",
    [INSIDE_200, error("403 Forbidden"), A_500, A_PAGE, error("404 Not Found"), error("405 Method Not Allowed")],
    ids=["an error in 200", "403", "500", "a page", "404", "405"],
)
async def test_chats_are_answered_whatever_a_server_says_to_the_route_for_lists_of_them(says):
    async with (
        RawServer(then=serves(lambda heard: says if is_list(heard) else None)) as server,
        make(server, dialect="vllm") as client,
    ):
        chats = [[{"role": "user", "content": name}] for name in "abcd"]
        answers = await asyncio.gather(*(client.chat(chat, max_tokens=4) for chat in chats))
        assert [each.text for each in answers] == ["<a>", "<b>", "<c>", "<d>"]
        asked = len(server.heard)
        more = await asyncio.gather(*(client.chat(chat, max_tokens=4) for chat in chats))
        assert [each.text for each in more] == ["<a>", "<b>", "<c>", "<d>"]
        assert len(server.heard) == asked + 4


@pytest.mark.parametrize("says", [A_500, A_PAGE, INSIDE_200, CLOSES, *UNLIKE_LISTS], ids=range(8))
@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
async def test_a_server_that_takes_no_lists_answers_all_prompts(says, max_tokens):
    async with (
        RawServer(then=serves(lambda heard: says if is_list(heard) else None)) as server,
        make(server) as client,
    ):
        answers = await asyncio.gather(*(client.complete(f"p{i}", max_tokens=max_tokens) for i in range(8)))
        assert [each.text for each in answers] == [f"<p{i}>" for i in range(8)]
        # The list, again, one member, the rest without our fields, and the rest one by one.
        # (A refusal says as much at once; what breaks on a used socket is sent once more for free.)
        assert len(server.heard) == 9 if says in UNLIKE_LISTS else 12 if says == CLOSES else 11
        assert client.statistics().endpoints[0].lists_refused


@pytest.mark.parametrize("calls", [1, 8])
async def test_a_server_that_fails_over_our_fields_answers_all_prompts(calls):
    def fails(heard):
        ours = {"stream_interval", "stream_options", "return_token_ids"} & set(heard.json)
        return A_500 if ours else None

    async with RawServer(then=serves(fails)) as server, make(server) as client:
        answers = await asyncio.gather(*(client.complete(f"p{i}", max_tokens=16) for i in range(calls)))
        assert [each.text for each in answers] == [f"<p{i}>" for i in range(calls)]
        assert len(server.heard) == (3 if calls == 1 else 4)
        # The next try is the control; from then on they are left out.
        for _ in range(2):
            await asyncio.gather(*(client.complete(f"q{i}", max_tokens=16) for i in range(calls)))
        assert len(server.heard) == (6 if calls == 1 else 7)


async def test_only_the_prompt_that_a_server_chokes_on_fails():
    def fails(heard):
        return A_500 if "p5" in heard.prompts else None

    async with RawServer(then=serves(fails)) as server, make(server) as client:
        await asyncio.gather(*(client.complete(f"w{i}", max_tokens=16) for i in range(8)))
        answers = await asyncio.gather(
            *(client.complete(f"p{i}", max_tokens=16) for i in range(16)), return_exceptions=True
        )
        assert isinstance(answers[5], ServerFault)
        assert [each.text for each in answers if each is not answers[5]] == [f"<p{i}>" for i in range(16) if i != 5]


async def test_a_refused_key_is_still_found_out_by_a_list_and_one_call():
    async with (
        RawServer(then=serves(lambda heard: error("401 Unauthorized"))) as server,
        make(server, dialect="vllm") as client,
    ):
        chats = [[{"role": "user", "content": name}] for name in "abcd"]
        ends = await asyncio.gather(*(client.chat(chat, max_tokens=4) for chat in chats), return_exceptions=True)
        assert {type(each) for each in ends} == {AuthenticationFailed}
        assert len(server.heard) == 2


@pytest.mark.parametrize("backend", ["httpx", "aiohttp"])
async def test_long_lists_over_which_connections_break_become_shorter(backend):
    """A server that resets what is too long for it says no status; that one member is answered shows that it was the length."""

    async def script(connection):
        while True:
            head = await connection.reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
            lengths.append(length)
            if length > 100_000:
                connection.reset()
                return
            prompts = json.loads(await connection.reader.readexactly(length))["prompt"]
            prompts = prompts if isinstance(prompts, list) else [prompts]
            choices = [{"index": i, "text": prompt[:4], "finish_reason": "length"} for i, prompt in enumerate(prompts)]
            await connection.write(response(json.dumps({"id": "1", "choices": choices}).encode(), headers=JSON))

    lengths = []
    async with RawServer(then=script) as server, make(server, backend, limit=16) as client:
        names = [f"{i:04d}" for i in range(16)]
        answers = await asyncio.gather(*(client.complete(name + "x" * 20_000, max_tokens=1) for name in names))
    assert [each.text for each in answers] == names
    # 16 twice, one alone, then 8 and 7, and their halves; one more where a socket that was used before breaks (row 5).
    sizes = [length // 20_000 for length in lengths]
    assert (sizes[:3], sorted(sizes[-4:])) == ([16, 16, 1], [3, 4, 4, 4])
    assert len(sizes) <= 10
