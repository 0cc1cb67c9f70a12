"""What goes into a list, and how it is sent: caps, lengths, plain or streamed, singles, weights. Rules 5, 6, 7 and 9."""

import pytest

from tests.core import Cancelled, FailureKind, Kind, Retuned, SchedulerSettings, ServerKnown, Woke
from batchclient.errors import ReadTimedOut, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


def test_a_list_is_no_longer_than_max_list():
    play = Playbook(limit=64, max_size=3)
    play.submit(*calls("a b c d e f g")) >> Woke() << ["send a b c", "send d e f", "send g"]


def test_a_list_is_no_longer_than_the_free_permits():
    play = Playbook(limit=2)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b"]


def test_a_max_list_of_one_sends_singles_and_says_so():
    play = Playbook(limit=8, max_size=1)
    play.submit(*calls("a b")) >> Woke() << ["send a", "send b"]
    assert [batch.alone for batch in play.sent] == ["max_size is 1"] * 2


def test_a_lone_call_without_company_is_counted_as_such():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a"]
    assert play.alone == {"no company": 1}


def test_a_list_is_filled_from_the_oldest_calls_bucket_and_then_from_the_nearest():
    play = Playbook(limit=64, max_size=3)
    near, home, far = calls("near", tokens=200), calls("home", tokens=100), calls("far", tokens=5000)
    more = calls("more", tokens=100)
    play.submit(*home, *far, *near, *more) >> Woke() << ["send home more near", "send far"]


def test_a_reach_of_zero_keeps_lengths_apart():
    play = Playbook(limit=64, length_reach=0)
    short, long = calls("a b", tokens=1), calls("y z", tokens=1000)
    play.submit(short[0], long[0], short[1], long[1]) >> Woke() << ["send a b", "send y z"]


def test_the_length_of_a_call_is_that_of_its_prompt_and_of_its_expected_answer():
    play = Playbook(limit=64, length_reach=0)
    play.submit(*calls("a", tokens=1), *calls("b", tokens=14), *calls("c", tokens=16)) >> Woke()
    play << ["send a b", "send c"]


def test_a_reach_of_one_takes_the_neighbouring_bucket_only():
    play = Playbook(limit=64, length_reach=1)
    one, two, three = calls("one", tokens=100), calls("two", tokens=200), calls("three", tokens=400)
    play.submit(*one, *two, *three) >> Woke() << ["send one two", "send three"]


def test_a_call_of_a_rare_length_is_the_oldest_in_time():
    play = Playbook(limit=1, max_size=2)
    (long,), short = calls("long", tokens=9000), calls("a b c d", tokens=1)
    play.submit(short[0], long, *short[1:]) >> Woke() << ["send a"]
    play.at(1.0) >> answered(short[0]) << ["resolve a", "send long"]


def _two_lists(*, tokens, events, max_output_tokens=64, **settings):
    """Two lists of two, of which the first is streamed and answered with so many tokens and events for each."""
    play, of = Playbook(limit=64, **settings), shape(max_output_tokens=max_output_tokens)
    a, b, c, d = calls("a b c d", of)
    play.submit(a, b) >> Woke() << ["send a b"]
    assert play.last.streamed
    play.last.wire.events = 2 * events
    play.at(1.0) >> answered(a, b, tokens=tokens) << ["resolve a b"]
    play.submit(c, d) >> Woke() << ["send c d"]
    return play


def test_where_a_stream_sends_an_event_per_token_lists_that_end_together_go_plain():
    assert not _two_lists(tokens=60, events=60).last.streamed


@pytest.mark.parametrize(
    ("why", "seen"),
    [
        ("two events", {"tokens": 64, "events": 2}),
        ("answers of other lengths", {"tokens": 20, "events": 20}),
        ("too short to tell", {"tokens": 7, "events": 7, "max_output_tokens": 8}),
        ("an objective of first tokens", {"tokens": 64, "events": 64, "watches_first_tokens": True}),
        ("a long silence", {"tokens": 129, "events": 129, "max_output_tokens": 1025}),
    ],
)
def test_else_lists_are_streamed(why, seen):
    assert _two_lists(**seen).last.streamed


def _after_events(*, limit, tokens, max_output_tokens=400, **own):
    """A list of eight, answered with so many tokens and as many events for each, and eight more calls."""
    play, of = Playbook(limit=limit), shape(max_output_tokens=max_output_tokens, **own)
    first, later = calls("a b c d e f g h", of), calls("i j k l m n o p", of)
    play.submit(*first) >> Woke()
    assert play.last.streamed
    play.last.wire.events = 8 * tokens
    play.at(1.0) >> answered(*first, tokens=tokens) << ["resolve a b c d e f g h"]
    play.submit(*later) >> Woke()
    return play


