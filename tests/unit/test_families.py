"""Prefix families: who belongs to one, and in which order a group with long prompts is served."""

from hypothesis import given
from hypothesis import strategies as st

from batchclient._core.prefixes.families import Families, path_of, rungs
from batchclient._core.waiting.groups import FamilyGroup, Group
from tests.core import Request, RequestState, Shape
from batchclient._core.waiting.order import Order
from batchclient._core.waiting.queue import Queue
from tests.inspection import held

SHAPE = Shape(b"one", b"{}", model="m")


def text(*parts):
    """A prompt of parts of 1,024 bytes each, and an own end."""
    return b'"' + b"".join((part * 1024)[:1024].encode() for part in parts)


def request(seq, prompt, queued_at=0.0):
    made = Request(SHAPE, prompt)
    made.seq, made.queued_at, made.waiter = seq, queued_at, seq
    return made


def filled(prompts, longest_run_s=1e9, **settings):
    queue = Queue(longest_run_s=longest_run_s, **settings)
    requests = [request(seq, prompt + b" %d" % seq) for seq, prompt in enumerate(prompts)]
    for one in requests:
        queue.add(one)
    return queue, requests


def served(queue, size=1, now=0.0):
    """In which order all that waits is taken, by lists of a size."""
    order = []
    while (found := queue.pop()) is not None:
        group, _ = found
        taken = queue.take(group, size, None, now)
        for one in taken:
            one.state, one.group = RequestState.IN_FLIGHT, None
        order += [one.seq for one in taken]
        queue.restore(group)
    return order


def test_a_prompt_is_known_by_its_first_256_512_1024_bytes():
    assert [len(rungs(b"x" * size)) for size in (0, 255, 256, 511, 512, 1024, 16_383, 16_384, 99_999)] == [
        0,
        0,
        1,
        1,
        2,
        3,
        6,
        7,
        7,
    ]


@given(st.binary(min_size=0, max_size=3000), st.binary(max_size=600), st.binary(max_size=600))
def test_two_prompts_share_the_rungs_that_lie_within_what_they_share(common, one, other):
    a, b = rungs(common + b"a" + one), rungs(common + b"b" + other)
    within = sum(256 << i <= len(common) for i in range(7))
    assert a[:within] == b[:within]
    assert set(a) & set(b) == set(a[:within])


def test_prompts_of_two_models_share_nothing():
    other = Request(Shape(b"other", b"{}", model="n"), text("a"))
    assert not set(path_of(other)) & set(path_of(request(0, text("a"))))


def test_a_family_is_the_longest_prefix_that_another_call_had_too():
    families = Families()
    first, second, third = request(0, text("a", "b", "x")), request(1, text("a", "b", "y")), request(2, text("a", "z"))
    for one in (first, second, third):
        families.join(one)
    assert first.family == 0
    assert second.family == path_of(first)[3]
    assert third.family == path_of(first)[2]


def test_a_header_that_everybody_shares_hides_no_family_under_it():
    _, requests = filled([text("h", part) for part in "abcabcabc"])
    families = {one.seq % 3: one.family for one in requests}
    assert len(set(families.values())) == 3
    assert all(one.family == families[one.seq % 3] for one in requests)


def test_what_was_seen_is_forgotten_in_the_end():
    families = Families()
    for seq in range(9000):
        families.join(request(seq, b'"%06d' % seq + b"x" * 600))
    assert held(families, int) <= 16_384
    late = request(9000, b'"%06d' % 0 + b"x" * 600)
    families.join(late)
    assert late.family == 0


def test_the_oldest_call_goes_first_then_its_family_whatever_the_size_of_the_lists():
    for size in [1, 2, 3, 64]:
        queue, _ = filled([text(part) for part in "abcabcabc"])
        assert served(queue, size) == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def test_families_nest_the_nearest_relatives_go_first():
    prompts = [
        text("h", "a", "x", "x"),
        text("i"),
        text("h", "b"),
        text("h", "a", "y", "y"),
        text("h", "a", "x", "x"),
        text("i"),
        text("h", "b"),
    ]
    queue, _ = filled(prompts)
    assert served(queue) == [0, 4, 3, 2, 6, 1, 5]


