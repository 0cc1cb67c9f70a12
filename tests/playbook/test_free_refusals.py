"""Refusals for load: free while the server takes other work, and what the server is sent then."""

import pytest

from tests.core import Cancelled, FailureKind, Woke
from batchclient.errors import ConnectionLost, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

REJECTED, LOST = FailureKind.REJECTED, FailureKind.MAYBE_PROCESSED
SINGLE = shape(alone_reason="so that it is no part of a list")


def refused(request, *, status=429, delay=60.0, **fields):
    """A policy's pause of a minute: whoever is sent earlier was refused for free."""
    return failed(request, REJECTED, delay=delay, status=status, error=None if status == 429 else ServerFault, **fields)


def busy(*names, limit=8, **settings):
    """A server that has answered a call at 1.0, and has those of these names since."""
    play = Playbook(limit=limit, **settings)
    first, *rest = calls(" ".join(("first", *names)), SINGLE)
    play.submit(first, *rest) >> Woke()
    play.at(1.0) >> answered(first, tokens=16) << ["resolve first"]
    return play, rest


def test_before_the_first_answer_three_refusals_in_a_row_hold_back_the_flow_while_others_are_under_way():
    # A server that takes one call and refuses all others at once: without this, each refusal lets the next call go.
    play = Playbook(limit=2, max_size=1)
    held, *others = calls("held a b c d", SINGLE)
    play.submit(held, *others) >> Woke() << ["send held", "send a"]
    play >> refused(others[0]) << ["send b"]
    play >> refused(others[1]) << ["send c"]
    play >> refused(others[2]) << []
    play >> answered(held) << ["resolve held", "send d"]


# What is free -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answered_at", "sent_at", "refused_at", "status", "free"),
    [
        # The server has answered in the last 10 s.
        (1.0, 10.0, 11.0, 429, True),
        (1.0, 10.0, 11.1, 429, False),
        # The server has held ``held`` since 0.0, ten times as long as the refusal took.
        (None, 9.0, 10.0, 429, True),
        (None, 9.0, 10.1, 429, False),
        # A 503 after more than 5 s may be the end of some work.
        (10.0, 10.0, 15.0, 503, True),
        (10.0, 10.0, 15.1, 503, False),
        (10.0, 10.0, 15.1, 529, False),
        (10.0, 10.0, 15.1, 429, True),
    ],
)
def test_a_refusal_is_free_while_the_server_takes_other_work(answered_at, sent_at, refused_at, status, free):
    play = Playbook(limit=8)
    one, held, it = calls("one held it", SINGLE)
    if answered_at is None:
        play.submit(held) >> Woke()
    else:
        play.submit(one) >> Woke()
        play.at(answered_at) >> answered(one)
    play.at(sent_at).submit(it) >> Woke() << ["send it"]
    before = play.endpoints[0].retry_budget_tokens
    play.at(refused_at) >> refused(it, status=status, silent_s=refused_at - sent_at)
    # An attempt waits for the policy's pause. What is free steps aside for a tenth of a second, and has no failure.
    play.at(refused_at + 0.1) >> Woke() << (["send it"] if free else [])
    assert play.last.failures == 0
    if not free and answered_at is not None:
        play.at(refused_at + 60.0) >> Woke() << ["send it"]
        assert play.last.failures == 1
        assert play.endpoints[0].retry_budget_tokens < before, "a failed attempt is paid for"


def test_where_memory_runs_out_beside_others_no_attempt_is_used_up_and_alone_one_is():
    play = Playbook(limit=8)
    a, b = calls("a b", SINGLE)
    full = {"status": 500, "out_of_memory": True}
    play.submit(a, b) >> Woke() << ["send a", "send b"]
    # All that run end together, and nothing was ever answered here.
    play.at(30.0) >> refused(a, **full) << []
    play >> refused(b, **full) << []
    assert (play.backing_off, play.queued) == (2, 0)
    # One goes after a pause, and by itself.
    play.at(30.1) >> Woke() << ["send a"]
    play.at(60.1) >> refused(a, **full) << ["send b"]
    assert (play.backing_off, play.queued) == (1, 0)


