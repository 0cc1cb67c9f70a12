"""What a server says of its load reaches its limit, and nobody else's."""

from tests.core import (
    Limit,
    Search,
    LoadReported,
    ServerLoad,
    Woke,
)
from tests.playbook.playbook import Playbook, answered, calls


class Runs(Search):
    """As many as the server says that it runs."""

    def on_load(self, load, in_flight, now, took_s=0.0):
        self.limit, self.reason = int(load.running), f"{load.waiting:g} wait beside {in_flight}"


def play_with(*limits):
    return Playbook([Limit(Runs(limit)) for limit in limits])


def loaded(running, waiting=0, endpoint=0):
    return LoadReported(endpoint, ServerLoad(running=running, waiting=waiting))


def test_it_reaches_the_limit_of_that_server_alone():
    play = play_with(8, 8)
    play.submit(*calls(16)) >> Woke()
    play >> loaded(6, 2, endpoint=1) << []
    assert [each.limit for each in play.endpoints] == [8, 6]
    assert [(each.endpoint, each.old, each.new, each.reason) for each in play.adjustments] == [
        (1, 8, 6, "2 wait beside 8")
    ]


def test_what_is_above_the_lowered_limit_waits():
    play = play_with(8)
    several = calls(9)
    play.submit(*several) >> Woke() << ["send c0 c1 c2 c3 c4 c5 c6 c7"]
    play >> loaded(6, 2) << []
    play >> answered(several[0], several[1]) << ["resolve c0 c1"]
    play >> answered(several[2]) << ["resolve c2", "send c8"]


def test_a_limit_that_rises_lets_calls_go_at_once():
    play = play_with(4)
    play.submit(*calls(6)) >> Woke() << ["send c0 c1 c2 c3"]
    play >> loaded(5) << ["send c4"]


def test_a_number_that_was_given_does_not_listen():
    play = Playbook(limit=8)
    play.submit(*calls(8)) >> Woke()
    play >> loaded(4, 4) << []
    assert play.adjustments == ()
