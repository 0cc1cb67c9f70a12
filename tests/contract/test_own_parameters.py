"""SGLang takes sampling parameters per prompt: calls that differ in them share a request, and each is answered by its own.

In virtual time, against the guise, whose checks of the parameters are those of SGLang's source.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.contract.peers import CAN, Peer
from tests.seams import connected
from tests.shell import clocks

from batchclient import BadRequest, BatchClient, Batching, Completion, ConfigError, Schedule
from tests.core import Batch, Kind
from batchclient.dialects.sglang import SglangDialect
from batchclient.simulator import SimulatedServer, SimulatorTransport, expected_text
from tests.guises import GUISES

GREEDY = {"temperature": 0}
SGLANG = Peer("sglang", CAN["sglang"])
PLAIN_OR_STREAMED = pytest.mark.parametrize("max_tokens", [2, 12], ids=["plain", "streamed"])


def together(params: list[dict[str, Any]], *, peer: Peer = SGLANG, settings: Any = None, **common: Any) -> Any:
    """The outcomes of calls made at once, each with parameters of its own, and the client's statistics."""

    async def story(client: BatchClient) -> Any:
        calls = [client.complete(f"prompt {i}", **common, **own) for i, own in enumerate(params)]
        return await asyncio.gather(*calls, return_exceptions=True), client.statistics()

    return peer.run(story, **(settings or {}))


def expected(params: list[dict[str, Any]], **common: Any) -> list[str]:
    return [expected_text(f"prompt {i}", **common, **own) for i, own in enumerate(params)]


OWN = [
    {"seed": 1},
    {"seed": 2},
    {"temperature": 0},
    {"temperature": 0.5, "seed": 3},
    {"seed": 4, "top_p": 0.9},
    {"seed": 4, "top_k": 5, "min_p": 0.1},
    {"seed": 5, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"seed": 6, "stop": [" a"]},
    {"seed": 7, "stop": " b"},
    {"seed": 8, "logit_bias": {"3": 1.0}},
    {"seed": 9, "stop_token_ids": [40_000]},
]


@PLAIN_OR_STREAMED
def test_seeds_that_differ_per_call_share_requests(max_tokens: int) -> None:
    params = [{"seed": i} for i in range(64)]
    answers, statistics = together(params, max_tokens=max_tokens)
    assert [answer.text for answer in answers] == expected(params, max_tokens=max_tokens)
    assert all(answer.usage.completion_tokens == max_tokens for answer in answers)
    assert statistics.batches == 1


@pytest.mark.parametrize(
    "settings",
    [{"schedule": Schedule(order="shortest_first")}, {"schedule": Schedule(order="deadline")}, {"single_flight": True}],
)
def test_in_every_order(settings: dict[str, Any]) -> None:
    params = [{"seed": i} for i in range(32)]
    answers, statistics = together(params, settings=settings, max_tokens=6)
    assert [answer.text for answer in answers] == expected(params, max_tokens=6)
    assert statistics.batches == 1


def test_long_prompts_that_begin_alike_do_too() -> None:
    prompts = ["a common beginning " * 20 * (i % 2) + f"and {i}" for i in range(32)]

    async def story(client: BatchClient) -> Any:
        calls = [client.complete(prompt, seed=i, max_tokens=6) for i, prompt in enumerate(prompts)]
        return await asyncio.gather(*calls), client.statistics()

    answers, statistics = SGLANG.run(story)
    assert [answer.text for answer in answers] == [
        expected_text(prompt, seed=i, max_tokens=6) for i, prompt in enumerate(prompts)
    ]
    assert statistics.batches == 1


def test_each_call_is_answered_by_its_own_parameters() -> None:
    answers, statistics = together(OWN, max_tokens=200)
    wanted = [own | ({"stop": [own["stop"]]} if isinstance(own.get("stop"), str) else {}) for own in OWN]
    assert [answer.text for answer in answers] == expected(wanted, max_tokens=200)
    assert [answer.finish_reason for answer in answers] == ["stop" if "stop" in own else "length" for own in OWN]
    assert statistics.batches == 1


def test_calls_that_differ_in_length_do_not() -> None:
    params = [{"seed": i, "max_tokens": 2 + i % 2} for i in range(8)]
    answers, statistics = together(params)
    assert [answer.text for answer in answers] == expected(params)
    assert dict(statistics.list_sizes) == {4: 2}


def test_several_choices_have_their_callers_seeds() -> None:
    params = [{"seed": 10 * i} for i in range(4)]
    answers, statistics = together(params, n=2, max_tokens=6)
    for i, answer in enumerate(answers):
        texts = [expected_text(f"prompt {i}", seed=10 * i + k, max_tokens=6) for k in range(2)]
        assert [choice.text for choice in answer.choices] == texts
    assert statistics.batches == 1


