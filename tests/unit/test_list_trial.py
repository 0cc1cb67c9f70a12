"""The trial of lists against singles, without a scheduler."""

import pytest

from batchclient._core.list_trial import ListTrial

KEY = b"k"
PROMPTS = 8
LIST_S = 0.4
TOKENS = 20


def lists(trial, per_s=100.0, load=32.0, now=10.0, count=16, seconds=LIST_S, key=KEY, tokens=TOKENS):
    for _ in range(count):
        trial.ended(key, PROMPTS, PROMPTS * tokens, now - seconds, per_s, load, now)


def singles(trial, per_s, load, sent_at, count=16, key=KEY, seconds=0.1, tokens=TOKENS):
    return [trial.ended(key, 1, tokens, sent_at, per_s, load, sent_at + seconds) for _ in range(count)]


def begun(now=10.0):
    """A trial of lists that take as long as so many singles."""
    trial = ListTrial()
    singles(trial, 20.0, 1.0, now - 1.0, count=1, seconds=LIST_S / PROMPTS)
    lists(trial, now=now)
    assert trial.singles(KEY, now)
    return trial


def test_there_is_no_trial_where_a_list_takes_less_than_three_quarters_of_so_many_singles():
    for seconds, expected in ((0.29, False), (0.31, True), (0.05, False)):
        trial = ListTrial()
        singles(trial, 20.0, 1.0, 9.0, count=1, seconds=0.05)
        lists(trial, seconds=seconds)
        assert trial.singles(KEY, 10.0) is expected


def probes(trial, key=KEY):
    return trial._seen[key].probes


@pytest.mark.parametrize(
    ("tokens", "seconds", "looks"),
    [
        # Lists take 50 ms a prompt, for 20 tokens.
        (TOKENS, 0.05, True),
        (TOKENS, 0.07, False),
        # A quarter of the tokens in 5 ms: all of them take 5 to 20 ms.
        (5, 0.005, True),
        (5, 0.03, None),
        (5, 0.07, False),
        # Four times the tokens: all of them take a quarter as long at least.
        (80, 0.06, True),
        (80, 0.2, None),
        (80, 0.3, False),
        (0, 0.05, True),
    ],
)
def test_what_a_single_says_of_answers_as_long_as_those_of_lists(tokens, seconds, looks):
    trial = ListTrial()
    singles(trial, 20.0, 1.0, 9.0, count=1, seconds=seconds, tokens=tokens)
    lists(trial)
    assert (trial._key == KEY) is (looks is True)
    assert probes(trial) is (looks is None)


def test_the_single_nearest_in_length_is_kept():
    trial = ListTrial()
    lists(trial)
    singles(trial, 20.0, 1.0, 9.0, count=1, seconds=0.1, tokens=TOKENS)
    singles(trial, 20.0, 1.0, 9.0, count=3, seconds=0.03, tokens=5)
    lists(trial, now=12.0)
    assert (trial._seen[KEY].single_s, trial._key) == (pytest.approx(0.1), None)
    singles(trial, 20.0, 1.0, 12.0, count=1, seconds=LIST_S / PROMPTS, tokens=TOKENS)
    lists(trial, now=13.0, count=1)
    assert trial._key == KEY, "of two as near the later one counts"


def test_one_far_off_counts_where_there_is_none_nearer():
    trial = begun()
    trial._key = None
    singles(trial, 20.0, 1.0, 310.0, count=1, seconds=0.03, tokens=5)
    assert trial._seen[KEY].single_tokens == 5


