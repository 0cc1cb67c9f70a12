"""What `transformers serve` does that others do not, on the wire; and that this client gives every caller its own answer all the same."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from tests.live.fixtures import LiveServer, skip_without
from tests.live.servers import ContinuousTransformersServer

from batchclient import BatchClient, BatchClientError, Completion

pytestmark = pytest.mark.transformers

PROMPTS = [f"def f{i}(" for i in range(8)]


@pytest.fixture(scope="session", params=["transformers_server", "transformers_cb_server"])
def server(request: pytest.FixtureRequest) -> LiveServer:
    return request.getfixturevalue(request.param)


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


# On the wire


@pytest.mark.parametrize("prompt", [["def f("], ["def f(", "import os"], [300, 301], []], ids=str)
def test_it_takes_no_lists_and_no_token_ids(server: LiveServer, prompt: Any) -> None:
    reply = server.post(prompt=prompt)
    assert (reply.status_code, reply.json()) == (400, {"detail": "prompt must be a string."})


@pytest.mark.parametrize("field", ["no_such_field", "stream_interval", "priority", "ignore_eos"])
def test_it_refuses_fields_it_does_not_know(server: LiveServer, field: str) -> None:
    reply = server.post(**{field: 1})
    assert reply.status_code == 422
    assert field in reply.json()["detail"]


def test_its_streams_end_without_done(server: LiveServer) -> None:
    text = server.post(stream=True).text
    assert '"finish_reason":"length"' in text
    assert '"usage"' in text, "unasked"
    assert "[DONE]" not in text


def test_it_ignores_n_logprobs_and_echo(server: LiveServer) -> None:
    (choice,) = server.post(n=3, logprobs=2, echo=True).json()["choices"]
    assert set(choice) == {"finish_reason", "index", "text"}
    assert not choice["text"].startswith("def f(")


def test_with_continuous_batching_it_ignores_stop_strings(
    transformers_server: LiveServer, transformers_cb_server: LiveServer
) -> None:
    serial, continuous = (
        server.post(stop=["e"], max_tokens=20) for server in (transformers_server, transformers_cb_server)
    )
    assert serial.json()["choices"][0]["finish_reason"] == "stop"
    assert continuous.json()["choices"][0]["finish_reason"] == "length"
    assert "e" in continuous.json()["choices"][0]["text"]


def test_a_stop_string_stays_in_the_text(transformers_server: LiveServer) -> None:
    assert transformers_server.post(stop=["am"], max_tokens=20).json()["choices"][0]["text"].endswith("ame")


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": "six"}], ids=str)
def test_it_answers_bad_input_with_500(transformers_server: LiveServer, fields: dict[str, Any]) -> None:
    reply = transformers_server.post(**fields)
    assert (reply.status_code, reply.text) == (500, "Internal Server Error")


# Through the client


@pytest.mark.parametrize("max_tokens", [2, 12])
def test_every_caller_gets_the_answer_of_a_request_of_its_own(server: LiveServer, max_tokens: int) -> None:
    raw = [server.post(prompt=prompt, max_tokens=max_tokens).json() for prompt in PROMPTS]
    # What runs together rounds differently: with continuous batching only the first tokens are sure to be the same.
    sure_characters = None if server.process.kind == "transformers" or max_tokens == 2 else 4
    answers, statistics = run(server.together(PROMPTS, max_tokens=max_tokens))
    for answer, own in zip(answers, raw, strict=True):
        assert isinstance(answer, Completion), answer
        assert answer.text[:sure_characters] == own["choices"][0]["text"][:sure_characters]
        assert answer.finish_reason == own["choices"][0]["finish_reason"]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
            own["usage"]["prompt_tokens"],
            own["usage"]["completion_tokens"],
        )
    assert statistics.succeeded == len(PROMPTS)


def test_what_it_refuses_of_lists_is_learnt_once(server: LiveServer) -> None:
    async def story() -> tuple[int, int]:
        async with server.client() as c:
            await asyncio.gather(*[c.complete(p, max_tokens=2, temperature=0) for p in PROMPTS])
            before = c.statistics()
            await asyncio.gather(*[c.complete(p, max_tokens=2, temperature=0) for p in PROMPTS])
            after = c.statistics()
            return after.batches - before.batches, after.succeeded - before.succeeded

    assert run(story()) == (len(PROMPTS), len(PROMPTS))


def test_a_field_it_refuses_is_the_callers_error(server: LiveServer) -> None:
    answers, _ = run(server.together(PROMPTS[:3], max_tokens=2, no_such_field=1))
    assert all(isinstance(answer, BatchClientError) for answer in answers), answers
    assert all("no_such_field" in str(answer) for answer in answers)


def test_a_server_that_a_prompt_has_killed_fails_its_callers_in_time() -> None:
    """A prompt above the KV cache (of 1,024 tokens) ends its worker: that call gets 500, all later ones 503, for ever."""
    skip_without(ContinuousTransformersServer)
    with ContinuousTransformersServer(("--cb-num-blocks", "32")) as server:

        async def story() -> list[object]:
            async with BatchClient(server.base_url, model=server.model) as c:
                first = await c.complete("def f(", max_tokens=2, temperature=0)
                assert first.finish_reason == "length"
                poison = c.complete("def f( " * 1000, max_tokens=2, timeout_s=10)
                after = [c.complete(prompt, max_tokens=2, timeout_s=10) for prompt in PROMPTS]
                return await asyncio.gather(poison, *after, return_exceptions=True)

        started = time.monotonic()
        answers = run(story())
        assert time.monotonic() - started < 30
        assert isinstance(answers[0], BatchClientError)
        health = httpx.get(server.base_url.removesuffix("/v1") + "/health")
        assert (health.status_code, health.json()["reason"]) == (503, "cb_worker_dead")
        # Those before it in the queue may have been served; nobody hangs, nobody gets an empty answer.
        for answer in answers[1:]:
            assert isinstance(answer, BatchClientError) or answer.usage.completion_tokens == 2
