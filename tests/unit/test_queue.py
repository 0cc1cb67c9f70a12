"""What waits for a permit: groups, buckets, the order of age."""

from hypothesis import given
from hypothesis import strategies as st

from tests.core import Isolation, Request, RequestState, Shape
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


def test_a_batch_is_filled_from_the_oldests_bucket_then_from_the_nearest_the_shorter_first():
    group = Group(ONE)
    for seq, bucket in [(0, 5), (1, 9), (2, 4), (3, 5), (4, 6), (5, 1)]:
        group.add(request(seq, bucket=bucket))
    assert seqs(group.take(9, None, 0.0)) == [0, 3, 2, 4, 5, 1]


def test_reach_says_how_far_a_companion_may_lie():
    for reach, taken in [(0, [0]), (1, [0, 1]), (2, [0, 1, 2]), (None, [0, 1, 2, 3])]:
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


STEPS = st.lists(st.tuples(st.sampled_from(["add", "end", "take"]), st.integers(0, 3), st.integers(0, 2**16)))


@given(st.sampled_from(["fcfs", "shortest_first", "deadline"]), STEPS)
def test_the_queue_does_as_a_plain_list_does_and_knows_the_oldest_call_of_each_lane(order, steps):
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
        elif step == "take":
            found = queue.pop()
            assert (found is None) == (not live)
            if found is None:
                continue
            members = sum(one.group is found[0] for one in live)
            taken = queue.take(found[0], which + 1, None, 0.0)
            assert len(taken) == min(which + 1, members)
            if order == "fcfs":
                first = min(live, key=lambda one: (-one.shape.priority, one.seq))
                assert found[1] is first, "the oldest call of the highest class comes first"
                assert first in taken
            for one in taken:
                one.state = RequestState.IN_FLIGHT
                live.remove(one)
            if number % 2 and taken:
                # They failed, and go again.
                for one in taken:
                    one.state = RequestState.QUEUED
                again = Group(taken[0].shape, sealed=True)
                queue.add_sealed(taken, again)
                live = sorted([*live, *taken], key=lambda one: one.seq)
            queue.restore(found[0])
        waiting = {one.shape.priority: one.queued_at for one in reversed(live)}
        assert {lane.priority: at for lane, at in queue.arrivals().items()} == waiting
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
