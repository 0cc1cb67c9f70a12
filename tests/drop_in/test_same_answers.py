"""The drop-in's answers beside openai's own, field by field, alone and in company."""

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

from batchclient.openai import AsyncOpenAI
from batchclient.simulator import EmbeddedServer
from tests.guises import GUISES

HELLO = [{"role": "user", "content": "hello you"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
OF_THE_REQUEST = frozenset({"id", "created"})


class City(BaseModel):
    name: str
    people: int


CASES = {
    "a completion": lambda c, m: c.completions.create(model=m, prompt="hello you", max_tokens=3, temperature=0),
    "token ids": lambda c, m: c.completions.create(model=m, prompt=[5, 6, 7], max_tokens=3, temperature=0),
    "several prompts and n": lambda c, m: c.completions.create(model=m, prompt=["a b", "c"], max_tokens=6, seed=1, n=2),
    "several prompts of ids": lambda c, m: c.completions.create(
        model=m, prompt=[[1, 2], [3]], max_tokens=6, temperature=0
    ),
    "logprobs and echo": lambda c, m: c.completions.create(
        model=m, prompt="hello you", max_tokens=3, temperature=0, logprobs=1, echo=True
    ),
    "returned token ids": lambda c, m: c.completions.create(
        model=m, prompt="hello", max_tokens=3, temperature=0, extra_body={"return_token_ids": True}
    ),
    "a stop string and a seed": lambda c, m: c.completions.create(
        model=m, prompt="hello", max_tokens=30, temperature=0, stop=[" zzz"], seed=3
    ),
    "a long completion": lambda c, m: c.completions.create(model=m, prompt="hello", max_tokens=300, temperature=0),
    "a tuple, a label": lambda c, m: c.completions.create(
        model=m, prompt="hello", max_tokens=3, temperature=0, stop=(" zzz",), user="me"
    ),
    "a chat": lambda c, m: c.chat.completions.create(model=m, messages=HELLO, max_tokens=3, temperature=0),
    "a chat with openai's own message": lambda c, m: c.chat.completions.create(
        model=m,
        messages=[*HELLO, openai.types.chat.ChatCompletionMessage(role="assistant", content="yes"), *HELLO],
        max_tokens=3,
        temperature=0,
    ),
    "a chat with logprobs": lambda c, m: c.chat.completions.create(
        model=m, messages=HELLO, max_tokens=3, temperature=0, logprobs=True, top_logprobs=1
    ),
    "a long chat": lambda c, m: c.chat.completions.create(
        model=m, messages=HELLO, max_completion_tokens=300, temperature=0
    ),
    "a chat with n": lambda c, m: c.chat.completions.create(model=m, messages=HELLO, max_tokens=3, seed=1, n=2),
    "a chat with JSON": lambda c, m: c.chat.completions.create(
        model=m,
        messages=HELLO,
        max_tokens=200,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": City.model_json_schema()}},
    ),
    "a parsed chat": lambda c, m: c.chat.completions.parse(
        model=m, messages=HELLO, max_tokens=200, temperature=0, response_format=City
    ),
    "embeddings": lambda c, m: c.embeddings.create(model=m, input=["hello you", "b"]),
    "an embedding as numbers": lambda c, m: c.embeddings.create(model=m, input="hello you", encoding_format="float"),
    "embeddings of ids": lambda c, m: c.embeddings.create(model=m, input=[[1, 2, 3], [4]]),
    "models": lambda c, m: c.models.list(),
    "a header of its own": lambda c, m: c.completions.create(
        model=m, prompt="hello", max_tokens=3, temperature=0, extra_headers={"x-mine": "1"}
    ),
    "a query of its own": lambda c, m: c.completions.create(
        model=m, prompt="hello", max_tokens=3, temperature=0, extra_query={"a": "1"}
    ),
    "other options": lambda c, m: c.with_options(max_retries=1, timeout=30).completions.create(
        model=m, prompt="hello", max_tokens=3, temperature=0
    ),
}
REFUSED = {
    "a model that is not there": lambda c, m: c.completions.create(model="none", prompt="hello", max_tokens=3),
    "a wrong parameter": lambda c, m: c.completions.create(model=m, prompt="hello", max_tokens=3, temperature=-1),
    "too many tokens": lambda c, m: c.chat.completions.create(model=m, messages=HELLO, max_tokens=10**8),
    "tools that the server has not": lambda c, m: c.chat.completions.create(model=m, messages=HELLO, tools=[TOOL]),
    "no prompt": lambda c, m: c.completions.create(model=m),
    "an unknown argument": lambda c, m: c.completions.create(model=m, prompt="p", nonsense=1),
    "no list of messages": lambda c, m: c.chat.completions.create(model=m, messages=[], max_tokens=1),
    "one model": lambda c, m: c.models.retrieve(m),
    "a file": lambda c, m: c.files.retrieve("file-1"),
}


def plain(answer):
    """What an answer holds, without what is every request's own."""
    # Unset fields left out: so what was set, and what was not, is compared as well.
    fields = answer.model_dump(exclude_unset=True, warnings=False) if isinstance(answer, BaseModel) else answer

    def without(value):
        if isinstance(value, dict):
            return {name: without(each) for name, each in value.items() if name not in OF_THE_REQUEST}
        return [without(each) for each in value] if isinstance(value, list) else value

    return without(fields)


def without_estimates(fields):
    """A list's prompt tokens are shared out among its calls; one call's share is an estimate, and says so."""
    if "system_fingerprint" in fields:
        del fields["system_fingerprint"]
    usage = fields.get("usage")
    if usage and usage.pop("prompt_tokens_estimated", False):
        usage["prompt_tokens"] = usage["total_tokens"] = "estimated"
    return fields


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_alone(pair, server, case):
    async with pair(server.base_url) as both:
        ours, theirs = await case(both.ours, server.model), await case(both.theirs, server.model)
    assert type(ours) is type(theirs)
    # A list of prompts is streamed inside, and events have no fingerprint.
    assert without_estimates(plain(ours)) == without_estimates(plain(theirs))
    assert "prompt_tokens_estimated" not in (plain(ours).get("usage") or {})
    assert getattr(ours, "_request_id", None) == getattr(theirs, "_request_id", None)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_in_company(pair, server, case):
    """Eight at once: lists, where lists are made. Events have no fingerprint of the server's."""
    async with pair(server.base_url) as both:
        ours = await asyncio.gather(*[case(both.ours, server.model) for _ in range(8)])
        theirs = await case(both.theirs, server.model)
    for answer in ours:
        fields, expected = without_estimates(plain(answer)), without_estimates(plain(theirs))
        # Where the machine is busy, one of the eight may have gone alone: its share is all of the request's.
        if (fields.get("usage") or {}).get("prompt_tokens") == "estimated":
            expected["usage"] |= {"prompt_tokens": "estimated", "total_tokens": "estimated"}
        assert fields == expected


async def test_the_shares_of_a_lists_prompt_tokens_add_up(pair, server):
    texts = [f"{'word ' * count}end" for count in range(1, 9)]

    def ask(client, text):
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(model=server.model, messages=messages, max_tokens=2)

    async with pair(server.base_url) as both:
        ours = await asyncio.gather(*[ask(both.ours, text) for text in texts])
        theirs = [await ask(both.theirs, text) for text in texts]
    assert all(answer.usage.prompt_tokens_estimated for answer in ours)
    assert all(answer.usage.completion_tokens == 2 for answer in ours)
    assert sum(each.usage.prompt_tokens for each in ours) == sum(each.usage.prompt_tokens for each in theirs)


@pytest.mark.parametrize("max_tokens", [3, 12], ids=["plain", "streamed"])
async def test_every_answer_tells_its_tokens_where_the_server_tells_a_sum(max_tokens):
    with EmbeddedServer(guise=GUISES["openai"]) as server:
        ours = {"base_url": server.base_url, "api_key": "k", "dialect": "openai", "preset": "throughput"}
        asked = {"model": server.model, "max_tokens": max_tokens, "temperature": 0}
        async with AsyncOpenAI(**ours) as client:
            made = [client.completions.create(prompt=f"{'word ' * n}end", **asked) for n in range(1, 9)]
            answers = await asyncio.gather(*made)
        # The first client has seen an event per token, and would send its next list plain.
        async with AsyncOpenAI(**ours) as client:
            several = await client.completions.create(prompt=["one", "two words"], **asked)
        assert server.statistics()["list_sizes"] == {8: 1, 2: 1}
    usages = [answer.usage for answer in answers]
    assert [usage.completion_tokens for usage in usages] == [max_tokens] * 8
    assert all(usage.prompt_tokens_estimated and usage.prompt_tokens > 0 for usage in usages)
    if max_tokens == 3:
        # Exact: each has as many as it asked for. The prompts' shares add up to the server's sum.
        assert not hasattr(usages[0], "completion_tokens_estimated")
        assert sum(usage.prompt_tokens for usage in usages) == 80
        assert several.usage.to_dict() == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    else:
        assert usages[0].completion_tokens_estimated
        assert several.usage.completion_tokens_estimated


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
async def test_refused_alike(pair, server, case):
    async with pair(server.base_url) as both:
        errors = []
        for client in (both.ours, both.theirs):
            with pytest.raises((openai.OpenAIError, TypeError)) as caught:
                await case(client, server.model)
            errors.append(caught.value)
    ours, theirs = errors
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)
    for name in ("status_code", "code", "param", "type", "body", "request_id", "message"):
        assert getattr(ours, name, None) == getattr(theirs, name, None), name
    if isinstance(ours, openai.APIStatusError):
        assert ours.response.json() == theirs.response.json()
        assert (ours.request.method, str(ours.request.url)) == (theirs.request.method, str(theirs.request.url))


async def test_streams_are_openais_own(pair, server):
    async def stream(client):
        chunks = []
        made = client.chat.completions.create(
            model=server.model, messages=HELLO, max_tokens=5, temperature=0, stream=True
        )
        async for chunk in await made:
            chunks.append(plain(chunk))
        return chunks

    async with pair(server.base_url) as both:
        assert await stream(both.ours) == await stream(both.theirs)


async def test_raw_responses(pair, server):
    async with pair(server.base_url) as both:
        raws = [
            await client.completions.with_raw_response.create(
                model=server.model, prompt="hello", max_tokens=3, temperature=0
            )
            for client in (both.ours, both.theirs)
        ]
        chats = [
            await client.chat.completions.with_raw_response.create(
                model=server.model, messages=HELLO, max_tokens=3, temperature=0
            )
            for client in (both.ours, both.theirs)
        ]
        streamed = []
        for client in (both.ours, both.theirs):
            asked = client.completions.with_streaming_response.create(
                model=server.model, prompt="hello", max_tokens=3, temperature=0
            )
            async with asked as response:
                streamed.append((response.status_code, json.loads(await response.read()), await response.parse()))
    for ours, theirs in (raws, chats):
        assert type(ours) is type(theirs)
        assert plain(ours.parse()) == plain(theirs.parse())
        assert plain(json.loads(ours.text)) == plain(json.loads(theirs.text))
        assert ours.headers.keys() >= {"content-type"}
        assert ours.status_code == theirs.status_code == 200
        assert ours.retries_taken == theirs.retries_taken == 0
    (ours_status, ours_json, ours_parsed), (status, body, parsed) = streamed
    assert (ours_status, plain(ours_json), plain(ours_parsed)) == (status, plain(body), plain(parsed))