def test_where_no_single_can_tell_another_is_sent_after_ever_longer_pauses():
    trial, sent_at, now = ListTrial(), [], 10.0
    lists(trial, now=now)
    while now < 2000.0:
        lists(trial, now=now, count=4)
        if probes(trial):
            trial.sent_single(KEY)
            sent_at.append(now)
            singles(trial, 20.0, 1.0, now, count=1, seconds=0.03, tokens=5)
        now += 0.5
    pauses = [round(later - earlier) for earlier, later in zip(sent_at, sent_at[1:], strict=False)]
    assert pauses[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert set(pauses[9:]) == {300}


def test_the_next_probe_waits_until_the_last_may_have_been_answered():
    trial = ListTrial()
    lists(trial, seconds=20.0, now=50.0)
    trial.sent_single(KEY)
    lists(trial, seconds=20.0, now=89.9)
    assert not probes(trial)
    lists(trial, seconds=20.0, now=90.0, count=3)
    assert not probes(trial), "16 of which three are new say no more"
    lists(trial, seconds=20.0, now=90.0, count=1)
    assert probes(trial)


def test_keys_are_probed_each_for_itself():
    trial, other = ListTrial(), b"other"
    lists(trial)
    lists(trial, key=other)
    assert probes(trial)
    assert probes(trial, other)
    trial.sent_single(other)
    singles(trial, 20.0, 1.0, 10.0, count=5, seconds=0.001, tokens=1, key=other)
    assert trial.singles(KEY, 10.0)
    assert not trial.singles(other, 10.0)


def test_where_nobody_counts_tokens_any_single_says_something():
    trial = ListTrial()
    singles(trial, 20.0, 1.0, 9.0, count=1, seconds=LIST_S / PROMPTS, tokens=3)
    lists(trial, tokens=0)
    assert trial._key == KEY


def test_there_is_no_trial_before_16_lists():
    trial = ListTrial()
    singles(trial, 20.0, 1.0, 9.0, count=1, seconds=0.05)
    lists(trial, count=15)
    assert not trial.singles(KEY, 10.0)
    lists(trial, count=1)
    assert trial.singles(KEY, 10.0)
    assert not trial.singles(b"another", 10.0)


def test_without_a_single_for_five_minutes_one_is_sent():
    trial = ListTrial()
    lists(trial)
    assert trial.singles(KEY, 10.0)
    trial.sent_single(KEY)
    assert not trial.singles(KEY, 10.0)
    lists(trial, now=10.9)
    assert not trial.singles(KEY, 10.9), "the one that is under way is enough"
    singles(trial, 50.0, 8.0, 11.0, count=1, seconds=1.0)
    lists(trial, now=12.0)
    assert not trial.singles(KEY, 12.0), "lists do not look as if"
    lists(trial, now=312.1)
    assert trial.singles(KEY, 312.1), "what was seen five minutes ago may be wrong"


@pytest.mark.parametrize(
    ("per_s", "load", "won"),
    [(150.0, 32.0, True), (1000.0, 40.0, True), (149.0, 32.0, False), (1000.0, 41.0, False), (10.0, 1.0, False)],
)
def test_singles_win_by_half_as_much_again_at_no_higher_load(per_s, load, won):
    trial = begun()
    assert singles(trial, per_s, load, 10.6) == [False] * 15 + [won]
    assert trial.singles(KEY, 11.0) == trial.singles(b"another", 11.0) == won


def test_one_hiccup_is_one_of_16():
    trial = begun()
    trial.ended(KEY, 1, TOKENS, 10.6, 1e9, 1.0, 10.7)
    assert not any(singles(trial, 100.0, 32.0, 10.6, count=15))


def test_singles_beside_lists_that_are_still_under_way_do_not_count():
    trial = begun()
    assert not any(singles(trial, 1000.0, 32.0, 10.3, count=100))
    assert singles(trial, 1000.0, 32.0, 10.41)[-1]


def test_lists_are_tried_again_after_five_minutes():
    trial = begun()
    singles(trial, 1000.0, 32.0, 10.6, seconds=0.05)
    assert trial.singles(KEY, 310.0)
    assert not trial.singles(KEY, 311.0)
    singles(trial, 1000.0, 32.0, 310.0, count=1, seconds=0.05)
    lists(trial, now=312.0)
    assert trial.singles(KEY, 312.0)


def test_trials_that_lists_win_grow_rare():
    trial, now, pauses = begun(), 10.0, []
    for _ in range(6):
        singles(trial, 50.0, 32.0, now + 0.5, seconds=0.05)
        ended = now = now + 0.55
        while not trial.singles(KEY, now):
            now += 10
            singles(trial, 20.0, 1.0, now - 0.05, count=1, seconds=0.05)
            lists(trial, now=now, count=1)
        pauses.append(round(now - ended))
    assert pauses == [300, 600, 1200, 2400, 3600, 3600]


def test_a_trial_that_comes_to_nothing_ends():
    trial = begun()
    singles(trial, 1000.0, 32.0, 10.6, count=5)
    assert not trial.singles(KEY, 71.0)
    assert not any(singles(trial, 1000.0, 32.0, 71.0, count=30))
    lists(trial, now=72.0)
    assert not trial.singles(KEY, 72.0)


def test_keys_are_not_remembered_for_ever():
    trial = ListTrial()
    for number in range(100):
        lists(trial, key=b"%d" % number)
    assert len(trial._seen) == 16
