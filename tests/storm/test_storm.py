"""A hundred storms and a few processes with signals; ``python -m tests.storm`` has thousands, and fifty."""

import pytest

from tests.storm.run import run_seeds
from tests.storm.signals import interrupt_many

SEEDS = range(100)
AT_A_TIME = 25


@pytest.mark.parametrize("first", SEEDS[::AT_A_TIME])
def test_nothing_hangs_and_nothing_is_left(first):
    wrong = [outcome for outcome in run_seeds(range(first, first + AT_A_TIME)) if outcome.wrong]
    assert not wrong, "to see one again: python -m tests.storm --seed N"


def test_a_signal_ends_a_program_as_it_ends_any_other():
    assert [(name, wrong) for name, wrong in interrupt_many(range(2)) if wrong] == []
