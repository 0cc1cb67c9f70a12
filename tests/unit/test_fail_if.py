"""``fail_if``: bounds on the share of bad rows, and the end before the end."""

import random
from collections import namedtuple

import pytest

from batchclient._maps.fail_if import FailIf
from batchclient.errors import ConfigError


Row = namedtuple("Row", "index health error reused", defaults=[False])


def result(index, kinds=(), **more):
    health = next((kind for kind in kinds if kind != "failed"), "ok")
    return Row(index, health, ValueError() if "failed" in kinds else None, **more)


def run(rules, rows):
    """Return a bound's verdicts: after how many rows the map ended early, and at the end of all rows."""
    fail_if = FailIf(rules)
    for index, kinds in enumerate(rows):
        fail_if.add(result(index, kinds))
        if fail_if.early is not None:
            return index + 1, fail_if.early
    return None, fail_if.at_end()


def test_no_job_under_its_bound_is_stopped_and_all_above_it_end_with_it():
    rng = random.Random(54)
    early = 0
    for job in range(400):
        count, percent, is_above = rng.randint(60, 400), rng.choice([2, 5, 20]), job % 2
        share = percent / 100 * (1.5 if is_above else 0.99)
        bad = -int(-share * count // 1) if is_above else int(share * count)
        rows = [["failed"]] * bad + [[]] * (count - bad)
        rng.shuffle(rows)
        stopped, broken = run([f"failed>{percent}%"], rows)
        assert (broken is not None) == bool(is_above), (count, percent, bad)
        assert stopped is None or (is_above and stopped >= 50)
        early += stopped is not None
    assert early > 5


def test_a_bound_that_is_far_off_ends_the_map_after_50_rows_and_a_share_at_it_never():
    stopped, broken = run(["empty>5%", "truncated>1%"], [["truncated"]] * 300)
    assert (stopped, str(broken)) == (50, "truncated>1%: 50 of the first 50 rows (100 %)")
    assert run(["failed>0%"], [["failed"], *[[]] * 100])[0] == 50
    # 0.29 * 100 is less than 29 in binary.
    at_bound = [["failed", "invalid"]] * 29 + [[]] * 71
    assert run(["failed > 29 %"], at_bound[::-1]) == (None, None)
    # With fewer rows only the end of all decides.
    stopped, broken = run(["invalid>28.9%"], at_bound[28:30])
    assert (stopped, broken.is_early, str(broken)) == (None, False, "invalid>28.9%: 1 of 2 rows (50 %)")


def test_a_share_above_its_bound_ends_the_map_where_that_is_certain_to_999_of_1000():
    """Of 50 rows at a bound of 5 %, 12 bad ones say so; 10 would say it to 99 of 100, and 13 to 9,999 of 10,000."""
    for bad, stopped in ((11, None), (12, 50)):
        assert run(["failed>5%"], [["failed"]] * bad + [[]] * (50 - bad))[0] == stopped


def test_rows_of_a_journal_end_nothing_early():
    fail_if = FailIf(["failed>5%"])
    for index in range(99):
        fail_if.add(result(index, ["failed"], reused=True))
    assert fail_if.early is None
    # The next row costs something.
    fail_if.add(result(99))
    assert fail_if.early.rows == 100 and fail_if.early.is_early


def test_rows_count_in_the_order_of_the_input():
    # Failures end at once, long answers later: the first to end are no sample.
    fail_if = FailIf(["failed>5%"])
    for index in (*range(0, 40_000, 25), *(index for index in range(40_000) if index % 25)):
        fail_if.add(result(index, ["failed"] if index % 25 == 0 else []))
        assert fail_if.early is None
    assert fail_if.at_end() is None


@pytest.mark.parametrize(
    "rules", [["truncated"], ["long>1%"], ["ok>1%"], ["failed>100%"], [1], 5, {1.0}, ["failed>1%"] * 2]
)
def test_a_wrong_bound_is_refused(rules):
    with pytest.raises(ConfigError) as refused:
        FailIf(rules)
    assert refused.value.field == "fail_if"


def test_a_bound_that_can_never_be_broken_is_refused():
    for call in ("embed", "classify", "score", "rerank"):
        FailIf(["failed>1%"], call)
        with pytest.raises(ConfigError, match="such as 'failed>1%', not 'truncated>1%'; kinds: failed$"):
            FailIf(["truncated>1%"], call)
