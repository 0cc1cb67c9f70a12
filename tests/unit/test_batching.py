"""The batching rule: how many, when, and who waits."""

import pytest

from batchclient._core.batching import BatchingRule
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.kinds import Kind
from batchclient._core.learnt.lengths import OutputLengths
from batchclient._core.limits import FixedLimit
from batchclient._core.messages import Request, RequestState, Shape
from batchclient._core.waiting.queue import Group
from batchclient._core.settings import SchedulerSettings

PLAIN = Shape(b"k", b"{}", max_output_tokens=16)


def decide(
    size,
    *,
    limit=16,
    held=1,
    held_since=None,
    now=0.0,
    queued_at=0.0,
    shape=PLAIN,
    max_size=64,
    cap=None,
    group=None,
    **settings,
):
    lengths = OutputLengths()
    rule = BatchingRule(SchedulerSettings(**settings), lengths)
    endpoint = Endpoint(0, FixedLimit(limit), max_size)
    endpoint.take(held, 0.0)
    if cap:
        endpoint.can().shorten_lists(cap + 1, cap, now)
    group = Group(shape, **(group or {}))
    for _ in range(size):
        request = Request(shape, b'"p"')
        request.state, request.queued_at = RequestState.QUEUED, queued_at
        group.add(request)
    return rule.decide(group, group.oldest(), endpoint, now, held_since)


@pytest.mark.parametrize(
    ("size", "limit", "held", "max_size", "cap", "count"),
    [
        (3, 16, 0, 64, None, 3),
        (99, 16, 0, 64, None, 16),
        (99, 16, 0, 8, None, 8),
        (99, 16, 0, 8, 3, 3),
        (99, 16, 10, 64, None, 6),
        (99, 16, 16, 64, None, 0),
    ],
)
def test_a_list_is_as_long_as_queue_permits_and_cap_allow(size, limit, held, max_size, cap, count):
    assert decide(size, limit=limit, held=held, max_size=max_size, cap=cap)[0] == count


def test_an_idle_endpoint_neither_lingers_nor_holds():
    assert decide(1, held=0, linger_s=9.0, refill_s=9.0, refill_ratio=1.0) == (1, None, False)


def test_a_heavy_call_goes_alone_when_nothing_is_in_flight():
    heavy = Shape(b"k", b"{}", weight=99)
    assert decide(5, held=0, shape=heavy) == (1, None, False)
    assert decide(5, held=1, shape=heavy) == (0, None, False)


def test_permits_are_sequences_and_requests_are_heavier():
    assert decide(9, limit=16, held=1, shape=Shape(b"k", b"{}", weight=4))[0] == 3


@pytest.mark.parametrize(("now", "blocks"), [(4.9, False), (5.0, True)])
def test_a_call_past_the_starvation_bound_blocks_younger_ones(now, blocks):
    heavy = Shape(b"k", b"{}", weight=16)
    assert decide(1, shape=heavy, now=now, starvation_s=5.0) == (0, None, blocks)


def test_a_group_lingers_from_its_oldest_call_on_and_lets_others_pass():
    assert decide(1, linger_s=0.5, now=1.4, queued_at=1.0) == (0, 1.5, False)
    assert decide(1, linger_s=0.5, now=1.5, queued_at=1.0) == (1, None, False)


def test_what_fills_the_permits_or_a_list_does_not_linger():
    assert decide(15, linger_s=9.0)[0] == 15
    assert decide(8, linger_s=9.0, max_size=8)[0] == 8
    assert decide(7, linger_s=9.0, max_size=8)[0] == 0


def test_sealed_calls_wait_for_no_company():
    assert decide(1, linger_s=9.0, group={"sealed": True})[0] == 1


def test_a_hold_lets_nobody_pass_and_ends_refill_s_after_it_began():
    held = decide(16, held=14, held_since=1.0, now=1.2, refill_s=0.5, refill_ratio=0.5)
    assert held == (0, 1.5, True)
    assert decide(16, held=14, held_since=1.0, now=1.5, refill_s=0.5, refill_ratio=0.5) == (2, None, False)


def test_a_quantum_of_permits_ends_the_hold():
    assert decide(16, held=8, held_since=1.0, now=1.0, refill_s=9.0, refill_ratio=0.5)[0] == 8
    assert decide(16, held=9, held_since=1.0, now=1.0, refill_s=9.0, refill_ratio=0.5)[0] == 0