def test_it_stays_with_a_family_whose_calls_come_one_by_one():
    queue, _ = filled([text("a"), text("b"), text("a")])
    first = served_one(queue)
    late = request(3, text("a") + b" late")
    queue.add(late)
    assert [first, *(served_one(queue) for _ in range(3))] == [0, 2, 3, 1]


def served_one(queue, now=0.0):
    group, _ = queue.pop()
    (taken,) = queue.take(group, 1, None, now)
    taken.state = RequestState.IN_FLIGHT
    queue.restore(group)
    return taken.seq


def test_a_family_that_never_ends_keeps_others_waiting_for_a_bounded_time():
    queue, _ = filled([text("a"), text("b")], longest_run_s=2.0)
    order = []
    for second in range(4):
        order.append(served_one(queue, now=float(second)))
        queue.add(request(10 + second, text("a") + b" more"))
    assert order == [0, 10, 1, 11]


def test_a_group_of_short_prompts_becomes_one_of_families_when_the_first_long_one_comes():
    queue, requests = filled([b'"s"', b'"t"', text("a"), b'"u"', text("a")])
    assert len({id(one.group) for one in requests}) == 1
    assert type(requests[0].group) is FamilyGroup
    assert queue.requests() == requests
    assert served(queue, 2) == [0, 1, 2, 4, 3]
    assert queue.size == 0


def test_a_group_mostly_of_the_dead_is_swept():
    queue, requests = filled([text(part) for part in "ab" * 300])
    group = requests[0].group
    for one in requests[:590]:
        one.state = RequestState.DONE
        queue.discard(one)
    assert held(group, Request) <= 2 * 10 + 65
    assert served(queue) == [590, 592, 594, 596, 598, 591, 593, 595, 597, 599]


def test_other_orders_and_length_buckets_go_before_families():
    queue = Queue(Order("deadline"), longest_run_s=1.0)
    assert type(queue.add(request(0, text("a")))) is not FamilyGroup
    queue = Queue()
    assert type(queue.add(request(0, text("a")))) is Group


@given(
    st.lists(st.tuples(st.sampled_from(["add", "add", "end", "take"]), st.integers(0, 8), st.integers(0, 2**16))),
    st.sampled_from([0.0, 3.0, 1e9]),
)
def test_every_call_is_taken_once_and_none_starves(steps, longest_run_s):
    """Nobody is passed over for longer than a run once it is the oldest."""
    queue, live = Queue(longest_run_s=longest_run_s), []
    prompts = [b'"short"', *(text(*parts) for parts in ("a", "ab", "abc", "abd", "ax", "b", "bc", "c"))]
    oldest_since = (None, 0.0)
    for now, (step, which, number) in enumerate(steps):
        if step == "add":
            one = request(now, prompts[which] + b" %d" % now, queued_at=float(now))
            queue.add(one)
            live.append(one)
        elif step == "end" and live:
            one = live.pop(number % len(live))
            one.state = RequestState.DONE
            queue.discard(one)
        elif step == "take" and live:
            group, oldest = queue.pop()
            assert oldest is live[0]
            taken = queue.take(group, 1 + which // 3, None, float(now))
            assert len(taken) == min(1 + which // 3, len(live))
            for one in taken:
                one.state = RequestState.IN_FLIGHT
                live.remove(one)
            queue.restore(group)
            if oldest in live and oldest_since[0] is oldest:
                assert now < oldest_since[1] + longest_run_s
        if live and oldest_since[0] is not live[0]:
            oldest_since = (live[0], float(now))
        assert queue.size == len(live)
        assert queue.requests() == live