def test_where_a_stream_sends_an_event_per_token_long_answers_go_plain_each_in_a_request_of_its_own():
    play = _after_events(limit=256, tokens=65)
    play << [f"send {name}" for name in "ijklmnop"]
    assert not any(batch.streamed for batch in play.sent[1:])
    assert [batch.alone for batch in play.sent[1:]] == ["a stream would send an event per token"] * 8


def test_under_a_higher_limit_they_go_in_short_plain_lists():
    for limit, tokens, lists in (
        (512, 20, ["i j k l m n", "o p"]),
        (512, 64, ["i j", "k l", "m n", "o p"]),
        (1024, 64, ["i j k l", "m n o p"]),
        (1024, 130, list("ijklmnop")),
    ):
        play = _after_events(limit=limit, tokens=tokens)
        play << [f"send {names}" for names in lists]
        assert not any(batch.streamed for batch in play.sent[1:])
    assert _after_events(limit=511, tokens=20).last.streamed


def test_short_answers_and_those_that_must_be_streamed_stay_in_streamed_lists():
    for seen in {"tokens": 64}, {"tokens": 65, "max_output_tokens": 1025}, {"tokens": 65, "echo": True}:
        play = _after_events(limit=256, **seen)
        play << ["send i j k l m n o p"]
        assert play.last.streamed, seen


def test_lists_are_streamed_again_once_a_plain_one_was_given_up_for_its_silence():
    play = _after_events(limit=512, tokens=64)
    play << ["send i j", "send k l", "send m n", "send o p"]
    play.at(61.0) >> failed(play.sent[1].requests[0], FailureKind.MAYBE_PROCESSED, error=ReadTimedOut)
    play.submit(*calls("q r", shape(max_output_tokens=400))) >> Woke() << ["send q r"]
    assert play.last.streamed


def test_a_server_known_to_send_an_event_per_token_gets_long_answers_plain_from_the_first_on():
    # An answer of which none was seen yet is taken for half of what it may be.
    for known, most, sent in (True, 130, ["send a", "send b"]), (True, 129, ["send a b"]), (None, 130, ["send a b"]):
        play = Playbook(limit=64)
        play >> ServerKnown(0, {}, server="vllm 0.25.1", event_per_token=known)
        play.submit(*calls("chat", shape(max_output_tokens=130, kind=Kind.CHAT))) >> Woke() << ["send chat"]
        assert play.last.streamed is (known is None), "kinds that come later"
        play.submit(*calls("a b", shape(max_output_tokens=most))) >> Woke() << sent
        assert play.last.streamed is (len(sent) == 1), (known, most)


def test_what_a_stream_sends_is_seen_anew_in_each():
    play = _two_lists(tokens=60, events=60)
    long, two, three = *calls("long", shape(max_output_tokens=2000)), *calls("two three", shape(max_output_tokens=64))
    play.submit(long) >> Woke() << ["send long"]
    assert play.last.streamed, "a gateway would cut so long a silence"
    play.last.wire.events = 2
    play.at(2.0) >> answered(long, tokens=60) << ["resolve long"]
    play.submit(two, three) >> Woke() << ["send two three"]
    assert play.last.streamed


def _chats(**settings):
    """Calls that take no lists, the first alone on an idle server of which nothing is known."""
    play = Playbook(limit=8, **settings)
    first, second, third = calls("first second third", shape(alone_reason="a chat", max_output_tokens=1024))
    play.submit(first, second) >> Woke() << ["send first", "send second"]
    return play, first, second, third


def test_lone_calls_go_plain_until_a_stream_has_told_that_it_sends_few_events():
    for events, streamed in ((2, True), (500, False)):
        play, first, second, third = _chats()
        assert [batch.streamed for batch in play.sent] == [True, False]
        play.sent[0].wire.events = events
        play.at(1.0) >> answered(first, tokens=500) << ["resolve first"]
        play >> answered(second, tokens=500) << ["resolve second"]
        play.submit(third) >> Woke() << ["send third"]
        assert play.last.streamed is streamed


def test_lone_calls_are_streamed_once_one_was_given_up_for_its_silence():
    for given_up in ({"error": ReadTimedOut}, {"error": ServerFault, "status": 504, "silent_s": 60.0}):
        play, _first, second, third = _chats()
        play.at(60.0) >> failed(second, FailureKind.MAYBE_PROCESSED, **given_up)
        play.submit(third) >> Woke() << ["send third"]
        assert play.last.streamed


