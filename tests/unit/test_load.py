"""What a server's reports say about the limit, at literal times."""

import pytest

from batchclient._core.limits import FixedLimit, LimitControl, Outcome, Sample
from batchclient._core.limits.load import LoadCap, ServerLoad


def sample(now=0.0, *, sent_at=0.0, sequences=1, prompt=0, made=0, outcome=Outcome.SUCCESS):
    return Sample(now, sent_at, 1, 1.0, 1, sequences, prompt, made, 0.0, outcome, 1)


def heard():
    """One that has had a report: before it, answers are not looked at."""
    cap = LoadCap()
    cap.on_load(ServerLoad(running=1), 0, 0.0)
    return cap


def report(cap, now, waiting=0.0, *, in_flight=100, running=64.0, **fields):
    cap.on_load(ServerLoad(running=running, waiting=waiting, **fields), in_flight, now)
    return cap.cap(now)


def reports(cap, waitings, *, start=0.0, step=0.5, **fields):
    """One report per half second; what was said after the last."""
    said = None
    for number, waiting in enumerate(waitings):
        said = report(cap, start + number * step, waiting, **fields)
    return said


# The standing queue -----------------------------------------------------------------------------------------------


def test_without_a_report_there_is_no_cap():
    assert LoadCap().cap(0.0) is None


def test_a_queue_that_stands_for_the_window_lowers_the_limit_to_what_runs_and_five_per_cent():
    cap = LoadCap()
    assert reports(cap, [20] * 6, in_flight=100, running=80) is None
    assert report(cap, 3.0, 20, in_flight=100, running=80) == (85, "the server's queue never held fewer than 20")


def test_a_cut_is_a_fifth_at_most():
    assert reports(LoadCap(), [60] * 7, in_flight=100, running=40)[0] == 80


def test_the_smallest_queue_of_the_window_counts_not_the_last():
    assert reports(LoadCap(), [50, 50, 9, 50, 50, 50, 50], in_flight=100, running=50)[0] == 96


@pytest.mark.parametrize("waitings", [[50, 50, 50, 5, 50, 50, 50], [0] * 7, [50, 0] * 10])
def test_bursts_and_small_queues_change_nothing(waitings):
    assert reports(LoadCap(), waitings, in_flight=100, running=80) is None


@pytest.mark.parametrize(("waiting", "capped"), [(2, False), (3, True)])
def test_two_in_the_queue_are_none_however_few_are_in_flight(waiting, capped):
    assert (reports(LoadCap(), [waiting] * 7, in_flight=8, running=5) is not None) is capped


@pytest.mark.parametrize(
    ("made", "waiting", "standing"),
    [(1, 64.0, False), (1, 90.0, True), (4, 16.0, False), (4, 40.0, True), (200, 16.0, True)],
)
def test_what_the_next_step_takes_does_not_stand(made, waiting, standing):
    # 64 run: at one token each all of them end with this step and 64 of the queue take their place, at four each a quarter.
    cap = heard()
    for _ in range(64):
        cap.on_sample(sample(1.0, made=made))
    reports(cap, [waiting] * 8, in_flight=64 + round(waiting))
    assert (cap.cap(4.0) is not None) is standing


def test_only_our_part_of_what_runs_ends_as_our_answers_do():
    # Others run 200 long ones; we have 100 of one token each there. All but a few of them stand.
    cap = heard()
    for _ in range(64):
        cap.on_sample(sample(1.0, made=1))
    assert reports(cap, [100.0] * 8, in_flight=100, running=200.0) is not None
    # Before any answer of ours has ended lately nothing is known of what runs.
    cap = heard()
    for _ in range(64):
        cap.on_sample(sample(1.0, made=1))
    assert reports(cap, [60.0] * 8, start=30.0, in_flight=124) is not None


def test_only_what_the_next_step_leaves_is_cut():
    cap = heard()
    for _ in range(64):
        cap.on_sample(sample(1.0, made=1))
    reports(cap, [76.0] * 8, in_flight=140)
    # 140 - (76 - 64) + 5 %.
    assert cap.cap(4.0) == (135, "the server's queue never held fewer than 76, 64 of them for the next step")


