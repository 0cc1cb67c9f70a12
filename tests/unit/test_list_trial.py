"""The trial of lists against singles, without a scheduler."""

import heapq
import random

import pytest

from batchclient._core.learnt.list_trial import COMPARED, GIVEN_UP, ListTrial, Measured

KEY = b"k"
OTHER = b"other"


def ended(trial, prompts, seconds, sent_at, *, tokens=0, load=32.0, key=KEY):
    """A request was sent, and answered after so many seconds."""
    trial.sent(key, prompts, sent_at)
    return trial.ended(key, Measured(prompts, tokens, seconds, load), sent_at, sent_at + seconds)


def side(trial, form, now, *, list_s=0.8, single_s=0.1, load=32.0):
    """One list of 16, or 16 singles, sent now; return what is said of it."""
    if form == "L":
        return ended(trial, 16, list_s, now, load=load)
    return [ended(trial, 1, single_s, now, load=load) for _ in range(16)][-1]


def begun():
    """A comparison begins at 2.0, with a list that does not count."""
    trial = ListTrial()
    assert ended(trial, 16, 0.1, 0.0) is None
    assert ended(trial, 16, 0.1, 1.9) is None
    return trial


def compared(trial, begin=10.0, *, list_s=1.6, **of):
    """All eight sides, ten seconds apart; return what was said of each."""
    return [side(trial, form, begin + 10.0 * place, list_s=list_s, **of) for place, form in enumerate("LSSLLSSL")]


def given_up():
    """Lists are given up at 81.6; singles take 0.1 s."""
    trial = begun()
    assert compared(trial) == [None] * 7 + [True]
    return trial


# How it is decided ---------------------------------------------------------------------------------------------------


def test_a_server_that_serves_lists_one_prompt_after_another_loses_them():
    trial = given_up()
    assert trial.gave_up
    assert trial.why_single(KEY, 82.0) == GIVEN_UP


@pytest.mark.parametrize(("list_s", "given"), [(1.07, True), (1.06, False), (0.1, False)])
def test_lists_lose_where_they_take_two_thirds_of_what_singles_take_one_by_one(list_s, given):
    trial = begun()
    compared(trial, list_s=list_s)
    assert trial.gave_up is given


