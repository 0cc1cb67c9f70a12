"""What a real llama-server does that others do not, on the wire and when it begins and ends. The rest is in tests/contract."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.live.fixtures import LiveServer, running, skip_without
from tests.live.servers import LlamaServer

from batchclient import BatchClientError, Http

pytestmark = pytest.mark.llamacpp

PROMPTS = [f"def f{i}({'x, ' * i}" for i in range(12)]
LONG = {"max_tokens": 1500, "temperature": 0, "logit_bias": {"2": -100}}
"""About half a second a sequence here, and never an early end."""


@pytest.fixture
def mortal() -> Iterator[LlamaServer]:
    """A server of one's own, not yet started; skipped as the common one is."""
    skip_without(LlamaServer)
    server = LlamaServer()
    yield server
    server.stop()


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


# On the wire


def test_its_usage_of_a_list_is_that_of_the_first_prompt(llamacpp_server: LiveServer) -> None:
    lengths = [llamacpp_server.post(prompt=prompt).json()["usage"]["prompt_tokens"] for prompt in PROMPTS]
    reply = llamacpp_server.post(prompt=PROMPTS).json()
    assert len(reply["choices"]) == len(PROMPTS)
    assert reply["usage"]["prompt_tokens"] == lengths[0] < sum(lengths)
    assert reply["usage"]["completion_tokens"] == 4


def test_its_own_route_says_the_tokens_of_every_prompt(llamacpp_server: LiveServer) -> None:
    root = llamacpp_server.base_url.removesuffix("/v1")
    body = {"prompt": PROMPTS, "n_predict": 4, "temperature": 0}
    items = httpx.post(f"{root}/completion", json=body, timeout=60).json()
    assert [item["index"] for item in items] == list(range(len(PROMPTS)))
    singles = [llamacpp_server.post(prompt=prompt).json() for prompt in PROMPTS]
    assert [item["tokens_evaluated"] for item in items] == [one["usage"]["prompt_tokens"] for one in singles]
    assert [item["content"] for item in items] == [one["choices"][0]["text"] for one in singles]


def test_a_streamed_list_begins_with_events_that_say_null(llamacpp_server: LiveServer) -> None:
    events = [line[6:] for line in llamacpp_server.post(prompt=PROMPTS, stream=True).text.splitlines() if line]
    assert events[0] == "null"
    assert events[-1] == "[DONE]"
    indices = [event["choices"][0]["index"] for event in map(json.loads, events[:-1]) if event and event["choices"]]
    assert set(indices) == set(range(len(PROMPTS)))


def test_one_over_long_prompt_refuses_a_whole_list_and_names_no_index(llamacpp_server: LiveServer) -> None:
    reply = llamacpp_server.post(prompt=["a", "x " * 3000])
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", 2048)
    assert "index" not in error


def test_it_has_no_error_for_another_models_name_or_an_unknown_field(llamacpp_server: LiveServer) -> None:
    reply = llamacpp_server.post(model="nope", no_such_field=1)
    assert (reply.status_code, reply.json()["model"]) == (200, "tiny")


def test_bad_json_is_500(llamacpp_server: LiveServer) -> None:
    reply = httpx.post(llamacpp_server.base_url + "/completions", content=b'{"prompt": ')
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")


def test_more_prompts_than_slots_wait_and_are_not_refused(llamacpp_server: LiveServer) -> None:
    root = llamacpp_server.base_url.removesuffix("/v1")
    assert httpx.get(f"{root}/props").json()["total_slots"] == 4
    assert len(llamacpp_server.post(prompt=PROMPTS * 4).json()["choices"]) == 48


# Through the client


def test_calls_wait_for_a_model_that_is_being_loaded(mortal: LlamaServer) -> None:
    """Refused connections first, then 503 to everything: the server has not been seen yet, and is not given up."""
    mortal.start()
    port = mortal.port
    mortal.stop()
    late = LlamaServer(port=port)

    async def story() -> Any:
        async with running(late).client(outage_patience_s=20) as c:
            first = await c.complete("def f(", max_tokens=2, temperature=0)
            await asyncio.to_thread(late.kill)
            calls = [asyncio.create_task(c.complete(p, max_tokens=2, temperature=0)) for p in PROMPTS]
            await asyncio.sleep(0.2)
            await asyncio.to_thread(late.start, wait=False)
            return first, await asyncio.gather(*calls)

    late.start()
    try:
        first, answers = run(story())
    finally:
        late.stop()
    assert first.usage.completion_tokens == 2
    assert len(answers) == len(PROMPTS)


