"""Counters and their frozen snapshots."""

import dataclasses
import pickle

import pytest

from batchclient._core.limits import FixedLimit
from batchclient._core.messages import Request, Shape, Submitted, Woke
from batchclient._core.scheduler import Scheduler
from batchclient._core.settings import SchedulerSettings
from batchclient._core.statistics import Counters


def snapshot():
    scheduler = Scheduler(SchedulerSettings(), [FixedLimit(4)])
    scheduler.handle(Submitted(Request(Shape(b"k", b"{}"), b'"p"')), 0.0)
    scheduler.handle(Woke(), 0.0)
    return scheduler, scheduler.statistics()


def test_a_snapshot_cannot_be_changed():
    _, statistics = snapshot()
    with pytest.raises(dataclasses.FrozenInstanceError):
        statistics.queued = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        statistics.endpoints[0].limit = 5


def test_a_snapshot_does_not_change_by_itself():
    scheduler, statistics = snapshot()
    before = repr(statistics)
    scheduler.handle(Submitted(Request(Shape(b"other", b"{}"), b'"p"')), 1.0)
    scheduler.handle(Woke(), 1.0)
    assert repr(statistics) == before
    assert scheduler.statistics().batches == 2


def test_a_snapshot_can_be_pickled_and_made_a_dictionary():
    _, statistics = snapshot()
    assert pickle.loads(pickle.dumps(statistics)) == statistics
    assert dataclasses.asdict(statistics)["endpoints"][0]["limit"] == 4


def test_two_clients_do_not_share_their_counters():
    assert Counters().list_sizes is not Counters().list_sizes
    assert Counters().alone is not Counters().alone


def test_nothing_has_been_counted_before_the_first_call():
    statistics = Scheduler(SchedulerSettings(), [FixedLimit(4)]).statistics()
    numbers = [value for value in dataclasses.asdict(statistics).values() if isinstance(value, int)]
    assert set(numbers) == {0}
    assert (statistics.list_sizes, statistics.alone) == ({}, {})


def test_list_sizes_come_in_order():
    scheduler = Scheduler(SchedulerSettings(), [FixedLimit(64)])
    for count in (3, 1, 2):
        for _ in range(count):
            scheduler.handle(Submitted(Request(Shape(b"%d" % count, b"{}"), b'"p"')), 0.0)
    scheduler.handle(Woke(), 0.0)
    assert list(scheduler.statistics().list_sizes.items()) == [(1, 1), (2, 1), (3, 1)]