def test_a_quantum_is_at_least_one():
    assert decide(16, held=15, held_since=1.0, now=1.0, refill_s=9.0, refill_ratio=0.0)[0] == 1


def test_a_quantum_is_no_longer_than_a_list():
    assert decide(16, held=12, held_since=1.0, now=1.0, refill_s=9.0, refill_ratio=1.0, max_size=4)[0] == 4


def test_a_whole_half_is_not_cut():
    whole = {"sealed": True, "whole": True}
    assert decide(4, held=12, group=whole)[0] == 4
    assert decide(4, held=13, group=whole) == (0, None, False)
    assert decide(4, held=13, group=whole, now=9.0, starvation_s=5.0) == (0, None, True)
    assert decide(40, held=0, group=whole)[0] == 16
    assert decide(4, held=12, group=whole, max_size=2)[0] == 2


def rule_and_endpoint(lengths=None):
    return BatchingRule(SchedulerSettings(), lengths or OutputLengths()), Endpoint(0, FixedLimit(4), 64)


def test_a_shapes_own_reason_to_go_alone_comes_first():
    rule, endpoint = rule_and_endpoint()
    endpoint.can().lists.refuse(0.0)
    assert rule.alone(Shape(b"k", b"{}", alone_reason="tools"), endpoint, 0.0) == "tools"
    assert rule.alone(PLAIN, endpoint, 0.0) == "lists refused"


def test_a_call_of_ordinary_length_has_no_reason_to_go_alone():
    rule, endpoint = rule_and_endpoint()
    assert rule.alone(PLAIN, endpoint, 0.0) is None
    assert rule.alone(Shape(b"k", b"{}", max_output_tokens=None), endpoint, 0.0) is None


@pytest.mark.parametrize(("tokens", "reason"), [(256.0, None), (257.0, "long output expected")])
def test_outputs_above_256_tokens_go_singly(tokens, reason):
    lengths = OutputLengths()
    lengths.learn(b"k", tokens)
    rule, endpoint = rule_and_endpoint(lengths)
    assert rule.alone(PLAIN, endpoint, 0.0) == reason


@pytest.mark.parametrize(("most", "streamed"), [(0, False), (1, False), (4, False), (5, True), (None, True)])
def test_short_outputs_are_sent_plain(most, streamed):
    rule, endpoint = rule_and_endpoint()
    assert rule.wants_stream(Shape(b"k", b"{}", max_output_tokens=most), 2, endpoint, 0.0) is streamed


def test_what_cannot_be_streamed_is_not():
    rule, endpoint = rule_and_endpoint()
    assert not rule.wants_stream(Shape(b"k", b"{}", plain_only=True), 2, endpoint, 0.0)
    endpoint.can().streaming.refuse(0.0)
    assert not rule.wants_stream(PLAIN, 2, endpoint, 0.0)
    assert rule.wants_stream(PLAIN, 2, endpoint, 300.0)


@pytest.mark.parametrize(("most", "streamed"), [(1, True), (4, True), (16, True), (0, False)])
def test_calls_that_echo_are_streamed_even_where_they_are_short(most, streamed):
    rule, endpoint = rule_and_endpoint()
    assert rule.wants_stream(Shape(b"k", b"{}", max_output_tokens=most, echo=True), 2, endpoint, 0.0) is streamed


# How long a list is, and who says otherwise ------------------------------------------------------------------------


def longest(shape, endpoint=None, depth=99, *, sealed=False, **settings):
    rule = BatchingRule(SchedulerSettings(**settings), OutputLengths())
    group = Group(shape, sealed=sealed)
    for _ in range(depth):
        request = Request(shape, b'"p"')
        request.state = RequestState.QUEUED
        group.add(request)
    return rule.decide(group, group.oldest(), endpoint or Endpoint(0, FixedLimit(1000), 64), 0.0, None)[0]


SHORT = Shape(b"k", b"{}", max_output_tokens=1)


def test_a_list_is_as_long_as_queue_and_cap_allow():
    assert longest(SHORT) == longest(PLAIN) == 64
    assert longest(SHORT, depth=5) == 5
    assert longest(SHORT, Endpoint(0, FixedLimit(1000), 8)) == 8


def test_what_is_left_of_a_list_is_not_cut_again():
    assert longest(SHORT, depth=40, sealed=True, size_for=lambda depth: 3) == 40