def test_what_was_refused_before_anything_was_held_is_judged_once_more_after_its_pause():
    play = Playbook(limit=8)
    held, it, lost = calls("held it lost", SINGLE)
    play.submit(held, it, lost) >> Woke()
    play >> refused(it, delay=0.5) << []
    play >> failed(lost, LOST, delay=0.5) << []
    play.at(0.5) >> Woke() << ["send it", "send lost"]
    assert [batch.failures for batch in play.sent[-2:]] == [0, 1]


def test_from_the_seventh_refusal_of_a_call_that_is_refused_alone_each_after_six_seconds_is_an_attempt():
    play, _ = busy("held")
    (it,) = calls("it", SINGLE)
    play.submit(it) >> Woke() << ["send it"]
    for count, pause_s in enumerate((0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0, 8.0), 1):
        (other,) = calls(f"other{count}", SINGLE)
        play.submit(other) >> Woke() << [f"send other{count}"]
        play >> refused(it, delay=0.0) << []
        play >> answered(other) << ([f"resolve other{count}", "send it"] if count < 8 else [f"resolve other{count}"])
        play.at(play.now + pause_s - 0.001) >> Woke() << []
        play.at(play.now + 0.002) >> Woke() << ([] if count < 8 else ["send it"])
        assert it.batch.failures == max(0, count - 7)
    # The policy gives up after five attempts, more than half a minute after the first refusal.
    play >> refused(it, delay=None) << ["reject it: RateLimited"]
    assert play.now == pytest.approx(37.8, abs=0.1)
    assert play.endpoints[0].limit == 8


def test_six_refusals_of_a_call_that_is_refused_alone_are_free_however_late():
    play, _ = busy("held")
    (it,) = calls("it", SINGLE)
    play.submit(it) >> Woke() << ["send it"]
    for count in range(1, 8):
        (other,) = calls(f"other{count}", SINGLE)
        play.at(play.now + 3.0).submit(other) >> Woke() << [f"send other{count}"]
        play >> refused(it, delay=0.0) << []
        play >> answered(other)
        while it.batch is None:
            play.at(play.wakes_at) >> Woke()
        assert it.batch.failures == max(0, count - 6)


def test_once_its_refusals_are_attempts_a_call_waits_for_the_policys_pause():
    play, (held,) = busy("held")
    (it,) = calls("it", SINGLE)
    play.submit(it) >> Woke() << ["send it"]
    for count in range(6):
        play >> refused(it, delay=30.0) << []
        (other,) = calls(f"other{count}", SINGLE)
        play.submit(other) >> Woke() << [f"send other{count}"]
        play >> answered(other) << [f"resolve other{count}", "send it"]
    play.at(7.0) >> refused(it, delay=30.0) << []
    play.at(36.999) >> answered(held) << ["resolve held"]
    play.at(37.0) >> Woke() << ["send it"]


def test_one_call_finds_out_whether_a_retry_after_holds_those_that_step_aside():
    play, (held, one, two, three) = busy("held", "one", "two", "three")
    for each in (one, two):
        play >> refused(each, retry_after_s=30.0) << []
    play.at(1.5) >> answered(three) << ["resolve three", "send one"]
    play.at(1.6) >> answered(one) << ["resolve one", "send two"]


def test_those_that_step_aside_follow_by_twos_once_one_has_found_out_that_they_may():
    play, (held, *others) = busy(*"held a b x y z".split())
    a, b, x, y, z = others
    for each in (a, x):
        play >> refused(each, retry_after_s=30.0) << []
    play.at(1.1) >> answered(b) << ["resolve b", "send a"]
    for each in (y, z):
        play >> refused(each, retry_after_s=30.0)
    play.at(1.5) >> answered(a) << ["resolve a", "send x", "send y"]
    # One is refused: the others wait.
    play.at(1.6) >> refused(x, retry_after_s=30.0) << []
    play.at(30.9) >> Woke() << []


