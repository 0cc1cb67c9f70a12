"""How many tokens a text is thought to have: by what servers counted of others like it."""

import json

import pytest

from batchclient.types import Usage
from tests.core import Kind, Request, Woke
from tests.playbook.playbook import Playbook, answered, shape

COMMON = shape(model="m")
TEXT = "x" * 398
"""400 bytes on the wire, with the quotes: 101 tokens before anything was counted."""


def expects(play, prompt, of=COMMON, *, counts=None, times=1, **usage):
    """How many tokens the last of some calls was thought to have; each was answered with what the server counts."""
    for _ in range(times):
        wire = json.dumps(prompt, ensure_ascii=False).encode()
        call = Request(of, wire, prompt_tokens=len(wire) // 4 + 1, waiter=f"c{play.submitted}")
        event = answered((play.submit(call) >> Woke()).last.requests[0])
        event.answers[0][1].usage = None if counts is None else Usage(counts, 1, **usage)
        play >> event
    return call.prompt_tokens


def test_what_was_counted_is_expected_of_texts_of_the_same_model_kind_and_script():
    play = Playbook()
    expects(play, TEXT, counts=200, times=100)
    assert expects(play, "x" * 3998) == pytest.approx(2000, rel=0.02)
    assert expects(play, "x" * 3998, shape(model="another")) == 1001
    assert expects(play, "x" * 3998, shape(model="m", kind=Kind.CHAT)) == 1001
    assert expects(play, "é" + "x" * 3996) == 1001


def test_a_change_of_texts_is_followed_within_some_tens_of_thousands_of_tokens():
    play = Playbook()
    expects(play, TEXT * 100, counts=10_000, times=10)
    expects(play, TEXT * 100, counts=30_000, times=6)
    assert expects(play, TEXT) == pytest.approx(300, rel=0.1)


def test_counts_that_cannot_be_and_estimates_do_no_harm():
    estimated = {"prompt_tokens_estimated": True}
    # 31 are an image in a conversation, or a prompt that the server cut: they say nothing of texts.
    for counts, usage, most in (
        (None, {}, 251),
        (500, estimated, 251),
        (1, {}, 251),
        (31, {}, 251),
        (10**12, {}, 2001),
    ):
        play = Playbook()
        expects(play, "x" * 998, counts=counts, times=100, **usage)
        assert 251 <= expects(play, "x" * 998) <= most


def test_token_ids_are_counted_not_estimated_and_teach_nothing_of_texts():
    play, ids, wire_of_400 = Playbook(), shape(model="m", counted=True), [1111] * 66
    assert expects(play, wire_of_400, ids, counts=400, times=100) == 100
    assert expects(play, TEXT) == 101
    expects(play, TEXT, counts=200, times=100)
    assert expects(play, wire_of_400, ids) == 100
