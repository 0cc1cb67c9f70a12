"""What waits for a permit: groups, buckets, the order of age."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchclient._core.messages import Isolation, Request, RequestState, Shape
from batchclient._core.waiting.order import Order
from batchclient._core.waiting.queue import Group, Queue
from tests.inspection import held

ONE, OTHER = Shape(b"one", b"{}"), Shape(b"other", b"{}")


def request(seq, shape=ONE, bucket=1):
    made = Request(shape, b'"p"')
    made.seq, made.bucket, made.state = seq, bucket, RequestState.QUEUED
    return made


def fill(queue, *requests):
    for one in requests:
        queue.add(one)
    return queue


def end(queue, one):
    one.state = RequestState.DONE
    queue.discard(one)


def seqs(requests):
    return [one.seq for one in requests]


def test_an_empty_queue_has_nothing_to_give():
    queue = Queue()
    assert queue.pop() is None
    assert (queue.size, queue.requests()) == (0, [])


def test_calls_of_one_shape_form_one_group():
    queue = Queue()
    a, b = request(0), request(1)
    assert queue.add(a) is queue.add(b) is a.group is b.group
    assert queue.add(request(2, OTHER)) is not a.group
    assert queue.size == 3


def test_a_call_that_is_queued_says_so():
    one = Request(ONE, b'"p"')
    one.seq = 0
    Queue().add(one)
    assert one.state is RequestState.QUEUED


def test_the_group_with_the_oldest_call_comes_first():
    queue = fill(Queue(), request(0, OTHER), request(1, ONE), request(2, OTHER))
    group, oldest = queue.pop()
    assert (group.shape, oldest.seq) == (OTHER, 0)
    group, oldest = queue.pop()
    assert (group.shape, oldest.seq) == (ONE, 1)
    assert queue.pop() is None


def test_a_group_that_was_put_back_comes_again():
    queue = fill(Queue(), request(0), request(1, OTHER))
    group, _ = queue.pop()
    queue.restore(group)
    assert queue.pop()[0] is group


def test_a_group_that_was_taken_from_has_the_age_of_what_is_left():
    queue = fill(Queue(), request(0), request(1, OTHER), request(2))
    group, _ = queue.pop()
    assert seqs(queue.take(group, 1, None, 0.0)) == [0]
    queue.restore(group)
    assert [queue.pop()[1].seq, queue.pop()[1].seq] == [1, 2]


def test_a_group_taken_whole_is_forgotten():
    queue = fill(Queue(), request(0))
    group, _ = queue.pop()
    queue.take(group, 5, None, 0.0)
    queue.restore(group)
    assert (queue.size, queue.pop()) == (0, None)
    assert queue.add(request(1)) is not group


def test_a_group_whose_oldest_call_was_cancelled_is_younger():
    a, b, c = request(0), request(1, OTHER), request(2)
    queue = fill(Queue(), a, b, c)
    end(queue, a)
    assert queue.size == 2
    assert queue.pop()[1] is b
    assert queue.pop()[1] is c


def test_a_group_whose_calls_were_all_cancelled_never_comes():
    a = request(0)
    queue = fill(Queue(), a)
    end(queue, a)
    assert queue.pop() is None
    fresh = request(1)
    assert queue.add(fresh) is not None
    assert queue.pop()[1] is fresh


def test_a_cancelled_call_is_never_taken():
    a, b, c = request(0), request(1), request(2)
    queue = fill(Queue(), a, b, c)
    end(queue, b)
    assert seqs(queue.take(queue.pop()[0], 5, None, 0.0)) == [0, 2]


def test_within_a_bucket_first_come_is_first_served():
    group = Group(ONE)
    for seq in (0, 1, 2, 3):
        group.add(request(seq))
    assert seqs(group.take(3, None, 0.0)) == [0, 1, 2]
    assert group.size == 1


def test_a_batch_is_filled_from_the_oldests_bucket_then_from_the_nearest_the_shorter_first():
    group = Group(ONE)
    for seq, bucket in [(0, 5), (1, 9), (2, 4), (3, 5), (4, 6), (5, 1)]:
        group.add(request(seq, bucket=bucket))
    assert seqs(group.take(9, None, 0.0)) == [0, 3, 2, 4, 5, 1]


@pytest.mark.parametrize(("reach", "taken"), [(0, [0]), (1, [0, 1]), (2, [0, 1, 2]), (None, [0, 1, 2, 3])])
def test_reach_says_how_far_a_companion_may_lie(reach, taken):
    group = Group(ONE)
    for seq, bucket in [(0, 3), (1, 4), (2, 5), (3, 30)]:
        group.add(request(seq, bucket=bucket))
    assert seqs(group.take(9, reach, 0.0)) == taken
    assert group.size == 4 - len(taken)


def test_a_whole_group_reaches_everywhere():
    group = Group(ONE, sealed=True, whole=True)
    for seq, bucket in [(0, 3), (1, 30)]:
        group.add(request(seq, bucket=bucket))
    assert seqs(group.take(2, 0, 0.0)) == [0, 1]


def test_taking_from_a_group_of_the_dead_gives_nothing():
    group = Group(ONE)
    one = request(0)
    group.add(one)
    one.state = RequestState.DONE
    group.discard()
    assert group.take(1, None, 0.0) == []
    assert group.oldest() is None


def test_a_sealed_group_has_the_age_of_its_oldest_call_and_mixes_with_nobody():
    queue = fill(Queue(), request(5))
    sealed = Group(ONE, sealed=True, failures=2, isolation=Isolation(2))
    queue.add_sealed([request(7, bucket=1), request(3, bucket=2)], sealed)
    assert queue.size == 3
    group, oldest = queue.pop()
    assert group is sealed
    assert oldest.seq == 3
    fresh = queue.pop()[0]
    assert fresh is not sealed
    assert queue.add(request(9)) is fresh


def test_a_sealed_group_is_not_the_fresh_group_of_its_shape():
    queue = Queue()
    queue.add_sealed([request(0)], Group(ONE, sealed=True))
    late = request(1)
    assert not queue.add(late).sealed


def test_all_requests_come_oldest_first_and_each_once():
    queue = fill(Queue(), request(4), request(6, OTHER), request(8))
    queue.add_sealed([request(1), request(2)], Group(ONE, sealed=True))
    queue.restore(queue.pop()[0])
    assert seqs(queue.requests()) == [1, 2, 4, 6, 8]


def test_a_group_mostly_of_the_dead_is_swept():
    group = Group(ONE)
    requests = [request(seq, bucket=seq % 3) for seq in range(200)]
    for one in requests:
        group.add(one)
    for one in requests[:190]:
        one.state = RequestState.DONE
        group.discard()
    assert held(group, Request) <= 10 + 65
    assert seqs(sorted(group, key=lambda one: one.seq)) == list(range(190, 200))


def test_groups_of_the_dead_do_not_pile_up_while_nobody_looks():
    queue = Queue()
    oldest = request(0, OTHER)
    queue.add(oldest)
    for seq in range(1, 10_000):
        one = request(seq)
        queue.add(one)
        end(queue, one)
    assert held(queue, Group) <= 130
    late = request(10_000)
    queue.add(late)
    assert [queue.pop()[1], queue.pop()[1], queue.pop()] == [oldest, late, None]


def test_the_repr_of_a_group_says_what_it_is():
    assert repr(Group(ONE)) == "<Group of 0, failures 0>"
    assert repr(Group(ONE, sealed=True, failures=3)) == "<sealed Group of 0, failures 3>"


STEPS = st.lists(st.tuples(st.sampled_from(["add", "end", "take"]), st.integers(0, 3), st.integers(0, 2**16)))


@given(st.sampled_from(["fcfs", "shortest_first", "deadline"]), STEPS)
def test_the_oldest_call_of_each_lane_is_known_in_every_order(order, steps):
    queue, live = Queue(Order(order)), []
    shapes = [Shape(bytes([i]), b"{}", priority=i % 2) for i in range(4)]
    for seq, (step, which, number) in enumerate(steps):
        if step == "add":
            one = request(seq, shapes[which], bucket=number % 3)
            one.queued_at, one.prompt_tokens, one.deadline = 10.0 + seq, number, float(number)
            queue.add(one)
            live.append(one)
        elif step == "end" and live:
            end(queue, live.pop(number % len(live)))
        elif step == "take" and (found := queue.pop()) is not None:
            taken = queue.take(found[0], which + 1, None, 0.0)
            for one in taken:
                one.state = RequestState.IN_FLIGHT
                live.remove(one)
            if number % 2 and taken:
                # They failed, and go again.
                again = Group(taken[0].shape, sealed=True)
                queue.add_sealed(taken, again)
                live = sorted([*live, *taken], key=lambda one: one.seq)
            queue.restore(found[0])
        waiting = {one.shape.priority: one.queued_at for one in reversed(live)}
        assert {lane.priority: at for lane, at in queue.arrivals().items()} == waiting
        assert queue.requests() == live


@given(STEPS)
def test_the_queue_does_as_a_plain_list_does(steps):
    queue, live = Queue(), []
    shapes = [Shape(bytes([i]), b"{}") for i in range(4)]
    for seq, (step, which, number) in enumerate(steps):
        if step == "add":
            one = request(seq, shapes[which], bucket=number % 3)
            queue.add(one)
            live.append(one)
        elif step == "end" and live:
            end(queue, live.pop(number % len(live)))
        elif step == "take":
            found = queue.pop()
            if found is None:
                assert not live
                continue
            group, oldest = found
            assert oldest is live[0], "the oldest call of all comes first"
            taken = queue.take(group, which + 1, None, 0.0)
            assert oldest in taken
            assert len(taken) == min(which + 1, sum(one.shape is group.shape for one in live))
            for one in taken:
                one.state = RequestState.IN_FLIGHT
                live.remove(one)
            queue.restore(group)
        assert queue.size == len(live)
        assert queue.requests() == live


def test_a_ranked_group_that_moved_forward_is_in_the_order_once():
    queue = Queue(Order("deadline"))
    late, soon = request(0), request(1)
    late.deadline, soon.deadline = 90.0, 10.0
    fill(queue, late, soon)
    group, oldest = queue.pop()
    assert oldest is late
    assert queue.pop() is None
    queue.restore(group)
    assert queue.pop()[0] is group


def test_a_ranked_list_leaves_out_the_dead_and_those_out_of_reach():
    queue = Queue(Order("deadline"))
    requests = [request(seq, bucket=bucket) for seq, bucket in enumerate((1, 1, 9, 1, 2))]
    for one in requests:
        one.deadline = 10.0 + one.seq
    fill(queue, *requests)
    end(queue, requests[1])
    group, _ = queue.pop()
    assert seqs(queue.take(group, 3, 1, 0.0)) == [0, 3, 4]
    assert queue.size == 1
    queue.restore(group)
    assert queue.pop()[1] is requests[2]