def test_a_fresh_window_follows_each_cut():
    cap = LoadCap()
    assert reports(cap, [60] * 7, in_flight=100, running=40)[0] == 80
    for number in range(7, 13):
        assert report(cap, number * 0.5, 40, in_flight=80, running=40)[0] == 80
    assert report(cap, 6.5, 40, in_flight=80, running=40)[0] == 64


def test_work_that_has_not_drained_yet_does_not_raise_the_cap_again():
    cap = LoadCap()
    assert reports(cap, [60] * 7, in_flight=100, running=40)[0] == 80
    assert reports(cap, [8] * 8, start=3.5, in_flight=100, running=92)[0] == 80


def test_the_window_is_as_long_as_the_work():
    cap = heard()
    cap.on_sample(sample(40.0, sent_at=0.0))
    assert reports(cap, [60] * 24, start=40.0) is None
    assert report(cap, 52.0, 60)[0] == 80


def test_a_window_has_four_reports_however_far_apart_they_come():
    cap = LoadCap()
    assert reports(cap, [60] * 3, step=2.0) is None
    assert report(cap, 6.0, 60)[0] == 80
    assert reports(LoadCap(), [0, 60, 60, 60], step=4.0) is None, "the oldest of the four ran empty"


def test_the_peak_in_flight_goes_with_the_smallest_queue():
    # Permits are granted in lots: in flight swings from 80 to 100, the queue from 16 to 36, and all 64 slots stay full.
    cap = LoadCap()
    for number in range(7):
        low = number % 2
        said = report(cap, number * 0.5, 16 if low else 36, in_flight=80 if low else 100, running=64)
    assert said[0] == 89


def test_the_cap_recovers_by_two_per_cent_a_report_while_the_queue_runs_empty():
    cap = LoadCap()
    reports(cap, [60] * 7, in_flight=100, running=40)
    assert reports(cap, [0] * 7, start=3.5, in_flight=80, running=80) == (81, "the server's queue ran empty")
    assert report(cap, 7.0, 0, in_flight=80, running=80)[0] == 83
    assert report(cap, 7.5, 1, in_flight=80, running=80)[0] == 84, "the window still held an empty queue"
    assert reports(cap, [1] * 7, start=8.0, in_flight=84, running=83)[0] == report(cap, 11.5, 1, in_flight=84)[0]


def test_a_cap_that_is_not_used_does_not_recover():
    cap = LoadCap()
    reports(cap, [60] * 7, in_flight=100, running=40)
    assert reports(cap, [0] * 20, start=3.5, in_flight=63, running=63)[0] == 80


def test_of_a_queue_that_others_share_only_our_part_is_cut():
    # 100 of 400 are ours, so 25 of the 100 that wait.
    assert reports(LoadCap(), [100] * 7, in_flight=100, running=300)[0] == 150
    assert reports(LoadCap(), [40] * 7, in_flight=100, running=160)[0] == 85


def test_a_greedy_neighbour_does_not_push_us_below_half_of_what_runs():
    cap = LoadCap()
    in_flight, now = 64, 0.0
    for _ in range(200):
        said = report(cap, now, 1000 - 64 + in_flight, in_flight=in_flight, running=64)
        in_flight, now = said[0] if said else in_flight, now + 0.5
    assert in_flight == 32


def test_a_server_that_sleeps_with_work_in_its_queue_says_nothing():
    cap = LoadCap()
    assert reports(cap, [100] * 20, in_flight=100, running=0) is None
    assert reports(cap, [100] * 6, start=10.0, in_flight=100, running=64) is None, (
        "the window starts when it works again"
    )


def test_nothing_in_flight_of_ours_says_nothing():
    assert reports(LoadCap(), [100] * 20, in_flight=0, running=64) is None


def test_a_page_without_a_queue_gives_no_cap():
    cap = LoadCap()
    reports(cap, [60] * 7)
    assert report(cap, 3.5, None) is None


