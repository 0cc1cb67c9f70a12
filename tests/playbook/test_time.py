"""Time, as the core is told it."""

from tests.core import (
    Answered,
    FixedLimit,
    Outcome,
    Request,
    Scheduler,
    SchedulerSettings,
    SendBatch,
    Shape,
    Submitted,
    Woke,
)
from batchclient.types import Choice, Completion, Usage
from tests.playbook.playbook import Playbook, answered, calls


class Recording(FixedLimit):
    def __init__(self, limit):
        super().__init__(limit)
        self.samples = []

    def on_sample(self, sample):
        self.samples.append(sample)


def test_a_clock_behind_the_last_timer_does_not_turn_time_back():
    # A timer may fire a moment early: the shell tells its time, and then asks its clock, which is behind.
    limit = Recording(4)
    core = Scheduler(SchedulerSettings(trusts_lists=lambda: True), [limit])
    core.handle(Submitted(Request(Shape(b"k", b"{}"), b'"p"')), 9.0)
    core.handle(Woke(), 10.0)
    (send,) = core.commands()
    assert isinstance(send, SendBatch)
    core.handle(Answered(send.batch, [(0, Completion((Choice(0, "a", "stop"),), Usage(1, 1), 1))], ended=True), 9.985)
    (sample,) = limit.samples
    assert (sample.sent_at, sample.now) == (10.0, 10.0)


def test_what_was_sent_before_our_own_event_loop_stood_still_says_nothing_of_the_server():
    limit = Recording(1)
    play = Playbook(limit, heeds_time=True)
    first, second = calls(2)
    play.submit(first, second) >> Woke() << ["send c0"]
    assert play.wakes_at == 0.5, "a timer that watches the event loop"
    play.at(10.0) >> Woke()
    play.at(10.1) >> answered(first) << ["resolve c0", "send c1"]
    play.at(10.3) >> answered(second)
    assert [sample.outcome for sample in limit.samples] == [Outcome.IGNORED, Outcome.SUCCESS]