def test_while_more_are_in_flight_than_half_of_those_beside_which_it_was_refused_none_finds_out():
    play, (a, b, c, *two) = busy("a", "b", "c", "one", "two")
    for each in two:
        play >> refused(each, retry_after_s=30.0) << []
    play.at(1.5) >> answered(a) << ["resolve a", "send one"]
    play.at(1.6) >> refused(two[0], retry_after_s=30.0) << []
    play.at(1.7) >> answered(b) << ["resolve b", "send two"]
    play.at(1.8) >> refused(two[1], retry_after_s=30.0) << []
    play.at(1.9) >> answered(c) << ["resolve c", "send one"]
    # Nothing else is in flight: it is believed.
    play.at(2.0) >> refused(two[0], retry_after_s=30.0) << []
    play.at(31.8) >> Woke() << []
    play.at(32.0) >> Woke() << ["send two"]


@pytest.mark.parametrize(("jitter", "share"), [(0.0, 1.0), (1.0, 0.75)])
def test_at_most_a_quarter_of_a_pause_aside_is_left_out(jitter, share):
    play, (_held, it) = busy("held", "it")
    for pause_s in (0.1, 0.1, 0.2, 0.4):
        play >> refused(it, jitter=jitter) << []
        at = play.now + share * pause_s
        play.at(at - 0.001) >> Woke() << []
        play.at(at) >> Woke() << ["send it"]


def test_from_a_calls_twentieth_refusal_on_each_is_an_attempt_though_nothing_says_that_it_is_refused_alone():
    play, (_held, one, two, it) = busy("held", "one", "two", "it")
    for count in range(1, 22):
        for each in (one, two, it):
            play >> refused(each, delay=0.0)
        while any(each.batch is None for each in (one, two, it)):
            play.at(play.wakes_at) >> Woke()
        assert it.batch.failures == max(0, count - 19)


def test_none_of_the_policys_ends_the_call_and_real_failures_alone_count():
    play, (held, it, other) = busy("held", "it", "other")
    play >> failed(other, LOST, delay=0.0, error=ConnectionLost) << ["send other"]
    play >> refused(it, delay=None) << ["reject it: RateLimited"]
    play >> refused(other) << []
    play.at(2.0) >> answered(held) << ["resolve held", "send other"]
    # The shell asks the policy with the count of these and this one.
    assert play.last.failures == 1


def test_what_is_free_neither_pays_into_the_retry_budget_nor_takes_from_it():
    play, (held, *others) = busy("held", *(f"c{number}" for number in range(5)))
    # Two attempts, so that the budget is not full.
    for _ in range(2):
        play >> failed(held, LOST, delay=0.0) << ["send held"]
    before = play.endpoints[0].retry_budget_tokens
    for other in others:
        play >> refused(other) << []
    assert play.endpoints[0].retry_budget_tokens == before - 17
    play >> answered(held, tokens=16)
    for _ in others:
        play >> answered(*play.last.requests, tokens=16)
    # The held call was a retry: its answer is paid back.
    assert play.endpoints[0].retry_budget_tokens == before + 17


def test_for_health_a_free_503_is_life():
    play, (held, *others) = busy("held", *(f"c{number}" for number in range(7)), limit=[8, 8])
    for other in others:
        if other.batch.endpoint == held.batch.endpoint:
            play >> refused(other, status=503)
    assert [endpoint.state for endpoint in play.endpoints] == ["healthy", "healthy"]
    assert all(not endpoint.reason for endpoint in play.endpoints)


# Who waits ----------------------------------------------------------------------------------------------------------