def test_a_page_without_the_running_counts_the_queue_as_ours():
    assert reports(LoadCap(), [20] * 7, in_flight=100, running=None)[0] == 85


# Staleness and restarts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "fresh"), [(8.0, True), (8.1, False)])
def test_five_seconds_without_a_report_end_the_cap(now, fresh):
    cap = LoadCap()
    reports(cap, [60] * 7)
    assert (cap.cap(now) is not None) is fresh


def test_after_a_gap_the_window_starts_anew_and_the_cap_comes_back():
    cap = LoadCap()
    reports(cap, [60] * 7)
    assert report(cap, 10.0, 60, in_flight=100)[0] == 80
    assert reports(cap, [60] * 5, start=10.5, in_flight=100)[0] == 80
    assert reports(cap, [60] * 2, start=13.0, in_flight=80)[0] == 80


def test_a_window_does_not_span_a_gap():
    cap = LoadCap()
    reports(cap, [60] * 6, in_flight=100, running=40)
    assert report(cap, 10.0, 60, in_flight=100, running=40) is None, "nobody looked between 2.5 and 10"


@pytest.mark.parametrize("counter", ["generation_tokens", "preemptions", "prefix_query_tokens", "prefix_hit_tokens"])
def test_a_counter_that_goes_down_is_a_restart_and_all_is_forgotten(counter):
    cap = LoadCap()
    reports(cap, [60] * 7, **{counter: 9.0})
    assert cap.cap(3.0)[0] == 80
    assert report(cap, 3.5, 60, **{counter: 8.0}) is None


def test_a_counter_that_disappears_is_no_restart():
    cap = LoadCap()
    reports(cap, [60] * 7, generation_tokens=9.0)
    assert report(cap, 3.5, 60)[0] == 80


def test_being_told_of_a_restart():
    cap = LoadCap()
    reports(cap, [60] * 7)
    cap.on_restart(3.0)
    assert cap.cap(3.0) is None


# The KV budget ----------------------------------------------------------------------------------------------------


def fed(*, prompt=100, made=200, answers=16):
    cap = heard()
    for _ in range(answers):
        cap.on_sample(sample(1.0, prompt=prompt, made=made))
    return cap


def test_the_cache_over_what_a_sequence_holds_on_average():
    # p + o/2 = 200 tokens; 0.95 of 9,900 hold 47 of them.
    assert report(fed(), 0.0, kv_capacity_tokens=9_900.0) == (47, "the KV cache holds 9900 tokens, a sequence 200")


def test_long_answers_weigh_by_their_length():
    cap = heard()
    for _ in range(50):
        cap.on_sample(sample(1.0, made=10))
        cap.on_sample(sample(1.0, made=1000))
    # Half of the answers, but 99 % of the time: the mean over time is (10*5 + 1000*500) / 1010 = 495.
    assert int(report(cap, 0.0, kv_capacity_tokens=100_000.0)[1].rpartition(" ")[2]) in range(493, 499)


def test_a_prompt_with_several_choices_is_held_once():
    cap = heard()
    for _ in range(4):
        cap.on_sample(sample(1.0, sequences=4, prompt=400, made=800))
    assert report(cap, 0.0, kv_capacity_tokens=9_900.0)[0] == 47


def test_a_list_that_answers_at_once_counts_as_its_answers():
    cap = heard()
    cap.on_sample(sample(1.0, sequences=16, prompt=1600, made=3200))
    assert report(cap, 0.0, kv_capacity_tokens=9_900.0)[0] == 47


def test_a_few_answers_are_the_short_ones_and_say_nothing():
    assert report(fed(answers=15), 0.0, kv_capacity_tokens=9_900.0) is None


def test_what_nobody_waited_for_and_what_has_no_count_says_nothing():
    cap = heard()
    for _ in range(99):
        cap.on_sample(sample(1.0, prompt=100, made=200, outcome=Outcome.WASTED))
        cap.on_sample(sample(1.0, prompt=100, made=0))
    assert report(cap, 0.0, kv_capacity_tokens=9_900.0) is None


