"""What batchclient relies on in vLLM's ``/v1/completions`` beyond ``test_dialects``, through the client and on the wire."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchclient import BadRequest, BatchClient, Batching, Completion, ConfigError
from batchclient.simulator import EmbeddedServer
from tests.contract.conftest import Server

GOLDEN = Path(__file__).parent.parent / "wire" / "vllm"
PROMPTS = [f"def function_{i}(argument" for i in range(24)]


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


def client(server: Server, **settings: Any) -> BatchClient:
    return BatchClient(server.base_url, model=server.model, **{"preset": "throughput", **settings})


async def together(server: Server, prompts: list[Any], settings: dict[str, Any] | None = None, **params: Any) -> Any:
    async with client(server, **(settings or {})) as c:
        answers = await asyncio.gather(*[c.complete(prompt, **params) for prompt in prompts], return_exceptions=True)
        return answers, c.statistics()


def shown(answer: Completion) -> Any:
    return [(c.index, c.text, c.finish_reason, c.token_ids) for c in answer.choices], answer.usage


def test_streamed_logprobs_equal_plain_ones(server: Server) -> None:
    # prompt_logprobs cannot be streamed, which makes the client send the same calls plain.
    params = {"max_tokens": 8, "temperature": 0, "logprobs": 1}
    streamed, _ = run(together(server, PROMPTS[:4], **params))
    plain, _ = run(together(server, PROMPTS[:4], prompt_logprobs=0, **params))
    for one, other in zip(streamed, plain, strict=True):
        assert one.time_to_first_token_s is not None
        assert other.time_to_first_token_s is None
        assert one.choices[0].logprobs["tokens"] == other.choices[0].logprobs["tokens"]
        assert one.choices[0].logprobs["text_offset"] == other.choices[0].logprobs["text_offset"]
        assert one.choices[0].logprobs["token_logprobs"] == pytest.approx(
            other.choices[0].logprobs["token_logprobs"], abs=0.05
        )


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 1, "echo": True},
        {"max_tokens": 3, "echo": True, "logprobs": 1},
        {"max_tokens": 0, "echo": True, "logprobs": 1},
        {"max_tokens": 3, "logprobs": 2},
        {"max_tokens": 9, "echo": True},
        {"max_tokens": 3, "stop": ["a", "e"]},
        {"max_tokens": 3, "n": 2, "temperature": 1.0, "seed": 5},
    ],
    ids=str,
)
def test_a_list_equals_the_raw_singles_field_by_field(server: Server, params: dict[str, Any]) -> None:
    params = {"temperature": 0, **params}
    answers, statistics = run(together(server, PROMPTS[:6], **params))
    assert max(statistics.list_sizes) == 6
    for prompt, answer in zip(PROMPTS, answers, strict=False):
        body = {"model": server.model, "prompt": prompt, **params}
        raw = httpx.post(server.base_url + "/completions", json=body, timeout=60).json()["choices"]
        for ours, theirs in zip(answer.choices, raw, strict=True):
            assert (ours.text, ours.finish_reason) == (theirs["text"], theirs["finish_reason"])
            assert (ours.logprobs is None) == (theirs["logprobs"] is None)
            if ours.logprobs is not None:
                assert ours.logprobs["tokens"] == theirs["logprobs"]["tokens"]
                assert ours.logprobs["text_offset"] == theirs["logprobs"]["text_offset"]


def test_log_likelihoods_in_a_list_are_those_of_singles(server: Server) -> None:
    pairs = [(f"prompt number {i} says", f" answer {7 * i}") for i in range(16)]

    async def likelihoods(**settings: Any) -> Any:
        async with client(server, **settings) as c:
            answers = await asyncio.gather(*[c.log_likelihood(own, given=given) for given, own in pairs])
            return answers, c.statistics()

    answers, statistics = run(likelihoods())
    alone, _ = run(likelihoods(batching=Batching(max_size=1)))
    assert max(statistics.list_sizes) == 16
    for (_, own), one, other in zip(pairs, answers, alone, strict=True):
        assert one.total == pytest.approx(other.total, abs=0.02)
        assert "".join(token.text for token in one.tokens) == own
        assert one.usage.prompt_tokens > len(one.tokens)


def test_what_the_model_would_write_is_greedy(server: Server) -> None:
    async def story() -> None:
        async with client(server) as c:
            written = await c.complete("def f(", max_tokens=6, temperature=0)
            assert (await c.log_likelihood(written.text, given="def f(")).is_greedy
            ids = await c.tokenize("def f(")
            by_ids = await c.log_likelihood(await c.tokenize("self, other):"), given=ids)
            assert by_ids.usage.prompt_tokens == len(ids) + len(by_ids.tokens)
            if server.real:
                # The simulated model finds every text likely.
                assert not by_ids.is_greedy

    run(story())


def test_the_length_is_the_one_that_the_server_tells_of_its_model(server: Server) -> None:
    async def story() -> None:
        async with client(server) as c:
            with pytest.raises(BadRequest):
                await c.complete("a b " * server.max_model_len, max_tokens=1)
            while c.statistics().endpoints[0].server is None:
                await c.complete("a", max_tokens=1)
            submitted = c.statistics().submitted
            with pytest.raises(ConfigError, match=str(server.max_model_len)) as refusal:
                await c.complete([5] * server.max_model_len, max_tokens=1)
            assert (refusal.value.field, refusal.value.retryable) == ("prompt", True)
            assert c.statistics().submitted == submitted

    run(story())


def test_a_complaint_about_a_length_is_about_its_call_alone(server: Server) -> None:
    async def story() -> None:
        async with client(server, probe=False) as c:
            for _ in range(2):
                with pytest.raises(BadRequest):
                    await c.complete([5] * server.max_model_len, max_tokens=1)
            assert (await c.complete([5] * (server.max_model_len - 1), max_tokens=1)).usage

    run(story())


def test_an_empty_prompt_fails_alone(server: Server) -> None:
    answers, _ = run(together(server, ["", *PROMPTS[:7]], max_tokens=2, temperature=0))
    assert isinstance(answers[0], BadRequest)
    assert all(isinstance(answer, Completion) for answer in answers[1:])


def test_a_bad_parameter_is_the_callers_fault(server: Server) -> None:
    answers, _ = run(together(server, PROMPTS[:4], max_tokens=2, logprobs=1000))
    assert all(isinstance(answer, BadRequest) for answer in answers)
    assert all("logprobs" in str(answer) for answer in answers)


def test_an_unknown_field_changes_nothing(server: Server) -> None:
    one, _ = run(together(server, PROMPTS[:4], max_tokens=6, temperature=0))
    two, _ = run(
        together(server, PROMPTS[:4], max_tokens=6, temperature=0, extra_body={"no_such_field": {"a": [1, None]}})
    )
    assert [shown(answer) for answer in one] == [shown(answer) for answer in two]


async def running_on(server: Server, http: httpx.AsyncClient) -> float:
    """The server's own gauge of what it works on."""
    page = (await http.get(server.base_url.removesuffix("/v1") + "/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_a_list_stops_on_the_server_when_the_last_of_its_callers_has_gone(server: Server) -> None:
    async def seen_at_work(tasks: list[asyncio.Task[object]], server: Server, http: httpx.AsyncClient) -> bool:
        while await running_on(server, http) < 4:
            if any(task.done() for task in tasks):
                # On a busy machine the server's page may come late. What failed is told here.
                await asyncio.gather(*tasks)
                return False
        return True

    async def story(server: Server) -> None:
        one = {"model": server.model, "prompt": "a", "max_tokens": 1}
        async with httpx.AsyncClient(timeout=60) as http, asyncio.timeout(100):
            seen = False
            while not seen:
                async with client(server, batching=Batching(list_tokens=4096)) as c:
                    calls = [c.complete(p, max_tokens=1900, ignore_eos=True) for p in PROMPTS[:4]]
                    tasks = [asyncio.create_task(call) for call in calls]
                    seen = await seen_at_work(tasks, server, http)
                    if not seen:
                        continue
                    for task in tasks[1:]:
                        task.cancel()
                    await asyncio.gather(*tasks[1:], return_exceptions=True)
                    # The request is one: the server works on, for the caller that stays.
                    await http.post(server.base_url + "/completions", json=one)
                    assert await running_on(server, http) >= 4
                    assert c.statistics().abandoned == 3
                    tasks[0].cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    await http.post(server.base_url + "/completions", json=one)
                    while await running_on(server, http) > 1:
                        await http.post(server.base_url + "/completions", json=one)
                    statistics = c.statistics()
                    assert (statistics.cancelled, statistics.in_flight, statistics.abandoned) == (4, 0, 0)
                    assert statistics.batches == 1

    if server.real:
        run(story(server))
    else:
        with EmbeddedServer(profile="gpu", model=server.model, max_model_len_tokens=2048) as slow:
            run(story(Server(slow.base_url, slow.model, 2048, real=False)))


# On the wire: the embedded server speaks as the real one did when the golden replies were recorded.


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def shape_of(value: Any) -> Any:
    """Keys and types, without values; lists by their first item."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return type(value).__name__


@pytest.mark.parametrize(
    "name",
    [
        "plain_list",
        "plain_single",
        "plain_list_token_ids",
        "plain_list_n2_logprobs_token_ids",
        "error_1025_prompts",
        "error_empty_list",
        "error_empty_prompt_in_list",
        "error_too_long_in_list",
        "error_wrong_model",
    ],
)
def test_plain_replies_have_the_recorded_shape(server: Server, name: str) -> None:
    recorded = golden(name)
    body = {**recorded["request"]["json"], "model": server.model if name != "error_wrong_model" else "nope"}
    reply = httpx.post(server.base_url + "/completions", json=body, timeout=60)
    assert reply.status_code == recorded["status"]
    expected = json.loads(recorded["body_text"])
    if recorded["status"] == 200:
        ours = reply.json()
        assert set(ours) == set(expected)
        assert set(ours["choices"][0]) == set(expected["choices"][0])
        assert ours["usage"].keys() == expected["usage"].keys()
        assert [choice["index"] for choice in ours["choices"]] == [c["index"] for c in expected["choices"]]
    else:
        assert shape_of(reply.json()) == shape_of(expected)
        assert reply.json()["error"]["code"] == expected["error"]["code"]
        assert reply.json()["error"]["type"] == expected["error"]["type"]


@pytest.mark.parametrize(
    "name", ["stream_list_two_events", "stream_list_event_per_token", "stream_list_two_events_max_tokens_1"]
)
def test_streams_have_the_recorded_events(server: Server, name: str) -> None:
    recorded = golden(name)
    body = {**recorded["request"]["json"], "model": server.model, "ignore_eos": True}
    text = httpx.post(server.base_url + "/completions", json=body, timeout=60).text

    def events(stream: str) -> list[Any]:
        payloads = [line[6:] for line in stream.split("\n") if line.startswith("data: ")]
        assert payloads[-1] == "[DONE]"
        return [json.loads(payload) for payload in payloads[:-1]]

    ours, expected = events(text), events(recorded["body_text"])

    def by_index(stream: list[Any]) -> dict[int, list[Any]]:
        pieces: dict[int, list[Any]] = {}
        for event in stream:
            for choice in event["choices"]:
                pieces.setdefault(choice["index"], []).append((choice["finish_reason"], "usage" in event))
        if "per_token" in name:
            # A server that lags behind its engine sends two tokens in one event: only the ends are sure.
            return {index: [own[0], own[-1], len(own) > 2] for index, own in pieces.items()}
        return pieces

    assert by_index(ours) == by_index(expected)
    assert [set(event) for event in ours[:1]] == [set(event) for event in expected[:1]]
    assert set(ours[0]["choices"][0]) == set(expected[0]["choices"][0])
    assert ours[-1].get("usage", {}).keys() == expected[-1].get("usage", {}).keys()
