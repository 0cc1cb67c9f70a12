"""The same cases for every dialect against its server: each caller has its own answer or an error, and its own usage or a share.

What a server cannot do is in the table of ``peers.py``, and nowhere here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batchclient import BadRequest, BatchClient, Batching, Completion
from batchclient.retry import Backoff
from batchclient.simulator import (
    count_tokens,
    expected_text,
)
from batchclient.types import Usage
from tests.contract.peers import CAN, Peer

PROMPTS = [f"def function_{i}(argument" + " and more" * (i % 5) for i in range(24)]
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.0, "seed": 11}
ANSWERS = pytest.mark.parametrize("max_tokens", [2, 12], ids=["plain", "streamed"])


def together(peer: Peer, prompts: list[Any], settings: dict[str, Any] | None = None, **params: Any) -> Any:
    """The outcomes of calls made at once, and the client's statistics."""

    async def story(client: BatchClient) -> Any:
        calls = [client.complete(prompt, **params) for prompt in prompts]
        return await asyncio.gather(*calls, return_exceptions=True), client.statistics()

    return peer.run(story, **(settings or {}))


def alone(peer: Peer, prompts: list[Any], **params: Any) -> list[Any]:
    answers, statistics = together(peer, prompts, {"batching": Batching(max_size=1)}, **params)
    assert set(statistics.list_sizes) <= {1}
    return answers


def texts(answers: list[Any]) -> list[Any]:
    return [[choice.text for choice in each.choices] if isinstance(each, Completion) else each for each in answers]


def usage_of(prompt: str, max_tokens: int) -> Usage:
    return Usage(count_tokens(prompt), max_tokens)


def check(can: bool | type[Exception] | None, answers: list[Any]) -> bool:
    """Whether the server can do it; if not, that every caller has the error that the table says, or an answer if it says none."""
    if isinstance(can, type):
        assert [type(answer) for answer in answers] == [can] * len(answers)
        return False
    assert all(isinstance(answer, Completion) for answer in answers), answers
    return bool(can)


@ANSWERS
def test_one_text(peer: Peer, max_tokens: int) -> None:
    (answer,) = alone(peer, ["def f("], max_tokens=max_tokens, **GREEDY)
    assert answer.usage.completion_tokens == max_tokens
    assert answer.finish_reason == "length"
    assert answer.attempts == 1
    if peer.base_url is None:
        assert answer.text == expected_text("def f(", max_tokens=max_tokens, temperature=0)
        assert answer.usage == usage_of("def f(", max_tokens)


@ANSWERS
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_list_of_many_callers_answers_each_as_if_it_were_alone(peer: Peer, max_tokens: int, params: Any) -> None:
    answers, statistics = together(peer, PROMPTS, max_tokens=max_tokens, **params)
    one_by_one = alone(peer, PROMPTS, max_tokens=max_tokens, **params)
    assert texts(answers) == texts(one_by_one)
    # A real one draws the same random numbers for every prompt of one seed.
    assert len({answer.text for answer in answers}) > (12 if peer.base_url is None else 1)
    longest = peer.can.longest_list
    if longest > 1:
        assert max(statistics.list_sizes) == longest if longest < 24 else max(statistics.list_sizes) > 8
    counted = peer.can.counts_plain if max_tokens <= 4 else peer.can.counts_streamed
    lists = [answer.usage for answer in answers]
    singles = [answer.usage for answer in one_by_one]
    assert None not in singles
    if longest > 1:
        if counted:
            assert lists == singles
        else:
            assert all(usage.prompt_tokens_estimated for usage in lists)
            assert [usage.completion_tokens for usage in lists] == [max_tokens] * 24
            if max_tokens <= 4:
                # Shares of each list's sum: all of them together are what the prompts have.
                assert sum(usage.prompt_tokens for usage in lists) == sum(usage.prompt_tokens for usage in singles)
    else:
        assert lists == singles
    if peer.base_url is None:
        assert singles == [usage_of(prompt, max_tokens) for prompt in PROMPTS]