def test_what_the_prefix_cache_holds_is_not_held_again():
    cap = fed(prompt=400, made=200)
    assert report(cap, 0.0, kv_capacity_tokens=9_900.0, prefix_query_tokens=0.0, prefix_hit_tokens=0.0)[0] == 19
    said = report(cap, 0.5, kv_capacity_tokens=9_900.0, prefix_query_tokens=1000.0, prefix_hit_tokens=750.0)
    assert said[0] == 47
    # The cache thrashes: the prompts are held in full again.
    for number in range(1, 20):
        queries = 1000.0 * (number + 1)
        said = report(
            cap, 0.5 + number * 0.5, kv_capacity_tokens=9_900.0, prefix_query_tokens=queries, prefix_hit_tokens=750.0
        )
    assert said[0] == 19


def test_more_hits_than_queries_are_all_hits():
    cap = fed()
    report(cap, 0.0, kv_capacity_tokens=9_900.0, prefix_query_tokens=0.0, prefix_hit_tokens=0.0)
    said = report(cap, 0.5, kv_capacity_tokens=9_900.0, prefix_query_tokens=10.0, prefix_hit_tokens=99.0)
    assert said[0] == 94


def test_the_servers_own_figure_is_taken_where_it_is_less_than_half():
    # 64 running hold 5 % of 100,000: 78 each, where 200 were expected.
    said = report(fed(), 0.0, kv_capacity_tokens=100_000.0, kv_usage_ratio=0.05, running=64.0)
    assert said[1].endswith("a sequence 78")
    said = report(fed(), 0.0, kv_capacity_tokens=100_000.0, kv_usage_ratio=0.08, running=64.0)
    assert said[1].endswith("a sequence 200")


def test_a_cache_that_shows_empty_contradicts_nothing():
    assert report(fed(), 0.0, kv_capacity_tokens=9_900.0, kv_usage_ratio=0.0)[0] == 47


def test_the_smaller_of_the_two_holds_and_says_why():
    cap = fed()
    assert reports(cap, [60] * 7, in_flight=100, running=40, kv_capacity_tokens=9_900.0)[1].startswith("the KV cache")
    cap = fed()
    said = reports(cap, [60] * 7, in_flight=100, running=40, kv_capacity_tokens=100_000.0)
    assert said == (80, "the server's queue never held fewer than 60")


def test_what_answers_hold_outlives_a_restart():
    cap = fed()
    report(cap, 0.0, kv_capacity_tokens=9_900.0, generation_tokens=5.0)
    assert report(cap, 0.5, kv_capacity_tokens=5_000.0, generation_tokens=0.0)[0] == 24


@pytest.mark.parametrize("capacity", [0.0, None, 1e308])
def test_a_cache_of_no_size_says_nothing_and_one_of_any_size_breaks_nothing(capacity):
    said = report(fed(), 0.0, kv_capacity_tokens=capacity)
    assert said is None if not capacity else said[0] > 1e300


def test_a_cap_is_at_least_one():
    assert report(fed(), 0.0, kv_capacity_tokens=1.0)[0] == 1


# In a limit's control ---------------------------------------------------------------------------------------------


def test_answers_of_a_server_without_a_page_are_not_looked_at():
    cap = LoadCap()
    for _ in range(99):
        cap.on_sample(sample(1.0, prompt=100, made=200))
    assert report(cap, 0.0, kv_capacity_tokens=9_900.0) is None


def test_it_lowers_a_limit_and_lets_go_of_it():
    control = LimitControl(FixedLimit(100), (LoadCap(),))
    for number in range(7):
        change = control.on_load(ServerLoad(running=40, waiting=60), 100, number * 0.5)
    assert (change.limit, control.limit, control.reason) == (80, 80, "the server's queue never held fewer than 60")
    assert control.on_sample(sample(9.0)).limit == 100


def test_it_never_raises_a_limit():
    control = LimitControl(FixedLimit(10), (fed(),))
    control.on_load(ServerLoad(running=5, waiting=0, kv_capacity_tokens=9_900), 10, 0.0)
    assert control.limit == 10
