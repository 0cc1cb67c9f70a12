"""One endpoint's permits, and what was learnt about it."""

import pytest

from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import Sign
from batchclient._core.limits import FixedLimit, LimitChange, Outcome, Sample


def endpoint(limit=4, max_size=64):
    return Endpoint(0, FixedLimit(limit), max_size)


def test_permits_are_a_counter():
    one = endpoint()
    one.take(3, 0.0)
    assert (one.in_flight, one.free) == (3, 1)
    one.give_back(2, 0.0)
    assert (one.in_flight, one.free) == (1, 3)


def test_more_permits_than_the_limit_leave_less_than_none():
    one = endpoint(limit=2)
    one.take(5, 0.0)
    assert one.free == -3
    one.give_back(5, 0.0)
    assert one.free == 2


def test_permits_that_were_not_taken_cannot_be_returned():
    one = endpoint()
    one.take(1, 0.0)
    with pytest.raises(AssertionError):
        one.give_back(2, 0.0)


def test_lists_are_as_long_as_max_list_until_the_server_says_otherwise():
    assert endpoint(max_size=17).list_cap(0.0) == 17


def test_refused_lists_are_tried_again_after_300_s():
    one = endpoint()
    one.can().lists.refuse(10.0)
    assert (one.list_cap(309.9), one.can().lists.allows(309.9)) == (1, False)
    assert (one.list_cap(310.0), one.can().lists.allows(310.0)) == (64, True)


def test_refused_streams_are_tried_again_after_300_s():
    one = endpoint()
    assert one.can().streams(0.0)
    one.can().streaming.refuse(10.0)
    assert not one.can().streams(309.9)
    assert one.can().streams(310.0)


def test_refused_base64_is_tried_again_after_300_s():
    one = endpoint()
    assert one.can().packing.allows(0.0)
    one.can().packing.refuse(10.0)
    assert not one.can().packing.allows(309.9)
    assert one.can().packing.allows(310.0)


@pytest.mark.parametrize(
    ("failed", "stated", "cap"),
    [(32, None, 16), (3, None, 2), (1, None, 1), (32, 5, 5), (32, 31, 31), (32, 32, 16), (32, 0, 16), (32, -4, 16)],
)
def test_a_list_too_long_sets_the_cap(failed, stated, cap):
    one = endpoint()
    one.can().shorten_lists(failed, stated, 0.0)
    assert one.list_cap(0.0) == cap


def test_a_cap_never_rises_by_a_failure():
    one = endpoint()
    one.can().shorten_lists(8, 3, 0.0)
    one.can().shorten_lists(32, None, 1.0)
    assert one.list_cap(1.0) == 3


@pytest.mark.parametrize(
    ("seconds", "cap"), [(59.9, 4), (60.0, 8), (119.9, 8), (120.0, 16), (180.0, 20), (10_000.0, 20), (1e12, 20)]
)
def test_a_learnt_cap_doubles_every_minute_up_to_max_list(seconds, cap):
    one = endpoint(max_size=20)
    one.can().shorten_lists(8, None, 100.0)
    assert one.list_cap(100.0 + seconds) == cap


def test_a_cap_that_grew_too_far_shrinks_from_where_it_stands():
    one = endpoint()
    one.can().shorten_lists(8, None, 0.0)
    assert one.list_cap(60.0) == 8
    one.can().shorten_lists(8, None, 60.0)
    assert one.list_cap(60.0) == 4
    assert one.list_cap(119.0) == 4
    assert one.list_cap(120.0) == 8


def test_the_cap_does_not_depend_on_how_often_it_was_looked_at():
    seen, unseen = endpoint(), endpoint()
    seen.can().shorten_lists(8, None, 0.0)
    unseen.can().shorten_lists(8, None, 0.0)
    for second in range(200):
        seen.list_cap(float(second))
    assert seen.list_cap(200.0) == unseen.list_cap(200.0) == 32


def test_the_repr_says_how_full_it_is():
    one = endpoint()
    one.take(3, 0.0)
    assert repr(one) == "<Endpoint 0: 3 of 4 in flight>"