def test_lone_calls_are_streamed_for_callers_for_objectives_and_where_they_may_take_long():
    asked = {"to_caller": True}, {"max_output_tokens": 1025}, {"max_output_tokens": None}
    for settings, own in (({"watches_first_tokens": True}, {}), *(({}, each) for each in asked)):
        play = Playbook(limit=8, **settings)
        play.submit(*calls("a b", shape(**{"alone_reason": "a chat", "max_output_tokens": 64} | own))) >> Woke()
        assert [batch.streamed for batch in play.sent] == [True, True], own or settings
    play = Playbook(limit=8)
    play.submit(*calls("a b", shape(alone_reason="a chat", max_output_tokens=1024))) >> Woke()
    assert [batch.streamed for batch in play.sent] == [True, False]


def test_lists_that_cannot_stream_are_for_short_answers_and_for_those_seen_to_end_together():
    for bound, most, seen, together in (
        # Four times as many where the answers seen filled what they may be.
        (32, 32, None, True),
        (32, 33, None, False),
        (32, None, None, False),
        (32, 2000, 12, True),
        (32, 100, 75, True),
        (32, 100, 74, False),
        (32, 128, 128, True),
        (32, 129, 129, False),
        (64, 64, None, True),
        (64, 65, None, False),
        (64, 256, 256, True),
        (64, 257, 257, False),
    ):
        play, of = (
            Playbook(limit=8, list_tokens=512, chat_list_tokens=bound),
            shape(max_output_tokens=most, lists_plain=True),
        )
        if seen:
            play.submit(*calls("x", of)) >> Woke()
            play >> answered(play.last.requests[0], tokens=seen)
        play.submit(*calls("a b", of)) >> Woke()
        assert play.seen == (["send a b"] if together else ["send a", "send b"]), (bound, most, seen)
        assert play.last.alone == ("" if together else "long output expected, and the list cannot stream")


def test_what_ends_at_once_goes_plain_unless_the_prompt_comes_back_or_somebody_reads_along():
    for most, own, streamed in (
        *((most, {}, most not in (0, 1, 4)) for most in (0, 1, 4, 5, None)),
        *((most, {"echo": True}, most != 0) for most in (0, 1, 4, 5)),
        (1, {"to_caller": True}, True),
        (None, {"plain_only": True}, False),
    ):
        play = Playbook()
        play.submit(*calls("a b", shape(max_output_tokens=most, **own))) >> Woke() << ["send a b"]
        assert play.last.streamed is streamed, (most, own)


def test_a_table_of_the_users_makes_no_list_shorter_than_a_call_nor_cuts_what_is_left_of_one():
    play = Playbook(limit=8, size_for=lambda depth: 3 if depth == 3 else -5)
    a, b, c = calls("a b c", shape())
    play.submit(*calls("x")) >> Woke() << ["send x"]
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play >> answered(a) << ["resolve a"]
    play >> failed(b, FailureKind.MAYBE_PROCESSED, delay=0.0) << ["send b c"]
    play.submit(*calls("y")) >> Woke() << ["send y"]


def test_long_outputs_are_learnt_and_sent_singly():
    play = Playbook(limit=8, list_tokens=256)
    long = shape(max_output_tokens=2000)
    a, b, c, d = calls("a b c d", long)
    # The first guess is 256 tokens, which is not above 256.
    play.submit(a, b) >> Woke() << ["send a b"]
    play.at(1.0) >> answered(a, b, tokens=1500) << ["resolve a b"]
    play.at(2.0).submit(c, d) >> Woke() << ["send c", "send d"]
    assert [batch.alone for batch in play.sent[1:]] == ["long output expected"] * 2


@pytest.mark.parametrize(("tokens", "sent"), [(272, ["send c d"]), (400, ["send c", "send d"])])
def test_short_outputs_of_a_long_shape_bring_its_lists_back_by_and_by(tokens, sent):
    play = Playbook(limit=8, list_tokens=256)
    long = shape(max_output_tokens=2000)
    a, b, c, d = calls("a b c d", long)
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> answered(a, tokens=tokens) << ["resolve a"]
    play.at(2.0).submit(b) >> Woke() << ["send b"]
    play.at(3.0) >> answered(b, tokens=10) << ["resolve b"]
    # The mean moves by a tenth: to 245.8, and to 361.
    play.at(4.0).submit(c, d) >> Woke() << sent


def test_permits_are_counted_in_sequences():
    play = Playbook(limit=8)
    play.submit(*calls("a b c", shape(weight=3))) >> Woke() << ["send a b"]
    assert play.in_flight == 6


