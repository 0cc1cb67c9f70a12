"""Each line of promises.tsv fits the tree and names a test that exists; ``make long`` breaks a sample of them."""

from collections import Counter

from tests.promises import faults, table


def test_each_promise_fits_the_tree_and_its_test_exists():
    lines = table()
    assert not list(faults(lines))
    assert not [promise for promise, times in Counter(line.promise for line in lines).items() if times > 1]
