"""Calls whose prompts begin alike go next to each other, where prefixes are looked at."""

import pytest

from tests.core import EndpointAdded, EndpointRemoved, FixedLimit, Request, Submitted, Woke
from tests.playbook.playbook import Playbook, answered, calls, shape

LONG = shape(max_output_tokens=16)


def sharing(names, size=300):
    """Calls whose prompts begin alike where their names do: ``a1`` and ``a2`` are of one family."""
    return [
        Request(LONG, b'"' + name[0].encode() * size + name.encode() + b'"', prompt_tokens=80, waiter=name)
        for name in names.split()
    ]


def test_calls_with_short_prompts_keep_their_places_among_families():
    play = Playbook(64, max_size=2)
    a1, b1, a2 = sharing("a1 b1 a2")
    play.submit(a1, b1, *calls("x", LONG), a2) >> Woke() << ["send a1 a2", "send b1 x"]


def test_families_are_looked_at_from_the_first_long_prompt_on():
    play = Playbook(64, max_size=2)
    a1, a2 = sharing("a1 a2")
    (
        play.submit(*calls("x y", LONG, tokens=80), a1, *calls("z", LONG, tokens=80), a2)
        >> Woke()
        << ["send x y", "send a1 a2", "send z"]
    )


def test_prompts_that_share_less_than_256_bytes_keep_their_order():
    for size, sent in ((253, ["send a1 b1", "send a2 b2"]), (254, ["send a1 a2", "send b1 b2"])):
        play = Playbook(64, max_size=2)
        play.submit(*sharing("a1 b1 a2 b2", size)) >> Woke() << sent


@pytest.mark.parametrize("off", [{"group_prefixes": False}, {"order": "deadline"}, {"length_reach": 1}])
def test_where_prefixes_are_not_looked_at_calls_keep_their_order(off):
    play = Playbook(64, max_size=2, **off)
    play.submit(*sharing("a1 b1 a2 b2")) >> Woke() << ["send a1 b1", "send a2 b2"]


@pytest.mark.parametrize(("shared", "sent"), [(255, ["send a1 b1", "send a2 b2"]), (256, ["send a1 a2", "send b1 b2"])])
def test_a_family_shares_at_least_256_bytes(shared, sent):
    play = Playbook(64, max_size=2)
    prompts = {name: name[0] * shared + name[1] * 400 for name in ("a1", "b1", "a2", "b2")}
    for name, prompt in prompts.items():
        play.submit(Request(LONG, prompt.encode(), prompt_tokens=200, waiter=name))
    play >> Woke() << sent


def test_a_family_stays_on_its_server_while_that_is_at_most_a_quarter_more_loaded():
    play = Playbook(limit=[10, 10], max_size=1)
    first, *others = sharing("a1 a2 a3 a4 a5 a6")
    play.submit(first) >> Woke() << ["send a1 @0"]
    play.at(1.0) >> answered(first)
    # A server at its limit takes twice as long as an idle one: 1.3 is within a quarter above 1.1, 1.4 is not.
    for call, home in zip(others, (0, 0, 0, 1, 0), strict=True):
        play.submit(call) >> Woke() << [f"send {call.waiter} @{home}"]


def test_when_a_server_comes_or_goes_no_family_moves_but_to_it_or_from_it():
    play = Playbook(limit=[16, 16, 16], max_size=1)

    def homes(turn):
        found = {}
        for call in sharing(" ".join(f"{letter}{turn}" for letter in "abcdefghijkl")):
            play.submit(call) >> Woke()
            found[call.waiter[0]] = play.last.endpoint
            play.at(play.now + 1.0) >> answered(call)
        return found

    homes(1)  # the first of a family is of none
    before = homes(2)
    assert set(before.values()) == {0, 1, 2}
    play >> EndpointAdded(3, FixedLimit(16))
    after = homes(3)
    assert 0 < sum(after[one] != before[one] for one in before) < 6
    assert all(after[one] in (before[one], 3) for one in before)
    play >> EndpointRemoved(3) << ["gone @3"]
    assert homes(4) == before