def test_a_server_that_ends_in_silence_costs_no_more_than_the_read_timeout(mortal: LlamaServer) -> None:
    """After SIGTERM it keeps the sockets of what is under way open and says nothing more."""
    mortal.start()

    async def story() -> tuple[list[Any], float]:
        async with running(mortal).client(http=Http(read_timeout_s=2), outage_patience_s=2) as c:
            await c.complete("def f(", max_tokens=1)
            calls = [asyncio.create_task(c.complete(p, **LONG)) for p in PROMPTS]
            # Its page says that it takes four at once, by now or in a moment.
            while c.statistics().in_flight < 4:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            os.kill(mortal.pid, signal.SIGTERM)
            ended = time.monotonic()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            return outcomes, time.monotonic() - ended

    outcomes, seconds = run(story())
    # Each attempt waits for its own read timeout where the dying server still accepts connections: 4 of them and their pauses.
    assert seconds < 40
    assert any(isinstance(outcome, BatchClientError) for outcome in outcomes), "all had finished before it was ended"
    for outcome in outcomes:
        # Nobody is given half a text.
        assert isinstance(outcome, BatchClientError) or outcome.usage is None or outcome.usage.completion_tokens == 1500


def test_a_lone_cancelled_call_frees_its_slot(mortal: LlamaServer) -> None:
    """An idle llama-server notices a closed connection within about a second."""
    mortal.start()
    root = mortal.base_url.removesuffix("/v1")

    def busy() -> int:
        return sum(slot["is_processing"] for slot in httpx.get(f"{root}/slots").json())

    async def story() -> float:
        async with running(mortal).client() as c, asyncio.timeout(60):
            call = asyncio.create_task(c.complete("def f(", **{**LONG, "max_tokens": 2000}))
            while await asyncio.to_thread(busy) == 0:
                assert not call.done(), call
            call.cancel()
            cancelled = time.monotonic()
            await asyncio.gather(call, return_exceptions=True)
            while await asyncio.to_thread(busy):
                await asyncio.sleep(1.5)  # each look at its pages puts off the moment in which it notices
            return time.monotonic() - cancelled

    assert run(story()) < 10


# Labels


def test_an_answer_is_one_of_the_labels_by_its_grammar(llamacpp_server: LiveServer) -> None:
    labels = ["return", 'not "good"', "yes, sir"]
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]

    async def labelled() -> list[Any]:
        async with llamacpp_server.client() as client:
            texts = await client.batch_map(PROMPTS, "{}", labels=labels)
            return [*texts, *await client.batch_map(chats, lambda chat: chat, call="chat", labels=labels)]

    answers = run(labelled())
    assert {answer.health for answer in answers} == {"ok"} and {answer.finish_reason for answer in answers} == {"stop"}
    assert len({answer.label for answer in answers}) > 1
    assert all(answer.text.strip() == answer.label for answer in answers)


def test_probabilities_of_labels_are_those_of_the_whole_distribution(llamacpp_server: LiveServer) -> None:
    labels = ["return", "False", "import os", "yes, sir"]
    prompts = [f"def f{n}(x{n * 7 % 13}):\n    # is it number {n * n}? Answer:" for n in range(50)]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    root = llamacpp_server.base_url.removesuffix("/v1")

    async def told() -> list[Any]:
        async with llamacpp_server.client() as client:
            # Of the first call the client knows no server yet.
            ids = [(await client.tokenize(f" {label}"))[0] for label in labels]
            texts = await client.batch_map(prompts, "{}", labels=labels, probabilities=True, stop=["e"])
            return [
                ids,
                texts,
                await client.batch_map(chats, lambda chat: chat, call="chat", labels=labels, probabilities=True),
            ]

    def whole(path: str, **asked: Any) -> dict[int, float]:
        entries: list[Any] = []
        seeds = iter(range(30))
        while not entries:
            # Of a token that ends amid a letter nothing is told.
            reply = httpx.post(root + path, json={"max_tokens": 1, "seed": next(seeds), **asked}, timeout=60).json()
            (choice,) = reply.get("choices", [reply])
            entries = choice.get("completion_probabilities") or (choice.get("logprobs") or {}).get("content") or []
        tops = entries[0]["top_logprobs"]
        assert len(tops) == 2048, "the model's vocabulary"
        logits = {top["id"]: math.exp(top["logprob"]) for top in tops}
        return {token: each / sum(logits.values()) for token, each in logits.items()}

    ids, texts, spoken = run(told())
    expected = [whole("/completion", prompt=prompt, n_probs=10**6) for prompt in prompts]
    expected += [whole("/v1/chat/completions", messages=chat, logprobs=True, top_logprobs=10**6) for chat in chats]
    worst = 0.0
    for answer, numbers in zip([*texts, *spoken], expected, strict=True):
        mine = [answer.probabilities[label] for label in labels]
        its = [numbers[token] for token in ids]
        # The tiny model has hardly a preference: a hundredth would be as much as all of them.
        worst = max(worst, *(abs(own / other - 1) for own, other in zip(mine, its, strict=True)))
        assert mine == pytest.approx(its, abs=0.01)
        assert answer.probabilities["other"] == pytest.approx(1 - sum(its), abs=0.01)
        assert (answer.label, answer.health) == (labels[mine.index(max(mine))], "ok")
    print(f"probabilities differ by {worst:.2%} of themselves at most")
    assert worst < 0.02