@pytest.mark.parametrize("lost", range(4))
def test_one_pair_that_lists_win_is_enough(lost):
    trial = begun()
    for place, form in enumerate("LSSLLSSL"):
        said = side(trial, form, 10.0 * (place + 1), list_s=1.0 if place // 2 == lost else 1.6)
        assert said is None
    assert not trial.gave_up
    assert trial.why_single(KEY, 100.0) is None


@pytest.mark.parametrize(("singles_load", "given"), [(25.6, True), (25.5, False), (300.0, True)])
def test_singles_at_a_lower_load_win_nothing(singles_load, given):
    trial = begun()
    for place, form in enumerate("LSSLLSSL"):
        side(trial, form, 10.0 * (place + 1), list_s=1.6, load=singles_load if form == "S" else 32.0)
    assert trial.gave_up is given


@pytest.mark.parametrize(
    ("tokens", "single_s", "given"),
    [(50, 0.37, True), (50, 0.38, False), (33, 0.74, True), (33, 0.76, False), (250, 1.8, True), (250, 1.9, False)],
)
def test_answers_count_by_their_tokens_unless_these_are_miscounted(tokens, single_s, given):
    trial = begun()
    for place, form in enumerate("LSSLLSSL"):
        now = 10.0 * (place + 1)
        if form == "L":
            ended(trial, 16, 8.0, now, tokens=1600)
        else:
            for _ in range(16):
                ended(trial, 1, single_s, now, tokens=tokens)
    assert trial.gave_up is given


def test_where_not_everybody_counts_tokens_prompts_count():
    trial = begun()
    for place, form in enumerate("LSSLLSSL"):
        now = 10.0 * (place + 1)
        if form == "L":
            ended(trial, 16, 1.6, now)
        else:
            for _ in range(16):
                ended(trial, 1, 0.1, now, tokens=20)
    assert trial.gave_up


def test_short_lists_are_measured_together():
    trial = begun()
    for place, form in enumerate("LSSLLSSL"):
        if form == "S":
            side(trial, form, 10.0 * (place + 1))
        else:
            said = [ended(trial, 4, 0.4, 10.0 * (place + 1)) for _ in range(4)]
    assert said == [None, None, None, True]


def test_lists_of_two_or_three_say_nothing():
    trial = ListTrial()
    for second in range(100):
        assert ended(trial, 3, 3.0, float(second)) is None
        assert trial.why_single(KEY, float(second)) is None


# What goes singly, and when ------------------------------------------------------------------------------------------


def test_nothing_is_compared_in_the_first_second():
    trial = ListTrial()
    for tenth in range(10):
        assert ended(trial, 16, 0.1, tenth / 10) is None
        assert ended(trial, 1, 0.1, tenth / 10) is None
    # Had it begun, this would have been its first side.
    assert side(trial, "L", 1.05) is None
    assert trial.why_single(KEY, 1.9) is None


def test_four_calls_go_singly_for_the_first_pair_and_sixteen_for_the_next():
    trial = begun()
    assert trial.why_single(KEY, 2.0) is None
    side(trial, "L", 3.0, list_s=1.6)
    for begin, singles in ((5.0, 4), (6.0, 16)):
        assert trial.why_single(OTHER, begin) is None
        for _ in range(singles):
            assert trial.why_single(KEY, begin) == COMPARED
            trial.sent(KEY, 1, begin)
        assert trial.why_single(KEY, begin) is None, "lists go on"
        for _ in range(singles):
            trial.ended(KEY, Measured(1, 0, 0.1, 32.0), begin, begin + 0.1)


def test_what_was_sent_before_a_side_began_is_not_measured():
    trial = begun()
    assert side(trial, "L", 1.0, list_s=1.6) is None
    assert trial.why_single(KEY, 2.6) is None, "it was sent before the comparison began"
    side(trial, "L", 3.0, list_s=1.6)
    for _ in range(16):
        ended(trial, 1, 2.0, 4.0)
    assert trial.why_single(KEY, 6.0) is None, "all were sent"
    for _ in range(16):
        ended(trial, 1, 0.1, 6.0)
    assert trial.why_single(KEY, 6.1) == COMPARED, "they were sent before the list had ended; these count"


def test_comparisons_grow_rare():
    trial, begun_at, now = ListTrial(), [], 0.0
    while now < 20_000.0:
        if side(trial, "L", now) is None and trial.why_single(KEY, now + 0.8) == COMPARED:
            begun_at.append(now)
            side(trial, "S", now + 0.9)
            assert trial.why_single(KEY, now + 1.0) is None
        now += 2.0
    pauses = [later - earlier for earlier, later in zip(begun_at, begun_at[1:], strict=False)]
    assert pauses == [pytest.approx(pause, abs=4.0) for pause in (300, 600, 1200, 2400, 3600, 3600, 3600, 3600)]


def test_a_comparison_that_comes_to_nothing_ends():
    trial = begun()
    side(trial, "L", 3.0, list_s=1.6)
    for _ in range(16):
        trial.sent(KEY, 1, 5.0)
    # All failed. Lists go on, and after five minutes it is begun anew, with a list.
    for second in range(10, 310, 10):
        assert side(trial, "L", float(second)) is None
    assert trial.why_single(KEY, 310.0) is None
    side(trial, "L", 310.0)
    side(trial, "L", 320.0)
    assert trial.why_single(KEY, 321.0) == COMPARED


# What follows --------------------------------------------------------------------------------------------------------


def test_a_verdict_is_one_keys_own():
    trial = given_up()
    assert trial.why_single(OTHER, 82.0) is None


def test_one_list_a_minute_is_tried_while_lists_are_given_up():
    trial = given_up()
    assert trial.why_single(KEY, 141.5) == GIVEN_UP
    assert trial.why_single(KEY, 141.7) is None
    trial.sent(KEY, 16, 141.7)
    assert trial.why_single(KEY, 141.7) == GIVEN_UP
    assert trial.why_single(KEY, 201.6) == GIVEN_UP
    assert trial.why_single(KEY, 201.8) is None


@pytest.mark.parametrize(("list_s", "kept"), [(1.6, True), (0.81, True), (0.79, False), (0.1, False)])
def test_a_list_that_is_fast_takes_the_verdict_back_at_once(list_s, kept):
    trial = given_up()
    assert ended(trial, 16, list_s, 150.0) is (None if kept else False)
    assert trial.gave_up is kept
    assert trial.why_single(KEY, 152.0) == (GIVEN_UP if kept else None)


def test_a_list_is_compared_with_the_singles_beside_it():
    trial = given_up()
    for _ in range(16):
        ended(trial, 1, 1.0, 100.0)
    assert ended(trial, 16, 7.9, 150.0) is False, "half of what they take now, if five times what they took then"


def test_after_a_verdict_that_was_wrong_the_next_comparison_is_later():
    trial = given_up()
    assert ended(trial, 16, 0.1, 150.0) is False
    for second in range(160, 750, 10):
        assert side(trial, "L", float(second)) is None
        assert trial.why_single(KEY, second + 1.0) is None
    side(trial, "L", 760.0)
    side(trial, "L", 770.0)
    assert trial.why_single(KEY, 771.0) == COMPARED


def test_keys_are_not_remembered_for_ever():
    trial = given_up()
    for number in range(15):
        side(trial, "L", 100.0, list_s=1.6)
        ended(trial, 16, 1.6, 100.0, key=b"%d" % number)
    assert trial.gave_up
    for number in range(16):
        ended(trial, 16, 1.6, 100.0, key=b"%d" % number)
    assert not trial.gave_up


# Whole servers, simulated --------------------------------------------------------------------------------------------


class Server:
    """A queue that never ends, and a limit; a request takes as long as its answers are, and as its noise makes it.

    Args:
        seconds: a request's, from the seconds of its answers alone.
        noise: a factor, from the random numbers and the time.
    """

    def __init__(self, seed, seconds, noise=lambda rng, now: 1.0, *, limit=32, longest=8, spread=0.5):
        self.rng, self.trial, self.now = random.Random(seed), ListTrial(), 0.0
        self.seconds, self.noise, self.limit, self.longest, self.spread = seconds, noise, limit, longest, spread
        self.in_flight, self.singles = 0, 0
        self._open = []

    def run(self, until):
        """Go on until then, or until lists are given up (True) or taken back (False); return when and which."""
        while self.now < until:
            while self._send():
                pass
            self.now, _, prompts, tokens, sent_at = heapq.heappop(self._open)
            self.in_flight -= prompts
            request = Measured(prompts, tokens, self.now - sent_at, float(self.limit))
            given_up = self.trial.ended(KEY, request, sent_at, self.now)
            if given_up is not None:
                return self.now, given_up
        return None

    def pass_by(self, until):
        """Nobody calls until then; what is under way is answered, and counts for nothing."""
        self._open.clear()
        self.in_flight, self.now = 0, until

    def _send(self):
        free = self.limit - self.in_flight
        alone = self.trial.why_single(KEY, self.now) is not None
        prompts = 1 if alone else min(self.longest, free)
        if free < (1 if alone else min(self.longest, self.limit // 4)):
            return False
        self.trial.sent(KEY, prompts, self.now)
        self.in_flight += prompts
        self.singles += alone
        lengths = [max(1, round(24 * self.rng.lognormvariate(0, self.spread))) for _ in range(prompts)]
        seconds = self.seconds([0.02 + 0.01 * length for length in lengths]) * self.noise(self.rng, self.now)
        heapq.heappush(self._open, (self.now + seconds, self.rng.random(), prompts, sum(lengths), self.now))
        return True


def hiccups(rng, now):
    """A machine kept busy by others: every other request takes 30 to 100 % longer."""
    return rng.uniform(1.3, 2.0) if rng.random() < 0.5 else 1.0


def busy_stretches(rng, now):
    """The same in stretches of three seconds, which everybody meets alike."""
    return 1.0 + random.Random(int(now / 3)).choice([0.0, rng.uniform(0.3, 1.0)])


@pytest.mark.parametrize("spread", [0.0, 0.9])
@pytest.mark.parametrize("longest", [4, 8, 32])
def test_a_serial_server_is_found_within_some_twelve_lists_time(longest, spread):
    found = [Server(seed, sum, longest=longest, spread=spread).run(until=1000.0) for seed in range(20)]
    assert all(given_up for _, given_up in found)
    assert sum(at < 5.0 + 12 * 0.4 * longest for at, _ in found) >= 18


@pytest.mark.parametrize("noise", [hiccups, busy_stretches])
def test_a_serial_server_is_found_on_a_busy_machine_too(noise):
    """Half of them in the first comparison, nearly all in four."""
    found = []
    for seed in range(40):
        server = Server(seed, sum, noise)
        said = [server.run(until=80.0)]
        for begin in (301.0, 902.0, 2103.0):
            if said[-1] is None:
                server.pass_by(begin)
                said.append(server.run(until=begin + 80.0))
        found.append(len(said) if said[-1] is not None else None)
    assert found.count(1) >= 12
    assert found.count(None) <= 4


@pytest.mark.parametrize("noise", [hiccups, busy_stretches])
@pytest.mark.parametrize(("longest", "spread"), [(4, 0.3), (8, 0.9), (32, 0.9)])
def test_lists_that_are_served_at_once_are_kept_on_a_busy_machine(noise, longest, spread):
    for seed in range(200):
        server = Server(seed, max, noise, longest=longest, spread=spread)
        for begin in (0.0, 301.0, 902.0):
            server.pass_by(begin)
            assert server.run(until=begin + 4.0 + 0.5 * longest) is None
        assert 2 * 4 <= server.singles <= 3 * 52


def test_a_verdict_is_undone_once_lists_are_served_at_once():
    for seed in range(20):
        server = Server(seed, sum)
        given_up_at, _ = server.run(until=100.0)
        server.seconds, server.noise = max, hiccups
        undone_at, given_up = server.run(until=given_up_at + 200.0)
        assert not given_up
        assert undone_at - given_up_at < 125.0, "the first list, or the second"
