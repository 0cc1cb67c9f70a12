"""Random functions of rows, each killed at a random moment: results are an unkilled run's, and little is sent again."""

import json
import time
from random import Random

import pytest
from tests.crashes.functions import LIMIT, expected

from batchclient.journal.held import HeldJournal

DRAWS, SHORT = 60, 3
UNWRITTEN = 24
"""Answers of the last turn, and those that came while the thread synced a group: two were seen on a quiet machine."""


def committed(journal):
    """How many records the file has."""
    if not journal.exists():
        return 0
    held = HeldJournal.look_into(journal)
    try:
        return held.rows
    finally:
        held.close()


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] if seed >= SHORT else []) for seed in range(DRAWS)]
)
def test_a_function_killed_at_a_random_moment_ends_as_if_it_had_not_been(seed, commands, server, tmp_path):
    wanted, needed = expected(seed)
    server.pause_s = 0.004
    journal, out = tmp_path / "journal", tmp_path / "out"
    process = commands.start(["run", seed, server.base_url, journal, out], tmp_path)
    time.sleep(Random(seed).uniform(0.03, 0.05 + needed.total() / 800))
    process.kill()
    server.new_run()
    kept = committed(journal)
    process = commands.start(["run", seed, server.base_url, journal, out], tmp_path)
    assert process.wait() == 0, process.said
    assert json.loads(out.read_text()) == wanted
    first, second = server.runs
    assert not first.came + second.came - needed - needed, "a call was sent more than twice"
    again = first.came.total() + second.came.total() - needed.total()
    assert again == first.came.total() - kept, "what the journal had was sent"
    assert again <= LIMIT + UNWRITTEN
