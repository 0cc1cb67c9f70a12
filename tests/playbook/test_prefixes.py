"""Calls whose prompts begin alike go next to each other, where prefixes are looked at."""

import pytest

from tests.core import Request, Woke
from tests.playbook.playbook import Playbook, calls, shape

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
