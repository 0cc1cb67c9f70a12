"""Servers of several sorts behind one client: a call that some of them cannot be asked goes to one that can."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.guises import GUISES
from tests.seams import connected
from tests.shell import clocks

from batchclient import BadRequest, BatchClient, Completion, ConfigError
from batchclient.simulator import SimulatedServer, SimulatorTransport, expected_text, render_messages, token_ids


def fleet(story: Callable[[BatchClient], Awaitable[Any]], *guises: str) -> Any:
    """Run a story with a client that knows which servers it has."""

    async def told() -> Any:
        engines = {
            guise: SimulatorTransport(SimulatedServer("gpu", model="tgi", guise=GUISES[guise])) for guise in guises
        }
        urls = [f"http://{guise}/v1" for guise in guises]

        def find(url: str) -> SimulatorTransport:
            return engines[url.split("/")[2]]

        settings = {"model": "tgi", "probe": True, "limit": 16}
        async with connected(urls, calls=find, detection=find, **settings) as client:
            # Long enough to be found out beside them.
            await asyncio.gather(*[client.complete(f"warm {i}", max_tokens=500) for i in range(32)])
            names = [str(endpoint.server).split()[0] for endpoint in client.statistics().endpoints]
            assert names == list(guises)
            return await story(client)

    return clocks.run(told)


@pytest.mark.parametrize("order", [("tgi", "vllm"), ("vllm", "tgi")])
def test_token_ids_texts_and_vectors_all_find_their_server(order: tuple[str, str]) -> None:
    async def story(client: BatchClient) -> Any:
        ids = [client.complete([i, 2, 3], max_tokens=4, temperature=0) for i in range(40)]
        texts = [client.complete(f"text {i}", max_tokens=4, temperature=0) for i in range(40)]
        pairs = [client.complete(f"text {i}", max_tokens=4, n=2, seed=i) for i in range(10)]
        vectors = [client.embed(f"text {i}") for i in range(10)]
        answers = await asyncio.gather(*ids, *texts, *pairs, *vectors)
        pieces = [delta.text async for delta in client.stream([9, 9], max_tokens=4, temperature=0)]
        return answers, "".join(pieces), client.statistics()

    answers, streamed, statistics = fleet(story, *order)
    greedy = {"max_tokens": 4, "temperature": 0}
    assert [answer.text for answer in answers[:40]] == [expected_text([i, 2, 3], **greedy) for i in range(40)]
    assert [answer.text for answer in answers[40:80]] == [expected_text(f"text {i}", **greedy) for i in range(40)]
    assert all(len(answer.choices) == 2 for answer in answers[80:90])
    assert all(len(answer.vector) for answer in answers[90:])
    assert streamed == expected_text([9, 9], **greedy)
    assert (statistics.failed, statistics.retries) == (0, 0)
    assert {answer.attempts for answer in answers} == {1}


@pytest.mark.parametrize("order", [("tgi", "vllm"), ("vllm", "tgi")])
def test_the_first_call_of_all_finds_its_server(order: tuple[str, str]) -> None:
    """Nothing was asked before: the servers say what they are while it waits."""

    async def first() -> Any:
        engines = {
            f"http://{guise}/v1": SimulatorTransport(SimulatedServer("gpu", model="tgi", guise=GUISES[guise]))
            for guise in order
        }
        settings = {"model": "tgi", "probe": True, "asks_first": True}
        async with connected([*engines], calls=engines.get, detection=engines.get, **settings) as client:
            answer = await client.complete([7, 2, 3], max_tokens=4, temperature=0)
            return answer, client.statistics()

    answer, statistics = clocks.run(first)
    assert answer.text == expected_text([7, 2, 3], max_tokens=4, temperature=0)
    assert (answer.attempts, statistics.failed, statistics.batches) == (1, 0, 1)


def test_what_none_of_them_takes_says_so() -> None:
    async def story(client: BatchClient) -> Any:
        calls = [client.classify(f"text {i}") for i in range(4)]
        fine = [client.complete(f"text {i}", max_tokens=2) for i in range(8)]
        return await asyncio.gather(*calls, *fine, return_exceptions=True)

    answers = fleet(story, "tgi", "trtllm")
    for error in answers[:4]:
        assert type(error) is BadRequest
        assert "has no classification calls" in str(error)
        assert "no other server in use takes it" in str(error)
        assert not error.retryable
    assert all(isinstance(answer, Completion) for answer in answers[4:])


LABELS = ["good", "bad", "fair"]


def test_of_two_sorts_that_tell_probabilities_none_is_asked() -> None:
    async def story(client: BatchClient) -> None:
        with pytest.raises(ConfigError, match="one sort"):
            await client.complete("So:", labels=LABELS, probabilities=True)

    fleet(story, "vllm", "llamacpp")


def test_the_first_call_of_all_is_for_tokens_or_probabilities() -> None:
    """llama.cpp's tokenizer has vLLM's path and another field: who the server is has to be known."""
    engine = SimulatorTransport(SimulatedServer("instant", model="tiny", guise=GUISES["llamacpp"]))
    direct = SimulatedServer("instant", model="tiny", guise=GUISES["llamacpp"])

    async def told(call: Callable[[BatchClient], Awaitable[Any]]) -> Any:
        settings = {"calls": lambda url: engine, "detection": lambda url: engine, "asks_first": True}
        async with connected("http://llamacpp/v1", model="tiny", **settings) as client:
            return await call(client)

    def ask(call: Callable[[BatchClient], Awaitable[Any]]) -> Any:
        return clocks.run(told, call)

    assert ask(lambda client: client.tokenize("Is it good?")) == token_ids("Is it good?")
    chat = [{"role": "user", "content": "Is it good?"}]
    calls: dict[str, Callable[[BatchClient], Awaitable[Any]]] = {
        "Is it good? Answer:": lambda c: c.complete("Is it good? Answer:", labels=LABELS, probabilities=True),
        render_messages(chat): lambda c: c.chat(chat, labels=LABELS, probabilities=True),
    }
    for place, (text, call) in enumerate(calls.items()):
        answer = ask(call)
        body = {"prompt": text, "n_predict": 1, "n_probs": 10**6}
        direct.receive(place, "POST", "/completion", json.dumps(body).encode(), float(place))
        said = json.loads(b"".join(part.body for part in direct.poll(place + 0.5)))
        whole = said["completion_probabilities"][0]["top_logprobs"]
        for label in LABELS:
            (number,) = [each["logprob"] for each in whole if each["id"] == token_ids(f" {label}")[0]]
            assert answer.probabilities[label] == pytest.approx(math.exp(number))
        assert answer.probabilities["other"] == pytest.approx(1 - sum(answer.probabilities[each] for each in LABELS))