@PLAIN_OR_STREAMED
def test_a_bad_parameter_fails_its_caller_alone(max_tokens: int) -> None:
    params = [{"seed": i, "top_p": 1.5 if i == 5 else 0.9} for i in range(16)]
    answers, _ = together(params, max_tokens=max_tokens)
    wrong = answers.pop(5)
    assert type(wrong) is BadRequest
    assert "sampling_params" in str(wrong) and "top_p" in str(wrong)
    assert all(isinstance(answer, Completion) for answer in answers)
    texts = [expected_text(f"prompt {i}", max_tokens=max_tokens, **params[i]) for i in range(16) if i != 5]
    assert [answer.text for answer in answers] == texts


def test_a_parameter_of_a_wrong_type_fails_its_caller_alone() -> None:
    params: list[dict[str, Any]] = [{"seed": 1}, {"seed": "x"}, {}, {"seed": 3}]
    answers, _ = together(params, max_tokens=2, **GREEDY)
    wrong = answers.pop(1)
    assert (type(wrong), wrong.field) == (ConfigError, "seed")
    assert [answer.text for answer in answers] == [
        expected_text(f"prompt {i}", max_tokens=2, **GREEDY, **params[i]) for i in (0, 2, 3)
    ]
    answers, _ = together([{"logprobs": "5"}] * 2, peer=Peer("llamacpp", CAN["llamacpp"]), max_tokens=2)
    assert [(type(answer), answer.field) for answer in answers] == [(ConfigError, "logprobs")] * 2


def test_what_a_request_cannot_be_made_of_fails_its_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SglangDialect.forms[Kind.COMPLETION].encode

    def encode(batch: Batch) -> Any:
        assert all(request.prompt != b'"prompt 1"' for request in batch.requests)
        return write(batch)

    monkeypatch.setattr(SglangDialect.forms[Kind.COMPLETION], "encode", encode)
    answers, _ = together([{"seed": i} for i in range(4)], max_tokens=2)
    assert type(answers.pop(1)) is ConfigError
    assert [answer.text for answer in answers] == [
        expected_text(f"prompt {i}", max_tokens=2, seed=i) for i in (0, 2, 3)
    ]


@PLAIN_OR_STREAMED
@pytest.mark.parametrize("fault", ["status=503,count=1", "cut,count=1", "drop_choice,count=1", "abort,count=2"])
def test_what_is_sent_again_keeps_its_own_parameters(fault: str, max_tokens: int) -> None:
    params = [{"seed": i} for i in range(16)]
    answers, statistics = together(params, peer=SGLANG.with_(faults=[fault]), max_tokens=max_tokens)
    assert [answer.text for answer in answers] == expected(params, max_tokens=max_tokens)
    assert statistics.batches > 1


def test_equal_parameters_are_written_once() -> None:
    async def story() -> Any:
        server = Recorder(SimulatedServer("instant", model="tiny", guise=GUISES["sglang"]))
        arguments: dict[str, Any] = {"transport": lambda url, headers: server, "dialect": "sglang"}
        async with BatchClient("http://sglang/v1", model="tiny", **arguments) as client:
            await asyncio.gather(*[client.complete(f"prompt {i}", seed=7, max_tokens=2) for i in range(8)])
        return server.bodies

    (body,) = clocks.run(story)
    assert body["sampling_params"] == {"max_new_tokens": 2, "sampling_seed": 7}


def test_where_the_call_has_another_path_they_do_not_mix() -> None:
    """``echo`` has no translation: such calls go to ``/v1/completions``, which has one set of parameters."""
    params = [{"seed": i} for i in range(6)]
    answers, statistics = together(params, echo=True, max_tokens=6)
    assert [answer.text for answer in answers] == [
        f"prompt {i}{text}" for i, text in enumerate(expected(params, max_tokens=6))
    ]
    assert statistics.batches == 6


def test_tenants_and_priorities_do_not_mix() -> None:
    params = [{"seed": i, "tenant": "ab"[i % 2], "priority": i % 3} for i in range(12)]
    _, statistics = together(params, max_tokens=2)
    assert dict(statistics.list_sizes) == {2: 6}


