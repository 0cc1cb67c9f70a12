"""The limit by the server's metrics page: more while more generates more, and no more than the server runs."""

import itertools
import math
import random
from dataclasses import replace

from tests.core import Outcome, ServerLoad
from tests.unit.limits.samples import found, sample


class Server:
    """A server that runs ``slots`` at once, with a report every half second; callers use the whole limit.

    Args:
        per_s: generated tokens per second, by the number that runs.
        tokens: of an answer.
        answers: that end in half a second.

    ``shown`` is the share of our sequences that the page shows (a router may hide some, others may be there), and ``fields``
    are of every report.
    """

    def __init__(self, slots, per_s=lambda running: 20.0 * running, *, latency_s=1.0, tokens=10, answers=1):
        self.limit, self.tokens, self.answers = found(256), tokens, answers
        self.slots, self.per_s, self.shown, self.latency_s, self.fields = slots, per_s, 1.0, latency_s, {}
        self.now, self.made, self.preemptions, self.at_most, self.took_s = 0.0, 0.0, 0, math.inf, 0.0
        self.changes = []

    def run(self, until):
        while self.now < until:
            self.now += 0.5
            load = int(min(self.limit.limit, self.at_most))
            running = min(load, self.slots)
            self.made += 0.5 * self.per_s(running)
            counts = {"sequences": self.answers, "prompt_tokens": 100 * self.answers}
            self.limit.on_sample(sample(self.now, self.latency_s, load, tokens=self.answers * self.tokens, **counts))
            held = self.shown * load
            report = ServerLoad(min(held, self.slots), max(0.0, held - self.slots), 0.1, self.preemptions, self.made)
            before = self.limit.limit
            self.limit.on_load(replace(report, **self.fields), load, self.now, self.took_s)
            if self.limit.limit != before:
                self.changes.append((self.now, self.limit.limit, self.limit.reason))
        return self.limit.limit

    @property
    def limits(self):
        return [limit for _, limit, _ in self.changes]


def ever_less(running):
    """Each sequence more brings less than the one before; 1,024 generate 1.6 times as much as 256."""
    return 20.0 * running / (1 + running / 256)


# More --------------------------------------------------------------------------------------------------------------


def test_a_server_that_runs_a_thousand_is_given_a_thousand():
    server = Server(1024)
    assert server.run(12.0) == 1024
    assert [change[1:] for change in server.changes] == [
        (512, "the server ran 256 at once, and none waited"),
        (1024, "the server ran 512 at once, and none waited"),
    ]


def test_more_that_generates_no_more_goes_back_and_rests_ever_longer():
    server = Server(1024, lambda running: 20.0 * min(running, 256))
    server.run(4500.0)
    assert server.changes[1][1:] == (256, "512 in flight generated 100% of what 256 did")
    assert server.limits[:6] == [512, 256, 359, 256, 359, 256], "after twice as many was too much, 1.4 times is tried"
    tried = [at for at, limit, _ in server.changes if limit > 256]
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert [seconds < gap < seconds + 15 for seconds, gap in zip([60, 120, 240, 480, 900, 900], gaps)] == [True] * 6


def test_more_goes_back_at_once_where_the_server_throws_sequences_out():
    server = Server(1024)
    server.run(5.0)
    assert server.limits == [512]
    server.run(server.now + 1.5)
    server.preemptions += 3
    server.run(server.now + 0.5)
    assert server.changes[-1][1:] == (256, "512 in flight made the server throw sequences out")


def test_one_step_up_that_went_back_keeps_it_from_nothing_for_long():
    server = Server(1024, ever_less)
    server.run(7.0)
    server.preemptions += 1
    server.run(9.0)
    assert server.limits == [512, 256]
    assert ever_less(server.run(600.0)) >= 0.95 * ever_less(1024)


def test_a_burst_of_prefills_keeps_it_low_for_a_minute_at_most():
    server = Server(64, ever_less)
    server.run(5.0)
    assert server.limits == [128]
    server.slots = 1024
    assert ever_less(server.run(65.0)) >= 0.95 * ever_less(1024)


def test_a_counter_that_is_noisy_opens_nothing():
    # A server that generates no more beyond 256, and each half second a tenth more or less by chance.
    for seed in range(3):
        noise = random.Random(seed)
        server = Server(1024, lambda running, noise=noise: 20.0 * min(running, 256) * noise.uniform(0.9, 1.1))
        assert server.run(3600.0) == 256, seed


def test_more_goes_back_where_the_page_shows_no_longer_what_it_brings():
    server = Server(1024)
    server.run(5.0)
    # The API process of the server holds the others back: the engine sees half.
    server.shown = 0.5
    assert server.run(20.0) == 256
    assert server.changes[-1][2] == "512 in flight could not be judged by the page"


def test_more_that_something_else_holds_back_is_not_tried_again_for_a_minute():
    server = Server(1024)
    server.run(5.0)
    # A latency objective lets 300 out.
    server.at_most = 300
    server.run(60.0)
    assert server.changes[1:] == [(server.changes[1][0], 256, "512 in flight were not used")]


def test_a_job_that_ends_raises_nothing_where_its_calls_had_waited():
    server = Server(192)
    server.run(2.0)
    # It drains: at first calls wait in the server, at last none does.
    for left in (256, 240, 224, 208, 150, 90, 40, 10):
        server.at_most = left
        server.run(server.now + 0.5)
    assert server.limits == []


