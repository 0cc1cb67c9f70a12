"""Deadlines: a heap that forgets the ended."""

from hypothesis import given
from hypothesis import strategies as st

from batchclient._core.waiting.deadlines import Deadlines
from tests.core import Request, RequestState, Shape

SHAPE = Shape(b"k", b"{}")


def request(seq, deadline):
    made = Request(SHAPE, b'"p"', deadline=deadline)
    made.seq, made.state = seq, RequestState.QUEUED
    return made


def filled(*deadlines):
    watched = Deadlines()
    requests = [request(seq, deadline) for seq, deadline in enumerate(deadlines)]
    for one in requests:
        watched.add(one)
    return watched, requests


def test_a_million_finished_calls_do_not_pile_up():
    watched = Deadlines()
    watched.add(request(0, 1.0))
    assert end_behind_a_live_one(watched, 1) <= 2 * 1024 + 2
    assert watched.next() == 1.0


def test_what_the_front_has_dropped_is_not_swept_for_again():
    watched, requests = filled(*(float(at) for at in range(4000)))
    for one in (requests[3000], *requests[:1900]):
        one.state = RequestState.DONE
        watched.ended(1)
        watched.next()
    assert len(watched) == 2100  # one of them has ended: nothing to sweep for


def end_behind_a_live_one(watched, first_seq):
    """20,000 calls come and end; return the most that were kept."""
    most = 0
    for seq in range(first_seq, first_seq + 20_000):
        one = request(seq, 600.0 + seq)
        watched.add(one)
        one.state = RequestState.DONE
        watched.ended(1)
        most = max(most, len(watched))
    return most


def test_calls_that_lost_their_deadline_do_not_put_off_the_sweep():
    """So it is with calls that share a request: one who has all the time joins one who has not."""
    watched, requests = filled(*(float(at) for at in range(5000)))
    for one in requests:
        one.deadline = None
        one.state = RequestState.DONE
        watched.ended(one.watched)
    assert watched.next() is None
    watched.add(request(5000, 1.0))
    assert end_behind_a_live_one(watched, 5001) <= 2 * 1024 + 2


def test_calls_that_expired_do_not_bring_the_sweep_forward():
    watched, requests = filled(*(float(at) for at in range(4000)))
    for one in (requests[3999], *watched.expired(1900.0)):
        one.state = RequestState.DONE
        watched.ended(1)
    assert len(watched) == 2099  # one of them has ended


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())), st.integers(0, 50))
def test_it_does_as_a_plain_list_does(entries, now):
    watched, requests = filled(*[float(deadline) for deadline, _ in entries])
    for one, (_, ended) in zip(requests, entries, strict=True):
        if ended:
            one.state = RequestState.DONE
            watched.ended(1)
    live = sorted((one.deadline, one.seq) for one, (_, ended) in zip(requests, entries, strict=True) if not ended)
    assert watched.next() == (live[0][0] if live else None)
    due = [(one.deadline, one.seq) for one in watched.expired(float(now))]
    assert due == [pair for pair in live if pair[0] <= now]


def test_a_deadline_that_was_put_off_is_due_at_its_new_time():
    watched, (a, b, c) = filled(1.0, 3.0, 2.0)
    a.deadline, c.deadline = 2.5, None
    assert watched.expired(2.0) == []
    assert watched.next() == 2.5
    assert watched.expired(9.0) == [a, b]
    assert watched.next() is None


def test_a_deadline_that_was_taken_back_and_set_again_is_due_once():
    for looked_at in (0.0, 3.0):
        watched = Deadlines()
        one = Request(SHAPE, b'"p"', timeout_s=2.0)
        watched.begin([one], 0.0)
        watched.take_back([one], 0.0)
        assert watched.expired(looked_at) == []
        watched.begin([one], 4.0)
        assert watched.expired(5.9) == []
        assert watched.expired(6.0) == [one]
        assert watched.expired(9.0) == []