def test_a_call_that_is_refused_steps_aside_and_the_others_go_on():
    play, (a, it, b) = busy("a", "it", "b", limit=4)
    play.submit(*calls("x c d e", SINGLE)) >> Woke() << ["send x"]
    play >> refused(it) << ["send c"]
    play >> refused(play.last.requests[0]) << ["send d"]
    play.at(1.05) >> answered(a) << ["resolve a", "send e"]
    play.at(1.1) >> answered(b) << ["resolve b", "send it"]
    assert play.endpoints[0].limit == 4


def test_three_in_a_row_are_about_load_and_others_in_between_say_that_they_are_not():
    play, (_held, a, b, _c, d, e) = busy("held", "a", "b", "c", "d", "e")
    (x, y) = calls("x y", SINGLE)
    play >> refused(a) >> refused(b) >> refused(d) << []
    # The server took c, which was sent between b and d.
    play.submit(x) >> Woke() << ["send x"]
    play >> refused(e) << []
    play.submit(y) >> Woke() << ["send y"]
    # d, e, x and y: nothing that was sent between them was taken.
    play >> refused(x) >> refused(y) << []
    play.submit(*calls("z", SINGLE)) >> Woke() << []


def test_a_call_whose_refusals_in_a_row_are_four_is_refused_alone_if_a_later_one_was_answered():
    play, (_held, one, two, it) = busy("held", "one", "two", "it")
    for _ in range(3):
        for each in (one, two, it):
            play >> refused(each, delay=0.0) << []
        while any(each.batch is None for each in (one, two, it)):
            play.at(play.wakes_at) >> Woke()
    (later,) = calls("later", SINGLE)
    play.submit(later)
    while later.batch is None:
        play.at(play.wakes_at) >> Woke()
    play >> answered(later)
    for each in (one, two, it):
        play >> refused(each, delay=0.0)
    play.submit(*calls("x y", SINGLE)) >> Woke() << ["send x", "send y"]


def test_a_call_that_was_refused_three_times_holds_the_others_though_a_later_one_was_answered():
    play, (_held, one, two, it) = busy("held", "one", "two", "it")
    for _ in range(2):
        for each in (one, two, it):
            play >> refused(each, delay=0.0) << []
        while any(each.batch is None for each in (one, two, it)):
            play.at(play.wakes_at) >> Woke()
    (later,) = calls("later", SINGLE)
    play.submit(later)
    while later.batch is None:
        play.at(play.wakes_at) >> Woke()
    play >> answered(later)
    for each in (one, two, it):
        play >> refused(each, delay=0.0)
    play.submit(*calls("x", SINGLE)) >> Woke() << []


def test_a_model_that_is_always_refused_holds_no_other_and_tells_the_limit_nothing():
    other = shape(model="other", alone_reason="so that it is no part of a list")
    play, (held,) = busy("held", limit=32)
    hopeless = calls(8, other)
    play.submit(*hopeless) >> Woke()
    for each in hopeless:
        play >> refused(each, delay=1.0, retry_after_s=30.0)
    # A rest of the other model is none of this model's.
    play.submit(*calls("x y", SINGLE)) >> Woke() << ["send x", "send y"]
    play >> answered(held) << ["resolve held"]
    assert play.endpoints[0].limit == 32
    assert play.endpoints[0].blocked_by == "the server's Retry-After"


# What is sent then --------------------------------------------------------------------------------------------------


def full(*names, limit=8, **fields):
    """As ``busy``, but of a server that refuses three of them in a row: ``it``, which is queued, after two that step aside."""
    play, (*held, one, two, it) = busy(*names, "one", "two", "it", limit=limit)
    for each in (one, two, it):
        play >> refused(each, **fields) << []
    # They come back after those of the stories.
    for each in (one, two):
        play >> Cancelled(each)
    return play, held, it


def test_while_refusals_are_free_one_request_is_sent_for_each_that_ended_with_an_answer():
    play, (a, b), _it = full("a", "b")
    fresh = calls("x y z", SINGLE)
    play.submit(*fresh) >> Woke() << []
    play.at(1.1) >> answered(a) << ["resolve a", "send it"]
    # A request that ends without an answer makes no room.
    play >> failed(b, LOST, delay=60.0) << []
    play.at(1.2) >> answered(_it) << ["resolve it", "send x"]