def test_a_pause_is_no_time_in_which_little_was_generated():
    for until, first, then in [(2.0, [], [512, 256]), (15.0, [512, 256], [359, 256])]:
        for pause in ["no calls", "a few calls"]:
            server = Server(1024, lambda running: 20.0 * min(running, 256))
            server.run(until)
            assert server.limits == first
            if pause == "no calls":
                server.now += 120.0
            else:
                server.at_most = 2
                server.run(until + 115.0)
            server.at_most = math.inf
            server.run(150.0)
            assert server.limits[len(first) :] == then, pause


def test_work_that_ends_under_a_check_says_nothing_of_the_step():
    server = Server(64)
    server.run(4.0)
    assert server.limits == [128]
    server.now += 30.0
    server.run(60.0)
    assert server.limits == [128, 256, 128, 71], "no minute of rest"


def test_an_engine_of_slow_steps_is_measured_for_forty_of_them():
    # The counters move once a step of 0.2 s: in half a second there are two steps, or three.
    for gain, ends_at in [(1.0, 256), (1.2, 1024)]:
        server = Server(1024)
        server.per_s = lambda running, server=server, gain=gain: (
            (2 + int(server.now * 2) % 2) / 0.5 * 256 * gain ** math.log2(running / 256)
        )
        assert server.run(60.0) == ends_at
        assert server.changes[0][0] >= 6.0


def test_it_doubles_again_once_the_server_was_started_anew():
    server = Server(1024, lambda running: 20.0 * min(running, 256))
    server.run(20.0)
    server.per_s, server.made = lambda running: 20.0 * running, 0.0
    server.limit.on_restart(server.now)
    server.run(25.0)
    assert server.limits[:3] == [512, 256, 512]


def test_it_doubles_again_soon_after_answers_have_become_longer():
    server = Server(1024, lambda running: 20.0 * min(running, 256), tokens=20, answers=128)
    server.run(30.0)
    assert server.limits == [512, 256]
    # Ten times as long, and a thousand run well now.
    server.per_s, server.tokens, server.latency_s = lambda running: 20.0 * running, 200, 10.0
    assert server.run(90.0) == 1024
    assert server.limits[2:] == [512, 1024]


def test_it_doubles_at_most_once_a_mean_latency():
    server = Server(1024, latency_s=20.0)
    server.run(60.0)
    assert server.limits == [512, 1024]
    assert server.changes[0][0] >= 20.0 and server.changes[1][0] - server.changes[0][0] >= 20.0


def test_nothing_more_is_tried():
    """With a full cache, with others, behind a router, by a slow page, without counted tokens, at an unused limit."""
    cache, tokens = {"fields": {"kv_usage_ratio": 0.8}}, {"fields": {"generation_tokens": None}}
    for about in [cache, {"shown": 1.3}, {"shown": 0.5}, {"took_s": 2.5}, tokens, {"at_most": 200}]:
        server = Server(1024)
        vars(server).update(about)
        assert server.run(9.0) == 256, about
    server = Server(1024)
    server.limit.on_known(256, 0.0)
    assert server.run(9.0) == 256, "the server's own number"
    for kv_usage_ratio, shown, took_s in ((0.79, 1.0, 0.0), (None, 1.2, 0.0), (None, 0.85, 0.0), (None, 1.0, 1.9)):
        server = Server(1024)
        server.shown, server.took_s, server.fields = shown, took_s, {"kv_usage_ratio": kv_usage_ratio}
        assert server.run(9.0) > 256, "so far it is"


def test_a_page_whose_counter_of_tokens_stands_still_decides_nothing():
    # A server of embeddings generates none.
    for slots in (64, 1024):
        server = Server(slots, lambda running: 0.0)
        server.run(60.0)
        assert server.limits == []


def test_a_page_of_counters_that_fall_decides_nothing():
    server = Server(1024)
    # Two replicas take turns behind one URL.
    server.per_s = lambda running: 1e6 if server.now % 1.0 else -1e6 + 40.0 * running
    assert server.run(9.0) == 256


# Less --------------------------------------------------------------------------------------------------------------


def test_what_waits_in_the_server_is_kept_here_by_half_at_most_at_a_step():
    server = Server(64)
    assert server.run(3.0) == 256, "one window is not over"
    assert server.run(30.0) == 71
    assert server.limits == [128, 71]
    assert server.changes[0][2] == "186 calls waited in the server all the time"
    server.slots = 1024
    server.run(34.0)
    assert server.limits[2:] == [100], "after less, more is 1.4 times"


def test_less_that_generates_less_goes_back_and_rests():
    # The server takes long to fill a place that came free.
    server = Server(64, lambda running: 0.0)
    server.per_s = lambda running: 20.0 * min(server.limit.limit, 256)
    server.run(60.0)
    assert server.limits == [128, 256]
    assert server.changes[1][2] == "128 in flight generated 50% of what 256 did"


def test_less_stays_where_the_page_shows_no_longer_what_it_brings():
    server = Server(64)
    server.run(4.0)
    server.shown = 0.5
    assert server.run(40.0) == 128
    assert server.limits == [128]


def test_wasted_answers_tell_no_latency():
    server = Server(1024)
    server.limit.on_sample(sample(0.1, 900.0, 1, outcome=Outcome.WASTED))
    assert server.run(4.0) == 512
