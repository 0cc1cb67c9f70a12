"""Histograms: their buckets, their estimates, and what is observed when."""

import math

import pytest

from batchclient import Histogram
from tests.core import (
    Cancelled,
    CloseRequested,
    FailureKind,
    FixedLimit,
    Retuned,
    Submitted,
    Woke,
)
from batchclient.errors import ReadTimedOut
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

SERVER = "endpoint 0"
"""A server without a name."""


def of(play, name, *key):
    return play.scheduler.statistics().histograms[name][key]


def seen(histogram):
    """The upper bounds of the buckets with observations, and how many there are in each."""
    bounds = [*histogram.bounds, math.inf]
    return {bound: count for bound, count in zip(bounds, histogram.counts, strict=True) if count}


# The estimate ------------------------------------------------------------------------------------------------------


def test_a_quantile_is_linear_within_its_bucket():
    for q, counts, expected in [
        (0.5, (4, 0, 0, 0), 0.5),
        (1.0, (4, 0, 0, 0), 1.0),
        (0.5, (1, 2, 1, 0), 1.5),  # the second of four; one in the first bucket, so half of the second bucket's way
        (0.75, (1, 2, 1, 0), 2.0),
        (0.9, (1, 2, 1, 0), 2.0 + 2.0 * 0.6),
        (0.5, (0, 0, 2, 0), 3.0),
        (0.0, (0, 3, 0, 0), 1.0),
        (0.99, (1, 0, 0, 9), 4.0),  # above the last bound nothing is known but the bound
    ]:
        assert Histogram((1.0, 2.0, 4.0), counts, 0.0).quantile(q) == pytest.approx(expected)


def test_nothing_is_known_of_an_empty_histogram():
    assert math.isnan(Histogram((1.0,), (0, 0), 0.0).quantile(0.5))


def test_a_share_is_between_0_and_1():
    for q in [-0.1, 1.1, 95, math.nan]:
        with pytest.raises(ValueError, match="between 0 and 1"):
            Histogram((1.0,), (1, 0), 1.0).quantile(q)


# What is observed when ---------------------------------------------------------------------------------------------


def test_queue_and_request_are_the_calls_time_where_it_went_once():
    play = Playbook(limit=1)
    a, b = calls("a b")
    play.submit(a, b).at(0.25) >> Woke() << ["send a"]
    play.at(1.5) >> answered(a) << ["resolve a", "send b"]
    play.at(4.0) >> answered(b) << ["resolve b"]
    queue = of(play, "queue_duration_seconds", "completion")
    request = of(play, "request_duration_seconds", SERVER, "completion", "1")
    call = of(play, "call_duration_seconds", "completion", "succeeded")
    assert (queue.count, request.count, call.count) == (2, 2, 2)
    assert queue.sum == pytest.approx(0.25 + 1.5)
    assert request.sum == pytest.approx(1.25 + 2.5)
    assert call.sum == pytest.approx(queue.sum + request.sum, abs=1e-3)
    assert seen(call) == {2.56: 1, 5.12: 1}


def test_requests_are_observed_by_their_size():
    for size, bucket, size_class in [
        (1, 1, "1"),
        (2, 2, "2-4"),
        (4, 4, "2-4"),
        (5, 8, "5-8"),
        (17, 32, "17-32"),
        (64, 64, "33-64"),
        (65, 128, "65+"),
    ]:
        play = Playbook(limit=128, max_size=128)
        together = calls(size)
        play.submit(*together) >> Woke()
        play.at(0.5) >> answered(*together)
        sizes = of(play, "batch_size", SERVER)
        assert (seen(sizes), sizes.sum) == ({bucket: 1}, size)
        durations = play.histograms["request_duration_seconds"]
        assert {key: (seen(each), each.sum) for key, each in durations.items()} == {
            (SERVER, "completion", size_class): ({0.64: 1}, 0.5)
        }


def test_a_bucket_holds_its_bound():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a).at(0.005) >> Woke() << ["send a"]
    assert seen(of(play, "queue_duration_seconds", "completion")) == {0.005: 1}


