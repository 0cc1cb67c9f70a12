"""Each promise fits the tree, names a test that exists, and stands in its area's file; ``.ci/run`` breaks some of them."""

from collections import Counter

import pytest

from tests.promises.table import AREAS, area_of, faults, promises


def test_each_promise_fits_the_tree_and_its_test_exists():
    table = promises()
    assert not list(faults(table))
    assert not [says for says, times in Counter(promise.says for promise in table).items() if times > 1]


@pytest.mark.parametrize("area", AREAS)
def test_each_promise_stands_in_the_file_of_its_area(area):
    assert {area_of(promise.file) for promise in promises([area])} == {area}
