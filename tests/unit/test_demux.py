"""Which choice belongs to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchclient.dialects._demux import Demux
from batchclient.errors import DemuxError


def test_choices_are_numbered_prompt_by_prompt():
    demux = Demux(prompts=2, n=3)
    assert [demux.finish(demux.check(index)) for index in (0, 1, 2, 3, 4, 5)] == [None, None, 0, None, None, 1]
    assert demux.complete


def test_an_index_of_no_choice_is_refused():
    for index in [-1, 4, 10**30, True, False, None, "1", 1.0, [], float("nan")]:
        with pytest.raises(DemuxError, match="4 choices"):
            Demux(2, 2).check(index)


def test_an_index_that_has_finished_is_refused():
    demux = Demux(2, 1)
    demux.finish(demux.check(1))
    with pytest.raises(DemuxError, match="choice 1 twice"):
        demux.check(1)


def test_a_long_index_is_shortened_in_the_message():
    with pytest.raises(DemuxError) as caught:
        Demux(1, 1).check("x" * 10_000)
    assert len(str(caught.value)) < 120


def test_what_is_missing_is_said_in_words():
    demux = Demux(3, 1)
    demux.finish(demux.check(1))
    assert not demux.complete
    assert demux.missing().message == "2 of 3 choices are missing from the reply"


@given(st.integers(1, 6), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_prompt_completes_once_and_with_its_last_choice(prompts, n, rng):
    indices = list(range(prompts * n))
    rng.shuffle(indices)
    demux, left, completed = Demux(prompts, n), [n] * prompts, []
    for index in indices:
        left[index // n] -= 1
        position = demux.finish(demux.check(index))
        assert position == (index // n if not left[index // n] else None)
        completed += [] if position is None else [position]
        assert demux.complete == (not any(left))
    assert sorted(completed) == list(range(prompts))
