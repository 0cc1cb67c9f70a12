"""Length buckets and learnt output lengths."""

import json

import pytest

from tests.core import Kind
from batchclient._core.learnt.lengths import OutputLengths, PromptLengths
from batchclient._core.learnt.times import ServiceTimes
from batchclient._core.requests import Batch, Request, Shape
from batchclient.types import Choice, Completion, Usage
from tests.inspection import held


def test_buckets_double():
    for tokens, bucket in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (1023, 10), (1024, 11)]:
        request = Request(Shape(key=b"k", body=b"{}", max_output_tokens=0, counted=True), b'""', prompt_tokens=tokens)
        PromptLengths(OutputLengths()).place(request)
        assert request.bucket == bucket


def test_the_first_guess_is_256_tokens_or_the_calls_own_cap():
    for most, guess in [(None, 256), (16, 16), (256, 256), (4096, 256), (0, 0)]:
        assert OutputLengths().expected(b"k", most) == guess


def test_the_mean_moves_by_a_tenth():
    lengths = OutputLengths()
    lengths.learn(b"k", 100.0)
    lengths.learn(b"k", 200.0)
    assert lengths.expected(b"k", None) == 110
    lengths.learn(b"k", 10.0)
    assert lengths.expected(b"k", None) == 100


def test_of_4096_keys_the_one_that_was_learnt_of_longest_ago_is_forgotten():
    lengths, times = OutputLengths(), ServiceTimes()
    for n in (*range(4096), 0, 4096):
        lengths.learn(b"%d" % n, 1.0)
        times.learn(b"%d" % n, 1.0, 0.0, count=100)
    assert [lengths.expected(b"%d" % n, None) for n in (0, 1, 2, 4096)] == [1, 256, 1, 1]
    assert [times.likely(b"%d" % n, 0.0) > 0 for n in (0, 1, 2, 4096)] == [True, False, True, True]


# Prompts ------------------------------------------------------------------------------------------------------------


def text(prompt, model="m", kind=Kind.COMPLETION, **fields):
    shape = Shape(key=b"k", body=b"{}", model=model, kind=kind, **fields)
    wire = json.dumps(prompt, ensure_ascii=False).encode()
    return Request(shape, wire, prompt_tokens=len(wire) // 4 + 1)


def counted(request, tokens, number=0):
    """An answer to it, of which the server counted so many prompt tokens."""
    batch = Batch(number, 0, request.shape, [request], False, 0, 0.0, 0.0)
    usage = None if tokens is None else Usage(tokens, 1)
    return batch, [(0, Completion((Choice(0, "x", "stop"),), usage, 1))]


def estimate(lengths, request):
    lengths.place(request)
    return request.prompt_tokens


def test_what_was_counted_is_expected_of_the_like():
    lengths = PromptLengths(OutputLengths())
    for _ in range(100):
        lengths.learn(*counted(text("x" * 398), 200))
    assert estimate(lengths, text("x" * 3998)) == pytest.approx(2000, rel=0.02)
    assert estimate(lengths, text("x" * 3998, model="another")) == 1001
    assert estimate(lengths, text("x" * 3998, kind=Kind.CHAT)) == 1001
    assert estimate(lengths, text("é" + "x" * 3996)) == 1001, "another script has another ratio"


def test_an_estimate_teaches_nothing():
    lengths, asked = PromptLengths(OutputLengths()), text("x" * 398)
    batch, _ = counted(asked, None)
    for _ in range(100):
        lengths.learn(batch, [(0, Completion((Choice(0, "x", "stop"),), Usage(200, 1, prompt_tokens_estimated=True)))])
    assert estimate(lengths, asked) == 101


def test_a_change_of_texts_is_followed_within_some_tens_of_thousands_of_tokens():
    lengths = PromptLengths(OutputLengths())
    for _ in range(10_000):
        lengths.learn(*counted(text("x" * 398), 100))
    for _ in range(400):
        lengths.learn(*counted(text("x" * 398), 300))
    assert estimate(lengths, text("x" * 398)) == pytest.approx(300, rel=0.1)


def test_token_ids_are_counted_not_estimated():
    lengths = PromptLengths(OutputLengths())
    request = text([1, 2, 3], counted=True)
    request.prompt_tokens = 3
    for _ in range(10):
        lengths.learn(*counted(request, 100))
        lengths.learn(*counted(text("x"), 2))
    assert estimate(lengths, request) == 3


def test_counts_that_cannot_be_do_no_harm():
    for tokens in [None, 0, 1, 10**12]:
        lengths = PromptLengths(OutputLengths())
        for _ in range(100):
            lengths.learn(*counted(text("x" * 998), tokens))
        assert 1 <= estimate(lengths, text("x" * 998)) <= 2001


def test_an_image_in_a_conversation_says_nothing_of_texts():
    lengths = PromptLengths(OutputLengths())
    for _ in range(100):
        lengths.learn(*counted(text("x" * 398, kind=Kind.CHAT), 150))
        lengths.learn(*counted(text("A" * 100_000, kind=Kind.CHAT), 700))
    assert estimate(lengths, text("x" * 398, kind=Kind.CHAT)) == pytest.approx(150, rel=0.1)


def test_what_was_learnt_of_a_shape_counts_for_its_next_call():
    outputs = OutputLengths()
    lengths = PromptLengths(outputs)
    request = text("x" * 398, max_output_tokens=100)
    lengths.place(request)
    assert request.bucket == (101 + 100).bit_length() == 8
    outputs.learn(request.shape.learnt_as, 1000.0)
    lengths.place(request)
    assert request.bucket == (101 + 1000).bit_length() == 11
    lengths.learn(*counted(request, 50))
    lengths.place(request)
    assert request.prompt_tokens < 101


def test_what_is_found_is_not_that_of_before_too_many_shapes_were_forgotten():
    lengths = PromptLengths(OutputLengths())
    request = text("x" * 398, model="seen late")
    lengths.place(request)
    for _ in range(5000):
        lengths.learn(*counted(text("hello"), 2))
    for _ in range(100):
        lengths.learn(*counted(request, 40))
    lengths.place(request)
    assert request.prompt_tokens == pytest.approx(40, rel=0.1)


def test_many_models_are_not_remembered_for_ever():
    lengths = PromptLengths(OutputLengths())
    for number in range(5000):
        lengths.learn(*counted(text("hello", model=f"m{number}"), 2))
    assert held(lengths, list) <= 2 * 512