def test_a_table_of_the_users_replaces_the_bound():
    asked = []
    assert longest(SHORT, depth=200, size_for=lambda depth: asked.append(depth) or 150) == 150
    assert longest(PLAIN, depth=200, size_for=lambda depth: 3) == 3
    assert asked == [200]


def test_a_table_is_clamped_to_what_a_server_takes():
    known = Endpoint(0, FixedLimit(1024), 64, known_caps={Kind.COMPLETION: 100})
    assert longest(SHORT, known, depth=200, size_for=lambda depth: 150) == 100
    assert longest(SHORT, depth=200, size_for=lambda depth: -5) == 1
    endpoint = Endpoint(0, FixedLimit(1000), 64)
    endpoint.can().shorten_lists(41, 40, 0.0)
    assert longest(SHORT, endpoint, depth=200, size_for=lambda depth: 150) == 40
    endpoint.can().lists.refuse(0.0)
    assert longest(SHORT, endpoint, depth=200, size_for=lambda depth: 150) == 1


def test_a_table_that_has_no_answer_leaves_the_rule_as_it_is():
    assert longest(SHORT, size_for=lambda depth: None) == 64


@pytest.mark.parametrize(
    ("most", "reason"),
    [
        (32, None),
        (33, "long output expected, and the list cannot stream"),
        (None, "long output expected, and the list cannot stream"),
    ],
)
def test_a_list_that_cannot_stream_is_for_short_answers(most, reason):
    rule, endpoint = BatchingRule(SchedulerSettings(), OutputLengths()), Endpoint(0, FixedLimit(8), 64)
    shape = Shape(b"k", b"{}", max_output_tokens=most, lists_plain=True)
    assert rule.alone(shape, endpoint, 0.0) == reason
    # Other lists stream, and may be longer.
    assert rule.alone(Shape(b"k", b"{}", max_output_tokens=most), endpoint, 0.0) is None


def test_what_was_learnt_of_answers_counts_more_than_what_they_may_be():
    lengths = OutputLengths()
    rule, endpoint = BatchingRule(SchedulerSettings(), lengths), Endpoint(0, FixedLimit(8), 64)
    shape = Shape(b"k", b"{}", max_output_tokens=2000, lists_plain=True)
    lengths.learn(b"k", 12.0)
    assert rule.alone(shape, endpoint, 0.0) is None


@pytest.mark.parametrize(
    ("seen", "most", "listed"),
    [(75.0, 100, True), (74.0, 100, False), (128.0, 128, True), (129.0, 129, False), (60.0, None, False)],
)
def test_answers_that_end_together_may_be_longer_in_such_a_list(seen, most, listed):
    lengths = OutputLengths()
    rule, endpoint = BatchingRule(SchedulerSettings(), lengths), Endpoint(0, FixedLimit(8), 64)
    shape = Shape(b"k", b"{}", max_output_tokens=most, lists_plain=True)
    assert rule.alone(shape, endpoint, 0.0), "nothing was seen yet"
    lengths.learn(b"k", seen)
    assert (rule.alone(shape, endpoint, 0.0) is None) is listed


@pytest.mark.parametrize(("tokens", "first", "together"), [(64, True, True), (65, False, True), (257, False, False)])
def test_the_bounds_of_such_lists_follow_that_of_all(tokens, first, together):
    """An eighth of it, or half where answers were seen to end together."""
    lengths = OutputLengths()
    rule = BatchingRule(SchedulerSettings(alone_above_tokens=512), lengths)
    shape, endpoint = Shape(b"k", b"{}", max_output_tokens=tokens, lists_plain=True), Endpoint(0, FixedLimit(8), 64)
    # What nobody has seen is expected to have 256 tokens at most.
    assert (rule.alone(shape, endpoint, 0.0) is None) is first
    lengths.learn(b"k", tokens)
    assert (rule.alone(shape, endpoint, 0.0) is None) is together


@pytest.mark.parametrize("most", [1, 4, 500, None])
def test_a_caller_who_waits_for_every_piece_is_streamed_to(most):
    rule, endpoint = BatchingRule(SchedulerSettings(), OutputLengths()), Endpoint(0, FixedLimit(8), 64)
    assert rule.wants_stream(Shape(b"k", b"{}", max_output_tokens=most, to_caller=True), 1, endpoint, 0.0)
    endpoint.can().streaming.refuse(0.0)
    assert not rule.wants_stream(Shape(b"k", b"{}", max_output_tokens=most, to_caller=True), 1, endpoint, 0.0)