def test_conversations_that_were_begun_go_before_those_that_were_not_though_these_wait_for_longer():
    play = Playbook(limit=2, max_size=1)
    a1, b1, c1, d1, a2, b2 = sharing("a1 b1 c1 d1 a2 b2")
    play.submit(a1, b1, c1, d1) >> Woke() << ["send a1", "send b1"]
    play.at(1.0).submit(a2, b2)
    play.at(1.1) >> answered(a1) << ["resolve a1", "send b2"]
    play.at(1.2) >> answered(b1) << ["resolve b1", "send a2"]
    play.at(1.3) >> answered(b2) << ["resolve b2", "send c1"]


def test_a_conversation_that_never_ends_goes_before_others_for_starvation_s_from_its_first_call():
    play, (other,) = Playbook(limit=1, max_size=1, starvation_s=3.0), sharing("b")
    # Each turn has all that was said before.
    turns = [Request(LONG, b'"' + b"a" * (300 << turn) + b'"', waiter=f"a{turn}") for turn in range(5)]
    play.submit(turns[0], other) >> Woke() << ["send a0"]
    for turn, went in ((1, "a1"), (2, "a2"), (3, "b"), (4, "a3")):
        play.at(turn - 0.1).submit(turns[turn])
        play.at(float(turn)) >> answered(play.last.requests[0])
        assert play.seen[1:] == [f"send {went}"]


def conversation(gap_s, limit=1, answer_s=1.0, turns=12):
    """A server that has answered a's turns, of which each came so long after the last answer; two more calls."""
    play = Playbook(limit, max_size=1, starvation_s=100.0)
    for turn in sharing(" ".join(f"a{turn}" for turn in range(turns))):
        play.at(play.now + gap_s).submit(turn) >> Woke()
        play.at(play.now + answer_s) >> answered(turn)
    return play, *sharing("b1 a12")


def test_a_permit_is_kept_for_a_conversations_next_turn_for_three_times_the_usual_gap():
    for comes in (True, False):
        play, other, coming = conversation(gap_s=0.02)
        answered_at = play.now
        play.submit(other) >> Woke() << []
        assert play.wakes_at == pytest.approx(answered_at + 0.06)
        if comes:
            play.at(answered_at + 0.05).submit(coming) >> Woke() << ["send a12"]
        else:
            play.at(play.wakes_at) >> Woke() << ["send b1"]


def test_a_permit_is_kept_where_the_conversation_is_and_for_a_tenth_of_a_second_at_most():
    play, other, _ = conversation(0.02, limit=[1, 1])
    assert {batch.endpoint for batch in play.sent} == {0}
    play.submit(other) >> Woke() << ["send b1 @1"]
    play, other, _ = conversation(0.09)
    play.submit(other) >> Woke() << []
    assert play.wakes_at == pytest.approx(play.now + 0.1)


def test_who_comes_back_after_more_than_an_eighth_of_the_time_of_an_answer_is_not_waited_for():
    for gap_s, kept in ((0.04, True), (0.06, False)):
        play, other, _ = conversation(gap_s, answer_s=0.4)
        play.submit(other) >> Woke() << ([] if kept else ["send b1"])


def test_who_was_not_yet_seen_to_come_back_more_often_than_not_is_not_waited_for():
    for turns, kept in ((7, False), (8, True)):
        play, other, _ = conversation(0.01, turns=turns)
        play.submit(other) >> Woke() << ([] if kept else ["send b1"])


def test_a_beginning_that_everybody_shares_binds_nobody_to_one_server():
    play, homes = Playbook(limit=[16, 16], max_size=1), set()
    for name in "a1 b1 c1 d1 e1 f1 a2 b2 c2 d2 e2 f2".split():
        call = Request(LONG, b'"' + b"h" * 1024 + name[0].encode() * 1024 + name.encode() + b'"', waiter=name)
        play.submit(call) >> Woke()
        homes |= {play.last.endpoint} if name[1] == "2" else set()
        play.at(play.now + 1.0) >> answered(call)
    assert homes == {0, 1}


def test_the_nearest_relatives_go_first_and_lists_of_any_length_keep_to_the_same_order():
    for size in (1, 2, 3, 64):
        play = Playbook(64, max_size=size)
        related = [
            Request(LONG, b'"' + b"".join(part.encode() * 1024 for part in name) + b'"', waiter=name)
            for name in ("haxx1", "i1", "hb1", "hayy", "haxx2", "i2", "hb2")
        ]
        play.submit(*related) >> Woke()
        order = [request.waiter for batch in play.sent for request in batch.requests]
        assert order == ["haxx1", "haxx2", "hayy", "hb1", "hb2", "i1", "i2"]