@pytest.mark.parametrize("name", ["vllm", "llamacpp", "openai"])
def test_other_servers_get_no_such_list(name: str) -> None:
    params = [{"seed": i // 4} for i in range(8)]
    _, statistics = together(params, peer=Peer(name, CAN[name]), max_tokens=6)
    assert dict(statistics.list_sizes) == {4: 2}


class Recorder(SimulatorTransport):
    """Keeps what was sent."""

    def __init__(self, server: SimulatedServer) -> None:
        super().__init__(server)
        self.bodies: list[dict[str, Any]] = []

    async def send(self, request: Any, timeouts: Any) -> Any:
        if request.body:
            self.bodies.append(json.loads(request.body))
        return await super().send(request, timeouts)


async def _beside_a_vllm(*, found_out_first: bool) -> tuple[Any, Any, Any]:
    """Calls with seeds of their own, at an SGLang to which a vLLM is added."""
    servers = {
        guise: Recorder(SimulatedServer("gpu", model="simulated", guise=GUISES[guise])) for guise in ("sglang", "vllm")
    }

    def find(url: str) -> Recorder:
        return servers[url.split("/")[2]]

    settings = {"model": "simulated", "detect": True, "server_metrics": False, "limit": 64}
    async with connected("http://sglang/v1", calls=find, detection=find, **settings) as client:
        # Until it is known which it is, its calls share nothing.
        await asyncio.gather(*[client.complete("so that it is asked", max_tokens=2000, seed=i) for i in range(2)])
        assert str(client.statistics().endpoints[0].server).startswith("sglang")
        if found_out_first:
            client.add_endpoint("http://vllm/v1")
            servers["sglang"].bodies.clear()
            calls = [client.complete(f"prompt {i}", seed=i, max_tokens=2) for i in range(64)]
        else:
            client.pause()
            calls = [asyncio.ensure_future(client.complete(f"prompt {i}", seed=i, max_tokens=2)) for i in range(64)]
            await asyncio.sleep(0)
            client.add_endpoint("http://vllm/v1")
            # The other one is away: what is queued as one list falls to the vLLM.
            servers["sglang"].send = None  # type: ignore[method-assign]
            removal = asyncio.ensure_future(client.remove_endpoint("http://sglang/v1"))
            await asyncio.sleep(0)
            client.resume()
            await removal
        answers = await asyncio.gather(*calls)
        return answers, servers, client.statistics()


@pytest.mark.parametrize("found_out_first", [True, False])
def test_beside_another_server_they_do_not_mix(found_out_first: bool) -> None:
    answers, servers, _ = clocks.run(lambda: _beside_a_vllm(found_out_first=found_out_first))
    assert [answer.text for answer in answers] == [
        expected_text(f"prompt {i}", seed=i, max_tokens=2) for i in range(64)
    ]
    for body in servers["vllm"].bodies:
        assert isinstance(body["prompt"], str)
    assert len(servers["vllm"].bodies) >= (1 if found_out_first else 64)
    if found_out_first:
        assert all(isinstance(body["sampling_params"], dict) for body in servers["sglang"].bodies)


def test_a_detected_sglang_mixes() -> None:
    async def story() -> Any:
        server = Recorder(SimulatedServer("gpu", model="simulated", guise=GUISES["sglang"]))
        settings = {
            "model": "simulated",
            "detect": True,
            "server_metrics": False,
            "limit": 64,
            "batching": Batching(max_size=64),
        }
        seams = {"calls": lambda url: server, "detection": lambda url: server}
        async with connected("http://sglang/v1", **seams, **settings) as client:
            # The same parameters as later, when nothing is known yet.
            await asyncio.gather(*[client.complete(f"prompt {i}", seed=i, max_tokens=2) for i in range(64)])
            await client.complete("so that it is asked", max_tokens=2000, seed=1)
            server.bodies.clear()
            answers = await asyncio.gather(*[client.complete(f"prompt {i}", seed=i, max_tokens=2) for i in range(64)])
        return answers, server.bodies

    answers, bodies = clocks.run(story)
    assert [answer.text for answer in answers] == [
        expected_text(f"prompt {i}", seed=i, max_tokens=2) for i in range(64)
    ]
    (body,) = bodies
    assert [params["sampling_seed"] for params in body["sampling_params"]] == list(range(64))


def test_how_long_answers_are_is_learnt_of_all_of_them() -> None:
    """Each seed is seen once: were lengths learnt by seed, all would go singly for ever."""

    async def story(client: BatchClient) -> Any:
        for i in range(8):
            await client.complete(f"prompt {i}", seed=i, max_tokens=1000)
        await asyncio.gather(*[client.complete(f"prompt {i}", seed=i, max_tokens=1000) for i in range(8, 40)])
        return client.statistics()

    peer = SGLANG.with_(output_lengths="lognormal:20:0.2")
    statistics = peer.run(story, batching=Batching(alone_above_tokens=200), limit=64)
    assert max(statistics.list_sizes) == 32
