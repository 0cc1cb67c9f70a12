"""Random functions of rows, each killed at a random moment: results are an unkilled run's, and little is sent again."""

import json
import time
from random import Random

import pytest
from tests.crashes.functions import LIMIT, expected

from batchclient.journal.held import HeldJournal

DRAWS, SHORT, TRIES = 60, 3, 3
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
    again = []
    # On a busy machine the journal's thread may get no turn before the kill: little is sent again in one of three tries.
    while not again or (again[-1] > LIMIT + UNWRITTEN and len(again) < TRIES):
        journal, out = tmp_path / f"journal{len(again)}", tmp_path / "out"
        server.new_run()
        process = commands.start(["run", seed, server.base_url, journal, out], tmp_path)
        time.sleep(Random(seed).uniform(0.03, 0.05 + needed.total() / 800))
        process.kill()
        server.new_run()
        kept = committed(journal)
        process = commands.start(["run", seed, server.base_url, journal, out], tmp_path)
        assert process.wait() == 0, process.said
        assert json.loads(out.read_text()) == wanted
        first, second = server.runs[-2:]
        assert not first.came + second.came - needed - needed, "a call was sent more than twice"
        again.append(first.came.total() + second.came.total() - needed.total())
        assert again[-1] == first.came.total() - kept, "what the journal had was sent"
    assert again[-1] <= LIMIT + UNWRITTEN, again
