"""Calls whose prompts begin alike go next to each other, where prefixes are looked at."""

import pytest

from tests.core import Request, Submitted, Woke
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


@pytest.mark.parametrize(("shared", "sent"), [(255, ["send a1 b1", "send a2 b2"]), (256, ["send a1 a2", "send b1 b2"])])
def test_a_family_shares_at_least_256_bytes(shared, sent):
    play = Playbook(64, max_size=2)
    prompts = {name: name[0] * shared + name[1] * 400 for name in ("a1", "b1", "a2", "b2")}
    for name, prompt in prompts.items():
        play.submit(Request(LONG, prompt.encode(), prompt_tokens=200, waiter=name))
    play >> Woke() << sent


@pytest.mark.parametrize(
    ("gap_s", "service_s", "turns", "kept_s"),
    [
        # Three times the usual gap, a tenth of a second at most.
        (0.01, 1.0, 8, 0.03),
        (0.08, 1.0, 8, 0.1),
        # It comes back after more than an eighth of the time of an answer; or was not seen to come back often enough.
        (0.08, 0.6, 8, 0.0),
        (0.01, 1.0, 7, 0.0),
    ],
)
def test_a_permit_is_kept_for_a_conversations_next_turn_for_a_moment(gap_s, service_s, turns, kept_s):
    play = Playbook(limit=1, max_size=1, starvation_s=60.0)
    for turn in range(turns):
        (call,) = sharing(f"a{turn}")
        play.at(play.now + gap_s).submit(call) >> Woke() << [f"send a{turn}"]
        play.at(play.now + service_s)
        if turn < turns - 1:
            play >> answered(call) << [f"resolve a{turn}"]
    play.submit(*sharing("b")) >> answered(call)
    play << [f"resolve a{turn}", *(["send b"] if not kept_s else [])]
    if kept_s:
        at = play.now + kept_s
        play.at(at - 0.001) >> Woke() << []
        play.at(at + 0.0001) >> Woke() << ["send b"]