def test_a_request_goes_too_where_a_list_has_kept_less_than_three_quarters_of_what_the_server_held():
    play = Playbook(limit=8)
    (first,) = calls("first", SINGLE)
    several, (one, two, it, other) = calls("a b c d"), calls("one two it other", SINGLE)
    play.submit(first) >> Woke()
    play.at(1.0) >> answered(first)
    play.submit(*several) >> Woke() << ["send a b c d"]
    play.submit(other, one, two, it) >> Woke()
    for each in (one, two, it):
        play >> refused(each) << []
    # Five are held by two requests: d and c are answered while their list goes on.
    play.at(1.11) >> answered(several[3]) << ["resolve d"]
    play.at(1.12) >> answered(several[2]) << ["resolve c", "send one"]


def test_a_spell_lasts_twice_as_long_if_the_next_refusal_comes_soon():
    play, _, it = full("a", "b", "c")
    for count, spell_s in enumerate((0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)):
        (fresh,) = calls(f"fresh{count}", SINGLE)
        play.submit(fresh) >> Woke() << []
        at = play.now + spell_s
        play.at(at - 0.001) >> Woke() << []
        play.at(at) >> Woke() << [f"send {it.waiter}"]
        play >> refused(it) >> Cancelled(it) << []
        it = fresh


def test_after_a_spell_each_answer_brings_two():
    play, (a, b, c), it = full("a", "b", "c", limit=16)
    play.submit(*calls("x y z v w", SINGLE)) >> Woke() << []
    play.at(1.25) >> Woke() << ["send it"]
    play >> answered(a) << ["resolve a", "send x", "send y"]
    play >> answered(b) << ["resolve b", "send z", "send v"]
    play >> answered(c) << ["resolve c", "send w"]


def test_if_a_quarter_was_refused_while_it_grows_another_spell_begins():
    play, (a, b, c, d), it = full("a", "b", "c", "d", limit=16)
    play.submit(*calls("u v w x y z", SINGLE)) >> Woke() << []
    play.at(1.25) >> Woke() << ["send it"]
    play >> answered(a) << ["resolve a", "send u", "send v"]
    # With these a quarter of the latest calls were refused: they go aside by themselves, but growth is over.
    u, v = (batch.requests[0] for batch in play.sent[-2:])
    play >> refused(u) << []
    play >> refused(v) << []
    play >> answered(b) << ["resolve b", "send w"]
    assert play.endpoints[0].blocked_by == "the server's refusals"


def test_while_less_than_a_quarter_was_refused_each_answer_brings_two():
    play, (a, b, c), _it = full("a", "b", "c", limit=16)
    play.submit(*calls("u v w x y z", SINGLE)) >> Woke() << []
    play.at(1.25) >> Woke() << ["send it"]
    play >> answered(a) << ["resolve a", "send u", "send v"]
    play >> refused(play.last.requests[0]) << []
    play >> answered(b) << ["resolve b", "send w", "send x"]


def test_after_memory_ran_out_each_answer_brings_two_at_once():
    play, (a, b, c, lost) = busy("a", "b", "c", "lost")
    play.submit(*calls("v w x y z", SINGLE))
    play >> refused(lost, status=500, out_of_memory=True)
    assert not any(command.startswith("send") for command in play.seen)
    play.at(1.05) >> answered(a) << ["resolve a", "send v", "send w"]


def test_lists_between_which_one_as_long_is_under_way_are_not_refused_in_a_row():
    play, _ = busy("held", limit=64, max_size=4)
    lists = [calls(names) for names in ("a b c d", "e f g h", "i j k l", "m n o p", "q r s t", "u v w x")]
    for listed in lists:
        play.submit(*listed) >> Woke()
    for listed in lists[::2]:
        play >> refused(listed[0], retry_after_s=9.0)
    assert play.endpoints[0].batch_size_cap == 4
    for listed in lists[1::2]:
        play >> refused(listed[0], retry_after_s=9.0)
    assert play.endpoints[0].batch_size_cap == 2