def test_tokens_are_those_that_the_server_counted():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> answered(a, b, tokens=100) << ["resolve a b"]
    assert seen(of(play, "prompt_tokens", "completion")) == {1: 2}
    output = of(play, "completion_tokens", "completion")
    assert (seen(output), output.sum) == ({256: 2}, play.completion_tokens)
    assert play.tokens == {(SERVER, "", "prompt"): 2, (SERVER, "", "completion"): 200}


def test_the_times_of_a_streams_tokens():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    event = answered(a, b, tokens=11)
    for _, completion in event.answers:
        completion.time_to_first_token_s = 0.5
    play.at(2.5) >> event << ["resolve a b"]
    first = of(play, "time_to_first_token_seconds", SERVER)
    assert (first.count, first.sum) == (2, 1.0)
    # Ten tokens came in the two seconds after the first.
    each = of(play, "time_per_output_token_seconds", SERVER)
    assert (each.count, each.sum) == (2, pytest.approx(2 * 0.2))


def test_a_plain_reply_tells_no_time_of_a_token():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> answered(a, tokens=10) << ["resolve a"]
    assert play.histograms["time_to_first_token_seconds"] == {}
    assert play.histograms["time_per_output_token_seconds"] == {}


def test_a_call_leaves_the_queue_for_the_first_time_once():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, FailureKind.NOT_SENT, delay=0.5) << []
    play.at(1.5) >> Woke() << ["send a"]
    play.at(3.0) >> answered(a) << ["resolve a"]
    queue = of(play, "queue_duration_seconds", "completion")
    assert (queue.count, queue.sum) == (1, 0.0)
    # What was never sent is no request.
    assert play.batches == of(play, "batch_size", SERVER).count == 1
    assert of(play, "call_duration_seconds", "completion", "succeeded").sum == 3.0


def test_a_failed_request_has_an_outcome():
    for kind, fields, outcome in [
        (FailureKind.MAYBE_PROCESSED, {}, "broken"),
        (FailureKind.MISMATCH, {}, "broken"),
        (FailureKind.MAYBE_PROCESSED, {"error": ReadTimedOut}, "timed_out"),
        (FailureKind.MAYBE_PROCESSED, {"out_of_memory": True}, "overloaded"),
        (FailureKind.REJECTED, {}, "overloaded"),
        (FailureKind.REFUSED, {}, "refused"),
    ]:
        play = Playbook()
        (a,) = calls("a")
        play.submit(a) >> Woke() << ["send a"]
        play.at(1.0) >> failed(a, kind, **fields)
        assert play.outcomes == {(SERVER, "completion", outcome): 1}
        assert (
            of(play, "call_duration_seconds", "completion", "failed").count
            == sum(play.scheduler.statistics().errors.values())
            == 1
        )


def test_a_request_whose_callers_have_all_gone_was_cancelled():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> Cancelled(a) << ["abort a"]
    play.at(1.1) >> failed(a, FailureKind.REFUSED) << []
    assert play.outcomes == {(SERVER, "completion", "cancelled"): 1}
    call = of(play, "call_duration_seconds", "completion", "cancelled")
    assert (call.count, call.sum) == (1, 1.0)


def test_a_call_that_a_closed_client_refuses_took_no_time():
    play = Playbook()
    play.at(7.0) >> CloseRequested()
    (a,) = calls("a")
    play.at(9.0) >> Submitted(a) << ["reject a: ClientClosed"]
    call = of(play, "call_duration_seconds", "completion", "failed")
    assert (call.count, call.sum) == (1, 0.0)


def test_no_more_models_have_a_count_of_their_own_than_32():
    play = Playbook()
    for number in range(40):
        (a,) = calls(f"a{number}", of=shape(model=f"m{number}"))
        play.submit(a) >> Woke()
        play >> answered(a)
    models = {model for _, model, _ in play.tokens}
    assert models == {f"m{number}" for number in range(32)} | {"other"}
    assert play.tokens[SERVER, "other", "prompt"] == 8


def test_a_change_of_a_limit_is_counted_though_the_list_of_them_is_short():
    play = Playbook(limit=4)
    for _ in range(300):
        play >> Retuned(limits=[FixedLimit(2)])
        play >> Retuned(limits=[FixedLimit(4)])
    assert len(play.adjustments) == 256
    assert play.changes == {(SERVER, "limit", "down"): 300, (SERVER, "limit", "up"): 300}
