"""Objectives, percentiles and their intervals, arrivals, prompts."""

import itertools
import math
import statistics

import pytest

from batchclient.bench import Closed, Poisson, Slo, Times, Workload
from batchclient.bench.intervals import Interval, mean_interval, quantile, quantile_interval, ratio, t_95, wilson
from batchclient.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "measure", "share", "bound_s"),
    [
        ("p95<400ms", "latency", 0.95, 0.4),
        ("latency p99.9 <= 2 s", "latency", 0.999, 2.0),
        ("ttft p99<1s", "ttft", 0.99, 1.0),
        (" tpot p50 < 12.5ms ", "tpot", 0.5, 0.0125),
    ],
)
def test_an_objective_is_read(text, measure, share, bound_s):
    slo = Slo(text)
    assert (slo.measure, slo.bound_s) == (measure, pytest.approx(bound_s))
    assert slo.share == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "95<400ms", "p95<400", "p95>400ms", "p95<-1s", "mean<1s", "p95<1m", None, 3])
def test_what_is_no_objective_is_refused_with_the_grammar(text):
    with pytest.raises(ConfigError, match=r"p95<400ms") as refused:
        Slo(text)
    assert refused.value.field == "slo"


@pytest.mark.parametrize(("text", "why"), [("p0<1s", "above 0"), ("p100<1s", "below 100"), ("p95<0ms", "bound")])
def test_an_objective_out_of_bounds_is_refused(text, why):
    with pytest.raises(ConfigError, match=why):
        Slo(text)


def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed():
    values = list(range(1, 101))
    assert [quantile(values, share) for share in (0.5, 0.95, 0.99, 0.001, 0.9999)] == [50, 95, 99, 1, 100]
    assert quantile([7.0], 0.5) == 7.0


@pytest.mark.parametrize(("share", "count"), [(0.5, 30), (0.95, 100), (0.95, 400), (0.9, 2500)])
def test_an_interval_holds_the_percentile_in_95_of_100_draws(dice, share, count):
    # An exponential distribution's percentile is known.
    known = -math.log(1 - share)
    draws = 200
    hits = sum(
        quantile_interval(sorted(dice.expovariate(1) for _ in range(count)), share).has(known) for _ in range(draws)
    )
    assert hits / draws > 0.91


def test_too_few_values_leave_the_interval_open():
    assert quantile_interval(list(range(20)), 0.99).high == math.inf
    assert quantile_interval([1.0], 0.5) == Interval(-math.inf, math.inf)


def test_a_share_near_one_has_an_interval_within_one():
    assert wilson(100, 100).high == 1.0
    assert wilson(100, 100).low == pytest.approx(0.963, abs=0.001)
    assert wilson(95, 100) == pytest.approx((0.888, 0.978), abs=0.001)
    assert wilson(0, 0) == (0.0, 1.0)
    for count in range(1, 200):
        assert wilson(count, count).high == 1.0
        assert wilson(0, count).low == 0.0


def test_repetitions_have_the_interval_of_student():
    # Two would have one of 6 times their distance on either side.
    assert mean_interval([1.0]) is mean_interval([1.0, 2.0]) is None
    # t(0.975, 2) = 4.303, standard error 1 / sqrt(3)
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    assert t_95(30) == pytest.approx(2.042, abs=0.001)


def test_pairs_leave_out_what_slowed_both():
    ours, theirs = [10.0, 20.0, 40.0], [5.0, 10.0, 20.0]
    value, interval = ratio(ours, theirs, paired=True)
    assert (value, *interval) == pytest.approx((2.0, 2.0, 2.0))
    value, interval = ratio(ours, theirs, paired=False)
    assert value == pytest.approx(2.0)
    assert interval.has(1.0)


def test_gaps_have_the_mean_and_the_variance_of_a_poisson_process():
    rate = 50.0
    times = list(Poisson(rate).times(200.0, seed=7))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean, deviation = statistics.fmean(gaps), statistics.stdev(gaps)
    assert abs(mean - 1 / rate) < 3 / rate / math.sqrt(len(gaps))
    # An exponential distribution's kurtosis bounds the error of its variance.
    assert abs(deviation**2 - 1 / rate**2) < 3 * deviation**2 * math.sqrt(8 / len(gaps))


def test_a_seed_gives_its_arrivals():
    assert list(Poisson(9).times(5, seed=1)) == list(Poisson(9).times(5, seed=1))
    assert list(Poisson(9).times(5, seed=1)) != list(Poisson(9).times(5, seed=2))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Closed(0), "callers"),
        (lambda: Poisson(0), "rate"),
        (lambda: Times(window_s=0), "window_s"),
        (lambda: Times(warm_up_s=-1), "warm_up_s"),
        (lambda: Times(grace_s=math.nan), "grace_s"),
        (lambda: Workload(prompt_tokens=0), "prompt_tokens"),
        (lambda: Workload(spread=-1), "spread"),
        (lambda: Workload(prefix_reuse=2), "prefix_reuse"),
        (lambda: Workload(call="classify"), "call"),
        (lambda: Workload(prompts="a text"), "prompts"),
        (lambda: Workload(prompts=[]), "prompts"),
    ],
)
def test_wrong_numbers_are_refused_by_name(make, field):
    with pytest.raises(ConfigError, match=field) as refused:
        make()
    assert refused.value.field == field


def test_prompts_differ_from_their_first_words():
    workload = Workload(prompt_tokens=20)
    prompts = [workload.prompt(number) for number in range(3000)]
    assert len({" ".join(prompt.split()[:4]) for prompt in prompts}) == 3000
    assert sum(a.split()[0] == b.split()[0] for a, b in itertools.pairwise(prompts)) < 30
    assert {len(prompt.split()) for prompt in prompts} == {20}
    assert prompts[5] == Workload(prompt_tokens=20).prompt(5) != Workload(prompt_tokens=20, seed=1).prompt(5)


def test_lengths_have_the_mean_that_was_asked_for():
    lengths = [len(Workload(prompt_tokens=200, spread=0.5).prompt(number).split()) for number in range(4000)]
    assert statistics.fmean(lengths) == pytest.approx(200, rel=0.05)
    assert max(lengths) > 2 * min(lengths)
    assert len(Workload(prompt_tokens=30_000).prompt(3).split()) == 30_000


def test_a_reused_prefix_is_the_same_for_all():
    prompts = [Workload(prompt_tokens=100, prefix_reuse=0.8).prompt(number).split() for number in range(50)]
    assert len({" ".join(prompt[:80]) for prompt in prompts}) == 1
    assert len({" ".join(prompt[80:]) for prompt in prompts}) == 50


def test_own_prompts_have_their_number_in_front():
    own = Workload(prompts=["one", "two"])
    assert own.prompt(0).endswith(") one")
    assert own.prompt(2).endswith(") one")
    assert own.prompt(0) != own.prompt(2)
    assert Workload(prompts=["one"], prefix_reuse=0.0).prompt(9) == "one"


def test_the_servers_own_count_corrects_the_length():
    fitted = Workload(prompt_tokens=100).fitted(words=100, prompt_tokens=200)
    assert len(fitted.prompt(1).split()) == 50
    assert Workload(prompts=["one"]).fitted(1, 9) == Workload(prompts=["one"])