def test_of_a_list_that_is_refused_alone_the_halves_wait_for_no_retry_after():
    play, _ = busy("held", limit=16, max_size=8)
    play.submit(*calls("a b c d")) >> Woke() << ["send a b c d"]
    play >> refused(play.last.requests[0], retry_after_s=30.0) << []
    # One of them is meant. Alone it waits.
    play.at(1.1) >> Woke() << ["send a b", "send c d"]
    guilty = play.sent[-2].requests
    play >> answered(*play.last.requests) << ["resolve c d"]
    play >> refused(guilty[0], retry_after_s=30.0) << []
    play.at(1.21) >> Woke() << ["send a", "send b"]
    play >> answered(guilty[1]) << ["resolve b"]
    play >> refused(guilty[0], retry_after_s=30.0) << []
    play.at(31.0) >> Woke() << []
    play.at(31.5) >> Woke() << ["send a"]


def test_before_any_answer_a_retry_after_holds_the_flow_if_nothing_is_under_way_or_three_are_refused_in_a_row():
    for names, refusals, held in (("a", 1, True), ("a b c d", 2, False), ("a b c d", 3, True)):
        play = Playbook(limit=8)
        everyone = calls(names, SINGLE)
        play.submit(*everyone) >> Woke()
        for each in everyone[:refusals]:
            play.at(0.01) >> refused(each, retry_after_s=5.0) << []
        play.submit(*calls("fresh", SINGLE)) >> Woke() << ([] if held else ["send fresh"])


def test_after_a_rest_before_any_answer_one_is_sent_and_then_two_for_each_answer():
    play = Playbook(limit=8)
    (first,) = calls("first", SINGLE)
    play.submit(first) >> Woke()
    play >> refused(first, retry_after_s=1.0, delay=2.0) << []
    fresh = calls("v w x y z", SINGLE)
    play.submit(*fresh) >> Woke() << []
    # The refused one may be to blame itself.
    play.at(1.0) >> Woke() << ["send v"]
    play.at(1.1) >> answered(fresh[0]) << ["resolve v", "send w", "send x"]


def test_a_spell_ends_early_once_32_were_answered_for_each_that_was_refused():
    play, (held,), _ = full("held", limit=64)
    more = calls(64, SINGLE)
    play.submit(*more) >> Woke() << []
    play >> answered(held) << ["resolve held", "send c0"]
    for _ in range(30):
        play >> answered(play.last.requests[0])
        assert play.in_flight == 1
    play >> answered(play.last.requests[0])
    assert play.in_flight == 2


def test_after_a_rest_one_is_sent_and_then_two_for_each_answer():
    play, (a, b, c), it = full("a", "b", "c", limit=9, retry_after_s=2.0)
    play.submit(*calls("v w x y z", SINGLE)) >> Woke() << []
    # Whoever was not refused before goes first.
    play.at(3.0) >> Woke() << ["send v"]
    for held in (a, b, c):
        play >> failed(held, LOST, delay=60.0) << []
    play.at(3.05) >> answered(play.last.requests[0]) << ["resolve v", "send w", "send x"]
    play >> answered(play.last.requests[0]) << ["resolve x", "send y", "send z"]
    play.at(3.2) >> answered(play.last.requests[0]) << ["resolve z", "send it"]


