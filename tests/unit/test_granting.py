"""Granting: which groups get the free permits, in which order, as which batches."""

import pytest

from batchclient._core.batching import BatchingRule
from batchclient._core.taking import Taking
from batchclient._core.waiting.deadlines import Deadlines
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.granting import Granting
from batchclient._core.learnt.lengths import OutputLengths
from batchclient._core.limits import FixedLimit
from batchclient._core.messages import Isolation, Request, RequestState, Shape
from batchclient._core.waiting.queue import Group, Queue
from batchclient._core.learnt.times import ServiceTimes
from batchclient._core.settings import SchedulerSettings
from batchclient._core.statistics import Counters

SHAPE = Shape(b"k", b"{}", max_output_tokens=16)


class Scene:
    """Some endpoints and a queue."""

    def __init__(self, *limits, **settings):
        setting = SchedulerSettings(**settings)
        self.endpoints = [Endpoint(index, FixedLimit(limit), 64) for index, limit in enumerate(limits)]
        self.queue, self.counters, self.deadlines = Queue(), Counters(), Deadlines()
        self.times = ServiceTimes()
        lengths = OutputLengths()
        rule = BatchingRule(setting, lengths)
        self.taking = Taking(self.queue, rule, lengths, self.counters, self.times, self.deadlines)
        self.granting = Granting(
            Endpoints(self.endpoints), self.queue, rule, setting.length_reach, lengths, self.taking
        )
        self.made = 0

    def add(self, count, shape=SHAPE, *, queued_at=0.0, bucket=1):
        requests = [self.request(shape, queued_at, bucket) for _ in range(count)]
        for request in requests:
            self.queue.add(request)
        return requests

    def request(self, shape=SHAPE, queued_at=0.0, bucket=1):
        request = Request(shape, b'"p"')
        request.seq, request.queued_at, request.bucket = self.made, queued_at, bucket
        self.made += 1
        return request


def test_an_empty_queue_makes_no_batch_and_no_wake_up():
    scene = Scene(4)
    scene.granting.wake_at = 5.0
    assert scene.granting.grant(1.0) == []
    assert scene.granting.wake_at is None


def test_a_batch_says_all_that_its_answer_will_need():
    scene = Scene(4)
    a, b = scene.add(2, queued_at=3.0)
    b.queued_at = 2.0
    (batch,) = scene.granting.grant(5.0)
    assert (batch.id, batch.endpoint, batch.shape, batch.requests, batch.streamed) == (1, 0, SHAPE, [a, b], True)
    assert (batch.sent_at, batch.oldest_at, batch.failures, batch.isolation) == (5.0, 2.0, 0, None)
    assert (batch.unanswered, batch.callers, batch.answered) == (2, 2, bytearray(2))
    assert {request.state for request in (a, b)} == {RequestState.IN_FLIGHT}
    assert [request.attempts for request in (a, b)] == [1, 1]
    assert a.batch is b.batch is batch
    assert a.group is None


def test_a_batch_keeps_the_history_of_its_group():
    scene = Scene(4)
    search = Isolation(2)
    scene.queue.add_sealed([scene.request()], Group(SHAPE, sealed=True, failures=3, isolation=search))
    (batch,) = scene.granting.grant(0.0)
    assert (batch.failures, batch.isolation) == (3, search)


def test_permits_are_taken_in_the_step_that_makes_the_batch():
    scene = Scene(4)
    scene.add(3, Shape(b"k", b"{}", weight=2))
    batches = scene.granting.grant(0.0)
    assert [len(batch.requests) for batch in batches] == [2]
    assert (scene.endpoints[0].in_flight, scene.queue.size) == (4, 1)


def test_batches_are_numbered_from_one_over_all_endpoints():
    scene = Scene(2, 2)
    scene.add(4)
    assert [(batch.id, batch.endpoint) for batch in scene.granting.grant(0.0)] == [(1, 0), (2, 1)]
    scene.endpoints[1].give_back(2, 0.0)
    scene.add(1)
    assert [(batch.id, batch.endpoint) for batch in scene.granting.grant(1.0)] == [(3, 1)]


def test_a_group_passed_over_is_put_back():
    scene = Scene(8, linger_s=5.0)
    scene.add(1)
    scene.granting.grant(0.0)
    scene.add(1, queued_at=1.0)
    assert scene.granting.grant(1.0) == []
    assert scene.granting.wake_at == 6.0
    assert [len(batch.requests) for batch in scene.granting.grant(6.0)] == [1]
    assert scene.granting.wake_at is None