def test_a_call_heavier_than_the_limit_runs_alone_once_nothing_is_in_flight():
    play = Playbook(limit=4)
    (light, after), (heavy,) = calls("light after", shape()), calls("heavy", shape(weight=10))
    play.submit(light) >> Woke() << ["send light"]
    play.at(0.1).submit(heavy) >> Woke() << []
    play.at(0.2) >> answered(light) << ["resolve light", "send heavy"]
    assert play.in_flight == 10
    play.at(0.3).submit(after) >> Woke() << []
    play.at(0.4) >> answered(heavy) << ["resolve heavy", "send after"]


def test_two_heavy_calls_never_run_side_by_side():
    play = Playbook(limit=4)
    x, y = calls("x y", shape(weight=10))
    play.submit(x, y) >> Woke() << ["send x"]
    play.at(1.0) >> answered(x) << ["resolve x", "send y"]


@pytest.mark.parametrize("groups", [15, 16, 500])
def test_younger_calls_pass_hundreds_of_heavy_ones_for_which_too_few_permits_are_free(groups):
    play = Playbook(limit=8)
    (first,), (light,) = calls("first", shape(weight=5)), calls("light")
    heavy = [calls(f"h{number}", shape(weight=4))[0] for number in range(groups)]
    play.submit(first) >> Woke() << ["send first"]
    play.submit(*heavy) >> Woke() << []
    play.submit(light) >> Woke() << ["send light"]
    # The heavy ones keep their places.
    play.at(1.0) >> answered(first) << ["resolve first", "send h0"]
    play >> Cancelled(heavy[1]) << []
    play.at(2.0) >> answered(light) << ["resolve light", "send h2"]


def test_younger_calls_pass_a_heavy_one_until_the_starvation_bound():
    play = Playbook(limit=4, starvation_s=5.0)
    light, (heavy,) = calls("a b c d", shape()), calls("heavy", shape(weight=4))
    a, b, c, d = light
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(heavy) >> Woke() << []
    play.at(2.0).submit(b) >> Woke() << ["send b"]
    play.at(5.9).submit(c) >> Woke() << ["send c"]
    play.at(6.0).submit(d) >> Woke() << []
    play.at(7.0) >> answered(a) << ["resolve a"]
    play.at(7.1) >> answered(b) << ["resolve b"]
    play.at(7.2) >> answered(c) << ["resolve c", "send heavy"]
    play.at(8.0) >> answered(heavy) << ["resolve heavy", "send d"]


def test_a_max_list_that_is_set_anew_is_told_for_the_kinds_in_use():
    play = Playbook(limit=8, max_size=4)
    (call,) = calls("vector", shape(max_output_tokens=None, kind=Kind.EMBEDDING, plain_only=True))
    play.submit(call) >> Woke()
    play >> Retuned(SchedulerSettings(max_size=2))
    assert play.adjusted == [
        "batch_size_cap 4 -> 2: set by the caller",
        "batch_size_cap of embedding 4 -> 2: set by the caller",
    ]
    play >> Retuned(SchedulerSettings(max_size=2, linger_s=0.1))
    assert play.adjusted == []


def test_what_a_server_was_found_to_take_is_told():
    play = Playbook(limit=8, max_size=4)
    (call,) = calls("chat", shape(kind=Kind.CHAT))
    play.submit(call) >> Woke()
    play >> ServerKnown(0, {Kind.CHAT: 1}, server="other 1.0")
    assert play.adjusted == ["batch_size_cap of chat 4 -> 1: it was found to be other 1.0"]
    play >> ServerKnown(0, {})
    assert play.adjusted == ["batch_size_cap of chat 1 -> 4: it was found to be no server that is known"]


def test_chats_share_a_list_up_to_32_expected_tokens_and_up_to_128_where_answers_were_seen_to_end_together():
    for most, listed in ((32, True), (33, False), (128, False)):
        play = Playbook(8)
        play.submit(*calls("a b", shape(lists_plain=True, max_output_tokens=most))) >> Woke()
        play << (["send a b"] if listed else ["send a", "send b"])
    # Answers of three quarters of max_tokens or more end together.
    for most, seen, listed in ((128, 128, True), (129, 129, False), (128, 96, True), (128, 95, False)):
        play, of = Playbook(8), shape(lists_plain=True, max_output_tokens=most)
        (first,) = calls("first", of)
        play.submit(first) >> Woke() >> answered(first, tokens=seen)
        play.submit(*calls("a b", of)) >> Woke() << (["send a b"] if listed else ["send a", "send b"])


def test_answers_of_which_none_was_seen_are_expected_to_have_256_tokens_or_max_tokens_if_that_is_less():
    for bound, most, listed in ((256, None, True), (255, None, False), (255, 1000, False), (255, 255, True)):
        play = Playbook(8, list_tokens=bound)
        play.submit(*calls("a b", shape(max_output_tokens=most))) >> Woke()
        play << (["send a b"] if listed else ["send a", "send b"])
