"""The assertions of a scripted server: when they hold, and word for word what they say when they do not."""

import json
import re

import pytest

from batchclient import ConfigError
from batchclient.testing import MockLLM


def sent(*requests):
    """A server that got these requests, each a list of prompts or a (list, fields)."""
    mock = MockLLM()
    for request in requests:
        prompts, fields = request if isinstance(request, tuple) else (request, {})
        body = json.dumps({"model": "m", "prompt": prompts, "max_tokens": 8, **fields}).encode()
        mock.receive("POST", "/v1/completions", {"Authorization": "Bearer secret"}, body)
    return mock


def failure(assertion, *args, **params):
    with pytest.raises(AssertionError) as caught:
        assertion(*args, **params)
    return str(caught.value)


def test_what_holds_says_nothing():
    mock = sent(["a", "b"], (["c"], {"temperature": 0}))
    mock.assert_called()
    mock.assert_called(times=3)
    mock.assert_not_called("d")
    mock.assert_called_with("a")
    mock.assert_called_with("c", max_tokens=8, temperature=0, model="m", kind="completion")
    mock.assert_called_with(re.compile("[ab]"), times=2)
    mock.assert_called_with(lambda call: call.request == 2)
    mock.assert_called_with(max_tokens=8)
    mock.assert_called_with("d", times=0)
    mock.assert_batched()
    mock.assert_batched("a", "b")
    mock.assert_batched(at_most=2)
    sent().assert_not_called()
    sent().assert_called(times=0)


def test_a_call_with_other_parameters_is_shown_as_the_nearest():
    mock = sent(["Summarise: x"], (["Classify: x"], {"max_tokens": 16}))
    assert failure(mock.assert_called_with, "Classify: x", max_tokens=8, seed=1) == (
        "expected a call for 'Classify: x' with max_tokens=8, seed=1\n"
        "  nearest: call 2, completion 'Classify: x'\n"
        "    max_tokens: expected 8, was 16\n"
        "    seed: expected 1, was not given\n"
        "  there were 2 calls in 2 requests:\n"
        "    1. (request 1) completion 'Summarise: x' with max_tokens=8\n"
        "    2. (request 2) completion 'Classify: x' with max_tokens=16"
    )


def test_long_prompts_are_shown_where_they_differ():
    text = "word " * 100
    message = failure(
        sent([text + "cat, and so on and on and on"]).assert_called_with, text + "dog, and so on and on and on"
    )
    assert (
        "prompt: expected '…word word word word dog, and so on and o…', was '…word word word word cat, and so on and o…'"
        in message
    )
    assert "(they differ from character 500 on)" in message
    assert max(map(len, message.splitlines())) < 200


def test_one_and_true_are_two_things():
    assert "logprobs: expected True, was 1" in failure(
        sent((["a"], {"logprobs": 1})).assert_called_with, "a", logprobs=True
    )


def test_a_wrong_number_of_calls_is_said():
    mock = sent(["a", "a"])
    assert failure(mock.assert_called_with, "a", times=1).startswith("expected 1 call for 'a'; there were 2\n")
    assert failure(mock.assert_called, times=1).startswith("expected 1 call\n  there were 2 calls in 1 request:\n")
    assert failure(mock.assert_not_called, "a").startswith("expected no call for 'a'\n  there were 2 calls")
    assert failure(mock.assert_called_with, "a", times=0).startswith("expected no call for 'a'\n")
    assert failure(sent().assert_called) == "expected a call; there was none"
    assert failure(sent().assert_called_with, "a") == "expected a call for 'a'\n  there was no call"


def test_only_the_first_calls_are_listed():
    message = failure(sent([f"p{number}" for number in range(30)]).assert_called, times=1)
    assert message.endswith("10. (request 1) completion 'p9' with max_tokens=8\n    … and 20 more")


def test_calls_that_went_alone_are_not_batched():
    mock = sent(["a"], ["b"])
    assert failure(mock.assert_batched).startswith(
        "expected calls that share requests; each went alone\n  there were 2 calls in 2"
    )
    assert failure(mock.assert_batched, at_most=1).startswith("expected at most 1 request\n")
    assert failure(mock.assert_batched, "a", "c") == (
        "expected one request with 2 prompts:\n"
        "    'a': in request 1\n"
        "    'c': never sent\n"
        "  there were 2 calls in 2 requests:\n"
        "    1. (request 1) completion 'a' with max_tokens=8\n"
        "    2. (request 2) completion 'b' with max_tokens=8"
    )
    assert failure(sent().assert_batched) == "expected calls that share requests; there was none"
    assert (
        failure(sent(["Hello there"], ["x"]).assert_batched, "Hello thexe", "x").count(
            "never sent; nearest: 'Hello there'"
        )
        == 1
    )


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda mock: mock.assert_batched("a"), "prompts"),
        (lambda mock: mock.assert_batched(at_most=0), "at_most"),
        (lambda mock: mock.assert_called_with(7), "prompt"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(wrong, field):
    with pytest.raises(ConfigError) as caught:
        wrong(sent(["a"]))
    assert caught.value.field == field


def test_no_repr_shows_a_key_and_the_request_has_it():
    mock = sent(["a"])
    assert mock.requests[0].headers["authorization"] == "Bearer secret"
    assert "secret" not in f"{mock!r}{mock.requests!r}{mock.calls!r}"