def test_callers_with_other_lengths_get_their_own(peer: Peer) -> None:
    lengths = [1 + i % 7 for i in range(42)]

    async def story(client: BatchClient) -> Any:
        calls = [client.complete(PROMPTS[i % 24], max_tokens=n, **GREEDY) for i, n in enumerate(lengths)]
        return await asyncio.gather(*calls)

    answers = peer.run(story)
    for i, (answer, n) in enumerate(zip(answers, lengths, strict=True)):
        if answer.usage is not None:
            assert answer.usage.completion_tokens == n
        if peer.base_url is None:
            assert answer.text == expected_text(PROMPTS[i % 24], max_tokens=n, temperature=0)


@ANSWERS
def test_several_choices_belong_to_their_prompt(peer: Peer, max_tokens: int) -> None:
    answers, _ = together(peer, PROMPTS[:6], max_tokens=max_tokens, n=2, **SEEDED)
    if check(peer.can.n, answers):
        one_by_one = alone(peer, PROMPTS[:6], max_tokens=max_tokens, n=2, **SEEDED)
        assert [[choice.index for choice in answer.choices] for answer in answers] == [[0, 1]] * 6
        assert texts(answers) == texts(one_by_one)
        assert len({text for answer in texts(answers) for text in answer}) > (11 if peer.base_url is None else 3)
        for prompt, answer in zip(PROMPTS, answers, strict=False):
            if answer.usage is not None:
                assert answer.usage.completion_tokens == 2 * max_tokens
                estimated = answer.usage.prompt_tokens_estimated
                assert peer.base_url or estimated or answer.usage.prompt_tokens == count_tokens(prompt)


@ANSWERS
def test_a_stop_string_ends_an_answer_and_is_not_in_it(peer: Peer, max_tokens: int) -> None:
    (whole,) = alone(peer, ["def f("], max_tokens=max_tokens, **GREEDY)
    stop = whole.text[-2:]
    answers, _ = together(peer, ["def f("] * 3, max_tokens=max_tokens, stop=[stop, "not there"], **GREEDY)
    before = whole.text[: whole.text.index(stop)]
    for answer in answers:
        assert answer.finish_reason == "stop"
        assert answer.text == before