def test_what_a_rest_let_pile_up_is_gone_within_twice_the_rest():
    # 20 calls a second of 1 s each; the server refuses all for ten seconds.
    play, waiting = Playbook(limit=256), []
    under_way, rests = [], False
    for tick in range(1, 800):
        now = tick / 20
        play.at(now)
        rests = 10.0 <= now < 20.0
        (call,) = calls(f"c{tick}", SINGLE)
        play.submit(call)
        waiting.append(call)
        play >> Woke()
        for each in [one for one in waiting if one.batch is not None]:
            if rests and each.batch.sent_at >= 10.0:
                play >> refused(each, retry_after_s=20.0 - now, delay=20.0 - now)
            elif now >= each.batch.sent_at + 1.0:
                play >> answered(each)
                waiting.remove(each)
        if play.wakes_at is not None and play.wakes_at <= now:
            play >> Woke()
        under_way.append((now, play.queued + play.backing_off))
    assert max(queued for _, queued in under_way) >= 190
    assert all(queued < 5 for now, queued in under_way if now > 29.0)


def test_one_request_finds_out_in_a_rest_whether_it_holds_and_ends_it_if_it_is_answered():
    play, (a, b), it = full("a", "b", retry_after_s=30.0)
    play.submit(*calls("x y z", SINGLE)) >> Woke() << []
    play.at(2.0) >> answered(a) << ["resolve a", "send x"]
    play >> answered(b) << ["resolve b"]
    play.submit(*calls("v", SINGLE)) >> Woke() << []
    play.at(2.5) >> answered(play.last.requests[0]) << ["resolve x", "send y", "send z", "send v"]
    assert play.endpoints[0].blocked_by == "the server's refusals"
    play.submit(*calls("w", SINGLE)) >> Woke() << []
    play.at(2.6) >> answered(play.last.requests[0]) << ["resolve v", "send w"]


def test_a_rest_that_holds_is_asked_about_ever_more_rarely():
    play, (a, b), it = full("a", "b", retry_after_s=60.0)
    play >> Cancelled(it)
    v, w, x, y, z = calls("v w x y z", SINGLE)
    play.submit(v, w, x, y, z) >> Woke() << []
    play.at(2.0) >> answered(a) << ["resolve a", "send v"]
    # b may fill the server: what is refused beside it says nothing of the rest.
    play >> refused(v, retry_after_s=59.0) << []
    play.at(3.0) >> answered(b) << ["resolve b", "send w"]
    for at, each, following in ((3.0, w, x), (3.25, x, y), (5.25, y, z)):
        play.at(at) >> refused(each, retry_after_s=61.0 - at) << []
        pause_s = {w: 0.25, x: 2.0, y: 16.0}[each]
        play.at(at + pause_s - 0.001) >> Woke() << []
        play.at(at + pause_s) >> Woke() << [f"send {following.waiter}"]
    play.at(21.25) >> refused(z, retry_after_s=61.0 - 21.25) << []
    play.at(60.999) >> Woke() << []
    # As many as were answered in the rest.
    play.at(61.2) >> Woke() << ["send v", "send w"]


def test_a_rest_that_holds_again_and_again_is_asked_about_once_a_minute_in_the_end():
    play, (a, b), it = full("a", "b", retry_after_s=60.0)
    play >> Cancelled(it)
    play.submit(*calls(40, SINGLE)) >> Woke() << []
    play.at(2.0) >> answered(a)
    play >> refused(play.last.requests[0], retry_after_s=59.0)
    play.at(3.0) >> answered(b)
    asked_at = set()
    while play.now < 200.0:
        for batch in [one for one in play.sent if one.requests[0].batch is one]:
            asked_at.add(play.now)
            play >> refused(batch.requests[0], retry_after_s=60.0)
        play.at(play.wakes_at) >> Woke()
    assert sorted(asked_at) == [3.0, 3.25, 5.25, 21.25, 81.25, 141.25]


def test_a_call_with_less_time_than_the_rest_fails_at_once():
    play = Playbook(limit=8)
    first, _held = calls("first held", SINGLE)
    (late,) = calls("late", SINGLE, deadline=11.0)
    play.submit(first, _held, late) >> Woke()
    play.at(1.0) >> answered(first) << ["resolve first"]
    play >> refused(late, retry_after_s=30.0) << ["reject late: RateLimited"]


