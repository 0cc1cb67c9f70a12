"""The drop-in beside openai's own client on a real vLLM, field by field.

Floating-point sums depend on what is computed together, so that a call in company may be answered with other tokens than alone: there the
fields are compared, and of the values those that do not hang on the tokens.
"""

import asyncio
import json
from typing import Any

import openai
import pytest

from batchclient.openai import AsyncOpenAI
from tests.drop_in.test_same_answers import CASES, REFUSED, plain, without_estimates
from tests.live.fixtures import LiveServer

pytestmark = pytest.mark.vllm

GENERATING = {name: case for name, case in CASES.items() if "embedding" not in name}
"""This server's model generates."""


async def both(server: LiveServer, case: Any, at_once: int) -> tuple[list[Any], Any]:
    given = {"base_url": server.base_url, "api_key": "key", "max_retries": 0}
    async with AsyncOpenAI(**given, preset="throughput") as ours, openai.AsyncOpenAI(**given) as theirs:

        async def outcome(client: Any) -> Any:
            try:
                return await case(client, server.model)
            except (openai.OpenAIError, TypeError) as error:
                return error

        return list(await asyncio.gather(*[outcome(ours) for _ in range(at_once)])), await outcome(theirs)


def form(value: Any) -> Any:
    """The fields and their types; texts, tokens and numbers about them blanked."""
    if isinstance(value, dict):
        return {name: form(each) for name, each in value.items()}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return type(value).__name__ if isinstance(value, (str, float)) else value


@pytest.mark.parametrize("case", GENERATING.values(), ids=GENERATING)
def test_alone(vllm_server: LiveServer, case: Any) -> None:
    (ours,), theirs = asyncio.run(both(vllm_server, case, 1))
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(ours, Exception):
        assert str(ours) == str(theirs)
        return
    assert form(without_estimates(plain(ours))) == form(without_estimates(plain(theirs)))
    assert "prompt_tokens_estimated" not in json.dumps(plain(ours))


@pytest.mark.parametrize("case", GENERATING.values(), ids=GENERATING)
def test_in_company(vllm_server: LiveServer, case: Any) -> None:
    several, theirs = asyncio.run(both(vllm_server, case, 8))
    for ours in several:
        assert type(ours) is type(theirs), (ours, theirs)
        if isinstance(ours, Exception):
            continue
        mine, expected = form(without_estimates(plain(ours))), form(without_estimates(plain(theirs)))
        if (mine.get("usage") or {}).get("prompt_tokens") == "str":
            expected["usage"] |= {"prompt_tokens": "str", "total_tokens": "str"}
        assert mine == expected


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_alike(vllm_server: LiveServer, case: Any) -> None:
    (ours,), theirs = asyncio.run(both(vllm_server, case, 1))
    assert type(ours) is type(theirs)
    if isinstance(theirs, openai.APIStatusError):
        assert (ours.status_code, ours.body, ours.message) == (theirs.status_code, theirs.body, theirs.message)
    assert isinstance(theirs, Exception)
