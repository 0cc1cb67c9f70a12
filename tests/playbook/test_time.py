"""Time, as the core is told it."""

from batchclient._core.limits import FixedLimit
from batchclient._core.messages import Answered, Request, SendBatch, Shape, Submitted, Woke
from batchclient._core.scheduler import Scheduler
from batchclient._core.settings import SchedulerSettings
from batchclient.types import Choice, Completion, Usage


class Recording(FixedLimit):
    def __init__(self, limit):
        super().__init__(limit)
        self.samples = []

    def on_sample(self, sample):
        self.samples.append(sample)


def test_a_clock_behind_the_last_timer_does_not_turn_time_back():
    # A timer may fire a moment early: the shell tells its time, and then asks its clock, which is behind.
    limit = Recording(4)
    core = Scheduler(SchedulerSettings(), [limit])
    core.handle(Submitted(Request(Shape(b"k", b"{}"), b'"p"')), 9.0)
    core.handle(Woke(), 10.0)
    (send,) = core.commands()
    assert isinstance(send, SendBatch)
    core.handle(Answered(send.batch, [(0, Completion((Choice(0, "a", "stop"),), Usage(1, 1), 1))], ended=True), 9.985)
    (sample,) = limit.samples
    assert (sample.sent_at, sample.now) == (10.0, 10.0)
