"""Calls whose prompts begin alike go next to each other, where prefixes are looked at."""

import pytest

from tests.core import Request, Woke
from tests.playbook.playbook import Playbook, answered, calls, shape

LONG = shape(max_output_tokens=16)


def sharing(names):
    """Calls whose prompts begin alike where their names do: ``a1`` and ``a2`` are of one family."""
    return [
        Request(LONG, b'"' + name[0].encode() * 300 + name.encode() + b'"', prompt_tokens=80, waiter=name)
        for name in names.split()
    ]


def test_calls_of_a_family_share_a_list():
    play = Playbook(64, max_size=2)
    play.submit(*sharing("a1 b1 a2 b2")) >> Woke() << ["send a1 a2", "send b1 b2"]


def test_calls_with_short_prompts_keep_their_places_among_families():
    play = Playbook(64, max_size=2)
    a1, b1, a2 = sharing("a1 b1 a2")
    play.submit(a1, b1, *calls("x", LONG), a2) >> Woke() << ["send a1 a2", "send b1 x"]


@pytest.mark.parametrize("off", [{"group_prefixes": False}, {"order": "deadline"}, {"length_reach": 1}])
def test_where_prefixes_are_not_looked_at_calls_keep_their_order(off):
    play = Playbook(64, max_size=2, **off)
    play.submit(*sharing("a1 b1 a2 b2")) >> Woke() << ["send a1 b1", "send a2 b2"]


def test_a_permit_is_kept_for_a_conversations_next_turn_for_a_tenth_of_a_second_at_most():
    play = Playbook(limit=1, max_size=1, starvation_s=60.0)
    # Each turn is served in a second, and comes 80 ms after the last answer.
    for turn in range(8):
        (call,) = sharing(f"a{turn}")
        play.at(play.now + 0.08).submit(call) >> Woke() << [f"send a{turn}"]
        play.at(play.now + 1.0)
        if turn < 7:
            play >> answered(call) << [f"resolve a{turn}"]
    play.submit(*sharing("b")) >> answered(call) << ["resolve a7"]
    at = play.now + 0.1
    play.at(at - 0.001) >> Woke() << []
    play.at(at) >> Woke() << ["send b"]
