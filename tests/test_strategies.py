"""The textbook's strategies as settings: each answers everything, and they stand in the textbook's order."""

import pytest

from benchmarks.strategies import BATCH, STRATEGIES, cases, run

pytestmark = pytest.mark.long

CASES = cases(quick=True)
JOB = next(title for title in CASES if "continuous batching: a job" in title)


@pytest.mark.parametrize("title", CASES)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
def test_every_call_is_answered(title, strategy):
    figures = run(CASES[title], strategy, seed=1)
    assert figures["unanswered"] == 0
    assert figures["answers"] > 100
    assert figures["prompts_per_request"] <= (1 if strategy.name == "sequential" else BATCH)


def test_the_order_on_a_server_that_batches_continuously():
    by_name = {strategy.name: run(CASES[JOB], strategy, seed=1)["answers_per_s"] for strategy in STRATEGIES}
    sequential, static, *_, continuous, found = by_name.values()
    assert 5 * sequential < static < 0.5 * continuous
    assert static < 0.5 * found


def test_static_batches_are_full_and_one_at_a_time():
    static = STRATEGIES[1]
    assert run(CASES[JOB], static, seed=1)["prompts_per_request"] == BATCH