def test_a_server_that_refuses_all_from_now_on_is_asked_as_the_policy_says():
    play, (it,) = busy("it")
    play >> refused(it) << []
    play.at(1.2) >> Woke() << ["send it"]
    # Nothing was answered for ten seconds: these are attempts, and no pause of the client's own comes on top.
    play.at(12.0)
    for _ in range(5):
        play >> refused(it, delay=0.5) << []
        play.at(play.now + 0.49) >> Woke() << []
        play.at(play.wakes_at) >> Woke() << ["send it"]
    assert it.batch.failures == 5


def test_who_left_and_who_is_to_blame_give_their_places_back():
    for end in (FailureKind.REFUSED, FailureKind.BAD_CALL):
        play, (a, _held, c) = busy("a", "held", "c")
        play >> refused(c) << []
        play.at(1.1) >> failed(a, end, status=400)
        assert play.seen[-1] == "send c"


@pytest.mark.parametrize(("jitter", "shares"), [(0.0, 1.0), (1.0, 0.5)])
def test_with_none_under_way_one_is_sent_after_a_pause_that_doubles_up_to_two_seconds(jitter, shares):
    play, _, it = full(jitter=jitter)
    for count, pause_s in enumerate((0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0)):
        (fresh,) = calls(f"fresh{count}", SINGLE)
        play.submit(fresh) >> Woke() << []
        at = play.now + shares * pause_s
        play.at(at - 0.001) >> Woke() << []
        play.at(at + 0.001) >> Woke()
        assert len(play.seen) == 1, "one is sent"
        (it,) = play.last.requests
        play >> refused(it, jitter=jitter) >> Cancelled(it) << []
    # After an answer none waits.
    play.at(play.now + shares * 2.0 + 0.001) >> Woke()
    (it,) = play.last.requests
    play.submit(*calls("x", SINGLE)) >> Woke() << []
    play >> answered(it)
    assert play.seen[1:], "the next one is sent"


def test_a_pause_never_ends_before_the_rest_that_the_server_asked_for():
    play, (it,) = busy("it")
    play >> refused(it, retry_after_s=3.0) << []
    play.at(4.0) >> Woke() << []
    play.at(4.1) >> Woke() << ["send it"]


def test_a_list_that_is_refused_alone_goes_in_halves_until_the_guilty_call_is_alone():
    play, (_held,) = busy("held", limit=64, max_size=64)
    listed = calls("a b c d")
    play.submit(*listed) >> Woke() << ["send a b c d"]
    play >> refused(listed[0]) << []
    play.at(1.1) >> Woke() << ["send a b", "send c d"]
    play >> answered(*listed[2:]) << ["resolve c d"]
    play >> refused(listed[0]) << []
    play.at(1.3) >> Woke() << ["send a", "send b"]
    play >> answered(listed[1]) << ["resolve b"]
    assert play.endpoints[0].batch_size_cap == 64


def test_three_refused_lists_in_a_row_make_lists_shorter():
    play, (_held,) = busy("held", limit=64, max_size=64)
    answered_between, first, second = calls("a b c d"), calls("e f g h"), calls("i j k l")
    # A gateway refuses each tenth call: nearly every list has one of those.
    for listed in (first, answered_between, second):
        play.submit(*listed) >> Woke()
    play >> refused(first[0]) << []
    play >> answered(*answered_between) << ["resolve a b c d", "send e f", "send g h"]
    play >> refused(second[0]) << []
    assert play.endpoints[0].batch_size_cap == 64
    third, fourth = calls("m n o p"), calls("q r s t")
    play.submit(*third) >> Woke() << ["send m n o p"]
    play.submit(*fourth) >> Woke()
    play >> refused(third[0])
    assert play.endpoints[0].batch_size_cap == 64
    play >> refused(fourth[0])
    assert play.endpoints[0].batch_size_cap == 2
