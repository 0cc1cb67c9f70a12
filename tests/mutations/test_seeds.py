"""Mutated replies by the hundred; ``python -m tests.mutations`` has thousands."""

from collections import Counter

import pytest

from tests.mutations.cases import all_cases
from tests.mutations.run import run_seed

SEEDS = range(250)
AT_A_TIME = 50


@pytest.mark.parametrize("first", SEEDS[::AT_A_TIME])
def test_no_reply_costs_a_caller_its_answer_or_gives_it_anothers(first):
    for seed in range(first, first + AT_A_TIME):
        outcome = run_seed(seed)
        told = f"{outcome.about}: {'; '.join(outcome.wrong)}"
        assert not outcome.wrong, f"{told}; to see it again: python -m tests.mutations --seed {seed}"


def test_a_seed_is_one_run_exactly():
    for seed in range(6):
        # Errors are equal to none but themselves.
        assert repr(run_seed(seed).transcript) == repr(run_seed(seed).transcript)


def test_every_server_that_was_recorded_is_mutated_plain_and_streamed():
    met = Counter((case.name.partition("/")[0], case.streamed) for case in all_cases() if case.body)
    assert {server for server, _ in met} == {"litellm", "llamacpp", "transformers", "vllm"}
    assert min(met.values()) >= 4, met