def test_the_earliest_wake_up_counts():
    scene = Scene(8, linger_s=5.0)
    scene.add(1)
    scene.granting.grant(0.0)
    scene.add(1, Shape(b"x", b"{}"), queued_at=2.0)
    scene.add(1, Shape(b"y", b"{}"), queued_at=1.0)
    scene.granting.grant(2.0)
    assert scene.granting.wake_at == 6.0


def test_a_blocked_endpoint_is_left_alone_until_its_time():
    scene = Scene(4)
    scene.endpoints[0].blocked_until = 3.0
    scene.add(1)
    assert scene.granting.grant(2.9) == []
    assert scene.granting.wake_at == 3.0
    assert len(scene.granting.grant(3.0)) == 1
    assert scene.endpoints[0].blocked_until is None


@pytest.mark.parametrize(("count", "sizes", "alone"), [(1, {1: 1}, {"no company": 1}), (3, {3: 1}, {})])
def test_sizes_and_lone_calls_are_counted(count, sizes, alone):
    scene = Scene(4)
    scene.add(count)
    scene.granting.grant(0.0)
    assert (dict(scene.counters.list_sizes), dict(scene.counters.alone), scene.counters.batches) == (sizes, alone, 1)


# too many callers for their deadlines ---------------------------------------------------------------------------------


def with_deadlines(scene, left_s, *, now, waited_s, count=1):
    """Calls that have waited and have so much time left now."""
    requests = scene.add(count, queued_at=now - waited_s)
    for request in requests:
        request.deadline = now + left_s
        scene.deadlines.add(request)
    return requests


def slow_scene(limit, *seconds):
    """A server whose calls took these times, over and over."""
    scene = Scene(limit)
    for step in range(100):
        scene.times.learn(SHAPE.answer_key, seconds[step % len(seconds)], 9.9)
    return scene


def test_where_the_oldest_call_is_probably_late_the_newest_go_first():
    scene = slow_scene(2, 0.5, 1.5)
    with_deadlines(scene, 0.5, now=10.0, waited_s=2.0, count=3)
    newest = with_deadlines(scene, 2.4, now=10.0, waited_s=0.1, count=2)
    (batch,) = scene.granting.grant(10.0)
    assert set(batch.requests) == set(newest)
    assert scene.taking.hopeless == [], "the others may be lucky yet"
    assert scene.queue.size == 3


def test_first_come_first_served_while_there_is_time():
    scene = slow_scene(2, 1.0)
    oldest = with_deadlines(scene, 1.5, now=10.0, waited_s=1.0, count=2)
    with_deadlines(scene, 2.4, now=10.0, waited_s=0.1, count=2)
    (batch,) = scene.granting.grant(10.0)
    assert set(batch.requests) == set(oldest)


def test_no_permit_goes_to_a_call_that_has_waited_and_is_probably_late_while_others_wait():
    scene = slow_scene(1, 0.5, 1.5)
    (alone,) = with_deadlines(scene, 1.5, now=10.0, waited_s=1.0)
    (batch,) = scene.granting.grant(10.0)
    assert batch.requests == [alone], "nobody else waits: it is tried"
    scene = slow_scene(1, 0.5, 1.5)
    waited = with_deadlines(scene, 1.5, now=10.0, waited_s=1.0, count=2)
    assert scene.granting.grant(10.0)[0].requests == [waited[0]], "the last one is alone"
    assert scene.taking.hopeless == [waited[1]]


def test_the_deadline_of_a_call_in_flight_takes_no_other_out():
    scene = slow_scene(2, 1.0)
    in_flight = scene.request()
    in_flight.deadline = 10.1
    scene.deadlines.add(in_flight)
    in_time = with_deadlines(scene, 9.0, now=10.0, waited_s=2.0, count=3)
    (batch,) = scene.granting.grant(10.0)
    assert batch.requests == in_time[:2]
    assert scene.taking.hopeless == []


def test_a_fresh_call_is_tried_though_it_is_probably_late():
    """Else a server too slow for everybody's deadlines would be sent nothing, and nobody would find out that it recovered."""
    scene = slow_scene(4, 0.5, 1.5)
    fresh = with_deadlines(scene, 1.5, now=10.0, waited_s=0.1, count=6)
    (batch,) = scene.granting.grant(10.0)
    assert set(batch.requests) < set(fresh)
    assert len(batch.requests) == 4
    assert scene.taking.hopeless == []
