"""A list that one prompt spoils: sealed halves, until the guilty are alone. Rule 8."""

from math import ceil, log2

import pytest

from tests.core import Cancelled, FailureKind, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

BAD = FailureKind.BAD_CALL


def isolate(size, guilty, limit=1024):
    """Play a server that refuses every list with a guilty prompt in it; return the play and the number of batches."""
    play = Playbook(limit=limit, max_size=limit)
    everyone = calls(size)
    play.submit(*everyone) >> Woke()
    open_batches = list(play.sent)
    rejected, resolved = [], []
    while open_batches:
        batch = open_batches.pop(0)
        before = len(play.sent)
        if any(request.waiter in guilty for request in batch.requests):
            play >> failed(batch.requests[0], BAD, status=400)
            rejected += [word for word in play.seen if word.startswith("reject")]
        else:
            play >> answered(*batch.requests)
            resolved += [request.waiter for request in batch.requests]
        open_batches += play.sent[before:]
    return play, rejected, resolved


def test_a_bad_list_is_split_until_the_guilty_prompt_is_alone():
    play = Playbook(limit=8)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d) >> Woke() << ["send a b c d"]
    play >> failed(a, BAD) << ["send a b", "send c d"]
    play >> answered(a, b) << ["resolve a b"]
    play >> failed(c, BAD) << ["send c", "send d"]
    play >> failed(c, BAD) << ["reject c: BadRequest"]
    play >> answered(d) << ["resolve d"]
    assert (play.splits, play.retries, play.failed, play.succeeded) == (2, 0, 1, 3)
    assert (c.attempts, d.attempts, a.attempts) == (3, 3, 2)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 64, 100, 1024])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_exactly_the_guilty_fails_within_twice_log2_n_extra_batches(size, place):
    guilty = f"c{ {'first': 0, 'middle': size // 2, 'last': size - 1}[place] }"
    play, rejected, resolved = isolate(size, {guilty})
    assert rejected == [f"reject {guilty}: BadRequest"]
    assert sorted(resolved) == sorted({f"c{i}" for i in range(size)} - {guilty})
    assert len(play.sent) <= 1 + 2 * ceil(log2(size)) + 1


@pytest.mark.parametrize("guilty", [{"c0", "c1"}, {"c0", "c15"}, {f"c{i}" for i in range(0, 16, 2)}])
def test_every_guilty_prompt_fails_and_nobody_else(guilty):
    play, rejected, resolved = isolate(16, guilty)
    assert sorted(rejected) == sorted(f"reject {name}: BadRequest" for name in guilty)
    assert set(resolved) == {f"c{i}" for i in range(16)} - guilty


def test_a_guilty_prompt_that_came_alone_fails_at_once():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, BAD) << ["reject a: BadRequest"]
    assert play.splits == 0


def test_sealed_halves_never_mix_with_fresh_calls():
    play = Playbook(limit=4)
    (a, b, c, d), fresh = calls("a b c d"), calls("v w x y")
    play.submit(a, b, c, d) >> Woke() << ["send a b c d"]
    play.submit(*fresh) >> Woke() << []
    play >> failed(a, BAD) << ["send a b", "send c d"]
    play >> failed(a, BAD) << ["send a", "send b"]
    play >> answered(a) << ["resolve a", "send v"]
    play >> failed(b, BAD) << ["reject b: BadRequest", "send w"]


def test_a_half_is_not_cut_but_waits_until_it_fits_whole():
    play = Playbook(limit=8)
    x, y, z = calls("x y z", shape(alone_reason="alone"))
    (heavy,), (a, b, c, d) = calls("heavy", shape(weight=6)), calls("a b c d")
    play.submit(x, y, z) >> Woke() << ["send x", "send y", "send z"]
    play.submit(heavy) >> Woke() << []
    play.submit(a, b, c, d) >> Woke() << ["send a b c d"]
    play >> answered(x) << ["resolve x"]
    # The heavy call is the oldest and takes all six permits.
    play >> failed(a, BAD) << ["send heavy"]
    play >> answered(y) << ["resolve y"]
    play >> answered(z) << ["resolve z", "send a b"]
    play >> answered(heavy) << ["resolve heavy", "send c d"]


def test_a_half_too_long_for_the_limit_is_cut_as_permits_force():
    play = Playbook(limit=[8, 2])
    a, b, c, d, e, f, g, h = everyone = calls("a b c d e f g h")
    play.submit(*everyone) >> Woke() << ["send a b c d e f g h @0"]
    play >> failed(a, FailureKind.REJECTED, delay=0.0, retry_after_s=9.0) << ["send a b @1"]
    play >> failed(a, BAD) << ["send a @1", "send b @1"]


def test_answers_that_came_before_the_complaint_are_kept():
    play = Playbook(limit=4)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play >> answered(b) << ["resolve b"]
    play >> failed(a, BAD) << ["send a", "send c"]


def test_a_cancelled_call_takes_no_part_in_the_search():
    play = Playbook(limit=4)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play >> Cancelled(b) << []
    play >> failed(a, BAD) << ["send a", "send c"]


def test_a_call_cancelled_between_two_halves_is_left_out():
    play = Playbook(limit=4)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d) >> Woke() << ["send a b c d"]
    play >> failed(a, BAD) << ["send a b", "send c d"]
    play >> Cancelled(a) << []
    play >> failed(b, BAD) << ["send b"]


def test_isolation_asks_no_retry_policy_and_is_no_retry():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, BAD, delay=None) << ["send a", "send b"]
    assert (play.retries, play.backing_off, play.last.failures) == (0, 0, 0)


def test_a_half_that_meets_an_outage_backs_off_and_goes_on_searching():
    play = Playbook(limit=4)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d) >> Woke() << ["send a b c d"]
    play >> failed(a, BAD) << ["send a b", "send c d"]
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=1.0) << []
    play.at(1.0) >> Woke() << ["send a b"]
    play >> failed(a, BAD) << ["send a", "send b"]


def test_a_list_whose_every_prompt_is_well_alone_was_refused_as_a_list():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, BAD) << ["send a", "send b"]
    play >> answered(a) << ["resolve a"]
    assert not play.endpoints[0].lists_refused
    play >> answered(b) << ["resolve b"]
    assert play.endpoints[0].lists_refused


def test_a_search_that_found_a_guilty_prompt_does_not_blame_the_list():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, BAD) << ["send a", "send b"]
    play >> failed(a, BAD) << ["reject a: BadRequest"]
    play >> answered(b) << ["resolve b"]
    assert not play.endpoints[0].lists_refused


def test_an_endpoint_that_has_answered_a_list_is_not_said_to_refuse_them():
    play = Playbook(limit=4)
    x, y, a, b = calls("x y a b")
    play.submit(x, y) >> Woke() << ["send x y"]
    play >> answered(x, y) << ["resolve x y"]
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, BAD) << ["send a", "send b"]
    play >> answered(a) << ["resolve a"]
    play >> answered(b) << ["resolve b"]
    assert not play.endpoints[0].lists_refused
