"""A hundred runs of the deterministic simulation; ``python -m tests.simulation`` has thousands and says what met what."""

import os
import subprocess
import sys

import pytest

from tests.simulation.pairs import cannot_be
from tests.simulation.run import run_seed

SEEDS = range(120)
AT_A_TIME = 24


@pytest.mark.parametrize("first", SEEDS[::AT_A_TIME])
def test_nothing_is_lost_and_nothing_doubled(first):
    for seed in range(first, first + AT_A_TIME):
        outcome = run_seed(seed)
        assert not outcome.wrong, f"{outcome.wrong[0]}; to replay it: python -m tests.simulation --seed {seed}"
        assert not [pair for pair in outcome.met if cannot_be(*pair)], f"seed {seed} met what cannot be"


def test_a_seed_is_one_run_exactly():
    for seed in range(6):
        assert run_seed(seed).transcript == run_seed(seed).transcript


def test_a_seed_is_the_same_run_in_another_process():
    # Where the order of a set of strings decided anything, this would show.
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"digest {run_seed(3).digest}" in told