@ANSWERS
def test_logprobs_cover_every_token(peer: Peer, max_tokens: int) -> None:
    answers, _ = together(peer, PROMPTS[:6], max_tokens=max_tokens, logprobs=2, **GREEDY)
    if not check(peer.can.logprobs, answers):
        assert all(isinstance(answer, BadRequest) or answer.choices[0].logprobs is None for answer in answers)
        return
    for answer in answers:
        logprobs = answer.choices[0].logprobs
        assert {len(logprobs[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {
            max_tokens
        }
        assert "".join(logprobs["tokens"]) == answer.text
        assert logprobs["text_offset"][0] == 0
        assert logprobs["text_offset"] == sorted(set(logprobs["text_offset"]))
        assert {len(top) for top in logprobs["top_logprobs"]} <= {2, 3}


@ANSWERS
def test_prompts_may_be_token_ids(peer: Peer, max_tokens: int) -> None:
    prompts = [[10 + i, 20, 30] for i in range(8)]
    answers, _ = together(peer, prompts, max_tokens=max_tokens, **GREEDY)
    if check(peer.can.ids, answers):
        one_by_one = alone(peer, prompts, max_tokens=max_tokens, **GREEDY)
        assert texts(answers) == texts(one_by_one)
        assert all(answer.usage is None or answer.usage.total_tokens == 3 + max_tokens for answer in answers)


@ANSWERS
def test_token_ids_are_told_to_those_who_ask(peer: Peer, max_tokens: int) -> None:
    answers, _ = together(peer, PROMPTS[:6], max_tokens=max_tokens, return_token_ids=True, **GREEDY)
    if check(peer.can.returns_ids, answers):
        assert [len(answer.choices[0].token_ids) for answer in answers] == [max_tokens] * 6
    silent, _ = together(peer, PROMPTS[:6], max_tokens=max_tokens, **GREEDY)
    assert {answer.choices[0].token_ids for answer in silent} == {None}


@ANSWERS
def test_an_over_long_prompt_fails_alone(peer: Peer, max_tokens: int) -> None:
    if not peer.can.refuses_long:
        pytest.skip("it takes prompts of any length")
    prompts = [*PROMPTS[:10], "a b " * 3000, *PROMPTS[10:]]
    answers, _ = together(peer, prompts, max_tokens=max_tokens, **GREEDY)
    assert [i for i, answer in enumerate(answers) if isinstance(answer, Exception)] == [10]
    assert isinstance(answers[10], BadRequest)
    assert "a b a b" not in str(answers[10])


def test_a_wrong_model_is_the_callers_fault(peer: Peer) -> None:
    answers, _ = together(peer, PROMPTS[:4], model="nope", max_tokens=2, **GREEDY)
    check(peer.can.wrong_model or True, answers)


# Faults, and servers that are not known -------------------------------------------------------------------------------


UNDETECTABLE = {("sglang", "reorder", 2)}
"""What no client can see: the order of an array without indices."""


def expected(prompts: list[str], max_tokens: int) -> list[list[str]]:
    return [[expected_text(prompt, max_tokens=max_tokens, temperature=0)] for prompt in prompts]


def assert_right(answers: list[Any], prompts: list[str], max_tokens: int) -> None:
    """Every answer is its caller's own, and so is every usage that does not say otherwise."""
    assert texts(answers) == expected(prompts, max_tokens)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.usage is None or answer.usage.estimated or answer.usage == usage_of(prompt, max_tokens)


@ANSWERS
def test_whatever_the_server_is_each_caller_has_its_own_answer(simulated: Peer, max_tokens: int) -> None:
    answers, statistics = together(simulated, PROMPTS, max_tokens=max_tokens, **GREEDY)
    assert_right(answers, PROMPTS, max_tokens)
    assert statistics.retries == 0


@ANSWERS
def test_a_bad_prompt_in_a_list_fails_alone(simulated: Peer, max_tokens: int) -> None:
    prompts = [*PROMPTS[:7], "a poison pill", *PROMPTS[7:]]
    peer = simulated.with_(faults=["bad_prompt=poison"])
    answers, _ = together(peer, prompts, max_tokens=max_tokens, **GREEDY)
    refused = answers.pop(7)
    assert isinstance(refused, BadRequest)
    assert refused.status == 400
    assert_right(answers, PROMPTS, max_tokens)


@ANSWERS
def test_refusals_of_a_full_server_are_retried(simulated: Peer, max_tokens: int) -> None:
    # Fewer at once than the client begins with, and patience.
    peer = simulated.with_(profile="gpu", max_queued=12)
    settings = {"limit": 24, "retry": Backoff(max_attempts=30)}
    answers, statistics = together(peer, PROMPTS, settings, max_tokens=max_tokens, **GREEDY)
    assert_right(answers, PROMPTS, max_tokens)
    assert statistics.retries > 0


@pytest.mark.parametrize(
    "fault",
    [
        "cut,count=2",
        "disconnect,count=2",
        "error_event,count=2",
        "abort,count=2",
        "status=500,count=2",
        "garbage,count=1",
        "first_only",
        "no_lists",
        "reorder",
        "serial",
        "sum_usage",
        "drop_choice,count=2",
        "double_choice,count=2",
    ],
)
@ANSWERS
def test_no_fault_gives_a_caller_a_wrong_answer_or_none(guise: str, fault: str, max_tokens: int) -> None:
    if (guise, fault.partition(",")[0], max_tokens) in UNDETECTABLE:
        pytest.skip("nothing in the reply shows it")
    peer = Peer(guise, CAN[guise], known=fault != "sum_usage", options={"faults": [fault]})
    answers, _ = together(peer, PROMPTS, max_tokens=max_tokens, **GREEDY)
    assert_right(answers, PROMPTS, max_tokens)
