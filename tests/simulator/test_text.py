"""Texts that prove whose they are."""

import hashlib

import pytest

from batchclient.simulator import (
    OutputLengths,
    count_tokens,
    expected_text,
    prompt_digest,
)
from batchclient.simulator.text import generate, pieces


def test_the_text_begins_with_the_prompts_digest():
    assert prompt_digest("hello") == hashlib.sha256(b"hello").hexdigest()[:8]
    assert prompt_digest([1, 2]) == hashlib.sha256(b"1,2").hexdigest()[:8]
    assert expected_text("hello", max_tokens=1, temperature=0) == prompt_digest("hello")


def test_the_same_prompt_gives_the_same_text_and_a_longer_one_begins_with_the_shorter():
    short = expected_text("hello", max_tokens=5, temperature=0)
    long = expected_text("hello", max_tokens=9000, temperature=0)
    assert long.startswith(short)
    assert len(long) == 8 + 8999 * 4
    assert len(generate("hello", 9000).pieces) == 9000
    assert "".join(generate("hello", 9000).pieces) == long


def test_sampled_texts_differ_by_seed_choice_and_parameters():
    texts = {
        expected_text("hello", temperature=0),
        expected_text("hello", seed=1),
        expected_text("hello", seed=2),
        expected_text("hello", seed=1, choice=1),
        expected_text("hello", seed=1, temperature=0.5),
        expected_text("hello", seed=1, top_p=0.5),
    }
    assert len(texts) == 6
    assert expected_text("hello", seed=1, temperature=1) == expected_text("hello", seed=1)
    assert all(each.startswith(prompt_digest("hello")) for each in texts)
    with pytest.raises(ValueError, match="without a seed"):
        expected_text("hello")


def test_a_stop_string_cuts_the_text_before_it():
    whole = expected_text("hello", max_tokens=50, temperature=0)
    stop = whole[21:24]
    at = whole.index(stop)
    assert expected_text("hello", max_tokens=50, temperature=0, stop=[stop]) == whole[:at]
    generation = generate("hello", 50)
    generation.apply_stops(["nowhere", stop], keep=True)
    assert (generation.finish_reason, generation.stop_reason, generation.text) == ("stop", stop, whole[: at + 3])
    assert len("".join(generation.pieces)) >= at + 3


def test_a_stream_with_stop_strings_never_takes_anything_back():
    whole = expected_text("hello", max_tokens=50, temperature=0)
    generation = generate("hello", 50)
    generation.apply_stops([whole[30:45]], keep=False)
    sent = [generation.text_between(0, k) for k in range(1, generation.tokens + 1)]
    assert all(later.startswith(earlier) for earlier, later in zip(sent, sent[1:], strict=False))
    assert sent[-1] == whole[:30]


def test_lognormal_lengths_have_the_mean_and_end_by_themselves():
    lengths = OutputLengths.parse("lognormal:100:0.5")
    drawn = [generate(f"prompt {i}", 10_000, lengths=lengths) for i in range(2000)]
    assert sum(each.tokens for each in drawn) / 2000 == pytest.approx(100, rel=0.05)
    assert {each.finish_reason for each in drawn} == {"stop"}
    cut = generate("prompt 1", 5, lengths=lengths)
    assert (cut.tokens, cut.finish_reason) == (5, "length")
    assert generate("prompt 1", 900, lengths=lengths, ignore_eos=True).tokens == 900
    assert generate("prompt 1", 900, lengths=lengths, min_tokens=800).tokens == 800
    one = drawn[0]
    # The end-of-text token counts and shows nothing.
    assert len(one.pieces) == one.tokens
    assert one.pieces[-1] == ""
    assert "".join(one.pieces) == one.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lognormal",
        "lognormal:x:1",
        "lognormal:0:1",
        "lognormal:5:-1",
        "lognormal:inf:1",
        "lognormal:5:inf",
        "fixed:3",
    ],
)
def test_wrong_lengths(text):
    with pytest.raises(ValueError, match="lognormal:MEAN:SIGMA"):
        OutputLengths.parse(text)


def test_tokens():
    assert pieces("hello big world\n") == ["hel", "lo", " big", " wor", "ld", "\n"]
    assert "".join(pieces(" a  b\t\u00e9\U0001f600")) == " a  b\t\u00e9\U0001f600"
    assert count_tokens([5, 6, 7]) == 3
    assert count_tokens("") == 0
